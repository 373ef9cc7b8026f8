//! Launching without helpers: a session and process group for each program, on any Unix.
//!
//! Processes that leave the group are out of reach, and nothing is cleaned up if the server is
//! killed; [`Teardown::ProcessGroup`](super::Teardown) reports this. One task attends each program
//! until its group is empty, even if its handle was dropped.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, kill_process_group, test_kill_process_group};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::command::{Command, Io};
use super::error::LaunchError;
use super::signal::Signal;
use super::stdio::ChildEnds;
use super::tree::{ExitRecord, Tree, TreeEvent};
#[cfg(target_os = "linux")]
use crate::process::limits::oom_score;
use crate::process::limits::{Limit, Limits, rlimits};

/// Interval of checks on a group that outlived its leader: no event reports that it is empty.
const GROUP_CHECK: Duration = Duration::from_millis(250);

/// `Exited` and `Emptied`.
const EVENTS: usize = 2;

pub(super) fn launch(command: &Command, ends: ChildEnds) -> Result<(u32, Tree), LaunchError> {
    if command.sandbox.is_some() {
        return Err(LaunchError::SandboxWithoutKeeper);
    }
    require_directory(command)?;
    // Registered before the start, or an early death would go unnoticed.
    let deaths = signal(SignalKind::child()).map_err(LaunchError::from_setup)?;
    let child = prepare(command, &ends)
        .map_err(LaunchError::from_setup)?
        .spawn()
        .map_err(|error| LaunchError::from_exec(command, error))?;
    drop(ends);

    let group = Arc::new(Group { leader: Pid::from_child(&child), life: Mutex::new(Life::Leader) });
    let control = GroupControl { owner: Arc::new(KillOnDrop { group: Arc::clone(&group) }) };
    let (sender, receiver) = mpsc::channel(EVENTS);
    let attendance = Attendance {
        group,
        started: Instant::now(),
        kill_on_exit: command.kill_on_exit,
        limits: command.limits,
        events: sender,
    };
    tokio::spawn(attendance.run(deaths));
    #[cfg(target_os = "linux")]
    oom_score::raise_once(child.id());
    Ok((child.id(), Tree::group(child.id(), GroupEvents { receiver }, control)))
}

/// Checks the directory first: the error of `spawn` does not distinguish a missing directory from a
/// missing program.
fn require_directory(command: &Command) -> Result<(), LaunchError> {
    let outcome = fs::metadata(&command.cwd).and_then(|metadata| {
        if metadata.is_dir() { Ok(()) } else { Err(io::ErrorKind::NotADirectory.into()) }
    });
    outcome.map_err(|error| LaunchError::from_chdir(command, error))
}

fn prepare(command: &Command, ends: &ChildEnds) -> io::Result<std::process::Command> {
    let [stdin, stdout, stderr] = ends.descriptors();
    let terminal = matches!(command.io, Io::Pty(_));
    let limits = command.limits;
    #[cfg(target_os = "linux")]
    oom_score::prepare();
    #[expect(clippy::disallowed_methods, reason = "this is where the host starts programs")]
    let mut prepared = std::process::Command::new(command.program());
    prepared
        .arg0(command.arg0.as_deref().unwrap_or(command.program()))
        .args(command.argv.iter().skip(1))
        .current_dir(&command.cwd)
        .env_clear()
        .envs(command.env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::from(stdin.try_clone_to_owned()?))
        .stdout(Stdio::from(stdout.try_clone_to_owned()?))
        .stderr(Stdio::from(stderr.try_clone_to_owned()?));
    // SAFETY: only system calls that are safe after fork in a threaded process.
    unsafe {
        prepared.pre_exec(move || {
            rustix::process::setsid()?;
            if terminal {
                rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
            }
            rlimits::lower_own(&limits).map_err(io::Error::from_raw_os_error)
        });
    }
    Ok(prepared)
}

#[derive(Debug)]
struct Group {
    leader: Pid,
    life: Mutex<Life>,
}

/// Whether the group's number still belongs to it. Signals are sent under the lock, so none is sent
/// once the number is known to be free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    /// The leader is not reaped, so the number certainly belongs to this group.
    Leader,
    /// The leader is reaped, but the group had other members at the last check. The number cannot
    /// be reused while one of them lives. It can be reused between the death of the last one and
    /// the next check.
    Rest,
    Empty,
}

