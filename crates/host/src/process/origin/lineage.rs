//! A process and its ancestors, read safely while processes start and exit.

use std::fs;

/// A process followed by its ancestors, the oldest last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lineage(Vec<u32>);

/// More than any real tree has, and a bound in case reused pids form a cycle.
const MAX_GENERATIONS: usize = 4096;

impl Lineage {
    /// Whether this is the lineage of the process `pid` itself.
    #[must_use]
    pub fn begins_with(&self, pid: u32) -> bool {
        self.0.first() == Some(&pid)
    }

    #[must_use]
    pub fn includes(&self, pid: u32) -> bool {
        self.0.contains(&pid)
    }

    /// Reads the lineage of a process. Returns `None` if the process is gone or its ancestors
    /// changed in the meantime. `is_still_meant` checks that the pid still belongs to the process
    /// that the caller means; it is called last.
    ///
    /// A parent may exit between two reads, and its pid may be reused; the ancestors read next
    /// would then be foreign. But while a child names its parent, the parent has not exited, and
    /// its pid has not been reused. So every link from a child to its parent is checked again, the
    /// oldest first: a link that still holds shows that its parent was alive when the parent's own
    /// link was checked.
    pub(super) fn of(pid: u32, is_still_meant: impl FnOnce() -> bool) -> Option<Self> {
        let pids = follow(pid)?;
        let lasts = |link: &[u32]| parent(link[0]) == Some(link[1]);
        (pids.windows(2).rev().all(lasts) && is_still_meant()).then_some(Self(pids))
    }
}

fn follow(pid: u32) -> Option<Vec<u32>> {
    let mut pids = vec![pid];
    while pids.len() < MAX_GENERATIONS {
        match parent(*pids.last()?)? {
            0 => return Some(pids),
            parent => pids.push(parent),
        }
    }
    None
}

fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may contain anything.
    let after_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let text = std::str::from_utf8(stat.get(after_name..)?).ok()?;
    text.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lineage_includes_the_process_and_its_parent() {
        let me = std::process::id();
        let lineage = Lineage::of(me, || true).unwrap();
        assert!(lineage.includes(me) && lineage.includes(parent(me).unwrap()));
        assert!(!lineage.includes(u32::MAX));
    }

    #[test]
    fn a_process_that_is_gone_has_no_lineage() {
        assert_eq!(Lineage::of(u32::MAX - 1, || true), None);
        assert_eq!(Lineage::of(std::process::id(), || false), None);
    }
}
