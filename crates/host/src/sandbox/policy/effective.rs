//! The access to every path.

use std::collections::BTreeSet;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::draft::{Decision, PolicyDraft};
use super::plain::PlainPath;
use super::resolve;
use super::resolved_path::real;
use super::rules::Rules;
use super::{Access, DeclaredPolicy, DeniedGlob, Names, Network, PolicyContext, PolicyError, Rule};

/// A declared policy, resolved against the names of this machine. It is cheap to clone and to
/// compare, so it can be a map key.
#[derive(Clone)]
pub struct Policy(Arc<Content>);

struct Content {
    network: Network,
    restricts_files: bool,
    rules: Rules,
    globs: Vec<DeniedGlob>,
    /// Symlinks on the way to granted trees. They may be outside every granted tree, but code that
    /// follows a path component by component must read them.
    links: Vec<PathBuf>,
    hash: u64,
}

/// A tree with more access than its surroundings.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Grant {
    pub path: PathBuf,
    /// [`Access::Read`] or [`Access::Write`].
    pub access: Access,
}

/// A tree with less access than its surroundings.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CarveOut {
    pub path: PathBuf,
    /// [`Access::Deny`] or [`Access::Read`].
    pub access: Access,
    pub protected_name: bool,
}

impl Policy {
    /// Resolves a declared policy. Symlinks and granting globs are resolved once, now. Entries for
    /// names that do not exist yet apply once the names are created, unless they are skipped
    /// (`skip_missing`).
    pub fn resolve(
        declared: &DeclaredPolicy,
        around: &PolicyContext,
        names: &impl Names,
    ) -> Result<Self, PolicyError> {
        resolve::resolve(declared, around, names)
    }

    pub fn unrestricted(network: Network) -> Self {
        let mut draft = PolicyDraft::default();
        draft.add(Path::new("/"), Access::Write);
        Self::new(network, false, Rules::new(&draft), BTreeSet::new(), BTreeSet::new())
    }

    /// Allows everything except these trees and files, whose names are resolved now.
    pub fn hiding(paths: &[PathBuf], names: &impl Names) -> Result<Self, PolicyError> {
        let mut draft = PolicyDraft::default();
        draft.add(Path::new("/"), Access::Write);
        for path in paths {
            draft.add(&real(names, path)?.path, Access::Deny);
        }
        let rules = Rules::new(&draft);
        Ok(Self::new(Network::Enabled, true, rules, BTreeSet::new(), BTreeSet::new()))
    }

    pub(super) fn restricted(
        network: Network,
        rules: Rules,
        globs: BTreeSet<DeniedGlob>,
        links: BTreeSet<PathBuf>,
    ) -> Self {
        Self::new(network, true, rules, globs, links)
    }

    fn new(
        network: Network,
        restricts_files: bool,
        rules: Rules,
        globs: BTreeSet<DeniedGlob>,
        links: BTreeSet<PathBuf>,
    ) -> Self {
        let globs: Vec<_> = globs.into_iter().collect();
        let links: Vec<_> = links.into_iter().collect();
        let mut hasher = DefaultHasher::new();
        (network, restricts_files, rules.as_slice(), &globs, &links).hash(&mut hasher);
        let hash = hasher.finish();
        Self(Arc::new(Content { network, restricts_files, rules, globs, links, hash }))
    }

    /// Returns the access to a real path: absolute, without symlinks, `.` and `..`. A relative
    /// path, or one with `..`, is denied.
    pub fn access(&self, real_path: &Path) -> Access {
        PlainPath::with(real_path, |path| self.access_plain(path)).unwrap_or(Access::Deny)
    }

    /// Returns the access to the target of a path, even if nothing exists there. A path that cannot
    /// be resolved stands for itself.
    pub fn access_through(&self, path: &Path, names: &impl Names) -> Access {
        match real(names, path) {
            Ok(real) => self.access(&real.path),
            Err(_) => self.access(path),
        }
    }

    #[must_use]
    pub fn with_network(&self, network: Network) -> Self {
        let Content { restricts_files, rules, globs, links, .. } = &*self.0;
        let (globs, links) = (globs.iter().cloned().collect(), links.iter().cloned().collect());
        Self::new(network, *restricts_files, rules.clone(), globs, links)
    }

    pub fn network(&self) -> Network {
        self.0.network
    }

    /// `false` means that every path is writable.
    pub fn restricts_files(&self) -> bool {
        self.0.restricts_files
    }

    /// Returns the policy that allows only what both allow: the lower access for each path, and
    /// the lower network.
    pub fn intersect(&self, other: &Self) -> Self {
        let is_protected =
            |policy: &Self, path| policy.0.rules.at(path).is_some_and(|rule| rule.protected_name);
        let mut draft = PolicyDraft::default();
        for rule in self.rules().iter().chain(other.rules()) {
            let path = PlainPath::of_rule(&rule.path);
            let access = self.0.rules.access(path).min(other.0.rules.access(path));
            let protected_name =
                access == Access::Read && (is_protected(self, path) || is_protected(other, path));
            draft.set(&rule.path, Decision { access, protected_name });
        }
        let globs = self.denied_globs().iter().chain(other.denied_globs()).cloned().collect();
        let links = self.0.links.iter().chain(&other.0.links);
        let links = links.filter(|link| self.may_look_at(link) && other.may_look_at(link));
        Self::new(
            self.0.network.min(other.0.network),
            self.0.restricts_files || other.0.restricts_files,
            Rules::new(&draft),
            globs,
            links.cloned().collect(),
        )
    }

