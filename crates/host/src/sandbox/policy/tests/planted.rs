//! Symlinks that a process in an earlier sandbox could have created.

use super::*;
use crate::sandbox::policy::LinkDoubt;

/// `/srv/app/sub` and `/srv/app/tmp` are symlinks into the home directory. `~/code` is a symlink to
/// another disk.
fn names() -> FakeNames {
    FakeNames::default()
        .directory("/srv/app/real")
        .symlink("/srv/app/sub", "../../home/me/.ssh")
        .symlink("/srv/app/tmp", "../../home/me/.ssh")
        .symlink("/srv/app/twice", "sub")
        .symlink("/home/me/code", "/data/code")
        .symlink("/home/me/by_way", "/srv/app/sub")
        .directory("/home/me/.ssh")
        .directory("/data/code/app")
}

#[track_caller]
fn refused(asked: &Asked) -> (PathBuf, LinkDoubt) {
    match asked.error() {
        PolicyError::PlantedLink { link, doubt, .. } => (link, doubt),
        other => panic!("{:?}: {other}", asked.entries),
    }
}

fn written() -> LinkDoubt {
    LinkDoubt::Written { root: "/srv/app".into() }
}

#[test]
fn no_entry_is_granted_through_a_planted_link() {
    for lines in [
        &["read root", "write /srv/app/sub"][..],
        &["read root", "write cwd"],
        &["read root", "write project_roots"],
        &["read root", "write tmpdir"],
        &["minimal", "read /srv/app/sub/id"],
        &["minimal", "skip read /srv/app/sub/id"],
        &["minimal", "read cwd"],
        &["minimal", "read project_roots"],
        &["minimal", "read project_roots/below"],
        &["minimal", "read glob /srv/app/sub/*"],
        &["minimal", "read glob *"],
        &["minimal", "write glob /srv/app/sub/*"],
    ] {
        let lines: Vec<_> =
            lines.iter().map(|line| line.replace("minimal", "read minimal")).collect();
        let lines: Vec<_> = lines.iter().map(String::as_str).collect();
        let names = names().file("/home/me/.ssh/id");
        let asked = asked(&lines).on(names).cwd("/srv/app/sub").workspace("/srv/app/sub");
        let asked = asked.tmpdir("/srv/app/tmp").written("/srv/app");
        let (link, doubt) = refused(&asked);
        assert_eq!(doubt, written(), "{lines:?}");
        assert!(
            link == Path::new("/srv/app/sub") || link == Path::new("/srv/app/tmp"),
            "{lines:?}"
        );
    }
}

#[test]
fn a_subpath_of_a_project_may_be_a_planted_link() {
    let asked =
        asked(&["read minimal", "read project_roots/sub"]).on(names()).workspace("/srv/app");
    assert_eq!(refused(&asked.written("/srv/app")), ("/srv/app/sub".into(), written()));
}

/// An entry that names `.git` grants it. An entry that reaches it through a link does not.
#[test]
fn a_link_to_a_protected_name_does_not_open_it() {
    let names =
        || FakeNames::default().directory("/srv/app/.git").symlink("/srv/app/build", ".git");
    let named = asked(&["read root", "write /srv/app", "write /srv/app/.git"]).on(names());
    named.gives(&[("/srv/app/.git/hooks", Write)]);
    for line in ["write /srv/app/build", "write project_roots/build"] {
        let asked = asked(&["read root", "write cwd", line]).on(names());
        let asked = asked.cwd("/srv/app").workspace("/srv/app").written("/srv/app");
        match asked.error() {
            PolicyError::PlantedLink { link, .. } | PolicyError::ReplaceableLink { link, .. } => {
                assert_eq!(link, Path::new("/srv/app/build"), "{line}");
            }
            other => panic!("{line}: {other}"),
        }
    }
}

#[test]
fn the_error_names_the_remedy() {
    let error =
        asked(&["read root", "write cwd"]).on(names()).cwd("/srv/app/sub").written("/srv/app");
    let text = error.error().to_string();
    for part in ["/srv/app/sub", "/home/me/.ssh", "in \"/srv/app\"", "sandbox.trusted_links"] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
}

#[test]
fn every_link_on_the_way_counts() {
    for way in ["/srv/app/twice", "/home/me/by_way", "/home/me/by_way/below"] {
        let line = format!("write {way}");
        let asked = asked(&["read root", &line]).on(names()).written("/srv/app");
        assert_eq!(refused(&asked).1, written(), "{way}");
    }
}

#[test]
fn a_link_of_the_user_outside_of_any_workspace_is_followed() {
    // Tools keep their settings in these directories.
    let names = names().directory("/home/me/.codex").directory("/home/me/.agents");
    for (lines, path) in [
        (&["read root", "write cwd"][..], "/home/me/code"),
        (&["read root", "write cwd"], "/home/me/code/app"),
        (&["read minimal", "write project_roots"], "/home/me/code/app"),
    ] {
        let asked = asked(lines).on(names.clone()).cwd(path).workspace(path);
        let mut asked = asked.written("/srv/app").written("/data/code").written("/home/me/proj");
        asked.around.link_trust.home = Some("/home/me".into());
        asked.gives(&[("/data/code/app", Write), ("/home/me", asked_access(lines))]);
        asked.around.link_trust.home = None;
        let doubt = LinkDoubt::Workspace { name: "/home/me/.agents".into() };
        assert_eq!(refused(&asked), ("/home/me/code".into(), doubt));
    }
}

