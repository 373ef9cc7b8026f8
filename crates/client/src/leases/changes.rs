//! Changes of files that their watcher has not taken yet.

use std::collections::HashMap;

use exec_server_protocol::{ChangeKind, ChangedNotification, FileChange, PathUri};

use super::inbox::Queue;

/// Changes that may wait. Beyond that the watcher is told to look for itself.
const MAX_PENDING: usize = 10_000;

/// What has changed, several changes together.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changes {
    /// By path, as far as they came together.
    pub changes: Vec<FileChange>,
    /// Changes were lost: anything below the watched path may have changed.
    pub rescan: bool,
}

impl Changes {
    /// Of a watcher that has missed some time.
    pub(crate) fn unknown() -> Self {
        Self { changes: Vec::new(), rescan: true }
    }
}

#[derive(Debug, Default)]
pub(crate) struct PendingChanges {
    pending: Changes,
    /// The last thing that happened to each path.
    last: HashMap<PathUri, ChangeKind>,
}

impl PendingChanges {
    pub(crate) fn add(&mut self, notified: ChangedNotification) {
        let ChangedNotification { changed_paths, changes, rescan, .. } = notified;
        self.pending.rescan |= rescan;
        if changes.is_empty() {
            // A server that does not say what happened.
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
    fn what_is_known_already_is_not_told_twice() {
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
        assert_eq!(pending.pop().unwrap().changes.len(), 1, "what was taken is forgotten");
    }

    #[test]
    fn a_new_file_under_an_old_name_is_modified_anew() {
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
    fn too_many_become_a_rescan() {
        let mut pending = PendingChanges::default();
        for number in 0..3 * MAX_PENDING {
            pending.add(notified(vec![change(&number.to_string(), ChangeKind::Created)]));
        }
        let told = pending.pop().unwrap();
        assert!(told.rescan && told.changes.len() <= MAX_PENDING);
    }

    #[test]
    fn a_server_that_only_names_paths_is_understood() {
        let mut pending = PendingChanges::default();
        let changed_paths = vec![PathUri::from_path("/a").unwrap()];
        pending.add(ChangedNotification { changed_paths, ..notified(Vec::new()) });
        assert_eq!(pending.pop().unwrap().changes, [change("a", ChangeKind::Modified)]);
    }
}
