//! The mounts of a plan.

use super::*;

#[test]
fn an_ordinary_workspace_gets_a_read_only_root_and_protected_names() {
    let expected = [
        cover("/", CoverKind::ReadOnly),
        fresh("/dev/shm"),
        regrant("/home/ann/app", Access::Write),
        placeholder("/home/ann/app/.agents", CoverKind::ReadOnly),
        placeholder("/home/ann/app/.codex", CoverKind::ReadOnly),
        cover("/home/ann/app/.git", CoverKind::ReadOnly),
    ];
    assert_eq!(mounts(&names(), &[READ_ALL, WORKSPACE]), expected);
}

#[test]
fn covers_and_regrants_alternate() {
    let names = names()
        .directory("/home/ann/app/src/private/shared/out")
        .file("/home/ann/app/src/private/shared/key");
    let entries = [
        READ_ALL,
        WORKSPACE,
        (path("/home/ann/app/src/private"), Access::Deny),
        (path("/home/ann/app/src/private/shared"), Access::Read),
        (path("/home/ann/app/src/private/shared/key"), Access::Deny),
        (path("/home/ann/app/src/private/shared/out"), Access::Write),
    ];
    let at_source: Vec<_> = mounts(&names, &entries)
        .into_iter()
        .filter(|mount| mount.path().starts_with("/home/ann/app/src"))
        .collect();
    let out = "/home/ann/app/src/private/shared/out";
    let expected = [
        // Without the pin, renaming the directory would move the cover.
        regrant("/home/ann/app/src", Access::Write),
        // Git searches upwards from the restored directory and looks here.
        placeholder("/home/ann/app/src/.agents", CoverKind::ReadOnly),
        placeholder("/home/ann/app/src/.codex", CoverKind::ReadOnly),
        placeholder("/home/ann/app/src/.git", CoverKind::ReadOnly),
        cover("/home/ann/app/src/private", CoverKind::Hidden),
        regrant("/home/ann/app/src/private/shared", Access::Read),
        hidden_file("/home/ann/app/src/private/shared/key"),
        regrant(out, Access::Write),
        placeholder(&format!("{out}/.agents"), CoverKind::ReadOnly),
        placeholder(&format!("{out}/.codex"), CoverKind::ReadOnly),
        placeholder(&format!("{out}/.git"), CoverKind::ReadOnly),
    ];
    assert_eq!(at_source, expected);
}

#[test]
fn missing_paths_are_covered_only_where_they_could_be_created() {
    let entries = [
        READ_ALL,
        WORKSPACE,
        (path("/home/ann/.ssh"), Access::Deny),
        (path("/home/ann/app/a/b/secret"), Access::Deny),
        (path("/home/ann/app/a/c"), Access::Read),
    ];
    let mounts = mounts(&names(), &entries);
    assert!(mounts.contains(&placeholder("/home/ann/app/a", CoverKind::Hidden)));
    assert!(!mounts.iter().any(|mount| mount.path().starts_with("/home/ann/.ssh")));
    let below = |mount: &Mount| mount.path().parent().is_some_and(|above| above.ends_with("app/a"));
    assert!(!mounts.iter().any(below), "{mounts:#?}");
}

/// Otherwise a placeholder for a protected name would take the place of the root.
#[test]
fn a_missing_writable_root_is_created_if_the_process_could_create_it() {
    let out = "/home/ann/app/build/out";
    let entries = [
        READ_ALL,
        WORKSPACE,
        (path(out), Access::Write),
        (path(&format!("{out}/secret/key")), Access::Deny),
        (path("/home/ann/elsewhere"), Access::Write),
    ];
    let is_about = |mount: &Mount, place: &str| mount.path().starts_with(place);
    let made = mounts(&names(), &entries);
    assert!(!made.iter().any(|mount| is_about(mount, "/home/ann/elsewhere")), "{made:#?}");
    let at_build: Vec<_> =
        made.into_iter().filter(|mount| is_about(mount, "/home/ann/app/build")).collect();
    let expected = [
        regrant("/home/ann/app/build", Access::Write),
        placeholder("/home/ann/app/build/.agents", CoverKind::ReadOnly),
        placeholder("/home/ann/app/build/.codex", CoverKind::ReadOnly),
        placeholder("/home/ann/app/build/.git", CoverKind::ReadOnly),
        regrant(out, Access::Write),
        placeholder(&format!("{out}/.agents"), CoverKind::ReadOnly),
        placeholder(&format!("{out}/.codex"), CoverKind::ReadOnly),
        placeholder(&format!("{out}/.git"), CoverKind::ReadOnly),
        placeholder(&format!("{out}/secret"), CoverKind::Hidden),
    ];
    assert_eq!(at_build, expected);

    let kept = (path("/home/ann/app/build"), Access::Read);
    let read_only = mounts(&names(), &[READ_ALL, WORKSPACE, kept, (path(out), Access::Write)]);
    assert!(read_only.contains(&placeholder("/home/ann/app/build", CoverKind::ReadOnly)));
}

/// The author of the file must not be able to have directories created.
#[test]
fn the_directory_that_a_git_file_names_is_not_created() {
    let names = names().file_with("/home/ann/app/tree/.git", b"gitdir: ../gone/.git/modules/tree");
    let tree = (path("/home/ann/app/tree"), Access::Write);
    let mounts = mounts(&names, &[READ_ALL, WORKSPACE, tree]);
    assert!(
        mounts.contains(&placeholder("/home/ann/app/gone", CoverKind::ReadOnly)),
        "{mounts:#?}"
    );
}