    /// Sorted by path. No rule repeats the decision of the rule above it.
    pub fn rules(&self) -> &[Rule] {
        self.0.rules.as_slice()
    }

    /// Sorted. [`access`](Self::access) takes them into account.
    pub fn denied_globs(&self) -> &[DeniedGlob] {
        &self.0.globs
    }

    /// Whether the path leads to something readable: something at or below it is readable, or the
    /// path is, or is above, a symlink on the way to a granted tree. Path resolution may pass
    /// through such a path even if it cannot be read.
    pub fn leads_to_grant(&self, path: &Path) -> bool {
        PlainPath::with(path, |path| self.leads_to_grant_plain(path)).unwrap_or(false)
    }

    /// Whether access below the path may differ from access to the path itself. `false` is certain.
    pub fn may_vary_below(&self, path: &Path) -> bool {
        PlainPath::with(path, |path| self.may_vary_below_plain(path)).unwrap_or(true)
    }

    /// Sorted by path.
    pub fn grants(&self) -> Vec<Grant> {
        let rises = self.0.rules.with_surroundings().filter(|(rule, around)| rule.access > *around);
        rises.map(|(rule, _)| Grant { path: rule.path.clone(), access: rule.access }).collect()
    }

    /// Sorted by path, without the denying globs. Grants and carve-outs together make up all rules;
    /// the most specific rule decides.
    pub fn carve_outs(&self) -> Vec<CarveOut> {
        let falls = self.0.rules.with_surroundings().filter(|(rule, around)| rule.access < *around);
        falls
            .map(|(rule, _)| CarveOut {
                path: rule.path.clone(),
                access: rule.access,
                protected_name: rule.protected_name,
            })
            .collect()
    }

    /// Whether something at or below the path is readable, if globs are ignored.
    #[cfg(target_os = "linux")]
    pub(in crate::sandbox) fn may_read_in(&self, path: &Path) -> bool {
        let rules = &self.0.rules;
        let may_read = |path: PlainPath<'_>| {
            rules.access(path) >= Access::Read
                || rules.strictly_below(path).iter().any(|rule| rule.access >= Access::Read)
        };
        PlainPath::with(path, may_read).unwrap_or(false)
    }

    fn access_plain(&self, path: PlainPath<'_>) -> Access {
        match self.0.rules.access(path) {
            Access::Deny => Access::Deny,
            _ if self.is_denied_by_glob(path) => Access::Deny,
            access => access,
        }
    }

    fn leads_to_grant_plain(&self, path: PlainPath<'_>) -> bool {
        if self.is_denied_by_glob(path) {
            return false;
        }
        let readable = |other: PlainPath<'_>| self.access_plain(other) >= Access::Read;
        readable(path)
            || self
                .0
                .rules
                .strictly_below(path)
                .iter()
                .any(|rule| rule.access >= Access::Read && readable(PlainPath::of_rule(&rule.path)))
            || self.0.links.iter().any(|link| {
                let link = PlainPath::of_rule(link);
                path.covers(link) && !self.is_denied_by_glob(link)
            })
    }

    fn may_vary_below_plain(&self, path: PlainPath<'_>) -> bool {
        if self.is_denied_by_glob(path) {
            return false;
        }
        !self.0.rules.strictly_below(path).is_empty()
            || (self.0.rules.access(path) > Access::Deny
                && self.0.globs.iter().any(|glob| glob.may_match_below(path)))
    }

    fn is_denied_by_glob(&self, path: PlainPath<'_>) -> bool {
        self.0.globs.iter().any(|glob| glob.matches_plain(path))
    }

    fn may_look_at(&self, path: &Path) -> bool {
        self.access(path) >= Access::Read || self.leads_to_grant(path)
    }
}

impl PartialEq for Policy {
    fn eq(&self, other: &Self) -> bool {
        let (ours, theirs) = (&*self.0, &*other.0);
        Arc::ptr_eq(&self.0, &other.0)
            || (ours.hash == theirs.hash
                && ours.network == theirs.network
                && ours.restricts_files == theirs.restricts_files
                && ours.rules.as_slice() == theirs.rules.as_slice()
                && ours.globs == theirs.globs
                && ours.links == theirs.links)
    }
}

impl Eq for Policy {}

impl Hash for Policy {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash.hash(state);
    }
}

/// Prints one line, or with `{:#?}` one line per rule.
impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = f.debug_set();
        match self.network() {
            Network::Restricted => lines.entry(&format_args!("no network")),
            Network::Managed => lines.entry(&format_args!("managed network")),
            Network::Enabled => lines.entry(&format_args!("network")),
        };
        if !self.restricts_files() {
            lines.entry(&format_args!("all files"));
            return lines.finish();
        }
        for Rule { path, access, protected_name } in self.rules() {
            let access = match access {
                Access::Deny => "deny",
                Access::Read => "read",
                Access::Write => "write",
            };
            let protected = if *protected_name { " (protected)" } else { "" };
            lines.entry(&format_args!("{access} {path:?}{protected}"));
        }
        for glob in self.denied_globs() {
            lines.entry(&format_args!("deny {glob:?}"));
        }
        for link in &self.0.links {
            lines.entry(&format_args!("follow {link:?}"));
        }
        lines.finish()
    }
}
