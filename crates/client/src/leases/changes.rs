//! File changes that the holder of a watch has not taken yet.

use std::collections::HashMap;

use exec_server_protocol::{ChangeKind, ChangedNotification, FileChange, PathUri};

use super::inbox::Queue;

/// Maximum number of pending changes. Beyond that, the holder is told to rescan.
const MAX_PENDING: usize = 10_000;

/// A batch of changes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changes {
    /// The changes in order. A modification is left out if the last change to its path in this
    /// batch was a creation or a modification.
    pub changes: Vec<FileChange>,
    /// Changes were lost: anything at or below the watched path may have changed.
    pub rescan: bool,
}

impl Changes {
    /// The batch that reports that changes were lost.
    pub(crate) fn unknown() -> Self {
        Self { changes: Vec::new(), rescan: true }
    }
}

#[derive(Debug, Default)]
pub(crate) struct PendingChanges {
    pending: Changes,
    /// The last pending change of each path.
    last: HashMap<PathUri, ChangeKind>,
}

impl PendingChanges {
    pub(crate) fn add(&mut self, notified: ChangedNotification) {
        let ChangedNotification { changed_paths, changes, rescan, .. } = notified;
        self.pending.rescan |= rescan;
        if changes.is_empty() {
            // This server does not report the kinds of changes.
            for path in changed_paths {
                self.add_change(FileChange { path, kind: ChangeKind::Modified, from: None });
            }
        } else {
            changes.into_iter().for_each(|change| self.add_change(change));
        }
    }

    fn add_change(&mut self, change: FileChange) {
        let last = self.last.get(&change.path);
        let is_known = change.kind == ChangeKind::Modified
            && matches!(last, Some(ChangeKind::Created | ChangeKind::Modified));
        if is_known {
            return;
        }
        if self.pending.changes.len() >= MAX_PENDING {
            *self = Self { pending: Changes::unknown(), ..Self::default() };
            return;
        }
        if let Some(from) = &change.from {
            self.last.remove(from);
        }
        self.last.insert(change.path.clone(), change.kind);
        self.pending.changes.push(change);
    }
}

impl Queue for PendingChanges {
    type Item = Changes;

    fn pop(&mut self) -> Option<Changes> {
        (!self.is_empty()).then(|| std::mem::take(self).pending)
    }

    fn is_empty(&self) -> bool {
        self.pending.changes.is_empty() && !self.pending.rescan
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(name: &str, kind: ChangeKind) -> FileChange {
        FileChange { path: PathUri::from_path(format!("/{name}")).unwrap(), kind, from: None }
    }

    fn notified(changes: Vec<FileChange>) -> ChangedNotification {
        let watch_id = String::new();
        ChangedNotification { watch_id, changed_paths: Vec::new(), changes, rescan: false }
    }

    #[test]
    fn repeated_changes_are_merged() {
        use ChangeKind::{Created, Modified, Removed};
        let mut pending = PendingChanges::default();
        for (name, kind) in [
            ("a", Created),
            ("a", Modified),
            ("b", Modified),
            ("b", Modified),
            ("a", Removed),
            ("a", Created),
        ] {
            pending.add(notified(vec![change(name, kind)]));
        }
        let told = pending.pop().unwrap();
        let expected = [("a", Created), ("b", Modified), ("a", Removed), ("a", Created)]
            .map(|(n, k)| change(n, k));
        assert_eq!(told.changes, expected);
        assert_eq!(pending.pop(), None);
        pending.add(notified(vec![change("b", Modified)]));
        assert_eq!(
            pending.pop().unwrap().changes.len(),
            1,
            "taken changes are not merged with later ones"
        );
    }

    #[test]
    fn modifications_after_a_rename_are_not_merged() {
        let mut pending = PendingChanges::default();
        let mut renamed = change("b", ChangeKind::Renamed);
        renamed.from = Some(PathUri::from_path("/a").unwrap());
        let changes = [
            change("a", ChangeKind::Modified),
            renamed,
            change("a", ChangeKind::Modified),
            change("b", ChangeKind::Modified),
        ];
        pending.add(notified(changes.to_vec()));
        assert_eq!(pending.pop().unwrap().changes, changes);
    }

    #[test]
    fn too_many_changes_become_a_rescan() {
        let mut pending = PendingChanges::default();
        for number in 0..3 * MAX_PENDING {
            pending.add(notified(vec![change(&number.to_string(), ChangeKind::Created)]));
        }
        let told = pending.pop().unwrap();
        assert!(told.rescan && told.changes.len() <= MAX_PENDING);
    }

    #[test]
    fn paths_without_a_kind_of_change_count_as_modified() {
        let mut pending = PendingChanges::default();
        let changed_paths = vec![PathUri::from_path("/a").unwrap()];
        pending.add(ChangedNotification { changed_paths, ..notified(Vec::new()) });
        assert_eq!(pending.pop().unwrap().changes, [change("a", ChangeKind::Modified)]);
    }
}
