//! Policies as values: equality, intersection, debug output.

use std::collections::HashMap;

use super::*;
use crate::sandbox::policy::{CarveOut, Grant};

#[test]
fn grants_are_where_access_rises_and_carve_outs_where_it_falls() {
    let policy =
        asked(&["read root", "write /src", "write /src/.git/objects", "deny /src/keys"]).policy();
    let grant = |path: &str, access| Grant { path: path.into(), access };
    assert_eq!(
        policy.grants(),
        [grant("/", Read), grant("/src", Write), grant("/src/.git/objects", Write)]
    );
    let carve_out =
        |path: &str, access, protected_name| CarveOut { path: path.into(), access, protected_name };
    assert_eq!(
        policy.carve_outs(),
        [
            carve_out("/src/.agents", Read, true),
            carve_out("/src/.codex", Read, true),
            carve_out("/src/.git", Read, true),
            carve_out("/src/.git/objects/.agents", Read, true),
            carve_out("/src/.git/objects/.codex", Read, true),
            carve_out("/src/.git/objects/.git", Read, true),
            carve_out("/src/keys", Deny, false),
        ]
    );
}

#[test]
fn rules_that_decide_nothing_new_are_left_out() {
    let policy = asked(&["read root", "read /usr", "read /usr/lib", "deny /etc", "deny /etc/a"]);
    let policy = policy.policy();
    let paths: Vec<_> = policy.rules().iter().map(|rule| rule.path.as_path()).collect();
    assert_eq!(paths, [Path::new("/"), Path::new("/etc")]);
    assert_eq!(policy, asked(&["deny /etc", "read root"]).policy());
}

#[test]
fn equal_policies_are_the_same_key() {
    let mut pools = HashMap::new();
    pools.insert(asked(&["read root", "write /src"]).policy(), 1);
    pools.insert(asked(&["write /src", "read root"]).policy(), 2);
    pools.insert(asked(&["write /src", "read root", "deny glob /src/*.pem"]).policy(), 3);
    pools.insert(asked(&["write /src", "read root", "deny glob /src/*.pem"]).depth(7).policy(), 4);
    pools.insert(asked(&["write /src", "read root", "deny glob /src/**/*.pem"]).policy(), 5);
    pools.insert(
        asked(&["write /src", "read root", "deny glob /src/**/*.pem"]).depth(7).policy(),
        6,
    );
    let mut values: Vec<_> = pools.into_values().collect();
    values.sort_unstable();
    assert_eq!(values, [2, 4, 5, 6], "a depth that a glob does not reach makes no difference");
}

#[test]
fn an_intersection_has_the_more_restricted_network() {
    let (on, off) =
        (Policy::unrestricted(Network::Enabled), Policy::unrestricted(Network::Restricted));
    assert_eq!(on.intersect(&on).network(), Network::Enabled);
    assert_eq!(on.intersect(&off).network(), Network::Restricted);
    assert_eq!(off.intersect(&on).network(), Network::Restricted);
    assert!(!on.intersect(&off).restricts_files());
}

#[test]
fn an_intersection_with_an_unrestricted_policy_changes_nothing() {
    let policy = asked(&["read root", "write /src", "deny glob /src/*.pem"]).policy();
    let all = Policy::unrestricted(Network::Enabled);
    assert_eq!(policy.intersect(&all), policy);
    assert_eq!(all.intersect(&policy), policy);
    assert!(all.intersect(&policy).restricts_files());
}

#[test]
fn an_intersection_keeps_what_either_protects() {
    let ours = asked(&["write /src"]).policy();
    let theirs = asked(&["write root", "write /src/.git"]).policy();
    let both = ours.intersect(&theirs);
    assert!(both.carve_outs().contains(&CarveOut {
        path: "/src/.git".into(),
        access: Read,
        protected_name: true
    }));
    assert_eq!(both.access(Path::new("/src/a")), Write);
    assert_eq!(both.access(Path::new("/a")), Deny);
}

#[test]
fn an_intersection_with_nothing_is_nothing() {
    let nothing = asked(&[]).policy();
    let all = Policy::unrestricted(Network::Restricted);
    assert!(nothing.intersect(&all).rules().is_empty());
    assert!(all.intersect(&nothing).restricts_files());
}

#[test]
fn the_debug_output_lists_the_rules() {
    let names = FakeNames::default().symlink("/app", "/src").directory("/src");
    let policy = asked(&["read root", "write /app", "deny /src/keys", "deny glob /src/**/*.pem"])
        .on(names)
        .policy();
    assert_eq!(
        format!("{policy:?}"),
        r#"{no network, read "/", write "/src", read "/src/.agents" (protected), read "/src/.codex" (protected), "#
            .to_owned()
            + r#"read "/src/.git" (protected), deny "/src/keys", deny "/src/**/*.pem" (at most 64 deep), follow "/app"}"#
    );
    let all = Policy::unrestricted(Network::Enabled);
    assert_eq!(format!("{all:?}"), "{network, all files}");
}
