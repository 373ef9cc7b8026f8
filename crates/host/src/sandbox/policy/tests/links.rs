//! Symlinks in the names of entries.

use super::*;

#[test]
fn a_root_that_is_a_symlink_stands_for_its_target() {
    let names = FakeNames::default().symlink("/home/me/app", "/data/app").directory("/data/app");
    asked(&["read root", "write /home/me/app", "deny /home/me/app/keys"]).on(names).gives(&[
        ("/data/app", Write),
        ("/data/app/.git", Read),
        ("/data/app/keys", Deny),
        ("/home/me/app", Read),
    ]);
}

#[test]
fn an_alias_in_an_entry_means_its_target() {
    let names = FakeNames::default().symlink("/tmp", "private/tmp").directory("/private/tmp");
    let asked = asked(&["write slash_tmp", "deny /tmp/keys", "read /private/tmp/docs"]).on(names);
    asked.gives(&[
        ("/private/tmp", Write),
        ("/private/tmp/keys", Deny),
        ("/private/tmp/docs", Read),
        ("/private", Deny),
        ("/tmp", Deny),
    ]);
    let policy = asked.policy();
    assert!(policy.leads_to_grant(Path::new("/tmp")));
    assert!(policy.leads_to_grant(Path::new("/private")));
    assert!(!policy.leads_to_grant(Path::new("/tmp/a")), "a symlink has no children");
}

#[test]
fn entries_for_an_alias_and_its_target_tie() {
    let names = FakeNames::default().symlink("/tmp", "/private/tmp").directory("/private/tmp");
    for lines in [["write /tmp", "deny /private/tmp"], ["deny /tmp", "write /private/tmp"]] {
        asked(&lines).on(names.clone()).gives(&[("/private/tmp", Deny)]);
    }
}

#[test]
fn links_are_followed_in_chains_upwards_and_to_missing_targets() {
    let names = FakeNames::default()
        .symlink("/a", "/b/c/one")
        .symlink("/b/c/one", "../two/./x")
        .symlink("/b/two", "/d//")
        .directory("/d");
    let asked = asked(&["read /a/y"]).on(names);
    asked.gives(&[("/d/x/y", Read), ("/d/x", Deny)]);
    let policy = asked.policy();
    for way in ["/a", "/b", "/b/c", "/b/c/one", "/b/two", "/d", "/d/x"] {
        assert!(policy.leads_to_grant(Path::new(way)), "{way}");
    }
    for other in ["/b/c/two", "/b/three", "/c", "/a/y"] {
        assert!(!policy.leads_to_grant(Path::new(other)), "{other}");
    }
}

#[test]
fn parent_components_in_a_link_stop_at_the_root() {
    let names = FakeNames::default().symlink("/a", "../../b").directory("/b");
    asked(&["read /a"]).on(names).gives(&[("/b", Read)]);
}

#[test]
fn a_symlink_loop_is_an_error() {
    let names = FakeNames::default().symlink("/a", "/b").symlink("/b", "/a");
    for line in ["read /a", "deny /a/x", "skip read /b"] {
        let error = asked(&[line]).on(names.clone()).error();
        assert!(matches!(error, PolicyError::TooManyLinks { .. }), "{line}: {error}");
    }
}

#[test]
fn parent_components_after_a_missing_name_are_an_error() {
    let names = FakeNames::default().symlink("/a", "missing/../b");
    let error = asked(&["deny /a"]).on(names).error();
    assert!(matches!(error, PolicyError::Unreadable { .. }), "{error}");
}

#[test]
fn links_to_denied_paths_are_not_readable() {
    let names = FakeNames::default().symlink("/a", "/b").directory("/b");
    let policy = asked(&["read /src", "deny /a"]).on(names).policy();
    assert!(!policy.leads_to_grant(Path::new("/a")));
}

#[test]
fn an_entry_through_a_replaceable_link_is_an_error() {
    let names = FakeNames::default()
        .symlink("/src/app/out", "/home/me/.ssh")
        .symlink("/src/app/in", "sub")
        .directory("/src/app/sub")
        .directory("/home/me/.ssh");
    for line in [
        "write /src/app/out",
        "read /src/app/out",
        "deny /src/app/out",
        "write /src/app/out/new",
        "read /src/app/in",
        "deny /src/app/in",
        "deny glob /src/app/out/*",
        "read glob /src/app/*/../x",
    ] {
        let asked = asked(&["write /src/app", line]).on(names.clone());
        let error = asked.error();
        assert!(
            matches!(error, PolicyError::ReplaceableLink { .. } | PolicyError::InvalidGlob { .. }),
            "{line}: {error}"
        );
    }
}

#[test]
fn a_link_that_adds_nothing_is_harmless() {
    let names = FakeNames::default().symlink("/src/in", "sub").directory("/src/sub");
    asked(&["write /src", "write /src/in"])
        .on(names)
        .gives(&[("/src/sub", Write), ("/src/sub/.git", Read)]);
}

#[test]
fn replaceable_links_do_not_justify_each_other() {
    let names = FakeNames::default()
        .symlink("/src/one", "/home")
        .symlink("/src/two", "/home")
        .directory("/home");
    let error = asked(&["write /src", "write /src/one", "write /src/two"]).on(names).error();
    assert!(matches!(error, PolicyError::ReplaceableLink { .. }), "{error}");
}

#[test]
fn a_link_in_a_read_only_directory_may_be_used() {
    let names = FakeNames::default().symlink("/src/ro/link", "/data").directory("/data");
    asked(&["write /src", "read /src/ro", "write /src/ro/link"])
        .on(names)
        .gives(&[("/data", Write), ("/src/ro", Read)]);
}

#[test]
fn links_visible_to_both_policies_stay_in_the_intersection() {
    let names = FakeNames::default().symlink("/app", "/data/app").directory("/data/app");
    let ours = asked(&["read /app"]).on(names.clone()).policy();
    let all = asked(&["read root"]).on(names.clone()).policy();
    let other = asked(&["read /data"]).on(names).policy();
    let link = Path::new("/app");
    assert!(ours.intersect(&all).leads_to_grant(link));
    assert!(all.intersect(&ours).leads_to_grant(link));
    assert!(ours.intersect(&Policy::unrestricted(Network::Enabled)).leads_to_grant(link));
    assert!(!ours.intersect(&other).leads_to_grant(link));
}
