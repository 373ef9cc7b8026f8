//! Denying globs stay patterns; granting globs stand for their current matches.

use super::*;
use crate::sandbox::policy::DeniedGlob;

#[test]
fn an_absolute_glob_denies_what_it_matches() {
    asked(&["write root", "deny glob /src/*.pem"]).gives(&[
        ("/src/a.pem", Deny),
        ("/src/.pem", Deny),
        ("/src/a.pem/below", Deny),
        ("/src/sub/a.pem", Write),
        ("/src/a.pem2", Write),
        ("/a.pem", Write),
        ("/src", Write),
    ]);
}

#[test]
fn a_relative_glob_starts_at_the_working_directory_and_each_workspace_root() {
    asked(&["read root", "deny glob **/*.pem"]).cwd("/cwd").workspace("/a").workspace("/b").gives(
        &[
            ("/cwd/x.pem", Deny),
            ("/a/x.pem", Deny),
            ("/a/deep/down/x.pem", Deny),
            ("/b/x.pem", Deny),
            ("/c/x.pem", Read),
            ("/x.pem", Read),
        ],
    );
}

#[test]
fn each_pattern_matches_as_documented() {
    let matching: &[(&str, &[&str], &[&str])] = &[
        ("*", &["a", ".a", "a/b"], &[]),
        ("**", &["a", "a/b"], &[]),
        ("a", &["a", "a/b"], &["b", "b/a", "aa"]),
        ("./a/", &["a", "a/b"], &["b"]),
        ("a//b", &["a/b"], &["a", "a/c"]),
        ("a/*", &["a/b", "a/b/c"], &["a", "b/a"]),
        ("a/**", &["a/b", "a/b/c"], &["a", "b/a"]),
        ("**/a", &["a", "b/a", "b/c/a", "b/a/c"], &["b", "ba", "b/ba"]),
        ("a/*/c", &["a/b/c", "a/b/c/d"], &["a/c", "a/b/b/c", "a/b"]),
        ("a/**/c", &["a/c", "a/b/c", "a/b/b/c"], &["a", "a/b", "b/c"]),
        ("**/.env*", &[".env", "a/.env.local"], &["env", "a.env"]),
        ("?.key", &["a.key"], &["ab.key", ".key"]),
        ("[ab].key", &["a.key", "b.key"], &["c.key"]),
        ("[!ab].key", &["c.key"], &["a.key"]),
        ("{a,b/c}", &["a", "b/c"], &["b", "c"]),
        ("{a,b}/*.key", &["a/x.key", "b/x.key"], &["c/x.key", "a/x"]),
        ("a\\*", &["a*"], &["ab"]),
        ("a[*]", &["a*"], &["ab"]),
        ("secret.", &["secret.", "secret./a"], &["secret"]),
        ("**/secret.", &["secret.", "a/secret."], &["secret"]),
        ("?.key", &["é.key", "€.key", "\u{1f511}.key"], &["éé.key"]),
        ("[!a].key", &["é.key"], &["/.key", "a.key", "b/.key"]),
        ("[à-é]", &["à", "ç", "é"], &["a", "ê", "\u{c3}"]),
        ("[]-]x", &["]x", "-x"], &["ax"]),
        ("[a-]x", &["ax", "-x"], &["bx"]),
        ("[!]a]x", &["bx"], &["]x", "ax"]),
        ("[{,}]", &["{", ",", "}"], &["a"]),
        ("[\\]]", &["]"], &["\\"]),
        ("\\{a,b}".strip_suffix('}').unwrap(), &["{a,b"], &["a", "b"]),
        ("+-0", &["+-0"], &["+/0"]),
        ("**/a[+-9]c", &["x/a0c", "a.c"], &["a/c", "x/a/c"]),
        ("a,b", &["a,b"], &["a", "b"]),
        ("x{,y}", &["x", "xy"], &["y"]),
        ("{a,{b,c}d}", &["a", "bd", "cd"], &["b", "ad"]),
        ("{a/**,b}/c", &["a/c", "a/x/y/c", "b/c"], &["b/x/c", "c"]),
        ("**/a/**/b/c", &["a/b/c", "x/a/b/b/c", "a/b/a/y/b/c/z"], &["a/b", "b/c", "a/b/x/c"]),
        ("**/**/a", &["a", "x/a", "x/y/a"], &["b"]),
        ("*a*b*", &["ab", "xaxbx", "aab"], &["ba", "a"]),
        ("a b", &["a b"], &["a", "ab"]),
        ("*\n*", &["a\nb"], &["ab"]),
        ("**/b", &["a\n/b"], &["a\nb"]),
    ];
    for (pattern, yes, no) in matching {
        let policy = asked(&["read root", &format!("deny glob {pattern}")]).cwd("/w").policy();
        for (names, access) in [(yes, Deny), (no, Read)] {
            for name in *names {
                let path = Path::new("/w").join(name);
                assert_eq!(policy.access(&path), access, "{pattern:?} and {name:?}");
            }
        }
        assert_eq!(policy.access(Path::new("/w")), Read, "{pattern:?} and its base");
    }
}

