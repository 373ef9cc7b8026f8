//! Decides which requests to a server's listener become connections: by names, credentials and
//! limits.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use exec_server_protocol::{Principal, Role, Subject};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use hyper::{Method, Request, Response, StatusCode};
use tokio::time::{Instant, sleep};

use super::accept::{Admission, Client, Decision};
use super::gate::{Answer, Gate, answer, asks_for_upgrade, only_get};
use super::monitor::{ListenerMonitor, Refusal, RefusalReason};
use crate::auth::{
    AmbiguousToken, Authenticator, FailedAttempts, TokenError, find_token, selected_subprotocol,
};
use crate::connection::Peer;
use crate::subject_limits::{Full as LimitReached, SubjectLimits, SubjectPermit};

pub(super) struct ClientAdmission {
    pub(super) gate: Gate,
    pub(super) identification: Identification,
    pub(super) failed_attempts: Mutex<FailedAttempts>,
    pub(super) limits: Arc<SubjectLimits>,
    pub(super) handshake_timeout: Duration,
    pub(super) monitor: Option<Arc<dyn ListenerMonitor>>,
}

pub(super) enum Identification {
    /// By the user at the other end of a local socket.
    User(fn(&Peer) -> Option<Subject>),
    Certificate,
    Token {
        authenticator: Arc<Authenticator>,
        and_certificate: bool,
    },
}

#[derive(Debug, thiserror::Error)]
enum AuthFailure {
    #[error("no token")]
    NoToken,
    #[error("several different tokens; send only one")]
    AmbiguousToken,
    #[error("no client certificate with a DNS name or URI among its subject alternative names")]
    NoCertificate,
    #[error("the token is refused: {0}")]
    Token(#[from] TokenError),
}

impl Admission for ClientAdmission {
    type Grant = (Principal, SubjectPermit);

    async fn decide(&self, request: Request<Incoming>, client: &Client) -> Decision<Self::Grant> {
        if let Err(answer) = self.gate.admit(&request) {
            if answer.status == StatusCode::FORBIDDEN {
                self.report(client.peer.as_ref(), RefusalReason::Name);
            }
            return Decision::Answer(answer.into_response());
        }
        let principal = match self.check_credentials(&request, client) {
            Ok(principal) => principal,
            Err(failure) => {
                self.report(client.peer.as_ref(), RefusalReason::Credentials);
                let delay = self.note_failure(client, &failure);
                drop(request);
                sleep(delay).await;
                return Decision::Answer(unauthorized().into_response());
            }
        };
        if let Some(response) = self.answer_metrics(&request, client, principal.as_ref()) {
            return Decision::Answer(response);
        }
        match self.admit(&request, client, principal) {
            Err(answer) => Decision::Answer(answer.into_response()),
            Ok((key, principal, permit)) => {
                self.note_success(client, &principal);
                let subprotocol = selected_subprotocol(request.headers());
                Decision::Upgrade { key, subprotocol, grant: (principal, permit) }
            }
        }
    }

    fn note_failed_handshake(&self, peer: Option<&Peer>) {
        self.report(peer, RefusalReason::Tls);
    }
}

impl ClientAdmission {
    /// Returns the principal that a request's credentials prove, or `None` if this listener
    /// identifies the user instead.
    fn check_credentials<B>(
        &self,
        request: &Request<B>,
        client: &Client,
    ) -> Result<Option<Principal>, AuthFailure> {
        let certificate = || client.certificate.clone().ok_or(AuthFailure::NoCertificate);
        match &self.identification {
            Identification::User(_) => Ok(None),
            Identification::Certificate => {
                Ok(Some(Principal::new(Subject::Certificate(certificate()?))))
            }
            Identification::Token { authenticator, and_certificate } => {
                if *and_certificate {
                    certificate()?;
                }
                let token = find_token(request)
                    .map_err(|AmbiguousToken| AuthFailure::AmbiguousToken)?
                    .ok_or(AuthFailure::NoToken)?;
                Ok(Some(authenticator.authenticate(&token, SystemTime::now())?))
            }
        }
    }

