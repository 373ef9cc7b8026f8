//! The protocol of systemd and other service managers: sockets that they pass, and notifications to
//! them.

mod notifier;
mod passed_sockets;

use std::ffi::OsString;
use std::fs;
use std::io;

pub use notifier::{Notifier, ServiceState};
pub use passed_sockets::{ListeningSocket, PassedSocket, PassedSocketsError};

const SOCKET_VARIABLES: [&str; 4] =
    ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PIDFDID"];
const NOTIFY_VARIABLE: &str = "NOTIFY_SOCKET";

#[derive(Debug)]
pub struct ServiceManager {
    pub notifier: Notifier,
    pub sockets: Result<Vec<PassedSocket>, PassedSocketsError>,
}

impl ServiceManager {
    #[must_use]
    pub fn none() -> Self {
        Self { notifier: Notifier::default(), sockets: Err(PassedSocketsError::NonePassed) }
    }

    /// Takes the sockets that were passed to this process and the address for notifications, and
    /// removes the variables that describe them, because they are not meant for its children. Call
    /// it early in `main`, before anything opens a file that stays open. Fails if there are
    /// variables to remove and the process has several threads, which may be reading the
    /// environment.
    pub fn take() -> io::Result<Self> {
        let variables = SOCKET_VARIABLES.into_iter().chain([NOTIFY_VARIABLE]);
        let set: Vec<_> = variables.filter(|name| std::env::var_os(name).is_some()).collect();
        if set.is_empty() {
            return Ok(Self::none());
        }
        require_single_thread()?;
        let variable = |name: &str| std::env::var_os(name);
        let notifier = variable(NOTIFY_VARIABLE).map_or_else(Notifier::default, Notifier::new);
        let sockets = passed_sockets::take(variable);
        for name in set {
            // SAFETY: this is the only thread, so no other reads the environment.
            unsafe { std::env::remove_var(name) };
        }
        Ok(Self { notifier, sockets })
    }
}

fn require_single_thread() -> io::Result<()> {
    match fs::read_dir("/proc/self/task")?.count() {
        1 => Ok(()),
        _ => Err(io::Error::other(
            "the process has several threads, so LISTEN_* and NOTIFY_SOCKET cannot be removed from its environment",
        )),
    }
}

trait Variables: Fn(&str) -> Option<OsString> {}
impl<F: Fn(&str) -> Option<OsString>> Variables for F {}