fn asked_access(lines: &[&str]) -> Access {
    if lines[0] == "read root" { Read } else { Deny }
}

#[test]
fn links_in_workspaces_and_temporary_directories_are_never_followed() {
    let workspace = |name: &str| LinkDoubt::Workspace { name: name.into() };
    let temporary = |directory: &str| LinkDoubt::Temporary { directory: directory.into() };
    for (path, marks, doubt) in [
        ("/src/app/sub", "/src/app/.git/x", workspace("/src/app/.git")),
        ("/src/app/a/b/sub", "/src/.codex", workspace("/src/.codex")),
        ("/home/me/sub", "/home/me/.git/x", workspace("/home/me/.git")),
        ("/home/me/app/sub", "/home/me/app/.agents", workspace("/home/me/app/.agents")),
        ("/tmp/sub", "/a", temporary("/tmp")),
        ("/tmp/a/sub", "/a", temporary("/tmp")),
        ("/var/tmp/sub", "/a", temporary("/var/tmp")),
        ("/scratch/sub", "/a", temporary("/scratch")),
    ] {
        let names = FakeNames::default().symlink(path, "/etc/app").file(marks);
        let mut asked = asked(&["read root", "write cwd"]).on(names).cwd(path);
        asked.around.link_trust.home = Some("/home/me".into());
        asked.around.tmpdir = Some("/scratch".into());
        assert_eq!(refused(&asked), (path.into(), doubt));
    }
}

#[test]
fn links_that_only_root_could_create_are_followed() {
    let names = FakeNames::default()
        .symlink("/home", "/data/home")
        .directory("/data/home/me/app")
        .symlink("/tmp", "private/tmp")
        .directory("/private/tmp");
    let asked = asked(&["read root", "write cwd", "write slash_tmp"]).on(names.clone());
    let asked = asked.cwd("/home/me/app").written("/");
    assert_eq!(refused(&asked), ("/home".into(), LinkDoubt::Written { root: "/".into() }));
    let ordinary = asked.on(names.unchangeable("/"));
    ordinary.gives(&[("/data/home/me/app", Write), ("/private/tmp", Write)]);
    // An unchangeable directory can be replaced as a whole if its parent can be changed.
    let names = FakeNames::default()
        .symlink("/srv/app/root/link", "/etc")
        .unchangeable("/")
        .unchangeable("/srv/app/root");
    let asked =
        super::asked(&["read root", "write /srv/app/root/link"]).on(names).written("/srv/app");
    assert_eq!(refused(&asked).1, written());
}

#[test]
fn system_directories_may_be_links() {
    let names = FakeNames::default().symlink("/bin", "usr/bin").directory("/usr/bin");
    asked(&["read minimal"]).on(names).written("/").gives(&[("/usr/bin/sh", Read)]);
}

#[test]
fn with_an_unknown_history_no_link_is_followed() {
    let mut asked = asked(&["read root", "write cwd"]).on(names()).cwd("/home/me/code");
    asked.around.link_trust.written = WrittenRoots::Unknown;
    assert_eq!(refused(&asked), ("/home/me/code".into(), LinkDoubt::Unknown));
    asked.cwd("/data/code").gives(&[("/data/code/app", Write)]);
}

#[test]
fn links_trusted_by_the_operator_are_followed() {
    let names = names().symlink("/alias", "/srv/app");
    for trusted in ["/srv/app/sub", "/alias/sub"] {
        let asked = asked(&["read root", "write cwd"]).on(names.clone()).cwd("/srv/app/sub");
        asked.written("/srv/app").trusting(trusted).gives(&[("/home/me/.ssh", Write)]);
    }
    for other in ["/srv/app", "/srv/app/sub/below", "/srv/app/su", "/home/me/.ssh", "/"] {
        let asked = asked(&["read root", "write cwd"]).on(names.clone()).cwd("/srv/app/sub");
        assert_eq!(refused(&asked.written("/srv/app").trusting(other)).1, written(), "{other}");
    }
    // A trusted link is still refused if a process in this very sandbox could replace it.
    let asked = asked(&["write /srv/app", "write /srv/app/sub"]).on(names).trusting("/srv/app/sub");
    assert!(matches!(asked.error(), PolicyError::ReplaceableLink { .. }));
}

#[test]
fn a_planted_link_that_grants_nothing_more_is_harmless() {
    let within = names().symlink("/srv/app/in", "real");
    asked(&["read root", "write /srv/app", "write /srv/app/in"])
        .on(within.clone())
        .written("/srv/app")
        .gives(&[("/srv/app/real", Write)]);
    // Everything is readable anyway, and an entry that denies or lowers access grants nothing.
    asked(&["read root", "read /srv/app/sub", "deny /srv/app/tmp/id"])
        .on(within.clone())
        .written("/srv/app")
        .gives(&[("/home/me/.ssh", Read), ("/home/me/.ssh/id", Deny)]);
    asked(&["write /home", "read /srv/app/sub"])
        .on(within.clone())
        .written("/srv/app")
        .gives(&[("/home/me/.ssh", Read), ("/home/me", Write)]);
    // Two links do not justify each other, and one does not undo the denial of another.
    for lines in [
        ["read root", "write /srv/app/sub", "write /srv/app/tmp"],
        ["write /home", "deny /srv/app/tmp", "write /srv/app/sub/below"],
        ["write /home", "read /srv/app/tmp", "write /srv/app/sub/below"],
    ] {
        refused(&asked(&lines).on(within.clone()).written("/srv/app"));
    }
}