    /// Answers a request for metrics; returns `None` for any other request. Metrics require the
    /// role `admin` if tokens have roles, and otherwise the credentials that the listener requires
    /// of every client, if any.
    fn answer_metrics<B>(
        &self,
        request: &Request<B>,
        client: &Client,
        principal: Option<&Principal>,
    ) -> Option<Response<Full<Bytes>>> {
        if request.uri().path() != "/metrics" || asks_for_upgrade(request.headers()) {
            return None;
        }
        let text = self.monitor.as_ref()?.metrics()?;
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return Some(only_get().into_response());
        }
        // A capability token has no role: a server has only one such token.
        let has_role = match &self.identification {
            Identification::Token { authenticator, .. } => authenticator.has_roles(),
            Identification::Certificate | Identification::User(_) => false,
        };
        if has_role && principal.is_none_or(|it| it.role != Role::Admin) {
            self.report(client.peer.as_ref(), RefusalReason::Credentials);
            let text = "metrics require a token with the role admin";
            return Some(answer(StatusCode::FORBIDDEN, text).into_response());
        }
        let mut response = Response::new(Full::from(text));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; version=0.0.4"));
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
        Some(response)
    }

    fn admit<B>(
        &self,
        request: &Request<B>,
        client: &Client,
        principal: Option<Principal>,
    ) -> Result<(HeaderValue, Principal, SubjectPermit), Answer> {
        let key = self.gate.route(request)?;
        let principal = match (principal, &self.identification) {
            (Some(principal), _) => Some(principal),
            (None, Identification::User(identify)) => {
                client.peer.as_ref().and_then(identify).map(Principal::new)
            }
            (None, _) => None,
        };
        let principal = principal.ok_or_else(|| {
            self.report(client.peer.as_ref(), RefusalReason::OtherUser);
            other_user()
        })?;
        let permit = self.limits.admit(&principal.subject).map_err(|reached| {
            self.report(client.peer.as_ref(), RefusalReason::Limit);
            full(reached)
        })?;
        Ok((key, principal, permit))
    }

    fn report(&self, peer: Option<&Peer>, reason: RefusalReason) {
        let address = match peer {
            Some(Peer::Tcp { remote, .. }) => Some(*remote),
            Some(Peer::Unix { .. }) | None => None,
        };
        if let Some(monitor) = &self.monitor {
            monitor.refused(&Refusal { address, reason });
        }
    }

    /// Logs only clients with credentials, since local commands connect all the time.
    fn note_success(&self, client: &Client, principal: &Principal) {
        if let (Identification::Certificate | Identification::Token { .. }, Some(peer)) =
            (&self.identification, &client.peer)
            && let Peer::Tcp { remote, .. } = peer
        {
            let Principal { subject, role, .. } = principal;
            tracing::info!(address = %remote.ip(), %subject, ?role, "admitted a client");
        }
    }

    /// Counts and logs a failure. Returns the delay of the refusal.
    fn note_failure(&self, client: &Client, failure: &AuthFailure) -> Duration {
        let Some(Peer::Tcp { remote, .. }) = &client.peer else { return Duration::ZERO };
        let address = remote.ip();
        let delay = {
            let attempts = self.failed_attempts.lock();
            let mut attempts = attempts.expect("no code panics while it holds the attempts");
            // A refusal after the handshake timeout would not arrive.
            attempts.delay(address, Instant::now()).min(self.handshake_timeout / 2)
        };
        if delay.is_zero() {
            tracing::info!(%address, reason = %failure, "refused a client");
        } else {
            tracing::debug!(%address, reason = %failure, ?delay, "refused a client");
        }
        delay
    }
}

fn unauthorized() -> Answer {
    let refusal = answer(StatusCode::UNAUTHORIZED, "valid credentials are required");
    refusal.with(WWW_AUTHENTICATE, "Bearer")
}

fn other_user() -> Answer {
    let text = "only the server's user and root may connect; allow_other_users admits others";
    answer(StatusCode::FORBIDDEN, text)
}

fn full(full: LimitReached) -> Answer {
    match full {
        LimitReached::Server => {
            let text = "the server has as many connections as max_connections allows";
            answer(StatusCode::SERVICE_UNAVAILABLE, text)
        }
        LimitReached::Subject => {
            let text = "this client has as many connections as max_connections_per_subject allows";
            answer(StatusCode::TOO_MANY_REQUESTS, text)
        }
    }
}
