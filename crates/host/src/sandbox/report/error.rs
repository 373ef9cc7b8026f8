use std::io;
use std::path::PathBuf;

use crate::sandbox::{PlanError, PolicyError, WriteHistoryError};

/// Why a sandbox that was asked for cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    #[error(transparent)]
    Policy(#[from] PolicyError),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error("cannot find out what this machine can enforce: {source}")]
    Probe { source: io::Error },
    #[error("this server is part of a program that does not offer the means to sandbox processes")]
    NoProbe,
    #[error("cannot open the network gate: {source}")]
    Gate { source: io::Error },
    #[error(
        "managedNetwork.loopbackPorts needs a network namespace, which this machine does not have"
    )]
    LoopbackPorts,
    #[error("no thread could be started to find out what this machine can enforce")]
    NoThread,
    #[error("the sandbox does not allow the working directory {} to be read", path.display())]
    WorkingDirectory { path: PathBuf },
    #[error(
        "the server's working directory, which requests may write to, cannot be found: {source}"
    )]
    NoWorkspace { source: io::Error },
    #[error(
        "it cannot be recorded what sandboxes were allowed to write, which later ones rely on: {0}"
    )]
    NotRecorded(#[from] WriteHistoryError),
}
