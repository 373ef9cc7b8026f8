//! A running process tree as its owner sees it: its events and the operations on it.

#[cfg(target_os = "linux")]
use std::sync::Arc;
use std::time::Duration;

#[cfg(target_os = "linux")]
use super::linux::KeeperLink;
use super::plain::{GroupControl, GroupEvents};
use super::signal::Signal;
use crate::process::limits::{LimitsHit, TreeUse};

/// A program and its descendants. All of them are killed when this handle and every [`TreeControl`]
/// made from it are dropped.
#[derive(Debug)]
pub struct Tree {
    leader: u32,
    owned: Owned,
}

#[derive(Debug)]
enum Owned {
    #[cfg(target_os = "linux")]
    Kept(Arc<KeeperLink>),
    Group {
        events: GroupEvents,
        control: GroupControl,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeEvent {
    /// The program itself has exited; its descendants may live on.
    Exited(ExitRecord),
    /// The program and all its descendants have ended.
    Emptied,
    /// The keeper was killed. The program has been killed too, and the spawner kills the rest.
    Lost,
}

/// How a program ended, and the resources used by it and the children that it waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitRecord {
    /// The exit code, or 128 + the number of the signal.
    pub code: i32,
    pub signal: Option<i32>,
    pub duration: Duration,
    pub cpu: Duration,
    pub max_rss_bytes: u64,
    pub limits_hit: LimitsHit,
    /// The resources used by the whole tree up to the exit. `None` without limits, without a
    /// keeper, and if the exit was not observed.
    pub tree_use: Option<TreeUse>,
    pub ended_by: Option<EndedBy>,
}

/// Why the server terminated a program of its own accord.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndedBy {
    /// The timeout given at the start expired.
    Deadline,
    Shutdown,
}

impl ExitRecord {
    /// Creates the record of a program whose exit was not observed: it was killed, and its resource
    /// use is unknown.
    pub fn killed(duration: Duration) -> Self {
        Self::new(libc::SIGKILL, duration, Duration::ZERO, 0)
    }

    pub(super) fn new(status: i32, duration: Duration, cpu: Duration, max_rss_bytes: u64) -> Self {
        let signal = libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status));
        let code = signal.map_or_else(|| libc::WEXITSTATUS(status), |number| 128 + number);
        let limits_hit = LimitsHit::default();
        Self {
            code,
            signal,
            duration,
            cpu,
            max_rss_bytes,
            limits_hit,
            tree_use: None,
            ended_by: None,
        }
    }
}

impl Tree {
    #[cfg(target_os = "linux")]
    pub(super) fn kept(leader: u32, link: KeeperLink) -> Self {
        Self { leader, owned: Owned::Kept(Arc::new(link)) }
    }

    pub(super) fn group(leader: u32, events: GroupEvents, control: GroupControl) -> Self {
        Self { leader, owned: Owned::Group { events, control } }
    }

    /// Waits for the next event: at most one `Exited`, then `Emptied`; or, at any time, `Lost`.
    /// `Emptied` and `Lost` are final, and further calls return them again. Cancel safe.
    pub async fn next_event(&mut self) -> TreeEvent {
        match &mut self.owned {
            #[cfg(target_os = "linux")]
            Owned::Kept(link) => link.next_event().await,
            Owned::Group { events, .. } => events.next_event().await,
        }
    }

    pub fn control(&self) -> TreeControl {
        TreeControl {
            leader: self.leader,
            target: match &self.owned {
                #[cfg(target_os = "linux")]
                Owned::Kept(link) => Target::Kept(Arc::clone(link)),
                Owned::Group { control, .. } => Target::Group(control.clone()),
            },
        }
    }
}

/// A handle to control a [`Tree`]. Clones control the same tree.
#[derive(Clone, Debug)]
pub struct TreeControl {
    leader: u32,
    target: Target,
}

#[derive(Clone, Debug)]
enum Target {
    #[cfg(target_os = "linux")]
    Kept(Arc<KeeperLink>),
    Group(GroupControl),
}

impl TreeControl {
    /// Returns the id of the program's process group, which is the pid of the program, or of the
    /// bubblewrap around it.
    pub fn leader(&self) -> u32 {
        self.leader
    }

    /// Returns the pid of the tree's keeper. `None` if there is no keeper, it has ended, or it did
    /// not report itself.
    pub fn keeper(&self) -> Option<u32> {
        match &self.target {
            #[cfg(target_os = "linux")]
            Target::Kept(link) => link.keeper(),
            Target::Group(_) => None,
        }
    }

    /// Whether the keeper has died. The rest of the tree then descends from the spawner, which
    /// kills it.
    pub fn has_lost_keeper(&self) -> bool {
        match &self.target {
            #[cfg(target_os = "linux")]
            Target::Kept(link) => link.has_lost_keeper(),
            Target::Group(_) => false,
        }
    }

    /// Signals the program's process group. Does nothing if the program has exited.
    pub fn signal(&self, signal: Signal) {
        match &self.target {
            #[cfg(target_os = "linux")]
            Target::Kept(link) => link.signal(signal),
            Target::Group(group) => group.signal(signal),
        }
    }

    /// Kills the program and all its descendants; `Emptied` or `Lost` reports the completion.
    pub fn kill_all(&self) {
        match &self.target {
            #[cfg(target_os = "linux")]
            Target::Kept(link) => link.kill_all(),
            Target::Group(group) => group.kill_all(),
        }
    }

    /// Counts the living processes of the tree, without the program itself. Returns 0 if they
    /// cannot be counted: in a process group, or if the keeper is gone.
    pub async fn descendants(&self) -> usize {
        match &self.target {
            #[cfg(target_os = "linux")]
            Target::Kept(link) => link.descendants().await,
            Target::Group(_) => 0,
        }
    }
}
