//! The operator's view of a server: the audit log from the settings, `GET /metrics`, and exports to
//! an OpenTelemetry collector.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use exec_server_relay::RelayCounters;
use exec_server_server::{Audit, Server, Telemetry};
use exec_server_telemetry::otlp::OtlpSettings;
use exec_server_telemetry::{AuditError, AuditLog, MetricsRegistry};
use exec_server_transport::{ListenerMonitor, Refusal};

use super::otlp::Export;
use super::serve::ServeError;
use crate::config::Settings;

#[derive(Debug)]
pub(super) struct Monitor {
    pub(super) telemetry: Arc<Telemetry>,
    pub(super) audit_log: Option<Arc<AuditLog>>,
    serves_metrics: bool,
    /// Set later, since listeners are bound before the server exists.
    server: OnceLock<Server>,
    relay: Arc<OnceLock<Arc<RelayCounters>>>,
}

impl Monitor {
    /// Must be called within a runtime, which runs the exports.
    pub(super) fn new(
        settings: &Settings,
        otlp: Option<OtlpSettings>,
    ) -> Result<(Arc<Self>, Export), ServeError> {
        let audit_log = settings.audit_target()?.map(AuditLog::open).transpose();
        let audit_log = audit_log.map_err(audit_failed)?.map(Arc::new);
        let audit = audit_log.as_ref().map(|log| Audit {
            log: Arc::clone(log),
            commands: settings.audit_commands,
            required: settings.audit_required,
        });
        let mut telemetry = Telemetry::new(audit);
        let relay = Arc::default();
        register_relay_metrics(telemetry.registry(), &relay);
        let mut export = Export::new(otlp, telemetry.registry());
        if let Some(tracer) = export.traces()? {
            telemetry.set_tracer(tracer);
        }
        let monitor = Arc::new(Self {
            telemetry: Arc::new(telemetry),
            audit_log,
            serves_metrics: settings.metrics,
            server: OnceLock::new(),
            relay,
        });
        let read = Arc::clone(&monitor);
        export.metrics(move || read.server.get().map(Server::metrics))?;
        Ok((monitor, export))
    }

    pub(super) fn watch(&self, server: &Server) {
        // A second server would be a bug in the caller; the first one is kept.
        let _ = self.server.set(server.clone());
    }

    pub(super) fn watch_relay(&self, counters: &Arc<RelayCounters>) {
        // The first relay is kept, as the first server is in `watch`.
        let _ = self.relay.set(Arc::clone(counters));
    }
}

impl ListenerMonitor for Monitor {
    fn refused(&self, refusal: &Refusal) {
        self.telemetry.connection_refused(refusal);
    }

    fn metrics(&self) -> Option<String> {
        let server = self.server.get().filter(|_| self.serves_metrics)?;
        Some(server.metrics().text())
    }
}

/// Registers the relay's counters. They are 0 until the relay starts.
fn register_relay_metrics(metrics: &MetricsRegistry, counters: &Arc<OnceLock<Arc<RelayCounters>>>) {
    type Count = fn(&RelayCounters) -> &AtomicU64;
    let observe = |name: &str, help: &str, count: Count| {
        let counters = Arc::clone(counters);
        metrics.observed_counter(name, help, move || {
            counters.get().map_or(0, |counters| count(counters).load(Ordering::Relaxed))
        });
    };
    observe(
        "exec_server_remote_frames_sent_total",
        "Frames that the server has sent to its rendezvous",
        |counters| &counters.sent,
    );
    observe(
        "exec_server_remote_frames_received_total",
        "Frames that the server has received from its rendezvous",
        |counters| &counters.received,
    );
    observe(
        "exec_server_remote_retransmissions_total",
        "Records that the server has retransmitted to a client",
        |counters| &counters.retransmitted,
    );
}

fn audit_failed(error: AuditError) -> ServeError {
    ServeError::Settings(format!("{:#}", anyhow::Error::new(error)))
}
