//! Random policies over a few names, compared with the reference.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::sandbox::policy::reference::{Reference, covers};

/// One protected name, and one name that extends another with a byte that sorts before `/`.
const ALPHABET: [&str; 4] = ["a", "a-", "b", ".git"];

fn path(max_len: usize) -> impl Strategy<Value = PathBuf> {
    vec(select(&ALPHABET[..]), 0..=max_len)
        .prop_map(|names| Path::new("/").join(names.iter().collect::<PathBuf>()))
}

fn glob() -> impl Strategy<Value = String> {
    let names = select(&["a", "b", "*", "**", "a*", "?", "*-", ".*"][..]);
    vec(names, 1..4).prop_map(|names| format!("/{}", names.join("/")))
}

fn reference() -> impl Strategy<Value = Reference> {
    let entry = (path(3), select(&[Deny, Read, Write][..]));
    (vec(entry, 0..10), vec(glob(), 0..3), 1_usize..5, vec(path(2), 1..3)).prop_map(
        |(entries, denied_globs, max_depth, project_roots)| Reference {
            entries,
            denied_globs,
            max_depth,
            project_roots,
        },
    )
}

fn without_globs() -> impl Strategy<Value = Reference> {
    reference().prop_map(|reference| Reference { denied_globs: Vec::new(), ..reference })
}

fn resolved(reference: &Reference) -> Policy {
    resolved_on(reference, FakeNames::default()).policy()
}

fn resolved_on(reference: &Reference, names: FakeNames) -> Asked {
    let path = |(path, access): &(PathBuf, Access)| Entry {
        path: EntryPath::Path(path.clone()),
        access: *access,
        skip_missing: false,
    };
    let glob = |glob: &String| Entry {
        path: EntryPath::Glob(glob.clone()),
        access: Deny,
        skip_missing: false,
    };
    let paths = reference.entries.iter().map(path);
    Asked {
        entries: paths.chain(reference.denied_globs.iter().map(glob)).collect(),
        depth: Some(reference.max_depth),
        around: PolicyContext {
            workspace_roots: reference.project_roots.clone(),
            ..PolicyContext::default()
        },
        names,
    }
}

/// Returns every path below `path`, to `depth` names. Entries have at most three names and
/// protected paths one more, so a depth of four covers everything.
fn below(path: &Path, depth: usize) -> Vec<PathBuf> {
    if depth == 0 {
        return Vec::new();
    }
    let children = ALPHABET.iter().map(|name| path.join(name));
    children.flat_map(|child| [vec![child.clone()], below(&child, depth - 1)].concat()).collect()
}

