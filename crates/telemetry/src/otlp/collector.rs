//! One export: a POST to the collector, retried while a retry may succeed and the timeout permits.

use std::error::Error as _;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use prost::Message as _;
use reqwest::StatusCode;
use reqwest::header::{CONTENT_TYPE, RETRY_AFTER};
use rustls::{ClientConfig, RootCertStore};
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

use super::messages::ExportResponse;
use super::settings::{Destination, OtlpError, Service};

/// The pause before the first retry. Doubled for each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// How much of a response is read. The relevant part is at its beginning.
const MAX_RESPONSE_BYTES: usize = 4 << 10;

/// The text contains neither the URL nor headers, which may hold credentials.
#[derive(Debug, Error)]
pub(super) enum ExportError {
    #[error("the collector did not accept the export within {} ms", .0.as_millis())]
    TimedOut(Duration),
    #[error("cannot reach the collector")]
    Unreachable(#[source] reqwest::Error),
    #[error("the collector refused the export with status {status}")]
    Refused { status: StatusCode, retry_after: Option<Duration> },
    #[error("the request to the collector panicked")]
    Panicked,
}

impl ExportError {
    /// Returns whether a retry may succeed. The status codes are those that OTLP lists.
    fn is_temporary(&self) -> bool {
        match self {
            Self::Unreachable(_) => true,
            Self::Refused { status, .. } => matches!(status.as_u16(), 429 | 502 | 503 | 504),
            Self::TimedOut(_) | Self::Panicked => false,
        }
    }

    pub(super) fn explain(&self) -> String {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        text
    }
}

/// The receiver of one signal.
#[derive(Debug, Clone)]
pub(super) struct Collector {
    http: reqwest::Client,
    pub(super) destination: Destination,
}

impl Collector {
    /// An encrypted destination needs `tls`.
    pub(super) fn new(
        destination: Destination,
        service: Service,
        tls: Option<Arc<ClientConfig>>,
    ) -> Result<Self, OtlpError> {
        let tls = tls.map_or_else(trusting_none, |tls| tls.as_ref().clone());
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            // A redirect would pass the headers to another host.
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(format!("exec-server-otlp/{}", service.version))
            .build()
            .map_err(|error| OtlpError::Client(error.without_url()))?;
        Ok(Self { http, destination })
    }

    /// Exports `body`. Returns the number of spans or data points that the collector rejected.
    /// Returns soon after `stop`, unless the collector hangs.
    pub(super) async fn export(
        &self,
        body: Vec<u8>,
        stop: &mut watch::Receiver<bool>,
    ) -> Result<u64, ExportError> {
        // The name lookup panics if no thread can be started for it.
        let exported = AssertUnwindSafe(self.attempt_all(body.into(), stop)).catch_unwind();
        exported.await.unwrap_or(Err(ExportError::Panicked))
    }

    async fn attempt_all(
        &self,
        body: Bytes,
        stop: &mut watch::Receiver<bool>,
    ) -> Result<u64, ExportError> {
        let timeout = self.destination.timeout;
        let deadline = Instant::now() + timeout;
        let mut pause = FIRST_PAUSE;
        loop {
            let attempt = timeout_at(deadline, self.attempt(body.clone())).await;
            let error = match attempt.unwrap_or(Err(ExportError::TimedOut(timeout))) {
                Ok(rejected) => return Ok(rejected),
                Err(error) => error,
            };
            let asked = match &error {
                ExportError::Refused { retry_after, .. } => *retry_after,
                _ => None,
            };
            let wait = pause.mul_f64(rand::random_range(0.5..1.0)).max(asked.unwrap_or_default());
            if !error.is_temporary() || wait >= deadline.saturating_duration_since(Instant::now()) {
                return Err(error);
            }
            tokio::select! {
                () = sleep(wait) => {}
                () = stopped(stop) => return Err(error),
            }
            pause *= 2;
        }
    }

    async fn attempt(&self, body: Bytes) -> Result<u64, ExportError> {
        let unreachable = |error: reqwest::Error| ExportError::Unreachable(error.without_url());
        let request = self
            .http
            .post(self.destination.url.clone())
            .headers(self.destination.headers.clone())
            .header(CONTENT_TYPE, "application/x-protobuf")
            .body(body);
        let mut response = request.send().await.map_err(unreachable)?;
        let status = response.status();
        if !status.is_success() {
            let retry_after = response.headers().get(RETRY_AFTER);
            let seconds = retry_after.and_then(|value| value.to_str().ok()?.parse().ok());
            let retry_after = seconds.map(Duration::from_secs);
            return Err(ExportError::Refused { status, retry_after });
        }
        let mut answer = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(unreachable)? {
            if answer.len() + chunk.len() > MAX_RESPONSE_BYTES {
                break;
            }
            answer.extend_from_slice(&chunk);
        }
        Ok(rejected(&answer))
    }
}

pub(super) async fn stopped(stop: &mut watch::Receiver<bool>) {
    // An error means that the exporter was dropped, which is a stop, too.
    let _ = stop.wait_for(|is_stopped| *is_stopped).await;
}

/// An unreadable response counts as 0.
fn rejected(answer: &[u8]) -> u64 {
    let response = ExportResponse::decode(answer).unwrap_or_default();
    let rejected = response.partial_success.map_or(0, |partial| partial.rejected);
    u64::try_from(rejected).unwrap_or(0)
}

/// Creates a TLS configuration without authorities: reqwest requires one even for destinations
/// without TLS.
fn trusting_none() -> ClientConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider knows the default versions")
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::otlp::messages::PartialSuccess;

    #[test]
    fn the_rejected_count_is_read_from_the_response() {
        let answer = |rejected| {
            let partial_success = Some(PartialSuccess { rejected });
            ExportResponse { partial_success }.encode_to_vec()
        };
        assert_eq!(rejected(&answer(3)), 3);
        assert_eq!(rejected(&answer(-3)), 0);
        assert_eq!(rejected(b""), 0);
        assert_eq!(rejected(b"<html>\xff"), 0);
    }

    #[test]
    fn only_temporary_errors_are_retried() {
        for (status, is_temporary) in
            [(400, false), (401, false), (413, false), (429, true), (500, false), (503, true)]
        {
            let status = StatusCode::from_u16(status).unwrap();
            let error = ExportError::Refused { status, retry_after: None };
            assert_eq!(error.is_temporary(), is_temporary, "{status}");
        }
        assert!(!ExportError::TimedOut(Duration::from_secs(1)).is_temporary());
    }
}
