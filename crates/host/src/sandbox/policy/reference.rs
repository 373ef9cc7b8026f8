//! A slow reference implementation of the documented access rules, without symlinks and devices.

use std::path::{Component, Path, PathBuf};

use super::Access;

#[derive(Debug, Clone)]
pub(super) struct Reference {
    pub(super) entries: Vec<(PathBuf, Access)>,
    /// Absolute globs.
    pub(super) denied_globs: Vec<String>,
    pub(super) max_depth: usize,
    pub(super) project_roots: Vec<PathBuf>,
}

impl Reference {
    pub(super) fn access(&self, path: &Path) -> Access {
        if self.denied_globs.iter().any(|glob| covers(glob, self.max_depth, path)) {
            return Access::Deny;
        }
        self.access_by_rules(path)
    }

    pub(super) fn access_by_rules(&self, path: &Path) -> Access {
        for at in path.ancestors() {
            let asked = self.asked_for(at);
            if self.is_protected(at) {
                return self.access_without_protection(at).min(Access::Read);
            }
            if let Some(access) = asked {
                return access;
            }
        }
        Access::Deny
    }

    fn access_without_protection(&self, path: &Path) -> Access {
        path.ancestors().find_map(|at| self.asked_for(at)).unwrap_or(Access::Deny)
    }

    /// On a tie deny wins over write, which wins over read.
    fn asked_for(&self, path: &Path) -> Option<Access> {
        let here = |access| self.entries.iter().any(|entry| *entry == (path.to_owned(), access));
        [Access::Deny, Access::Write, Access::Read].into_iter().find(|access| here(*access))
    }

    fn is_protected(&self, path: &Path) -> bool {
        let (Some(root), Some(name)) = (path.parent(), path.file_name()) else { return false };
        let named = |access| self.entries.contains(&(path.to_owned(), access));
        let is_writable_root = self.entries.contains(&(root.to_owned(), Access::Write));
        let is_protected_name = |name| [".git", ".agents", ".codex"].iter().any(|one| name == *one);
        let is_granted_name = is_writable_root && root.file_name().is_some_and(is_protected_name);
        let writable = self.entries.iter().filter(|(_, access)| *access == Access::Write);
        let mut projects = writable.map(|(path, _)| path).chain(&self.project_roots);
        is_protected_name(name)
            && projects.any(|project| project.starts_with(root))
            && !is_granted_name
            && !named(Access::Write)
    }
}

/// Whether the path or a path above it matches, at most `max_depth` below the start of the pattern.
pub(super) fn covers(glob: &str, max_depth: usize, path: &Path) -> bool {
    let pattern: Vec<&str> = glob.split('/').filter(|name| !name.is_empty()).collect();
    let literal = pattern.iter().take_while(|name| !name.contains(['*', '?'])).count();
    let start = literal.min(pattern.len() - 1);
    path.ancestors().any(|at| {
        let names: Vec<&str> = at
            .components()
            .filter_map(|component| match component {
                Component::Normal(name) => name.to_str(),
                _ => None,
            })
            .collect();
        names.len() > start && names.len() <= start + max_depth && matches_names(&pattern, &names)
    })
}

fn matches_names(pattern: &[&str], names: &[&str]) -> bool {
    match (pattern, names) {
        ([], names) => names.is_empty(),
        // A final `**` matches everything below, but not the directory itself.
        (["**"], names) => !names.is_empty(),
        (["**", rest @ ..], names) => {
            (0..=names.len()).any(|skipped| matches_names(rest, &names[skipped..]))
        }
        ([_, ..], []) => false,
        ([first, rest @ ..], [name, others @ ..]) => {
            matches_name(first.as_bytes(), name.as_bytes()) && matches_names(rest, others)
        }
    }
}

fn matches_name(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern, name) {
        ([], name) => name.is_empty(),
        ([b'*', rest @ ..], name) => {
            (0..=name.len()).any(|skipped| matches_name(rest, &name[skipped..]))
        }
        ([b'?', rest @ ..], [_, others @ ..]) => matches_name(rest, others),
        ([byte, rest @ ..], [other, others @ ..]) => byte == other && matches_name(rest, others),
        _ => false,
    }
}