#[test]
fn the_depth_limits_matching_names_but_not_the_paths_below_a_match() {
    let asked = asked(&["read root", "deny glob **/*.pem"]).cwd("/w").depth(2);
    asked.gives(&[
        ("/w/x.pem", Deny),
        ("/w/a/x.pem", Deny),
        ("/w/a/x.pem/b/c/d", Deny),
        ("/w/a/b/x.pem", Read),
    ]);
}

#[test]
fn the_depth_counts_from_where_the_pattern_starts() {
    asked(&["read root", "deny glob /a/b/**/x"])
        .depth(1)
        .gives(&[("/a/b/x", Deny), ("/a/b/c/x", Read)]);
    let deep = |depth: usize| format!("/{}x", "d/".repeat(depth - 1));
    asked(&["read root", "deny glob /**/x"])
        .gives(&[(deep(64).as_str(), Deny), (deep(65).as_str(), Read)]);
}

#[test]
fn no_entry_overrides_a_denying_glob() {
    asked(&["read root", "write /src/a.pem", "write /src/b.pem/in", "deny glob /src/*.pem"])
        .gives(&[("/src/a.pem", Deny), ("/src/b.pem/in", Deny), ("/src/b.pem/in/a", Deny)]);
}

#[test]
fn the_start_of_a_glob_is_resolved() {
    let names = FakeNames::default().symlink("/app", "/data/app").directory("/data/app/keys");
    let asked =
        asked(&["read root", "deny glob keys/*.pem", "deny glob /app/*.key"]).on(names).cwd("/app");
    asked.gives(&[("/data/app/keys/a.pem", Deny), ("/data/app/a.key", Deny)]);
    let policy = asked.policy();
    let bases: Vec<_> = policy.denied_globs().iter().map(DeniedGlob::base).collect();
    assert_eq!(bases, [Path::new("/data/app"), Path::new("/data/app/keys")]);
    let globs: Vec<_> =
        policy.denied_globs().iter().map(|glob| (glob.pattern(), glob.max_depth())).collect();
    assert_eq!(globs, [("*.key", 1), ("*.pem", 1)]);
}

#[test]
fn the_same_glob_from_two_starts_is_kept_once() {
    let policy = asked(&["read root", "deny glob *.pem"]).cwd("/a").workspace("/a").policy();
    assert_eq!(policy.denied_globs().len(), 1);
}

#[test]
fn an_invalid_glob_is_an_error() {
    let nested = format!("{}a{}", "{".repeat(1000), "}".repeat(1000));
    let long = "a".repeat(5000);
    let many = "{a,b}".repeat(9);
    let wide = format!("{}{}", "{a,b}".repeat(8), "c".repeat(900));
    for pattern in [
        "",
        "/",
        "./",
        "..",
        "../*",
        "/a/../*",
        "[",
        "a[",
        "{a",
        "a}",
        "a\\",
        "a\\/b",
        "[z-a]",
        "**.pem",
        "a**b",
        "***",
        "[a/b]",
        "x/{a/..,b}",
        "file:///etc/*.pem",
        "File:/etc",
        "{}",
        "{,a}",
        &nested,
        &long,
        &many,
        &wide,
    ] {
        for access in ["deny", "read"] {
            let line = format!("{access} glob {pattern}");
            let error = asked(&["read root", &line]).cwd("/w").error();
            assert!(matches!(error, PolicyError::InvalidGlob { .. }), "{line}: {error}");
        }
    }
}

