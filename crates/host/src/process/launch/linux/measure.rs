//! Measures the resource use of a tree from /proc, for machines where no cgroup counts it.

use std::collections::HashSet;
use std::fs;
use std::str;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal};

use super::descendants::{self, Stat};
use crate::process::limits::Limits;
use crate::process::limits::pace::Use;

/// Adds up the resource use of this process's descendants, except that of the sandbox's init, which
/// shares the keeper's memory. Returns the counted processes too. Stops early if there are too many
/// tasks: the limit is exceeded already.
///
/// Memory shared by several processes is counted once for each, so the sum may be too large.
pub(super) fn tree(limits: &Limits, init: Option<Pid>) -> (Use, Vec<Pid>) {
    let mut usage = Use::default();
    let mut counted = Vec::new();
    let mut unvisited = descendants::own_children();
    while let Some(pid) = unvisited.pop() {
        // Parents before their children: a child that is reaped in the meantime is not counted
        // twice.
        if let Some(stat) = Stat::read(pid).filter(|_| init != Some(pid)) {
            usage.tasks += stat.tasks;
            usage.cpu += stat.cpu();
            counted.push(pid);
            if limits.memory_bytes.is_some() {
                usage.memory_bytes += memory(pid).unwrap_or(0);
            }
            if limits.pids.is_some_and(|limit| usage.tasks > limit) {
                break;
            }
        }
        unvisited.extend(descendants::children_of(pid).unwrap_or_default());
    }
    (usage, counted)
}

/// Returns the memory of these processes, with each shared page divided among the processes that
/// share it. Slow: the kernel visits every page.
pub(super) fn exact_memory(pids: &[Pid]) -> u64 {
    pids.iter().map(|pid| proportional_memory(*pid).or_else(|| memory(*pid)).unwrap_or(0)).sum()
}

fn memory(pid: Pid) -> Option<u64> {
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    Some(sum_of(&status, &["RssAnon:", "RssShmem:", "VmSwap:"]))
}

fn proportional_memory(pid: Pid) -> Option<u64> {
    let rollup = fs::read(format!("/proc/{pid}/smaps_rollup")).ok()?;
    (!rollup.is_empty()).then(|| sum_of(&rollup, &["Pss_Anon:", "Pss_Shmem:", "SwapPss:"]))
}

/// Adds up lines such as `RssAnon:  1234 kB`, in bytes.
fn sum_of(text: &[u8], names: &[&str]) -> u64 {
    let value = |line: &[u8]| -> Option<u64> {
        let line = str::from_utf8(line).ok()?;
        let rest = names.iter().find_map(|name| line.strip_prefix(name))?;
        rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    };
    text.split(|byte| *byte == b'\n').filter_map(value).sum::<u64>() << 10
}

/// Stops every process of the tree, so that none forks while the tree is killed.
///
/// A stopped process reaps no children, so their pids are not reused. A process may fork once more
/// after its children were listed, so the walk is repeated until it finds no new process.
pub(super) fn stop_tree(leader: Option<Pid>) {
    const MAX_WALKS: usize = 64;
    if let Some(leader) = leader {
        // Stops the program's group in one step, with processes that no walk has found yet.
        let _ = kill_process_group(leader, Signal::STOP);
    }
    let mut stopped = HashSet::new();
    for _ in 0..MAX_WALKS {
        let known = stopped.len();
        let mut unvisited: Vec<(Pid, Option<Pid>)> =
            descendants::own_children().into_iter().map(|pid| (pid, None)).collect();
        while let Some((pid, parent)) = unvisited.pop() {
            if !stopped.contains(&pid) && stop(pid, parent) {
                stopped.insert(pid);
            }
            let children = descendants::children_of(pid).unwrap_or_default();
            unvisited.extend(children.into_iter().map(|child| (child, Some(pid))));
        }
        if stopped.len() == known {
            return;
        }
    }
}

/// Stops a process. Returns whether it was still there. `parent` is `None` for a child of this
/// process.
fn stop(pid: Pid, parent: Option<Pid>) -> bool {
    let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
    // The pid may have been reused since the walk, so the parent is checked again. A child of this
    // process is not reaped in the meantime. If the signal below can be sent, the process still has
    // its pid, so `Stat` was read from the same process.
    let is_ours = match (parent, Stat::read(pid)) {
        (None, Some(_)) => true,
        (Some(parent), Some(stat)) => stat.parent == Some(parent),
        (_, None) => false,
    };
    is_ours && pidfd_send_signal(&pidfd, Signal::STOP).is_ok()
}

impl Stat {
    fn cpu(&self) -> Duration {
        // `USER_HZ` is 100 on every supported architecture.
        const TICK: Duration = Duration::from_millis(10);
        TICK * u32::try_from(self.ticks).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_named_lines_are_added_up() {
        let status = b"Name:\tRssAnon: 9 kB\nVmRSS:\t  900 kB\nRssAnon:\t  100 kB\nRssFile:\t 7 kB\nVmSwap:\t 1 kB\n";
        assert_eq!(sum_of(status, &["RssAnon:", "VmSwap:"]), 101 << 10);
        assert_eq!(sum_of(b"RssAnon: many kB\nRssAnon: 5\n\xff\n", &["RssAnon:"]), 0);
    }

    #[test]
    fn memory_and_tasks_of_this_process_are_measured() {
        let own = rustix::process::getpid();
        assert!(memory(own).unwrap() > 0);
        assert!(exact_memory(&[own]) > 0);
        assert!(Stat::read(own).unwrap().tasks >= 1);
    }
}
