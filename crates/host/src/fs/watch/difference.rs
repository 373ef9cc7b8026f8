//! From what became of each name to what is told.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;

use super::{Change, ChangeKind};

#[derive(Debug, Clone)]
pub(super) struct Name {
    pub(super) before: Before,
    pub(super) now: Now,
    /// The looks that had begun when that was learned.
    pub(super) looks: u64,
}

/// What the name was when the window began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Before {
    Present,
    Absent,
    /// A rename replaces silently, and a listing does not know either.
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Now {
    Gone,
    /// What was there before.
    Same {
        modified: bool,
    },
    New,
    /// What had the name `from` before.
    Moved {
        from: PathBuf,
        modified: bool,
    },
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
            // Also of a name that was there for a moment, if a rename put it there: it may have replaced something.
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

/// What happened in a directory before it was moved out of the watch had events, that it went along had none. And until
/// the kernel's watch of a moved directory is dropped, events in it come under its old name.
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
