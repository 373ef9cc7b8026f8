//! The most specific entry wins; on a tie deny wins, then write.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::*;

#[test]
fn a_path_without_an_entry_is_denied() {
    asked(&[]).gives(&[("/", Deny), ("/src", Deny), ("/dev/null", Deny)]);
    asked(&["read /src"]).gives(&[("/", Deny), ("/sr", Deny), ("/src2", Deny), ("/usr", Deny)]);
}

#[test]
fn an_entry_applies_to_its_path_and_everything_below() {
    asked(&["read /src"]).gives(&[("/src", Read), ("/src/a", Read), ("/src/a/b/c", Read)]);
}

#[test]
fn the_most_specific_entry_wins_in_any_order() {
    let expected = [
        ("/etc", Read),
        ("/src", Write),
        ("/src/keys", Deny),
        ("/src/keys/a", Deny),
        ("/src/keys/public", Read),
        ("/src/keys/public/b", Read),
        ("/src/keys-old", Write),
    ];
    let lines = ["read root", "write /src", "deny /src/keys", "read /src/keys/public"];
    asked(&lines).gives(&expected);
    let reversed: Vec<_> = lines.into_iter().rev().collect();
    asked(&reversed).gives(&expected);
}

#[test]
fn on_a_tie_deny_wins_over_write_and_write_over_read() {
    for (one, other, expected) in [
        ("read", "read", Read),
        ("read", "write", Write),
        ("read", "deny", Deny),
        ("write", "write", Write),
        ("write", "deny", Deny),
        ("deny", "deny", Deny),
    ] {
        let (one, other) = (format!("{one} /src"), format!("{other} /src"));
        for lines in [[one.as_str(), other.as_str()], [other.as_str(), one.as_str()]] {
            asked(&lines).gives(&[("/src", expected), ("/src/a", expected)]);
        }
    }
    asked(&["write /src", "deny /src", "read /src", "write /src"]).gives(&[("/src", Deny)]);
}

#[test]
fn spellings_of_the_same_path_tie() {
    for same in ["/src/app/", "/src//app", "//src/./app", "/src/app/."] {
        let deny = format!("deny {same}");
        asked(&["write /src/app", &deny]).gives(&[("/src/app", Deny)]);
        asked(&[&deny, "write /src/app"]).gives(&[("/src/app", Deny)]);
    }
}

#[test]
fn siblings_that_sort_between_a_path_and_its_children_change_nothing() {
    // `-` and `.` sort before `/`.
    asked(&["read /a", "write /a-b", "deny /a.b", "deny /a/b"]).gives(&[
        ("/a/c", Read),
        ("/a/b/c", Deny),
        ("/a-b/c", Write),
        ("/a.b/c", Deny),
        ("/a-", Deny),
    ]);
}

#[test]
fn another_spelling_of_a_path_is_never_granted_more() {
    let policy = asked(&["write /src", "deny /src/keys"]).policy();
    for (path, access) in [
        ("/src//keys", Deny),
        ("/src/./keys", Deny),
        ("/src/keys/", Deny),
        ("/src/", Write),
        ("//src", Write),
        ("/src/a/../keys", Deny),
        ("/src/a/..", Deny),
        ("src", Deny),
        ("", Deny),
        (".", Deny),
    ] {
        assert_eq!(policy.access(Path::new(path)), access, "{path}");
    }
    assert!(!policy.leads_to_grant(Path::new("src")));
    assert!(policy.may_vary_below(Path::new("src")));
}

#[test]
fn paths_need_not_be_utf8() {
    let bytes = |bytes: &'static [u8]| PathBuf::from(OsStr::from_bytes(bytes));
    let entry = |path, access| Entry { path: EntryPath::Path(path), access, skip_missing: false };
    let mut asked = asked(&["deny glob /src/**/*.pem"]);
    asked.entries.push(entry(bytes(b"/src/\xff"), Write));
    asked.entries.push(entry(bytes(b"/src/\xff/\xfe"), Deny));
    let policy = asked.policy();
    for (path, access) in [
        (&b"/src/\xff"[..], Write),
        (b"/src/\xff/a\x80", Write),
        (b"/src/\xff/\xfe/a", Deny),
        (b"/src/\xff/\x80.pem", Deny),
        (b"/src/\xff/\x80.pem/a", Deny),
        (b"/src/\xfe", Deny),
    ] {
        assert_eq!(policy.access(Path::new(OsStr::from_bytes(path))), access, "{path:?}");
    }
}

#[test]
fn relative_paths_and_parent_components_are_errors() {
    for line in ["write src", "read .", "deny ./a", "read "] {
        assert!(matches!(asked(&[line]).error(), PolicyError::Relative { .. }), "{line}");
    }
    for line in ["write /src/..", "deny /src/../etc", "skip read /missing/../etc"] {
        assert!(matches!(asked(&[line]).error(), PolicyError::ParentComponent { .. }), "{line}");
    }
    for workspace in ["src", ""] {
        let error = asked(&["read project_roots"]).workspace(workspace).error();
        assert!(matches!(error, PolicyError::Relative { .. }), "{workspace:?}");
    }
}

#[test]
fn an_unreadable_path_is_an_error() {
    let names = FakeNames::default().forbidden("/src/private");
    for line in ["deny /src/private/keys", "read /src/private", "skip read /src/private"] {
        let error = asked(&[line]).on(names.clone()).error();
        assert!(matches!(error, PolicyError::Unreadable { .. }), "{line}: {error}");
    }
}

#[test]
fn an_entry_for_a_missing_path_applies_unless_skip_is_set() {
    let names = FakeNames::default().directory("/src").directory("/dev");
    let asked = asked(&["write /src", "deny /src/later", "skip deny /src/never", "skip read /opt"]);
    asked.on(names).gives(&[
        ("/src/later", Deny),
        ("/src/later/a", Deny),
        ("/src/never", Write),
        ("/opt", Deny),
    ]);
}

#[test]
fn existing_paths_are_not_skipped() {
    let names = FakeNames::default().directory("/src/keys").symlink("/opt", "/nowhere");
    asked(&["write /src", "skip deny /src/keys", "skip read /opt"])
        .on(names)
        .gives(&[("/src/keys", Deny), ("/nowhere", Deny)]);
}
