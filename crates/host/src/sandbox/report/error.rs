use std::io;
use std::path::PathBuf;

use crate::sandbox::{PlanError, PolicyError, WriteHistoryError};

/// Why a requested sandbox cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    #[error(transparent)]
    Policy(#[from] PolicyError),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error("cannot probe the sandbox mechanisms of this machine: {source}")]
    Probe { source: io::Error },
    #[error(
        "sandboxes need helper processes, but this server runs without them; the program that \
         embeds the server must create it with Launcher::with_spawner"
    )]
    NoProbe,
    #[error("cannot set up the network gate: {source}")]
    Gate { source: io::Error },
    #[error(
        "managedNetwork.loopbackPorts needs a network namespace whose routes lead to the server, \
         which this machine does not provide; `exec-server doctor` shows why"
    )]
    LoopbackPorts,
    #[error(
        "cannot plan the sandbox: no thread could be started for it, or the thread panicked; see \
         the server's log, and try again"
    )]
    NoThread,
    #[error(
        "the sandbox does not allow reading the working directory {}; grant read access to it, or \
         start in another directory",
        path.display()
    )]
    WorkingDirectory { path: PathBuf },
    #[error(
        "cannot find the server's working directory, which requests may write to: {source}; restart \
         the server in an existing directory, or set sandbox.writable_roots"
    )]
    NoWorkspace { source: io::Error },
    #[error(
        "cannot record the writable directories of this sandbox, which later sandboxes rely on: {0}"
    )]
    NotRecorded(#[from] WriteHistoryError),
}
