//! Covers for denied patterns.

use std::cell::Cell;
use std::ffi::OsString;
use std::io;

use super::*;
use crate::sandbox::plan::{StartFacts, Tier};
use crate::sandbox::policy::{Hold, NameKind, Names, TooMuch};

/// Names with an unusual listing for one directory.
struct Odd<F> {
    names: FakeNames,
    directory: &'static str,
    listing: F,
}

impl<F: Fn() -> io::Result<Vec<(OsString, NameKind)>>> Names for Odd<F> {
    fn kind(&self, path: &Path) -> io::Result<NameKind> {
        self.names.kind(path)
    }

    fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        self.names.read_link(path)
    }

    fn list(&self, directory: &Path, max: usize) -> io::Result<Vec<(OsString, NameKind)>> {
        if directory == Path::new(self.directory) {
            let mut listed = (self.listing)()?;
            listed.truncate(max);
            Ok(listed)
        } else {
            self.names.list(directory, max)
        }
    }

    fn read_start(&self, file: &Path, max: usize) -> io::Result<Vec<u8>> {
        self.names.read_start(file, max)
    }

    fn hold(&self, path: &Path) -> io::Result<Hold> {
        self.names.hold(path)
    }

    fn is_changeable(&self, directory: &Path) -> io::Result<bool> {
        self.names.is_changeable(directory)
    }
}

#[test]
fn current_matches_of_denied_globs_are_hidden() {
    let names = names()
        .file("/home/ann/app/a.pem")
        .file("/home/ann/app/src/keys/b.pem")
        .directory("/home/ann/app/src/c.pem/d.pem")
        .file("/home/ann/app/1/2/3/4/too_deep.pem")
        .symlink("/home/ann/app/src/link.pem", "/home/ann/app/a.pem")
        .file("/home/ann/other.pem");
    let glob = (EntryPath::Glob("**/*.pem".into()), Access::Deny);
    let hidden: Vec<_> = mounts(&names, &[READ_ALL, WORKSPACE, glob])
        .into_iter()
        .filter(|mount| {
            let hides = [CoverKind::Hidden, CoverKind::HiddenLink];
            matches!(mount, Mount::Cover(cover) if hides.contains(&cover.kind))
        })
        .collect();
    let expected = [
        hidden_file("/home/ann/app/a.pem"),
        cover("/home/ann/app/src/c.pem", CoverKind::Hidden),
        hidden_file("/home/ann/app/src/keys/b.pem"),
        hidden_link("/home/ann/app/src/link.pem"),
    ];
    assert_eq!(hidden, expected);
}

/// Bubblewrap cannot cover a symlink itself.
#[test]
fn bubblewrap_hides_the_target_of_a_denied_link() {
    let names = names()
        .file("/home/ann/keys/real.key")
        .directory("/home/ann/store")
        .symlink("/home/ann/app/a.pem", "../keys/real.key")
        .symlink("/home/ann/app/b.pem", "../store")
        .symlink("/home/ann/app/c.pem", "nowhere")
        .symlink("/home/ann/app/d.pem", "d.pem");
    let glob = (EntryPath::Glob("**/*.pem".into()), Access::Deny);
    let policy = policy_of(&names, Network::Restricted, &[READ_ALL, WORKSPACE, glob]);
    let mounts = Plan::new(&policy, &without_namespaces(), &names).unwrap().mounts;
    assert!(mounts.contains(&hidden_file("/home/ann/keys/real.key")));
    assert!(mounts.contains(&cover("/home/ann/store", CoverKind::Hidden)));
    assert!(!mounts.iter().any(|mount| mount.path().extension().is_some_and(|it| it == "pem")));
}

