//! Finds the children of processes and their descendants in /proc.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::str;

use rustix::process::{Pid, Signal, kill_process};

/// SIGKILLs the direct children that `doomed` selects, and returns how many there were.
///
/// Invariant: the caller is their parent, is single-threaded and does not reap in the meantime, so
/// none of these pids can have been reused.
pub(super) fn kill_children(mut doomed: impl FnMut(Pid) -> bool) -> usize {
    let mut found = 0;
    for child in own_children().into_iter().filter(|child| doomed(*child)) {
        found += 1;
        let _ = kill_process(child, Signal::KILL);
    }
    found
}

/// Counts the living descendants of this process, except those in `except`.
///
/// One walk can miss a process whose parent exits during the walk: it is reparented to this
/// process, whose list of children was read before. So the walk is repeated until it finds nothing
/// new.
pub(super) fn count_living(except: &[Pid]) -> usize {
    let mut found = HashSet::new();
    for _ in 0..MAX_WALKS {
        let known = found.len();
        found.extend(walk());
        if found.len() == known {
            break;
        }
    }
    let is_living = |pid: &&Pid| Stat::read(**pid).is_some_and(|stat| !stat.is_dying);
    found.iter().filter(|pid| !except.contains(pid)).filter(is_living).count()
}

/// Bounds the walks of a tree that keeps forking, in which each walk finds new processes.
const MAX_WALKS: usize = 8;

fn walk() -> Vec<Pid> {
    let mut unvisited = own_children();
    let mut visited = Vec::new();
    while let Some(pid) = unvisited.pop() {
        visited.push(pid);
        unvisited.extend(children_of(pid).unwrap_or_default());
    }
    visited
}

/// Whether this system provides the files in /proc that this module needs.
pub(super) fn is_available() -> bool {
    fs::read("/proc/self/stat").is_ok()
}

pub(super) fn own_children() -> Vec<Pid> {
    match fs::read("/proc/thread-self/children") {
        Ok(list) => parse_list(&list),
        // The kernel was built without CONFIG_PROC_CHILDREN.
        Err(_) => scan_children(rustix::process::getpid()),
    }
}

/// Reads the lists of all threads: a child belongs to the thread that forked it.
pub(super) fn children_of(pid: Pid) -> io::Result<Vec<Pid>> {
    let mut children = Vec::new();
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        match fs::read(thread?.path().join("children")) {
            Ok(list) => children.extend(parse_list(&list)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(scan_children(pid)),
            Err(error) => return Err(error),
        }
    }
    Ok(children)
}

fn scan_children(parent: Pid) -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| parse_pid(entry.ok()?.file_name().as_encoded_bytes()))
        .filter(|pid| Stat::read(*pid).is_some_and(|stat| stat.parent == Some(parent)))
        .collect()
}

fn parse_list(list: &[u8]) -> Vec<Pid> {
    list.split(|byte| *byte == b' ').filter_map(parse_pid).collect()
}

fn parse_pid(digits: &[u8]) -> Option<Pid> {
    Pid::from_raw(str::from_utf8(digits).ok()?.parse().ok()?)
}

fn parse_number(digits: &[u8]) -> Option<u64> {
    str::from_utf8(digits).ok()?.parse().ok()
}

#[derive(Debug, PartialEq)]
pub(super) struct Stat {
    pub(super) parent: Option<Pid>,
    /// Dead, or killed but not yet ended: on a busy machine the exit of a process may take a while.
    is_dying: bool,
    /// The number of threads; 1 for a zombie.
    pub(super) tasks: u64,
    /// CPU time in hundredths of a second, including that of reaped children.
    pub(super) ticks: u64,
}

/// The kernel's `PF_EXITING` and `PF_SIGNALED`: the process is exiting, or a signal has killed it.
const EXITING: u64 = 0x4 | 0x400;
/// SIGKILL as a pending signal. The kernel turns a fatal signal into SIGKILL when it is sent,
/// unless the signal dumps core.
const KILLED: u64 = 1 << (libc::SIGKILL - 1);

impl Stat {
    pub(super) fn read(pid: Pid) -> Option<Self> {
        Self::parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Parses `pid (name) state ppid …`. The process chooses its name, which may look like any of
    /// the other fields: only the last parenthesis ends it. The 9th field has the flags, the 14th
    /// to 17th the times, the 20th the threads, the 31st the pending signals.
    fn parse(line: &[u8]) -> Option<Self> {
        let name_end = line.iter().rposition(|byte| *byte == b')')?;
        let mut fields = line.get(name_end + 2..)?.split(|byte| *byte == b' ');
        let is_zombie = fields.next()? == b"Z";
        let parent = parse_pid(fields.next()?);
        let flags = parse_number(fields.nth(4)?)?;
        let mut ticks = 0;
        fields.nth(3)?;
        for _ in 0..4 {
            ticks += parse_number(fields.next()?).unwrap_or(0);
        }
        let threads = parse_number(fields.nth(2)?)?;
        let pending = parse_number(fields.nth(10)?)?;
        let is_dying = is_zombie || flags & EXITING != 0 || pending & KILLED != 0;
        Some(Self { parent, is_dying, tasks: threads.max(1), ticks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_cannot_fake_its_parent_with_its_name() {
        let stat = stat("a) Z 1 (x", "S", 0, 0);
        assert_eq!(stat, Stat { parent: Pid::from_raw(7), is_dying: false, tasks: 1, ticks: 10 });
    }

    #[test]
    fn a_killed_process_does_not_count_as_living() {
        let is_dying = |state, flags, pending| stat("sleep", state, flags, pending).is_dying;
        // A sleeping process with pending INT and TERM that it handles or blocks.
        assert!(!is_dying("S", 0x0040_0000, 0b100_0000_0000_0010));
        assert!(is_dying("Z", 0x0040_000c, 0));
        assert!(is_dying("S", 0x0040_0000, 0b1_0000_0000));
        assert!(is_dying("R", 0x0040_0400, 0));
        assert!(is_dying("R", 0x0040_000c, 0));
    }

    fn stat(name: &str, state: &str, flags: u64, pending: u64) -> Stat {
        let line = format!(
            "42 ({name}) {state} 7 42 42 0 -1 {flags} 97 0 0 0 1 2 3 4 20 0 1 0 1178192 3133440 362 \
             18446744073709551615 94413537497088 94413537516969 140722442224272 0 0 {pending} 0 0 0 0 0 0 17 0\n"
        );
        Stat::parse(line.as_bytes()).unwrap()
    }

    #[test]
    fn lists_are_separated_by_spaces() {
        let pids: Vec<_> = parse_list(b"12 345 ").into_iter().map(Pid::as_raw_pid).collect();
        assert_eq!(pids, [12, 345]);
    }
}
