//! OpenTelemetry for a service: reads the `OTEL_*` variables, logs the destinations, and ends the
//! exports with the service.

use std::sync::Arc;

use exec_server_telemetry::otlp::{
    Destination, Exporter, OtlpError, OtlpSettings, Service, TlsFiles, Tracer,
};
use exec_server_telemetry::{MetricsRegistry, MetricsSnapshot};
use exec_server_transport::{ClientIdentity, ServerTrust, TlsError, TlsOptions, client_config};

use super::serve::Signals;

#[derive(Debug, thiserror::Error)]
pub enum ExportSetupError {
    #[error(transparent)]
    Otlp(#[from] OtlpError),
    #[error("cannot use the certificates for the OpenTelemetry collector: {0}")]
    Tls(#[source] TlsError),
}

/// Reads the settings from the environment of this process. `None` if nothing is exported.
pub(super) fn settings(name: &'static str) -> Result<Option<OtlpSettings>, OtlpError> {
    let service = Service { name, version: env!("CARGO_PKG_VERSION") };
    let variable =
        |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let Some(settings) = OtlpSettings::read(service, variable)? else { return Ok(None) };
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    let shown = |destination: Option<&Destination>| destination.map(ToString::to_string);
    let traces = shown(settings.traces.as_ref().map(|traces| &traces.destination));
    let metrics = shown(settings.metrics.as_ref().map(|metrics| &metrics.destination));
    tracing::info!(traces, metrics, "exporting telemetry");
    Ok(Some(settings))
}

/// The exports of a running service; empty if none are configured.
#[derive(Debug)]
pub(super) struct Export(Option<(OtlpSettings, Exporter)>);

impl Export {
    pub(super) fn new(settings: Option<OtlpSettings>, registry: &MetricsRegistry) -> Self {
        Self(settings.map(|settings| {
            let exporter = Exporter::new(&settings, registry);
            (settings, exporter)
        }))
    }

    /// Returns `None` if traces are not exported. Like [`Self::metrics`], must be called within a
    /// runtime.
    pub(super) fn traces(&mut self) -> Result<Option<Tracer>, ExportSetupError> {
        let Some((OtlpSettings { traces: Some(traces), .. }, exporter)) = &mut self.0 else {
            return Ok(None);
        };
        let tls = tls(&traces.destination)?;
        Ok(Some(exporter.export_traces(traces, tls)?))
    }

    pub(super) fn metrics(
        &mut self,
        read: impl Fn() -> Option<MetricsSnapshot> + Send + 'static,
    ) -> Result<(), ExportSetupError> {
        let Some((OtlpSettings { metrics: Some(metrics), .. }, exporter)) = &mut self.0 else {
            return Ok(());
        };
        let tls = tls(&metrics.destination)?;
        Ok(exporter.export_metrics(metrics, tls, read)?)
    }

    /// Flushes the remaining telemetry within a bounded time. A signal ends it at once.
    pub(super) async fn finish(self, signals: &mut Signals) {
        let Some((_, exporter)) = self.0 else { return };
        tokio::select! {
            () = exporter.shutdown() => {}
            _ = signals.next() => {}
        }
    }
}

/// Reads certificate files, so it blocks briefly. Returns `None` for a destination without TLS.
fn tls(destination: &Destination) -> Result<Option<Arc<rustls::ClientConfig>>, ExportSetupError> {
    if !destination.is_encrypted() {
        return Ok(None);
    }
    let TlsFiles { authorities, identity } = destination.tls.clone();
    let options = TlsOptions {
        trust: authorities.map_or(ServerTrust::SystemRoots, ServerTrust::Authorities),
        identity: identity.map(|(certificate, key)| ClientIdentity { certificate, key }),
    };
    client_config(&options).map(Some).map_err(ExportSetupError::Tls)
}