/// Otherwise a process could replace the file with a directory that contains the denied path.
#[test]
fn a_file_above_a_missing_path_is_covered() {
    let names = names().file("/home/ann/app/a").file("/home/ann/b");
    let entries = [
        READ_ALL,
        WORKSPACE,
        (path("/home/ann/app/a/secret"), Access::Deny),
        (path("/home/ann/b/secret"), Access::Deny),
    ];
    let mounts = mounts(&names, &entries);
    let stays = Cover {
        path: "/home/ann/app/a".into(),
        kind: CoverKind::ReadOnly,
        is_directory: false,
        missing: false,
    };
    assert!(mounts.contains(&Mount::Cover(stays)), "{mounts:#?}");
    assert!(!mounts.iter().any(|mount| mount.path().starts_with("/home/ann/b")));
}

#[test]
fn write_access_to_everything_needs_no_cover_of_the_root() {
    let entries = [(EntryPath::Root, Access::Write), (path("/home/ann/app/src"), Access::Read)];
    let mounts = mounts(&names(), &entries);
    assert!(!mounts.iter().any(|mount| mount.path() == Path::new("/")));
    let expected = [
        regrant("/home", Access::Write),
        regrant("/home/ann", Access::Write),
        regrant("/home/ann/app", Access::Write),
        cover("/home/ann/app/src", CoverKind::ReadOnly),
    ];
    assert!(expected.iter().all(|mount| mounts.contains(mount)), "{mounts:#?}");
}

#[test]
fn too_many_mounts_are_an_error() {
    let names =
        (0..10_000).fold(names(), |names, n| names.file(format!("/home/ann/app/src/{n}.pem")));
    let glob = (EntryPath::Glob("src/*.pem".into()), Access::Deny);
    let policy = policy_of(&names, Network::Restricted, &[READ_ALL, WORKSPACE, glob]);
    let error = Plan::new(&policy, &everything(), &names).unwrap_err();
    assert!(matches!(error, PlanError::TooManyMounts { limit: 10_000 }), "{error}");
}

/// Bubblewrap accepts at most 9,000 arguments, and some are needed for other options.
#[test]
fn bubblewrap_gets_no_more_arguments_than_it_accepts() {
    let names = (0..1_600).fold(names(), |names, n| {
        names
            .directory(format!("/home/ann/app/{n:04}/secret"))
            .file(format!("/home/ann/app/{n:04}/key"))
    });
    let plan = |pattern: &str, has: &Capabilities| {
        let glob = (EntryPath::Glob(pattern.into()), Access::Deny);
        let policy = policy_of(&names, Network::Restricted, &[READ_ALL, WORKSPACE, glob]);
        Plan::new(&policy, has, &names)
    };
    // Each match also needs a mount for the directory above it.
    for (pattern, words) in [("*/secret", 9), ("*/key", 6)] {
        let error = plan(pattern, &without_namespaces()).unwrap_err();
        let PlanError::TooManyMounts { limit } = error else { panic!("{pattern}: {error}") };
        assert!((9_000 / words * 2 - 20..9_000 / words * 2).contains(&limit), "{pattern}: {limit}");
        assert!(plan(pattern, &everything()).is_ok(), "{pattern}");
    }
    assert!(plan("0[0-8]*/secret", &without_namespaces()).is_ok());
}

#[test]
fn an_error_contains_the_reason_from_the_kernel() {
    let names = names().forbidden("/home/ann/app/secret");
    let denied = (path("/home/ann/app/secret"), Access::Deny);
    let entries = [READ_ALL, WORKSPACE, denied];
    let policy = policy_of(&self::names(), Network::Restricted, &entries);
    let text = Plan::new(&policy, &everything(), &names).unwrap_err().to_string();
    assert!(text.ends_with(": permission denied"), "{text}");
}

#[test]
fn bubblewrap_needs_proc() {
    let names = names().directory("/proc");
    let denied = (path("/proc"), Access::Deny);
    let policy = policy_of(&names, Network::Restricted, &[READ_ALL, WORKSPACE, denied]);
    assert!(Plan::new(&policy, &everything(), &names).is_ok());
    let error = Plan::new(&policy, &without_namespaces(), &names).unwrap_err();
    assert!(matches!(error, PlanError::HiddenProc), "{error}");
}

#[test]
fn a_path_that_has_become_a_symlink_is_an_error() {
    let names = names().symlink("/home/ann/app/.git", "/home/ann/app/src");
    let error = Plan::new(&workspace(), &everything(), &names).unwrap_err();
    assert!(matches!(error, PlanError::Symlink { .. }), "{error}");
}

#[test]
fn an_inaccessible_path_needs_no_cover_unless_its_surroundings_can_be_changed() {
    let names = names().forbidden("/home/user/.ssh").forbidden("/home/ann/app/locked");
    let outside = [READ_ALL, WORKSPACE, (path("/home/user/.ssh"), Access::Deny)];
    let policy = policy_of(&self::names(), Network::Restricted, &outside);
    let mounts = Plan::new(&policy, &everything(), &names).unwrap().mounts;
    assert!(!mounts.iter().any(|mount| mount.path().starts_with("/home/user")));

    let inside = [READ_ALL, WORKSPACE, (path("/home/ann/app/locked"), Access::Deny)];
    let policy = policy_of(&self::names(), Network::Restricted, &inside);
    let error = Plan::new(&policy, &everything(), &names).unwrap_err();
    assert!(matches!(error, PlanError::Unknown { .. }), "{error}");
}