fn nearest<'a>(decisions: impl Iterator<Item = (&'a Path, Access)>, path: &Path) -> Access {
    decisions
        .filter(|(at, _)| path.starts_with(at))
        .max_by_key(|(at, _)| at.components().count())
        .map_or(Deny, |(_, access)| access)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn access_matches_the_reference(reference in reference(), paths in vec(path(6), 1..20)) {
        let policy = resolved(&reference);
        for path in paths {
            prop_assert_eq!(policy.access(&path), reference.access(&path), "{:?} {:?}", path, policy);
        }
    }

    #[test]
    fn an_intersection_has_the_lower_access(
        ours in reference(), theirs in reference(), paths in vec(path(6), 1..20),
    ) {
        let both = resolved(&ours).intersect(&resolved(&theirs));
        for path in paths {
            let expected = ours.access(&path).min(theirs.access(&path));
            prop_assert_eq!(both.access(&path), expected, "{:?} {:?}", path, both);
        }
    }

    #[test]
    fn intersection_is_idempotent_commutative_and_associative(
        one in reference(), two in reference(), three in reference(),
    ) {
        let (one, two, three) = (resolved(&one), resolved(&two), resolved(&three));
        prop_assert_eq!(one.intersect(&one), one.clone());
        prop_assert_eq!(one.intersect(&two), two.intersect(&one));
        prop_assert_eq!(
            one.intersect(&two).intersect(&three),
            one.intersect(&two.intersect(&three))
        );
        prop_assert_eq!(one.intersect(&two).intersect(&two), one.intersect(&two));
    }

    #[test]
    fn the_order_of_entries_does_not_matter(reference in reference()) {
        let mut reversed = reference.clone();
        reversed.entries.reverse();
        reversed.denied_globs.reverse();
        reversed.project_roots.reverse();
        prop_assert_eq!(resolved(&reference), resolved(&reversed));
    }

    #[test]
    fn grants_and_carve_outs_make_up_all_rules(reference in reference(), paths in vec(path(6), 1..20)) {
        let policy = resolved(&reference);
        let (grants, carve_outs) = (policy.grants(), policy.carve_outs());
        prop_assert_eq!(grants.len() + carve_outs.len(), policy.rules().len());
        let all = || {
            let grants = grants.iter().map(|grant| (grant.path.as_path(), grant.access));
            grants.chain(carve_outs.iter().map(|carve_out| (carve_out.path.as_path(), carve_out.access)))
        };
        for path in paths {
            prop_assert_eq!(nearest(all(), &path), reference.access_by_rules(&path));
        }
        for (at, access) in all() {
            let around = at.parent().map_or(Deny, |above| nearest(all(), above));
            let rises = grants.iter().any(|grant| grant.path == at);
            prop_assert_eq!(rises, access > around, "{:?} in {:?}", at, policy);
            prop_assert_ne!(access, around, "{:?} in {:?}", at, policy);
        }
    }

    #[test]
    fn rules_are_sorted_and_not_redundant(reference in reference()) {
        let policy = resolved(&reference);
        prop_assert!(policy.rules().is_sorted_by(|one, next| one.path < next.path));
        prop_assert!(policy.denied_globs().is_sorted());
    }
}