#[test]
fn errors_name_the_whole_glob() {
    let names = (0..5000).fold(FakeNames::default(), |names, n| names.file(format!("/w/{n}")));
    let invalid = asked(&["read root", "deny glob /w/[a"]).error();
    let too_many = asked(&["read glob /w/*"]).on(names.clone()).error();
    let too_much = asked(&["read glob /w/nothing*"; 67]).on(names).error();
    for (error, glob) in [(invalid, "/w/[a"), (too_many, "/w/*"), (too_much, "/w/nothing*")] {
        assert!(error.to_string().contains(&format!("{glob:?}")), "{error}");
    }
}

#[test]
fn a_relative_glob_without_a_start_is_an_error() {
    for access in ["deny", "write"] {
        let error = asked(&[&format!("{access} glob **/*.pem")]).error();
        assert!(matches!(error, PolicyError::GlobWithoutBase { .. }), "{access}: {error}");
    }
}

#[test]
fn a_depth_of_zero_is_an_error() {
    let error = asked(&["deny glob /**/*.pem"]).depth(0).error();
    assert!(matches!(error, PolicyError::ZeroDepth), "{error}");
}

fn tree() -> FakeNames {
    FakeNames::default()
        .file("/w/a.txt")
        .file("/w/one/a.txt")
        .file("/w/one/two/a.txt")
        .directory("/w/one/target/debug")
        .directory("/w/target")
        .symlink("/w/link.txt", "/etc/passwd")
        .symlink("/w/link", "/w/one")
        .file("/etc/passwd")
}

#[test]
fn a_granting_glob_stands_for_its_current_matches() {
    asked(&["read glob **/*.txt", "write glob **/target"]).on(tree()).cwd("/w").gives(&[
        ("/w", Deny),
        ("/w/a.txt", Read),
        ("/w/one/two/a.txt", Read),
        ("/w/later.txt", Deny),
        ("/w/target", Write),
        ("/w/one/target/debug/x", Write),
        ("/w/target/.git", Read),
        ("/w/link.txt", Deny),
        ("/etc/passwd", Deny),
    ]);
}

#[test]
fn the_depth_limits_a_granting_glob() {
    asked(&["read glob /w/**/a.txt"]).on(tree()).depth(2).gives(&[
        ("/w/a.txt", Read),
        ("/w/one/a.txt", Read),
        ("/w/one/two/a.txt", Deny),
    ]);
}

#[test]
fn a_path_is_more_specific_than_a_glob_that_starts_above_it() {
    let read_all = "read glob /w/**/a.txt";
    asked(&[read_all, "deny /w/one"]).on(tree()).gives(&[
        ("/w/a.txt", Read),
        ("/w/one/a.txt", Deny),
        ("/w/one/two/a.txt", Deny),
    ]);
    asked(&["write glob /w/**/a.txt", "read /w/one"])
        .on(tree())
        .gives(&[("/w/a.txt", Write), ("/w/one/a.txt", Read)]);
    asked(&[read_all, "deny /w"]).on(tree()).gives(&[("/w/one/a.txt", Read), ("/w/one", Deny)]);
    asked(&[read_all, "deny /w/a.txt"]).on(tree()).gives(&[("/w/a.txt", Deny)]);
}

#[test]
fn too_many_globs_are_an_error() {
    let lines: Vec<_> = (0..1025).map(|n| format!("deny glob /{n}/*")).collect();
    let lines: Vec<_> = lines.iter().map(String::as_str).collect();
    assert!(matches!(asked(&lines).error(), PolicyError::TooManyGlobs { .. }));
}