/// The creator of the symlink must not hide the workspace or the system from the process.
#[test]
fn bubblewrap_does_not_hide_paths_that_the_sandbox_needs() {
    let glob = |pattern: &str| (EntryPath::Glob(pattern.into()), Access::Deny);
    let planned = |target: &str, entries: &[(EntryPath, Access)], has: &Capabilities| {
        let names = names()
            .directory("/home/ann/app/src/private/shared")
            .directory("/home/ann/elsewhere/deep")
            .file("/usr/bin/sh")
            .file("/etc/passwd")
            .symlink("/home/ann/app/src/a.pem", target);
        let policy = policy_of(&names, Network::Restricted, entries);
        Plan::new(&policy, has, &names).map(|plan| plan.mounts)
    };
    let writable = [READ_ALL, WORKSPACE, glob("**/*.pem")];
    let other_root = (path("/home/ann/elsewhere/deep"), Access::Write);
    let absolute = [READ_ALL, other_root, glob("/home/ann/app/**/*.pem")];
    for (target, entries) in [
        ("..", &writable[..]),
        (".", &writable),
        ("/", &writable),
        ("/home", &writable),
        ("/usr", &writable),
        ("/usr/bin", &writable),
        ("/usr/bin/sh", &writable),
        ("/etc", &writable),
        ("/etc/passwd", &writable),
        ("/dev", &writable),
        ("/proc/self/cwd", &writable),
        ("/home/ann/app", &[READ_ALL, glob("**/*.pem")]),
        ("/home/ann/app", &absolute),
        ("/home/ann/elsewhere", &absolute),
        ("/home/ann/elsewhere/deep", &absolute),
    ] {
        match planned(target, entries, &without_namespaces()) {
            Err(PlanError::NeededTarget { link, .. }) => {
                assert_eq!(link, Path::new("/home/ann/app/src/a.pem"), "{target}");
            }
            other => panic!("{target}: {other:#?}"),
        }
        // With namespaces that the server creates itself, the symlink is covered.
        let mounts = planned(target, entries, &everything()).unwrap();
        assert!(mounts.contains(&hidden_link("/home/ann/app/src/a.pem")), "{target}: {mounts:#?}");
    }
    let names = names().directory("/home/ann/other").symlink("/home/ann/app/a.pem", "../other");
    let policy = policy_of(&names, Network::Restricted, &absolute);
    let starting_in = |cwd: &str| {
        Plan::for_start(
            StartFacts { cwd: Some(Path::new(cwd)), gate: None },
            &policy,
            &without_namespaces(),
            &names,
        )
    };
    assert!(matches!(starting_in("/home/ann/other"), Err(PlanError::NeededTarget { .. })));
    starting_in("/home/ann").unwrap();
    let text = planned("..", &writable, &without_namespaces()).unwrap_err().to_string();
    assert!(
        text.contains("/home/ann/app/src/a.pem") && text.contains("target /home/ann/app,"),
        "{text}"
    );

    // A target that is denied anyway, or is a device that every program gets, is left alone.
    let private = "/home/ann/app/src/private";
    let entries = [
        READ_ALL,
        WORKSPACE,
        (path(private), Access::Deny),
        (path(&format!("{private}/shared")), Access::Read),
        glob("**/*.pem"),
    ];
    for target in ["private", "/dev/null"] {
        let mounts = planned(target, &entries, &without_namespaces()).unwrap();
        let without_link = planned("nowhere", &entries, &without_namespaces()).unwrap();
        assert_eq!(mounts, without_link, "{target}");
    }
}

/// A renamed directory would take hidden files with it to a place where the pattern does not match.
#[test]
fn the_directories_above_denied_matches_are_pinned() {
    let names = names().file("/home/ann/app/src/secrets/id.key").file("/home/ann/other/id.key");
    let glob = |pattern: &str| (EntryPath::Glob(pattern.into()), Access::Deny);
    let entries = [READ_ALL, WORKSPACE, glob("**/secrets/*.key"), glob("/home/ann/other/*")];
    let mounts = mounts(&names, &entries);
    let below = |directory: &str| -> Vec<_> {
        mounts.iter().filter(|mount| mount.path().starts_with(directory)).cloned().collect()
    };
    let expected = [
        regrant("/home/ann/app/src", Access::Write),
        regrant("/home/ann/app/src/secrets", Access::Write),
        hidden_file("/home/ann/app/src/secrets/id.key"),
    ];
    assert_eq!(below("/home/ann/app/src"), expected);
    // Without write access nothing can be renamed.
    assert_eq!(below("/home/ann/other"), [hidden_file("/home/ann/other/id.key")]);
}

#[test]
fn a_scan_starts_over_if_a_name_vanishes() {
    let glob = (EntryPath::Glob("**/*.pem".into()), Access::Deny);
    let plan_with = |gone: usize, listing: fn() -> io::Result<Vec<(OsString, NameKind)>>| {
        let names = names().file("/home/ann/app/src/a.pem");
        let policy = policy_of(&names, Network::Restricted, &[READ_ALL, WORKSPACE, glob.clone()]);
        let looked = Cell::new(0);
        let here = names.list("/home/ann/app/src".as_ref(), usize::MAX).unwrap();
        let listing = || {
            looked.set(looked.get() + 1);
            if looked.get() <= gone { listing() } else { Ok(here.clone()) }
        };
        let names = Odd { names, directory: "/home/ann/app/src", listing };
        Plan::new(&policy, &everything(), &names)
    };
    let directory = || Err(io::ErrorKind::NotFound.into());
    let name_in_it = || Ok(vec![("renamed".into(), NameKind::Missing)]);
    for listing in [directory, name_in_it] {
        let mounts = plan_with(7, listing).unwrap().mounts;
        assert!(mounts.contains(&hidden_file("/home/ann/app/src/a.pem")), "{mounts:#?}");
        let error = plan_with(8, listing).unwrap_err();
        assert!(matches!(error, PlanError::Unsteady { .. }), "{error}");
    }
}

