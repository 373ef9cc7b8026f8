//! The process table of the machine.

use std::collections::HashMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::HANG;

/// Polls a condition that causes no event.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + HANG;
    while !condition() {
        assert!(Instant::now() < deadline, "this never happened: {what}");
        std::thread::park_timeout(Duration::from_millis(2));
    }
}

/// Returns the processes whose environment has `EXEC_SERVER_TEST=marker`.
pub(crate) fn marked(marker: &str) -> Vec<u32> {
    let entry = format!("EXEC_SERVER_TEST={marker}");
    let has_entry = |pid: &u32| {
        fs::read(format!("/proc/{pid}/environ"))
            .is_ok_and(|environ| environ.split(|byte| *byte == 0).any(|e| e == entry.as_bytes()))
    };
    all_pids().into_iter().filter(has_entry).collect()
}

/// Waits for the one process with this marker. Just after a start, `exec` may not have set its
/// environment yet.
pub(crate) fn only_marked(marker: &str) -> u32 {
    eventually("the process shows its environment", || marked(marker).len() == 1);
    marked(marker)[0]
}

/// Returns all descendants of a process, zombies included.
pub(crate) fn descendants(root: u32) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for pid in all_pids() {
        if let Some(parent) = stat(pid).map(|stat| stat.parent) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut queue = vec![root];
    while let Some(pid) = queue.pop() {
        for child in children.remove(&pid).unwrap_or_default() {
            found.push(child);
            queue.push(child);
        }
    }
    found
}

pub(crate) fn zombies_below(root: u32) -> usize {
    let is_zombie = |pid: &u32| stat(*pid).is_some_and(|stat| stat.state == 'Z');
    descendants(root).iter().filter(|pid| is_zombie(pid)).count()
}

pub(crate) fn parent(pid: u32) -> u32 {
    living_parent(pid).expect("the process lives")
}

/// Returns the parent of a process, which may be a zombie. `None` if no process has this pid.
pub(crate) fn living_parent(pid: u32) -> Option<u32> {
    stat(pid).map(|stat| stat.parent)
}

/// Returns the state letter that `ps` shows.
pub(crate) fn state(pid: u32) -> Option<char> {
    stat(pid).map(|stat| stat.state)
}

/// Processes whose end can be awaited, safe against reuse of their pids.
pub(crate) struct Watched(Vec<OwnedFd>);

impl Watched {
    pub(crate) fn new(pids: &[u32]) -> Self {
        // A process that has already ended needs no pidfd.
        Self(
            pids.iter()
                .filter_map(|pid| pidfd_open(to_pid(*pid), PidfdFlags::empty()).ok())
                .collect(),
        )
    }

    pub(crate) fn wait_until_all_end(self) {
        for pidfd in self.0 {
            let patience = Timespec::try_from(HANG).unwrap();
            let ready = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&patience)).unwrap();
            assert_ne!(ready, 0, "a process has not ended within {HANG:?}");
        }
    }
}

pub(crate) fn signal(pid: u32, signal: rustix::process::Signal) {
    rustix::process::kill_process(to_pid(pid), signal).unwrap();
}

pub(crate) fn threads(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).unwrap().count()
}

/// Returns the CPU time of a process in clock ticks.
pub(crate) fn cpu_ticks(pid: u32) -> u64 {
    stat(pid).expect("the process lives").cpu_ticks
}

/// Counts the descriptors of a process. `None` if the kernel denies access: the server is not
/// dumpable, so only root may look.
pub(crate) fn descriptors(pid: u32) -> Option<usize> {
    fs::read_dir(format!("/proc/{pid}/fd")).ok().map(Iterator::count)
}

/// Counts the open files of a process that have no name, such as spill files.
pub(crate) fn spill_files(pid: u32) -> usize {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let targets = descriptors.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    targets.filter(|target| target.to_string_lossy().ends_with(" (deleted)")).count()
}

/// Returns how many bytes a process has passed to `write`.
pub(crate) fn bytes_written(pid: u32) -> u64 {
    io_count(pid, "wchar: ")
}

/// Returns how many bytes a process has got from `read`.
pub(super) fn bytes_read(pid: u32) -> u64 {
    io_count(pid, "rchar: ")
}

fn io_count(pid: u32, name: &str) -> u64 {
    let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    io.lines().find_map(|line| line.strip_prefix(name)).map_or(0, |n| n.parse().unwrap())
}

/// Raises the descriptor limit of the test process, for tests that open many sockets.
pub(crate) fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub(crate) fn to_pid(pid: u32) -> Pid {
    Pid::from_raw(pid.try_into().unwrap()).unwrap()
}

struct Stat {
    state: char,
    parent: u32,
    cpu_ticks: u64,
}

fn stat(pid: u32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may contain anything.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some(Stat {
        state: fields.first()?.chars().next()?,
        parent: number(1)?.try_into().ok()?,
        cpu_ticks: number(11)? + number(12)?,
    })
}

pub(crate) fn all_pids() -> Vec<u32> {
    let entries = fs::read_dir("/proc").unwrap();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}
