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
    #[error("this server is embedded in a program that cannot sandbox processes")]
    NoProbe,
    #[error("cannot open the network gate: {source}")]
    Gate { source: io::Error },
    #[error(
        "managedNetwork.loopbackPorts needs a network namespace, which the server cannot create \
         here; `exec-server doctor` shows why"
    )]
    LoopbackPorts,
    #[error("cannot start a thread to probe the sandbox mechanisms of this machine")]
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
