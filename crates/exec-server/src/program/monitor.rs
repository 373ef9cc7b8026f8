//! The operator's view of a server: the audit log that the settings name, and `GET /metrics`.

use std::sync::{Arc, OnceLock};

use exec_server_server::{Audit, Server, Telemetry};
use exec_server_telemetry::{AuditError, AuditLog};
use exec_server_transport::{ListenerMonitor, Refusal};

use super::serve::ServeError;
use crate::config::Settings;

#[derive(Debug)]
pub(super) struct Monitor {
    pub(super) telemetry: Arc<Telemetry>,
    pub(super) audit_log: Option<Arc<AuditLog>>,
    serves_metrics: bool,
    /// Listeners are bound before there is a server.
    server: OnceLock<Server>,
}

impl Monitor {
    pub(super) fn new(settings: &Settings) -> Result<Arc<Self>, ServeError> {
        let audit_log = settings.audit_target()?.map(AuditLog::open).transpose();
        let audit_log = audit_log.map_err(audit_failed)?.map(Arc::new);
        let audit = audit_log.as_ref().map(|log| Audit {
            log: Arc::clone(log),
            commands: settings.audit_commands,
            required: settings.audit_required,
        });
        Ok(Arc::new(Self {
            telemetry: Arc::new(Telemetry::new(audit)),
            audit_log,
            serves_metrics: settings.metrics,
            server: OnceLock::new(),
        }))
    }

    pub(super) fn watch(&self, server: &Server) {
        // A second server would be a mistake of the caller; the first one stays.
        let _ = self.server.set(server.clone());
    }
}

impl ListenerMonitor for Monitor {
    fn refused(&self, refusal: &Refusal) {
        self.telemetry.connection_refused(refusal);
    }

    fn metrics(&self) -> Option<String> {
        let server = self.server.get().filter(|_| self.serves_metrics)?;
        Some(server.metrics())
    }
}

fn audit_failed(error: AuditError) -> ServeError {
    ServeError::Settings(format!("{:#}", anyhow::Error::new(error)))
}
