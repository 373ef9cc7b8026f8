//! Rules while they are being collected.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::Access;

/// Plain paths with a decision for each, sorted by path. Some decisions may turn out redundant.
#[derive(Debug, Clone, Default)]
pub(super) struct PolicyDraft(BTreeMap<PathBuf, Decision>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Decision {
    pub(super) access: Access,
    pub(super) protected_name: bool,
}

impl PolicyDraft {
    /// Among several decisions for one path, deny wins over write, and write over read.
    pub(super) fn add(&mut self, path: &Path, access: Access) {
        let new = Decision { access, protected_name: false };
        let decision = self.0.entry(path.to_owned()).or_insert(new);
        decision.access = match (decision.access, access) {
            (Access::Deny, _) | (_, Access::Deny) => Access::Deny,
            (one, other) => one.max(other),
        };
    }

    pub(super) fn set(&mut self, path: &Path, decision: Decision) {
        self.0.insert(path.to_owned(), decision);
    }

    /// Limits the access to reading at most, whatever was decided before.
    pub(super) fn protect(&mut self, path: &Path) {
        let access = self.access(path).min(Access::Read);
        self.set(path, Decision { access, protected_name: access == Access::Read });
    }

    pub(super) fn access(&self, path: &Path) -> Access {
        self.decided(path).unwrap_or(Access::Deny)
    }

    /// Returns the access by the most specific decision, if there is one.
    pub(super) fn decided(&self, path: &Path) -> Option<Access> {
        let decision = path.ancestors().find_map(|above| self.0.get(above));
        decision.map(|decision| decision.access)
    }

    pub(super) fn contains(&self, path: &Path) -> bool {
        self.0.contains_key(path)
    }

    pub(super) fn grants_anything(&self) -> bool {
        self.0.values().any(|decision| decision.access > Access::Deny)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Path, Decision)> {
        self.0.iter().map(|(path, decision)| (path.as_path(), *decision))
    }
}