proptest! {
    // Each case checks all paths.
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn a_path_above_a_readable_one_leads_to_a_grant(reference in reference(), paths in vec(path(3), 1..4)) {
        let policy = resolved(&reference);
        for path in paths {
            let expected = reference.access(&path) >= Read
                || below(&path, 4).iter().any(|path| reference.access(path) >= Read);
            prop_assert_eq!(policy.leads_to_grant(&path), expected, "{:?} {:?}", path, policy);
        }
    }

    #[test]
    fn where_access_varies_may_vary_below_is_true(reference in reference(), paths in vec(path(3), 1..4)) {
        let policy = resolved(&reference);
        for path in paths {
            let here = reference.access(&path);
            let varies = below(&path, 4).iter().any(|path| reference.access(path) != here);
            prop_assert!(policy.may_vary_below(&path) || !varies, "{:?} {:?}", path, policy);
        }
    }

    #[test]
    fn without_globs_may_vary_below_is_exact(reference in without_globs(), paths in vec(path(3), 1..4)) {
        let policy = resolved(&reference);
        for path in paths {
            let here = reference.access(&path);
            // `.git`, the only protected name that `below` generates, may be granted by an entry.
            // So `.agents` is checked too, which no entry names.
            let directories = [vec![path.clone()], below(&path, 3)].concat();
            let protected = directories.iter().map(|directory| directory.join(".agents"));
            let mut beneath = below(&path, 4).into_iter().chain(protected);
            let varies = beneath.any(|path| reference.access(&path) != here);
            prop_assert_eq!(policy.may_vary_below(&path), varies, "{:?} {:?}", path, policy);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn a_glob_grants_what_exists_and_matches(
        files in vec(path(5), 1..10), glob in glob(), depth in 1_usize..5,
    ) {
        let names = files.iter().fold(FakeNames::default(), FakeNames::directory);
        let asked = asked(&[&format!("read glob {glob}")]).on(names).depth(depth);
        let policy = asked.policy();
        for file in &files {
            let expected = if covers(&glob, depth, file) { Read } else { Deny };
            prop_assert_eq!(policy.access(file), expected, "{:?} {:?}", file, policy);
        }
    }

    #[test]
    fn braces_are_alternatives(globs in vec(glob(), 1..4), paths in vec(path(5), 1..20)) {
        let either = format!("/{{{}}}", globs.iter().map(|glob| &glob[1..]).collect::<Vec<_>>().join(","));
        let policy = asked(&["read root", &format!("deny glob {either}")]).policy();
        for path in paths {
            let denied = globs.iter().any(|glob| covers(glob, 64, &path));
            prop_assert_eq!(policy.access(&path) == Deny, denied, "{:?} {}", path, either);
        }
    }

    #[test]
    fn arbitrary_text_as_a_glob_does_not_panic(
        text in "[a*?\\[\\]!^{},/\\\\.é-]{0,20}", path in path(4),
    ) {
        let asked = asked(&["read root", &format!("deny glob {text}")]).cwd("/");
        match asked.resolve() {
            Ok(policy) => prop_assert!(policy.access(&path) <= Read),
            Err(error) => prop_assert!(matches!(error, PolicyError::InvalidGlob { .. }), "{}", error),
        }
    }
}

/// Symlinks at some paths to any path, including loops and missing targets.
fn links() -> impl Strategy<Value = Vec<(PathBuf, PathBuf)>> {
    vec((path(2), path(3)), 0..5)
}

/// Follows the symlinks in the whole path one after another.
fn follow(links: &[(PathBuf, PathBuf)], path: &Path) -> Option<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..100 {
        let hit = links
            .iter()
            .filter(|(link, _)| path.starts_with(link))
            .min_by_key(|(link, _)| link.components().count());
        let Some((link, target)) = hit else { return Some(path) };
        let rest = path.strip_prefix(link).expect("the path starts with the link").to_owned();
        path = if rest == Path::new("") { target.clone() } else { target.join(rest) };
    }
    None
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn entries_apply_to_their_targets(
        reference in reference(), links in links(), paths in vec(path(5), 1..20),
    ) {
        let mut seen = Vec::new();
        for (link, target) in links {
            // A link has no children, and the first link of a name is kept.
            let clash = |(other, _): &(PathBuf, PathBuf)| {
                other.starts_with(&link) || link.starts_with(other)
            };
            if link != Path::new("/") && !seen.iter().any(clash) {
                seen.push((link, target));
            }
        }
        let names = seen.iter().fold(FakeNames::default(), |names, (link, target)| {
            names.symlink(link, target)
        });
        let reference = Reference { denied_globs: Vec::new(), ..reference };
        let asked = resolved_on(&reference, names);
        let followed = |paths: &[PathBuf]| {
            paths.iter().map(|path| follow(&seen, path)).collect::<Option<Vec<_>>>()
        };
        let (paths_of_entries, accesses): (Vec<_>, Vec<_>) = reference.entries.iter().cloned().unzip();
        match (asked.resolve(), followed(&paths_of_entries), followed(&reference.project_roots)) {
            (Ok(policy), Some(real), Some(project_roots)) => {
                let real = Reference {
                    entries: real.into_iter().zip(accesses).collect(),
                    project_roots,
                    ..reference
                };
                // An entry may make a symlink itself writable, which the reference does not model.
                // No real path is below a symlink.
                let is_real = |path: &&PathBuf| !seen.iter().any(|(link, _)| path.starts_with(link));
                for path in paths.iter().filter(is_real) {
                    prop_assert_eq!(policy.access(path), real.access(path), "{:?} {:?}", path, policy);
                }
            }
            (Ok(policy), ..) => prop_assert!(false, "a symlink loop resolved to {policy:?}"),
            (Err(PolicyError::TooManyLinks { .. }), real, roots) => {
                prop_assert!(real.is_none() || roots.is_none());
            }
            (Err(
                PolicyError::ReplaceableLink { link, .. }
                | PolicyError::PlantedLink { link, .. }
                | PolicyError::ProtectedLink { path: link },
            ), ..) => {
                prop_assert!(seen.iter().any(|(other, _)| *other == link));
            }
            (Err(other), ..) => prop_assert!(false, "{other}"),
        }
    }
}