impl Group {
    fn signal(&self, signal: Signal, reach: &[Life]) {
        let life = self.life.lock().unwrap_or_else(PoisonError::into_inner);
        if reach.contains(&life) {
            let _ = kill_process_group(self.leader, signal.as_system());
        }
    }

    fn kill(&self) {
        self.signal(Signal::Kill, &[Life::Leader, Life::Rest]);
    }

    /// Returns the leader's status and resource use once it is dead.
    fn reap(&self) -> Option<(i32, libc::rusage)> {
        let mut life = self.life.lock().unwrap_or_else(PoisonError::into_inner);
        let mut status = 0;
        // SAFETY: all-zero is a valid `rusage`.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        let leader = self.leader.as_raw_nonzero().get();
        // SAFETY: both pointers are to locals that live during the call.
        let pid = unsafe { libc::wait4(leader, &raw mut status, libc::WNOHANG, &raw mut usage) };
        if pid == 0 {
            return None;
        }
        if pid == -1 {
            // The embedder reaps every child or ignores SIGCHLD, so the status is lost.
            status = libc::SIGKILL;
        }
        *life = Life::Rest;
        Some((status, usage))
    }

    fn is_empty(&self) -> bool {
        let mut life = self.life.lock().unwrap_or_else(PoisonError::into_inner);
        if *life == Life::Rest
            && test_kill_process_group(self.leader) == Err(rustix::io::Errno::SRCH)
        {
            *life = Life::Empty;
        }
        *life == Life::Empty
    }
}

struct Attendance {
    group: Arc<Group>,
    started: Instant,
    kill_on_exit: bool,
    limits: Limits,
    events: mpsc::Sender<TreeEvent>,
}

impl Attendance {
    async fn run(self, mut deaths: tokio::signal::unix::Signal) {
        let (status, usage) = loop {
            if let Some(end) = self.group.reap() {
                break end;
            }
            deaths.recv().await;
        };
        let cpu = to_duration(usage.ru_utime) + to_duration(usage.ru_stime);
        let mut record =
            ExitRecord::new(status, self.started.elapsed(), cpu, max_rss_bytes(&usage));
        if self.limits.file_size_bytes.is_some() && record.signal == Some(libc::SIGXFSZ) {
            record.limits_hit.add(Limit::FileSize);
        }
        if self.limits.cpu_time.is_some() && record.signal == Some(libc::SIGXCPU) {
            record.limits_hit.add(Limit::CpuTime);
        }
        // The channel has room for both events, so sending fails only if the receiver is gone.
        let _ = self.events.try_send(TreeEvent::Exited(record));
        if self.kill_on_exit {
            self.group.kill();
        }
        while !self.group.is_empty() {
            tokio::select! {
                () = tokio::time::sleep(GROUP_CHECK) => {}
                _ = deaths.recv() => {}
            }
        }
        let _ = self.events.try_send(TreeEvent::Emptied);
    }
}

impl Drop for Attendance {
    /// Kills the group if the runtime ends before the program does.
    fn drop(&mut self) {
        self.group.kill();
    }
}

#[derive(Debug)]
pub(super) struct GroupEvents {
    receiver: mpsc::Receiver<TreeEvent>,
}

impl GroupEvents {
    pub(super) async fn next_event(&mut self) -> TreeEvent {
        // The task ends after the last event; a closed channel stands for that event.
        self.receiver.recv().await.unwrap_or(TreeEvent::Emptied)
    }
}

#[derive(Clone, Debug)]
pub(super) struct GroupControl {
    owner: Arc<KillOnDrop>,
}

impl GroupControl {
    pub(super) fn signal(&self, signal: Signal) {
        self.owner.group.signal(signal, &[Life::Leader]);
    }

    pub(super) fn kill_all(&self) {
        self.owner.group.kill();
    }
}

/// Shared by a tree and its controls. Dropping the last of them kills the group.
#[derive(Debug)]
struct KillOnDrop {
    group: Arc<Group>,
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        self.group.kill();
    }
}

/// Linux reports KiB, Apple bytes.
fn max_rss_bytes(usage: &libc::rusage) -> u64 {
    let unit = if cfg!(target_vendor = "apple") { 1 } else { 1024 };
    u64::try_from(usage.ru_maxrss).unwrap_or(0) * unit
}

fn to_duration(time: libc::timeval) -> Duration {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let micros = u64::try_from(time.tv_usec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_micros(micros)
}
