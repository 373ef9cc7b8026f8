//! What the operator sees of a server: the audit log that the settings name, and `GET /metrics`.

use std::io;
use std::sync::{Arc, OnceLock};

use exec_server_server::{Audit, Server, Telemetry};
use exec_server_telemetry::{AuditError, AuditLog};
use exec_server_transport::{ListenerMonitor, Refusal};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::AbortHandle;

use super::serve::ServeError;
use crate::config::Settings;

#[derive(Debug)]
pub(super) struct Monitor {
    pub(super) telemetry: Arc<Telemetry>,
    audit_log: Option<Arc<AuditLog>>,
    serves_metrics: bool,
    /// Listeners are bound before there is a server.
    server: OnceLock<Server>,
}

/// Reopens the audit log on SIGHUP, until it is dropped.
#[derive(Debug)]
pub(super) struct Reopening(Option<AbortHandle>);

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

    pub(super) fn reopen_on_signal(&self) -> io::Result<Reopening> {
        let Some(log) = self.audit_log.clone() else { return Ok(Reopening(None)) };
        let mut hangups = signal(SignalKind::hangup())?;
        let task = tokio::spawn(async move {
            while hangups.recv().await.is_some() {
                match log.reopen() {
                    Ok(()) => tracing::info!("reopened the audit log"),
                    Err(error) => tracing::error!("{:#}", anyhow::Error::new(error)),
                }
            }
        });
        Ok(Reopening(Some(task.abort_handle())))
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

impl Drop for Reopening {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

fn audit_failed(error: AuditError) -> ServeError {
    ServeError::Settings(format!("{:#}", anyhow::Error::new(error)))
}
