//! Access rules in a tree of paths. A rule applies to everything below it, up to the next rule.

use std::cmp::Ordering;
use std::path::PathBuf;

use super::Access;
use super::draft::{Decision, PolicyDraft};
use super::plain::PlainPath;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Rule {
    /// Absolute, without `.` and `..`. Had no symlinks when it was resolved. It need not exist.
    pub path: PathBuf,
    pub access: Access,
    /// Whether the path is protected even without an entry, so that a program cannot plant files
    /// that are later run outside the sandbox: a protected name, a git directory that a `.git` file
    /// names, or one of [`PolicyContext::protected_paths`](super::PolicyContext::protected_paths).
    pub protected_name: bool,
}

/// Rules sorted by path, without redundant ones. Without a rule, access is denied.
#[derive(Debug, Clone)]
pub(super) struct Rules {
    sorted: Vec<Rule>,
    /// For each rule, the index of the rule that applies around it.
    above: Vec<Option<usize>>,
}

impl Rules {
    /// The paths in the draft must be plain.
    pub(super) fn new(draft: &PolicyDraft) -> Self {
        let mut rules = Self { sorted: Vec::new(), above: Vec::new() };
        // Paths are sorted by components, so a rule comes after all rules above it.
        for (path, decision) in draft.iter() {
            let plain = PlainPath::of_rule(path);
            let above = rules.nearest_from(rules.sorted.len(), plain);
            let around = rules.access_of(above);
            let Decision { access, protected_name } = decision;
            if access != around {
                // Protection is needed only if the surroundings allow more.
                let protected_name = protected_name && access < around;
                rules.sorted.push(Rule { path: path.to_owned(), access, protected_name });
                rules.above.push(above);
            }
        }
        rules
    }

    pub(super) fn as_slice(&self) -> &[Rule] {
        &self.sorted
    }

    pub(super) fn access(&self, path: PlainPath<'_>) -> Access {
        self.access_of(self.nearest(path))
    }

    pub(super) fn at(&self, path: PlainPath<'_>) -> Option<&Rule> {
        let rule = &self.sorted[self.nearest(path)?];
        (PlainPath::of_rule(&rule.path) == path).then_some(rule)
    }

    pub(super) fn with_surroundings(&self) -> impl Iterator<Item = (&Rule, Access)> {
        self.sorted.iter().zip(&self.above).map(|(rule, above)| (rule, self.access_of(*above)))
    }

    pub(super) fn strictly_below(&self, path: PlainPath<'_>) -> &[Rule] {
        let start = self
            .sorted
            .partition_point(|rule| PlainPath::of_rule(&rule.path).cmp(&path) != Ordering::Greater);
        let rest = &self.sorted[start..];
        let len = rest.partition_point(|rule| path.is_above(PlainPath::of_rule(&rule.path)));
        &rest[..len]
    }

    /// Returns the index of the rule that decides the access to the path.
    fn nearest(&self, path: PlainPath<'_>) -> Option<usize> {
        let end = self.sorted.partition_point(|rule| PlainPath::of_rule(&rule.path) <= path);
        self.nearest_from(end, path)
    }

    /// `end` is the number of rules that do not sort after the path. All rules between the deciding
    /// rule and the path are below the deciding rule, so walking up from the last of them reaches
    /// it.
    fn nearest_from(&self, end: usize, path: PlainPath<'_>) -> Option<usize> {
        let mut candidate = end.checked_sub(1);
        while let Some(index) = candidate {
            if PlainPath::of_rule(&self.sorted[index].path).covers(path) {
                break;
            }
            candidate = self.above[index];
        }
        candidate
    }

    fn access_of(&self, rule: Option<usize>) -> Access {
        rule.map_or(Access::Deny, |index| self.sorted[index].access)
    }
}
