//! Starting programs, and owning the trees of processes they grow into.
//!
//! A [`Launcher`] turns a [`Command`] into a [`Launched`]: our ends of the program's input and
//! output, and a [`Tree`] that reports the exit and kills every descendant when it is dropped.
//! On Linux that promise is kept by two small helper processes (see [`run_spawner`]); elsewhere, and
//! for embedders that cannot offer the hidden mode, by process groups alone. [`Launcher::teardown`]
//! says which.
//!
//! This module knows nothing of output logs, sessions or environment policies: it starts exactly
//! what it is told.

mod command;
mod error;
#[cfg(target_os = "linux")]
mod linux;
mod plain;
mod pty;
mod signal;
mod stdio;
mod tree;

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
#[cfg(target_os = "linux")]
use std::sync::Arc;

use super::limits::LimitsSupport;

pub use command::{Command, Io, PtySize};
pub use error::{LaunchError, StringPlace};
#[cfg(target_os = "linux")]
pub use linux::{SPAWNER_ARG, run_spawner};
pub use pty::PtyMaster;
pub use signal::Signal;
pub use stdio::{ChildStdio, OutputPipe, StdinPipe};
pub use tree::{EndedBy, ExitRecord, Tree, TreeControl, TreeEvent};

/// A program that has been started. Dropping it kills its whole tree.
#[derive(Debug)]
pub struct Launched {
    pub pid: u32,
    pub stdio: ChildStdio,
    pub tree: Tree,
    /// The sockets that lead out of its network namespace, in the order of its plan.
    pub gate: Vec<OwnedFd>,
}

/// Starts programs. Clones share one spawner.
#[derive(Clone, Debug)]
pub struct Launcher {
    mechanism: Mechanism,
}

#[derive(Clone, Debug)]
enum Mechanism {
    #[cfg(target_os = "linux")]
    Keepers(Arc<linux::Spawner>),
    ProcessGroups,
}

/// How much of a tree a [`Launcher`] can promise to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Teardown {
    /// Every descendant, also one that called `setsid` or double-forked, and also when the server
    /// itself is killed: a subreaper watches each tree, and leaders are held by pidfd.
    WholeTree,
    /// What stayed in the leader's process group, and only while the server lives.
    ProcessGroup,
}

impl Launcher {
    /// Starts `executable` as the spawner; its `main` has to call [`run_spawner`] when its first
    /// argument is [`SPAWNER_ARG`]. A spawner that dies is replaced by the next launch.
    ///
    /// Children get the soft limit on descriptors that is in force now, so a server that raises
    /// its own does so afterwards.
    #[cfg(target_os = "linux")]
    pub fn with_spawner(executable: PathBuf) -> io::Result<Self> {
        let spawner = linux::Spawner::start(executable)?;
        Ok(Self { mechanism: Mechanism::Keepers(Arc::new(spawner)) })
    }

    /// Fails: only Linux can adopt the orphans of a tree.
    #[cfg(not(target_os = "linux"))]
    pub fn with_spawner(_executable: PathBuf) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Needs no helper process, and ends process groups only.
    pub fn plain() -> Self {
        Self { mechanism: Mechanism::ProcessGroups }
    }

    /// The program that runs as the spawner.
    pub fn executable(&self) -> Option<&Path> {
        match &self.mechanism {
            #[cfg(target_os = "linux")]
            Mechanism::Keepers(spawner) => Some(spawner.executable()),
            Mechanism::ProcessGroups => None,
        }
    }

    pub fn teardown(&self) -> Teardown {
        match self.mechanism {
            #[cfg(target_os = "linux")]
            Mechanism::Keepers(_) => Teardown::WholeTree,
            Mechanism::ProcessGroups => Teardown::ProcessGroup,
        }
    }

    /// Finds out how limits are kept, on a thread of its own, so that no later call has to wait.
    pub fn prepare_limits(&self) {
        let launcher = self.clone();
        // Without a thread the first one waits.
        let _ = std::thread::Builder::new().name("limits".into()).spawn(move || launcher.limits());
    }

    /// The same as `limits`, if that would not wait.
    pub fn known_limits(&self) -> Option<LimitsSupport> {
        match &self.mechanism {
            #[cfg(target_os = "linux")]
            Mechanism::Keepers(spawner) => spawner.known_limits().cloned(),
            Mechanism::ProcessGroups => Some(self.limits()),
        }
    }

    /// How the limits of trees are kept here. The first call may wait for the user's service manager.
    pub fn limits(&self) -> LimitsSupport {
        match &self.mechanism {
            #[cfg(target_os = "linux")]
            Mechanism::Keepers(spawner) => spawner.limits().clone(),
            Mechanism::ProcessGroups => LimitsSupport::process_only(),
        }
    }

    /// Returns once the program runs, or with the reason why it does not.
    ///
    /// Cancel safe: a future dropped half way leaves nothing running.
    pub async fn launch(&self, command: Command) -> Result<Launched, LaunchError> {
        self.launch_unless(std::future::pending(), command).await
    }

    /// The same until `unwanted` resolves. A sandbox may take long to put up; then that ends, and what there was of it is gone when this
    /// returns [`LaunchError::Terminated`]. A program that was already about to run is killed and reported as any other.
    pub async fn launch_unless(
        &self,
        unwanted: impl Future<Output = ()>,
        command: Command,
    ) -> Result<Launched, LaunchError> {
        command.validate()?;
        let (child_ends, stdio) = stdio::open(command.io).map_err(LaunchError::from_setup)?;
        match &self.mechanism {
            #[cfg(target_os = "linux")]
            Mechanism::Keepers(spawner) => {
                let launched = spawner.launch(&command, child_ends, unwanted).await?;
                let linux::LaunchedTree { pid, tree, gate } = launched;
                Ok(Launched { pid, stdio, tree, gate })
            }
            Mechanism::ProcessGroups => {
                // Nothing in it waits.
                drop(unwanted);
                let (pid, tree) = plain::launch(&command, child_ends)?;
                Ok(Launched { pid, stdio, tree, gate: Vec::new() })
            }
        }
    }
}