#[test]
fn a_granting_glob_with_too_many_matches_is_an_error() {
    let names = (0..5000).fold(FakeNames::default(), |names, n| names.file(format!("/w/{n}")));
    let error = asked(&["read glob /w/*"]).on(names).error();
    assert!(matches!(error, PolicyError::TooManyMatches { .. }), "{error}");
}

#[test]
fn access_may_vary_to_the_depth_of_a_glob() {
    let policy = asked(&["read root", "deny glob /w/*/*.pem"]).policy();
    for (path, may_vary) in [
        ("/", true),
        ("/w", true),
        ("/w/a", true),
        ("/w/a/b", false),
        ("/w/a/b.pem", false),
        ("/v", false),
    ] {
        assert_eq!(policy.may_vary_below(Path::new(path)), may_vary, "{path}");
    }
    let nothing_to_take = asked(&["read /v", "deny glob /w/*.pem"]).policy();
    assert!(!nothing_to_take.may_vary_below(Path::new("/w")));
}

#[test]
fn a_path_denied_by_a_glob_leads_to_no_grant() {
    let policy = asked(&["read /w/keys/public", "deny glob /w/keys"]).policy();
    assert!(!policy.leads_to_grant(Path::new("/w/keys")));
    assert!(!policy.leads_to_grant(Path::new("/w")));
}

#[test]
fn each_range_of_a_class_counts_as_a_symbol() {
    // Each alternative is short, but their number is at the limit.
    let class = format!("[{}]", "a".repeat(300));
    let pattern = format!("{}{class}", "{a,b}".repeat(8));
    let error = asked(&["read root", &format!("deny glob /{pattern}")]).error();
    assert!(matches!(error, PolicyError::InvalidGlob { .. }), "{error}");
    asked(&["read root", &format!("deny glob /{class}")]).gives(&[("/a", Deny), ("/b", Read)]);
}

#[test]
fn the_total_length_of_globs_counts_once_per_start() {
    let long = format!("{}*", "a".repeat(1000));
    let lines: Vec<_> =
        ["deny", "read"].iter().map(|access| format!("{access} glob {long}")).collect();
    for line in &lines {
        let started_at = |count: usize| {
            (0..count).fold(asked(&[line]), |asked, n| asked.workspace(&format!("/w{n}")))
        };
        started_at(32).policy();
        let error = started_at(33).error();
        assert!(matches!(error, PolicyError::GlobsTooLong { .. }), "{line}: {error}");
    }
}

#[test]
fn all_starts_of_a_glob_share_one_pattern() {
    let asked =
        (0..10).fold(asked(&["deny glob *.pem"]), |asked, n| asked.workspace(&format!("/{n}")));
    let policy = asked.policy();
    let first = policy.denied_globs()[0].pattern().as_ptr();
    assert!(policy.denied_globs().iter().all(|glob| glob.pattern().as_ptr() == first));
}

#[test]
fn paths_count_once_per_project_root() {
    let lines: Vec<_> = (0..4096).map(|n| format!("read /{n}")).collect();
    let mut lines: Vec<_> = lines.iter().map(String::as_str).collect();
    asked(&lines).policy();
    lines.push("read /one/more");
    assert!(matches!(asked(&lines).error(), PolicyError::TooManyPaths { .. }));
    let of_roots = ["read project_roots/a"; 64];
    let many = (0..64).fold(asked(&of_roots), |asked, n| asked.workspace(&format!("/{n}")));
    assert!(matches!(many.error(), PolicyError::TooManyPaths { .. }));
}

#[test]
fn granting_globs_share_one_budget() {
    let names = (0..3000).fold(FakeNames::default(), |names, n| names.file(format!("/w/{n}")));
    let both = asked(&["read glob /w/*", "read glob /w/*[0-9]"]).on(names.clone());
    assert!(matches!(both.error(), PolicyError::TooManyMatches { .. }));
    // Together these scan more names than allowed, though none does alone.
    let many = asked(&["read glob /w/nothing*"; 67]).on(names);
    assert!(matches!(many.error(), PolicyError::TooMuchToScan { .. }));
}
