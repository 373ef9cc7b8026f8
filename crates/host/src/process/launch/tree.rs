//! A running tree of processes, as its owner sees it: what happens to it and what can be done to it.

#[cfg(target_os = "linux")]
use std::sync::Arc;
use std::time::Duration;

#[cfg(target_os = "linux")]
use super::linux::KeeperLink;
use super::plain::{GroupControl, GroupEvents};
use super::signal::Signal;
use crate::process::limits::{LimitsHit, TreeUse};

/// The processes that came from one program. They are killed, all of them, when this and every
/// [`TreeControl`] made from it are dropped.
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
    /// The program itself has ended; what it started may live on.
    Exited(ExitRecord),
    /// The program has ended and so has everything it started.
    Emptied,
    /// The keeper was killed. The program has been killed too, and the spawner kills the rest.
    Lost,
}

/// How a program ended and what it used, with the children it waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitRecord {
    /// The exit code, or 128 + the signal's number.
    pub code: i32,
    pub signal: Option<i32>,
    pub duration: Duration,
    pub cpu: Duration,
    pub max_rss_bytes: u64,
    /// The limits that its tree had reached.
    pub limits_hit: LimitsHit,
    /// Of the whole tree, if it had limits.
    pub tree_use: Option<TreeUse>,
    /// Why the server ended it; `None` if it did not.
    pub ended_by: Option<EndedBy>,
}

/// Why the server ended a program of its own accord.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndedBy {
    /// The deadline of its start passed.
    Deadline,
    /// The server shuts down.
    Shutdown,
}

impl ExitRecord {
    /// For a program whose end nobody saw: it was killed, and what it used is unknown.
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

    /// Waits for the next thing to happen: at most one `Exited`, then `Emptied`, or `Lost` at any
    /// time. The last two are final, and further calls return them again. Cancel safe.
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

/// Acts on a [`Tree`] from wherever it is needed.
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
    /// The program's process id, which is also its process group's.
    pub fn leader(&self) -> u32 {
        self.leader
    }

    /// The process that keeps the tree, if there is one and it said who it is.
    pub fn keeper(&self) -> Option<u32> {
        match &self.target {
            #[cfg(target_os = "linux")]
            Target::Kept(link) => link.keeper(),
            Target::Group(_) => None,
        }
    }

    /// Whether that process has ended. What may be left of the tree is below the spawner then, which
    /// kills it.
    pub fn has_lost_keeper(&self) -> bool {
        match &self.target {
            #[cfg(target_os = "linux")]
            Target::Kept(link) => link.has_lost_keeper(),
            Target::Group(_) => false,
        }
    }

    /// Signals the program's process group; nothing happens when the program has ended.
    pub fn signal(&self, signal: Signal) {
        match &self.target {
            #[cfg(target_os = "linux")]
            Target::Kept(link) => link.signal(signal),
            Target::Group(group) => group.signal(signal),
        }
    }

    /// Kills the program and everything that came from it; `Emptied` tells when that is done.
    pub fn kill_all(&self) {
        match &self.target {
            #[cfg(target_os = "linux")]
            Target::Kept(link) => link.kill_all(),
            Target::Group(group) => group.kill_all(),
        }
    }

    /// How many processes of the tree live, the program itself not counted. Process groups cannot
    /// be counted and say 0.
    pub async fn descendants(&self) -> usize {
        match &self.target {
            #[cfg(target_os = "linux")]
            Target::Kept(link) => link.descendants().await,
            Target::Group(_) => 0,
        }
    }
}
