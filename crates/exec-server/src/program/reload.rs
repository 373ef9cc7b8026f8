//! Reloads files on SIGHUP, and the certificate also when its files change. Logs which files were
//! read and which settings need a restart.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use exec_server_host::hangup_is_ignored;
use exec_server_host::service_manager::{Notifier, ServiceState};
use exec_server_telemetry::AuditLog;
use exec_server_transport::{Authenticator, TlsServer};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::config::{self, Configuration, Flags, SETTINGS, Setting, Settings};

/// How often the certificate files are checked for changes.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The files that a running service reloads, and the settings that it compares.
#[derive(Debug, Default)]
pub(super) struct Reloadable {
    pub(super) authenticator: Option<Arc<Authenticator>>,
    pub(super) tls: Option<Arc<TlsServer>>,
    pub(super) audit_log: Option<Arc<AuditLog>>,
    pub(super) settings: Option<RunningSettings>,
    pub(super) notifier: Notifier,
}

/// The settings that the service runs with. Changing them requires a restart.
#[derive(Debug, Clone)]
pub(crate) struct RunningSettings {
    flags: Flags,
    settings: Settings,
    concerns: fn(&Setting) -> bool,
}

impl RunningSettings {
    /// `concerns` returns whether the service uses a setting.
    pub(crate) fn new(
        flags: &Flags,
        running: &Configuration,
        concerns: fn(&Setting) -> bool,
    ) -> Self {
        Self { flags: flags.clone(), settings: running.settings.clone(), concerns }
    }

    /// Returns the keys of the settings that would change with a restart.
    fn changed(&self) -> Result<Vec<&'static str>, config::ConfigError> {
        let new = config::load(&self.flags, std::env::vars_os())?.settings;
        let value = |setting: &Setting, settings: &Settings| {
            setting.is_given(settings).then(|| setting.show(settings))
        };
        let is_changed = |setting: &&Setting| {
            (self.concerns)(setting) && value(setting, &new) != value(setting, &self.settings)
        };
        Ok(SETTINGS.iter().filter(is_changed).map(|setting| setting.key).collect())
    }
}

/// Reloads files until dropped.
#[derive(Debug)]
pub(super) struct Reloading {
    task: Option<AbortHandle>,
    terminal_closed: Arc<Notify>,
}

impl Reloading {
    /// Makes SIGHUP reload from now on. If the service has lost the terminal that it started on,
    /// SIGHUP ends it instead, unless it has credentials or TLS, or inherited SIGHUP as ignored.
    pub(super) fn start(reloadable: Reloadable) -> io::Result<Self> {
        let terminal_closed = Arc::new(Notify::new());
        if reloadable.is_empty() {
            // An embedder may handle the signal itself.
            return Ok(Self { task: None, terminal_closed });
        }
        let may_outlive_terminal = reloadable.authenticator.is_some()
            || reloadable.tls.is_some()
            || hangup_is_ignored()
            || !has_terminal();
        let mut hangups = signal(SignalKind::hangup())?;
        let (ask, asked) = mpsc::sync_channel(1);
        // A separate thread, because files may be on a slow file system. It starts now, because
        // creating a thread later may fail.
        thread::Builder::new()
            .name("reload".to_owned())
            .spawn(move || reloadable.reload_when_asked(&asked))?;
        let closed = Arc::clone(&terminal_closed);
        let task = tokio::spawn(async move {
            while hangups.recv().await.is_some() {
                if !may_outlive_terminal && !has_terminal() {
                    closed.notify_one();
                    return;
                }
                // One pending request is enough.
                let _ = ask.try_send(());
            }
        });
        Ok(Self { task: Some(task.abort_handle()), terminal_closed })
    }

    /// Resolves when the service must end because its terminal has closed. Cancel-safe.
    pub(super) async fn terminal_closed(&self) {
        self.terminal_closed.notified().await;
    }
}

