//! Rules while they are collected.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::Access;

/// Plain paths and what is decided for each, in the order of paths. Any may turn out to say nothing new.
#[derive(Debug, Clone, Default)]
pub(super) struct PolicyDraft(BTreeMap<PathBuf, Decision>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Decision {
    pub(super) access: Access,
    pub(super) protected_name: bool,
}

impl PolicyDraft {
    /// If there are several decisions for a path, to deny wins over to write, which wins over to read.
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

    /// No more than to read it, whatever was decided before.
    pub(super) fn protect(&mut self, path: &Path) {
        let access = self.access(path).min(Access::Read);
        self.set(path, Decision { access, protected_name: access == Access::Read });
    }

    pub(super) fn access(&self, path: &Path) -> Access {
        self.decided(path).unwrap_or(Access::Deny)
    }

    /// By the most specific decision, if there is any.
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
