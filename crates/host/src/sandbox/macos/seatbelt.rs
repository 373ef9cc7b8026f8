//! Translates a policy into a Seatbelt profile for the `sandbox_init` of macOS.
//!
//! Everything is denied except what a rule allows, and every rule carries its own exceptions, so
//! that the order of rules does not matter. Access that the language cannot express stays denied,
//! with one gap: a directory above a path that a pattern denies can be renamed, to a place where
//! the pattern does not match. The gap must be closed before programs are started with a profile.
//! The texts are compared with golden files on every system; nothing here has been run on macOS.

mod basics;
mod pattern;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::sandbox::policy::{Access, Network, Policy};

/// Returns the text for `sandbox_init`, or for `sandbox-exec -p`.
pub fn profile(policy: &Policy) -> String {
    let mut text = String::from(basics::ALWAYS);
    if policy.restricts_files() {
        let exceptions = pattern::exceptions(policy.denied_globs());
        let readable = Regions::of(policy, Access::Read);
        allow(&mut text, "file-read* file-map-executable process-exec", &readable, &exceptions);
        let writable = Regions::of(policy, Access::Write);
        allow(&mut text, "file-write*", &writable, &exceptions);
        allow_passing(&mut text, &readable);
    } else {
        text.push_str(basics::ALL_FILES);
    }
    if policy.network() == Network::Enabled {
        text.push_str(basics::NETWORK);
    }
    text
}

/// The trees with at least a certain access.
struct Regions(Vec<Region>);

/// A tree, without the trees and names that are excluded from it.
struct Region {
    root: PathBuf,
    without: Vec<TakenOut>,
    /// Directories between the root and an excluded tree. They must not be renamed: after that, a
    /// process could put other content in place of the protected tree.
    pinned: BTreeSet<PathBuf>,
}

struct TakenOut {
    path: PathBuf,
    /// Whether to match the name in any case. Most disks ignore case, but a profile does so only if
    /// the file exists.
    in_any_case: bool,
}

impl Regions {
    fn of(policy: &Policy, access: Access) -> Self {
        let mut regions: Vec<Region> = Vec::new();
        // Rules are sorted, so the rule around a path comes before it.
        for (index, rule) in policy.rules().iter().enumerate() {
            let around = policy.rules()[..index]
                .iter()
                .rev()
                .find(|above| rule.path != above.path && rule.path.starts_with(&above.path));
            let (before, after) =
                (around.is_some_and(|above| above.access >= access), rule.access >= access);
            match (before, after) {
                (false, true) => regions.extend(Region::new(&rule.path)),
                (true, false) => {
                    let inside = |region: &&mut Region| rule.path.starts_with(&region.root);
                    if let Some(region) = regions.iter_mut().rev().find(inside) {
                        region.take_out(&rule.path, rule.protected_name);
                    }
                }
                _ => {}
            }
        }
        if access != Access::Write {
            regions.iter_mut().for_each(|region| region.pinned.clear());
        }
        Self(regions)
    }
}

impl Region {
    /// Returns `None` if the profile language cannot express the path.
    fn new(root: &Path) -> Option<Self> {
        let root = expressible(root).filter(|path| *path == root)?.to_owned();
        Some(Self { root, without: Vec::new(), pinned: BTreeSet::new() })
    }

    fn take_out(&mut self, path: &Path, in_any_case: bool) {
        // Excludes more than requested if the path cannot be expressed.
        let path = expressible(path).unwrap_or(Path::new("/"));
        let between = path.ancestors().skip(1).take_while(|above| *above != self.root);
        self.pinned
            .extend(between.filter(|above| above.starts_with(&self.root)).map(PathBuf::from));
        self.without.push(TakenOut { path: path.to_owned(), in_any_case });
    }
}

fn allow(text: &mut String, operations: &str, regions: &Regions, exceptions: &[String]) {
    for Region { root, without, pinned } in &regions.0 {
        let subpath = format!("(subpath {})", quoted(root));
        let trees =
            without.iter().map(|out| format!("(require-not (subpath {}))", quoted(&out.path)));
        let cases = without.iter().filter(|out| out.in_any_case).filter_map(|out| {
            Some(format!("(require-not {})", pattern::name_in_any_case(&out.path)?))
        });
        let names = pinned.iter().map(|path| format!("(require-not (literal {}))", quoted(path)));
        let patterns = exceptions.iter().map(|pattern| format!("(require-not {pattern})"));
        let excepted: Vec<_> = trees.chain(cases).chain(names).chain(patterns).collect();
        let _ = if excepted.is_empty() {
            writeln!(text, "(allow {operations}\n    {subpath})")
        } else {
            let excepted = excepted.join("\n        ");
            writeln!(text, "(allow {operations}\n    (require-all {subpath}\n        {excepted}))")
        };
    }
}

/// Allows reading the metadata of directories above readable trees, which path lookup needs.
fn allow_passing(text: &mut String, readable: &Regions) {
    let above = |region: &Region| -> Vec<PathBuf> {
        region.root.ancestors().skip(1).map(PathBuf::from).collect()
    };
    let passed: BTreeSet<_> = readable.0.iter().flat_map(above).collect();
    if passed.is_empty() {
        return;
    }
    text.push_str("(allow file-read-metadata");
    for path in passed {
        let _ = write!(text, "\n    (literal {})", quoted(&path));
    }
    text.push_str(")\n");
}

/// Returns the longest leading part of a path that a profile can express.
fn expressible(path: &Path) -> Option<&Path> {
    let is_plain = |path: &Path| path.to_str().is_some_and(|text| !text.contains(char::is_control));
    path.ancestors().find(|path| is_plain(path))
}

/// Quotes a path, which must be expressible.
fn quoted(path: &Path) -> String {
    let text = path.to_string_lossy();
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}
