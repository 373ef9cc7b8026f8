//! The access of a tree of paths, each deciding for what is below it until another one does.

use std::cmp::Ordering;
use std::path::PathBuf;

use super::Access;
use super::draft::{Decision, PolicyDraft};
use super::plain::PlainPath;

/// Decides for its path and what is below.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Rule {
    /// Absolute, without symlinks, `.` and `..` when it was resolved. There need not be anything at it.
    pub path: PathBuf,
    pub access: Access,
    /// Whether or not somebody asked for it, it keeps a program from planting what runs later, outside of the sandbox.
    pub protected_name: bool,
}

/// Rules sorted by path, without those that would decide what the rule above decides already. Where there is no rule access is
/// denied.
#[derive(Debug, Clone)]
pub(super) struct Rules {
    sorted: Vec<Rule>,
    /// For each rule, that which decides around it.
    above: Vec<Option<usize>>,
}

impl Rules {
    /// The paths are plain ones.
    pub(super) fn new(draft: &PolicyDraft) -> Self {
        let mut rules = Self { sorted: Vec::new(), above: Vec::new() };
        // Paths are sorted by components, so a rule comes after all that are above it.
        for (path, decision) in draft.iter() {
            let plain = PlainPath::of_rule(path);
            let above = rules.nearest_from(rules.sorted.len(), plain);
            let around = rules.access_of(above);
            let Decision { access, protected_name } = decision;
            if access != around {
                // What cannot be written around it needs no protection.
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

    /// With the access around each.
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

    /// The rule that decides for the path.
    fn nearest(&self, path: PlainPath<'_>) -> Option<usize> {
        let end = self.sorted.partition_point(|rule| PlainPath::of_rule(&rule.path) <= path);
        self.nearest_from(end, path)
    }

    /// `end` is the number of rules that are not after the path. Those between the one that decides and the path are all
    /// below the former, so the chain upwards from the last of them meets it.
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