#[test]
fn a_glob_may_start_at_a_missing_directory() {
    let glob = (EntryPath::Glob("/home/ann/app/missing/*.pem".into()), Access::Deny);
    assert!(
        plan(&policy_of(&names(), Network::Restricted, &[READ_ALL, glob]), &everything()).is_ok()
    );
}

#[test]
fn comparisons_with_patterns_are_limited() {
    let listing = || {
        let name = |n| format!("{n}{}", "a".repeat(200));
        Ok((0..20_000).map(|n| (name(n).into(), NameKind::File)).collect())
    };
    let names = Odd { names: names(), directory: "/home/ann/app/src", listing };
    let globs = |count: usize| -> Vec<_> {
        let pattern = |n| EntryPath::Glob(format!("src/{n}*{}b", "a".repeat(500)));
        (0..count).map(|n| (pattern(n), Access::Deny)).chain([READ_ALL]).collect()
    };
    let plan = |count| {
        let policy = policy_of(&names.names, Network::Restricted, &globs(count));
        Plan::new(&policy, &everything(), &names)
    };
    assert!(plan(0).is_ok());
    let error = plan(10).unwrap_err();
    let of_steps = matches!(error, PlanError::TooMuchToScan { limit: TooMuch::Steps { .. }, .. });
    assert!(of_steps, "{error}");
}

#[test]
fn a_glob_alone_makes_namespaces_necessary_only_if_it_matches() {
    let glob = (EntryPath::Glob("*.pem".into()), Access::Deny);
    let policy = policy_of(&names(), Network::Restricted, &[READ_ALL, glob]);
    assert_eq!(plan(&policy, &without_isolation()).unwrap().tier, Tier::Direct);
    let names = names().file("/home/ann/app/a.pem");
    let refused = Plan::new(&policy, &without_isolation(), &names).unwrap_err().to_string();
    assert!(refused.starts_with("the policy protects /home/ann/app/a.pem"), "{refused}");
}

#[test]
fn an_unreadable_directory_is_hidden_as_a_whole() {
    let names = names().directory("/home/ann/app/locked");
    let listing = || Err(io::ErrorKind::PermissionDenied.into());
    let names = Odd { names, directory: "/home/ann/app/locked", listing };
    let glob = (EntryPath::Glob("**/*.pem".into()), Access::Deny);
    let policy = policy_of(&names.names, Network::Restricted, &[READ_ALL, WORKSPACE, glob]);
    let mounts = Plan::new(&policy, &everything(), &names).unwrap().mounts;
    assert!(mounts.contains(&cover("/home/ann/app/locked", CoverKind::Hidden)), "{mounts:#?}");
}

#[test]
fn landlock_grants_no_path_that_a_glob_denies() {
    let names = names().directory("/home/ann/app/x.pem/sub");
    let entries = [
        WORKSPACE,
        (path("/home/ann/app/src"), Access::Deny),
        (path("/home/ann/app/src/y.pem"), Access::Write),
        (EntryPath::Glob("**/*.pem".into()), Access::Deny),
    ];
    let policy = policy_of(&names, Network::Restricted, &entries);
    let plan = Plan::new(&policy, &everything(), &names).unwrap();
    let grants = plan.landlock.unwrap().grants.unwrap();
    assert!(grants.iter().any(|grant| grant.path == Path::new("/home/ann/app")));
    assert!(!grants.iter().any(|grant| grant.path.ends_with("y.pem")), "{grants:?}");
}

#[test]
fn a_tree_too_large_to_scan_is_an_error() {
    let listing = || Ok((0..200_001).map(|n| (n.to_string().into(), NameKind::File)).collect());
    let names = Odd { names: names(), directory: "/home/ann/app/src", listing };
    let glob = (EntryPath::Glob("**/*.pem".into()), Access::Deny);
    let policy = policy_of(&names.names, Network::Restricted, &[READ_ALL, glob]);
    let error = Plan::new(&policy, &everything(), &names).unwrap_err();
    let limit = TooMuch::Names { max: 200_000 };
    assert!(matches!(error, PlanError::TooMuchToScan { limit: found, .. } if found == limit));
}