impl Drop for Reloading {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl Reloadable {
    fn is_empty(&self) -> bool {
        self.authenticator.is_none()
            && self.tls.is_none()
            && self.audit_log.is_none()
            && self.settings.is_none()
    }

    /// Runs until the sender is dropped.
    fn reload_when_asked(&self, asked: &mpsc::Receiver<()>) {
        let mut is_reported = false;
        loop {
            let wait = match self.tls {
                Some(_) => asked.recv_timeout(LOOK_INTERVAL),
                None => asked.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match wait {
                Ok(()) => {
                    self.notify(ServiceState::Reloading, "reloading");
                    let status = self.reload();
                    self.notify(ServiceState::Ready, &status);
                    is_reported = true;
                }
                Err(RecvTimeoutError::Timeout) => match self.follow_certificate() {
                    Ok(()) => is_reported = false,
                    Err(_) if is_reported => {}
                    Err(problem) => {
                        is_reported = true;
                        tracing::warn!("{problem}; the server keeps the previous version");
                    }
                },
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Returns a summary for the service manager.
    fn reload(&self) -> String {
        let mut done = Vec::new();
        let mut problems = Vec::new();
        if let Some(tls) = &self.tls {
            match tls.reload() {
                Ok(()) => {
                    tracing::info!(fingerprint = %tls.fingerprint(), "reloaded the certificate");
                    done.push("the certificate");
                }
                Err(problem) => problems.push(problem.to_string()),
            }
        }
        if let Some(authenticator) = &self.authenticator {
            match authenticator.reload() {
                Ok(()) => {
                    tracing::info!("reloaded the token or secret");
                    done.push("the token or secret");
                }
                Err(problem) => problems.push(problem.to_string()),
            }
        }
        if let Some(audit_log) = &self.audit_log {
            match audit_log.reopen() {
                Ok(()) => {
                    tracing::info!("reopened the audit log");
                    done.push("the audit log");
                }
                Err(problem) => problems.push(format!("{:#}", anyhow::Error::new(problem))),
            }
        }
        if !problems.is_empty() {
            tracing::warn!("{}; the server keeps the previous version", problems.join("; "));
        }
        let changed = match self.settings.as_ref().map_or(Ok(Vec::new()), RunningSettings::changed)
        {
            Ok(changed) => changed,
            Err(error) => {
                tracing::warn!("{error}; a restart would fail");
                return "the configuration is not valid; a restart would fail".to_owned();
            }
        };
        let done = if done.is_empty() { "nothing".to_owned() } else { done.join(", ") };
        let settings = changed.join(", ");
        match changed.is_empty() {
            true => tracing::info!("reloaded {done}; no setting has changed"),
            false => {
                tracing::warn!(settings, "reloaded {done}; these changed settings need a restart");
            }
        }
        match (problems.is_empty(), changed.is_empty()) {
            (false, _) => "a file could not be reloaded; see the log".to_owned(),
            (true, true) => format!("reloaded {done}"),
            (true, false) => format!("reloaded {done}; needs a restart for {settings}"),
        }
    }

    fn follow_certificate(&self) -> Result<(), String> {
        match self.tls.as_ref().filter(|tls| tls.has_changed()) {
            None => Ok(()),
            Some(tls) => {
                tls.reload().map_err(|problem| problem.to_string())?;
                tracing::info!(fingerprint = %tls.fingerprint(), "reloaded the certificate");
                Ok(())
            }
        }
    }

    fn notify(&self, state: ServiceState, status: &str) {
        notify(&self.notifier, state, status);
    }
}

/// Notifies the service manager. A failure is only logged, because a service also runs without a
/// manager.
pub(super) fn notify(notifier: &Notifier, state: ServiceState, status: &str) {
    if let Err(error) = notifier.notify(state, status) {
        tracing::warn!(%error, status, "cannot notify the service manager");
    }
}

/// Whether this process has an open controlling terminal.
fn has_terminal() -> bool {
    File::open("/dev/tty").is_ok()
}
