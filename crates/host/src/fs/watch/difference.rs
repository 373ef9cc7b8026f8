//! Turns the recorded states of each name into reported changes.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;

use super::{Change, ChangeKind};

#[derive(Debug, Clone)]
pub(super) struct Name {
    pub(super) before: Before,
    pub(super) now: Now,
    /// The number of scans that had begun when this was recorded.
    pub(super) looks: u64,
}

/// The state of the name when the window began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Before {
    Present,
    Absent,
    /// Unknown: a rename may have replaced a file without an event, and a listing does not show
    /// that either.
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Now {
    Gone,
    Same { modified: bool },
    New,
    Moved { from: PathBuf, modified: bool },
}

pub(super) fn differences(mut names: BTreeMap<PathBuf, Name>) -> Vec<Change> {
    forget_below_gone(&mut names);
    let left: HashSet<PathBuf> = names
        .values()
        .filter_map(|name| match &name.now {
            Now::Moved { from, .. } => Some(from.clone()),
            _ => None,
        })
        .collect();
    let mut changes = Vec::with_capacity(names.len());
    for (path, Name { before, now, .. }) in names {
        let (kind, from) = match now {
            Now::Gone if before == Before::Absent || left.contains(&path) => continue,
            // Includes a name that existed only briefly, if a rename created it: the rename may
            // have replaced a file.
            Now::Gone => (ChangeKind::Removed, None),
            Now::Same { modified: false } => continue,
            Now::Same { modified: true } => (ChangeKind::Modified, None),
            Now::New if before == Before::Present => (ChangeKind::Modified, None),
            Now::New => (ChangeKind::Created, None),
            Now::Moved { from, modified } => {
                let moved =
                    Change { path: path.clone(), kind: ChangeKind::Renamed, from: Some(from) };
                changes.push(moved);
                if !modified {
                    continue;
                }
                (ChangeKind::Modified, None)
            }
        };
        changes.push(Change { path, kind, from });
    }
    changes
}

/// Drops changes below directories that are gone, except removals. A directory that is moved out of
/// the watch takes its content along without events, so earlier changes of the content no longer
/// apply. Later changes arrive under the old name until the kernel's watch is removed.
fn forget_below_gone(names: &mut BTreeMap<PathBuf, Name>) {
    let mut gone: Option<PathBuf> = None;
    names.retain(|path, name| {
        if gone.as_ref().is_some_and(|gone| path.starts_with(gone)) {
            return name.now == Now::Gone;
        }
        if name.now == Now::Gone {
            gone = Some(path.clone());
        }
        true
    });
}
