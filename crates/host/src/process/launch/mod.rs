//! Starts programs and owns their process trees.
//!
//! A [`Launcher`] turns a [`Command`] into a [`Launched`]: the server's ends of the program's input
//! and output, and a [`Tree`] that reports the exit and kills every descendant when dropped. On
//! Linux, small helper processes keep that promise (see [`run_spawner`]). On other systems, and for
//! embedders whose `main` does not call `run_spawner`, process groups keep a part of it.
//! [`Launcher::teardown`] reports which of the two applies.
//!
//! This module knows nothing of output logs, sessions or environment policies: it starts exactly
//! the given command.

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

/// A started program. Dropping it kills its whole tree.
#[derive(Debug)]
pub struct Launched {
    pub pid: u32,
    pub stdio: ChildStdio,
    pub tree: Tree,
    /// The sockets of the program's gate, in the order of the plan.
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

/// How much of a tree a [`Launcher`] is able to kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Teardown {
    /// Every descendant, including those that called `setsid` or double-forked, even if the server
    /// itself is killed: a subreaper watches each tree, and leaders are held by pidfd.
    WholeTree,
    /// Only the processes in the leader's process group, and only while the server lives.
    ProcessGroup,
}

impl Launcher {
    /// Starts `executable` as the spawner. Its `main` must call [`run_spawner`] if the first
    /// argument is [`SPAWNER_ARG`]. The next launch replaces a spawner that has died.
    ///
    /// Children get the soft descriptor limit in force at this call, so a server must raise its own
    /// limit only afterwards.
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

    /// Returns a launcher that needs no helper process and kills process groups only.
    pub fn plain() -> Self {
        Self { mechanism: Mechanism::ProcessGroups }
    }

    /// Returns the executable that runs as the spawner.
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

    /// Determines on a separate thread how limits are enforced, so that later calls of
    /// [`limits`](Self::limits) need not wait.
    pub fn prepare_limits(&self) {
        let launcher = self.clone();
        // If the thread cannot be started, the first call of `limits` waits.
        let _ = std::thread::Builder::new().name("limits".into()).spawn(move || launcher.limits());
    }

    pub fn known_limits(&self) -> Option<LimitsSupport> {
        match &self.mechanism {
            #[cfg(target_os = "linux")]
            Mechanism::Keepers(spawner) => spawner.known_limits().cloned(),
            Mechanism::ProcessGroups => Some(self.limits()),
        }
    }

    /// Determines how the limits of trees are enforced here. The first call may wait for the user's
    /// service manager.
    pub fn limits(&self) -> LimitsSupport {
        match &self.mechanism {
            #[cfg(target_os = "linux")]
            Mechanism::Keepers(spawner) => spawner.limits().clone(),
            Mechanism::ProcessGroups => LimitsSupport::process_only(),
        }
    }

    /// Starts a program. Returns once it runs, or with the reason why it does not.
    ///
    /// Cancel safe: dropping the future leaves nothing running.
    pub async fn launch(&self, command: Command) -> Result<Launched, LaunchError> {
        self.launch_unless(std::future::pending(), command).await
    }

    /// Like [`launch`](Self::launch), but gives up when `unwanted` resolves. A sandbox setup, which
    /// may take long, is then aborted, and everything that it created is gone when this returns
    /// [`LaunchError::Terminated`]. A program that was already about to run is launched and killed;
    /// its tree reports that like any other exit.
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
                // Nothing in this branch waits.
                drop(unwanted);
                let (pid, tree) = plain::launch(&command, child_ends)?;
                Ok(Launched { pid, stdio, tree, gate: Vec::new() })
            }
        }
    }
}
