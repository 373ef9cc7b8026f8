//! Shared by the spawner and the keepers: waiting for deaths and messages, reaping, and pacing the
//! rounds of killing.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{self, Errno};
use rustix::process::Pid;

use super::signals::ChildDeaths;

/// The pause between two rounds of killing if no death ends it earlier. It starts short and grows,
/// because a process that survives is stuck in the kernel or belongs to another user.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(super) struct Pause(Duration);

impl Pause {
    pub(super) fn first() -> Self {
        Self(FIRST_PAUSE)
    }

    /// Returns the pause before the next round, and doubles it.
    pub(super) fn take(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(LONGEST_PAUSE);
        pause
    }
}

/// Why [`wait_for`] returned. Neither is set after the pause or an interruption.
#[derive(Debug, Default)]
pub(super) struct Woken {
    pub(super) by_death: bool,
    pub(super) by_message: bool,
}

pub(super) fn wait_for(
    deaths: &ChildDeaths,
    messages: Option<BorrowedFd<'_>>,
    pause: Option<Duration>,
) -> Woken {
    let pause = pause.map(|pause| Timespec {
        tv_sec: pause.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: pause.subsec_nanos().into(),
    });
    let both = [Some(deaths.as_fd()), messages];
    let mut polled =
        both.map(|fd| PollFd::from_borrowed_fd(fd.unwrap_or(deaths.as_fd()), PollFlags::IN));
    let count = both.iter().flatten().count();
    // Only an interruption can make this fail; the caller's loop retries.
    if poll(&mut polled[..count], pause.as_ref()).is_err() {
        return Woken::default();
    }
    let woken = |index: usize| index < count && !polled[index].revents().is_empty();
    Woken { by_death: woken(0), by_message: woken(1) }
}

pub(super) fn has_message(socket: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec::default())).is_ok_and(|count| count > 0)
}

pub(super) struct Dead {
    pub(super) pid: Pid,
    pub(super) status: i32,
    usage: libc::rusage,
}

impl Dead {
    pub(super) fn cpu(&self) -> Duration {
        to_duration(self.usage.ru_utime) + to_duration(self.usage.ru_stime)
    }

    pub(super) fn max_rss_bytes(&self) -> u64 {
        u64::try_from(self.usage.ru_maxrss).unwrap_or(0) * 1024
    }
}

/// Returns `None` if no child is dead, and `ECHILD` if there are no children at all.
pub(super) fn reap() -> io::Result<Option<Dead>> {
    let mut status = 0;
    // SAFETY: all-zero is a valid `rusage`.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let options = libc::WNOHANG | libc::__WALL;
    // SAFETY: both pointers are to locals that live during the call.
    let pid = unsafe { libc::wait4(-1, &raw mut status, options, &raw mut usage) };
    match pid {
        -1 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::CHILD)),
        pid => Ok(Pid::from_raw(pid).map(|pid| Dead { pid, status, usage })),
    }
}

fn to_duration(time: libc::timeval) -> Duration {
    Duration::from_secs(time.tv_sec.cast_unsigned())
        + Duration::from_micros(time.tv_usec.cast_unsigned())
}
