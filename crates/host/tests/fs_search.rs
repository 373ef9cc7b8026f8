//! Searches and globs in real trees, including hostile ones.

#![expect(clippy::unwrap_used, reason = "a failed step fails its test")]

use std::ffi::OsStr;
use std::fs;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use exec_server_host::fs::glob::{GlobError, GlobOptions, glob};
use exec_server_host::fs::search::{Match, Search, SearchError, SearchOptions, Summary};
use exec_server_host::fs::{CancelFlag, FsError, TreeKind};
use rustix::fs::{CWD, FileType, Mode};
use tempfile::TempDir;

fn tree(files: &[(&str, &str)]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, content) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    root
}

fn fifo(path: &Path) {
    let mode = Mode::from_raw_mode(0o644);
    rustix::fs::mknodat(CWD, path, FileType::Fifo, mode, 0).unwrap();
}

fn pattern(pattern: &str) -> SearchOptions {
    SearchOptions { pattern: pattern.to_owned(), max_matches: 10_000, ..SearchOptions::default() }
}

fn search(root: &Path, options: &SearchOptions) -> (Vec<Match>, Summary) {
    let mut matches = Vec::new();
    let search = Search::new(options).unwrap();
    let summary = search
        .run(root, &AtomicBool::new(false), &mut |found| {
            matches.push(found);
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(summary.matches, matches.len() as u64);
    (matches, summary)
}

/// Returns `path:line` of each match.
fn places(root: &Path, options: &SearchOptions) -> Vec<String> {
    let place = |found: &Match| {
        let path = found.path.strip_prefix(root).unwrap();
        format!("{}:{}", path.display(), found.line_number)
    };
    search(root, options).0.iter().map(place).collect()
}

#[test]
fn matches_are_ordered_by_path_and_line() {
    let root = tree(&[
        ("b/two", "needle\n"),
        ("a", "x\nneedle needle\nneedle"),
        ("b.txt", "needle\n"),
        ("b/one", "no\n"),
    ]);
    let (matches, summary) = search(root.path(), &pattern("needle"));
    assert_eq!(places(root.path(), &pattern("needle")), ["a:2", "a:3", "b/two:1", "b.txt:1"]);
    assert_eq!(matches[0].text, "needle needle");
    assert_eq!(matches[0].submatches, [0..6, 7..13]);
    assert_eq!(summary, Summary { matches: 4, files_searched: 4, ..Summary::default() });
}

#[test]
fn options_change_the_meaning_of_patterns() {
    let root = tree(&[("f", "a.b\naxb\nA.B\na.bc\n")]);
    let lines = |options: SearchOptions| -> Vec<u64> {
        search(root.path(), &options).0.iter().map(|found| found.line_number).collect()
    };
    assert_eq!(lines(pattern("a.b")), [1, 2, 4]);
    assert_eq!(lines(SearchOptions { literal: true, ..pattern("a.b") }), [1, 4]);
    assert_eq!(lines(SearchOptions { literal: true, word: true, ..pattern("a.b") }), [1]);
    assert_eq!(lines(SearchOptions { ignore_case: true, ..pattern("a.b$") }), [1, 2, 3]);
    assert_eq!(lines(pattern("")), [1, 2, 3, 4]);
    assert!(search(root.path(), &pattern("")).0[0].submatches.is_empty());
}

#[test]
fn the_end_of_line_anchor_matches_before_crlf() {
    let root = tree(&[("dos", "bar\r\nbarn\r\nx bar\r\n"), ("unix", "bar\nbarn\n")]);
    let (found, _) = search(root.path(), &pattern("bar$"));
    let lines: Vec<_> =
        found.iter().map(|found| (found.text.as_str(), found.line_number)).collect();
    assert_eq!(lines, [("bar", 1), ("x bar", 3), ("bar", 1)]);
    assert_eq!(found[1].submatches.first(), Some(&(2..5)));
    // A pattern that contains a CR matches it.
    for carriage_return in ["\\r$", "r\\r", "\r"] {
        let (found, _) = search(root.path(), &pattern(carriage_return));
        assert!(found.iter().all(|found| found.path.ends_with("dos")) && !found.is_empty());
    }
    // A progress bar leaves CRs within the lines of a log.
    let root = tree(&[("log", "1%\r100%\n")]);
    for across in ["1%.100%", "1%[^x]1", "1%.*100%"] {
        assert_eq!(search(root.path(), &pattern(across)).0.len(), 1, "{across}");
    }
    assert!(search(root.path(), &pattern("^100")).0.is_empty());
}

#[test]
fn hidden_and_ignored_files_are_searched_on_request() {
    let root = tree(&[
        (".git/config", "x\n"),
        (".hidden", "x\n"),
        (".gitignore", "*.log\n/out\n!keep.log\n"),
        (".ignore", "secret\n"),
        ("a.log", "x\n"),
        ("keep.log", "x\n"),
        ("out/file", "x\n"),
        ("sub/out/file", "x\n"),
        ("sub/.gitignore", "nested\n!a.log\n"),
        ("sub/nested", "x\n"),
        ("sub/a.log", "x\n"),
        ("secret", "x\n"),
    ]);
    let all = pattern("^x$");
    assert_eq!(places(root.path(), &all), ["keep.log:1", "sub/a.log:1", "sub/out/file:1"]);
    let hidden = SearchOptions { hidden: true, ..all.clone() };
    assert_eq!(places(root.path(), &hidden)[..2], [".git/config:1", ".hidden:1"]);
    let ignored = SearchOptions { ignored: true, ..all.clone() };
    assert_eq!(places(root.path(), &ignored).len(), 7);
    // Rules of the repository also apply below its top.
    assert_eq!(places(&root.path().join("sub"), &all), ["a.log:1", "out/file:1"]);
}

#[test]
fn globs_select_files_but_reveal_no_ignored_ones() {
    let root = tree(&[
        (".gitignore", "*.log\n"),
        ("a.rs", "x\n"),
        ("a.log", "x\n"),
        ("src/b.rs", "x\n"),
        ("src/c.txt", "x\n"),
        ("vendor/d.rs", "x\n"),
    ]);
    let with = |globs: &[&str]| {
        let globs = globs.iter().map(ToString::to_string).collect();
        places(root.path(), &SearchOptions { globs, ..pattern("x") })
    };
    assert_eq!(with(&["*.rs", "*.log", "!vendor"]), ["a.rs:1", "src/b.rs:1"]);
    assert_eq!(with(&["src/*"]), ["src/b.rs:1", "src/c.txt:1"]);
    assert_eq!(with(&["!*.rs"]), ["src/c.txt:1"]);
}

#[test]
fn a_root_may_be_a_file_but_must_exist() {
    let root = tree(&[(".hidden", "needle\n")]);
    let (matches, _) = search(&root.path().join(".hidden"), &pattern("needle"));
    assert_eq!(matches[0].path, root.path().join(".hidden"));

    let missing = Search::new(&pattern("x")).unwrap().run(
        &root.path().join("missing"),
        &AtomicBool::new(false),
        &mut |_| ControlFlow::Continue(()),
    );
    assert!(missing.unwrap_err().is_not_found());
}

#[test]
fn bad_patterns_are_refused_with_a_single_line() {
    for bad in ["(", "a{2,1}", "[z-a]", "(a{1000}){1000}", "a\nb"] {
        let error = Search::new(&pattern(bad)).unwrap_err();
        assert!(matches!(error, SearchError::Pattern { .. }), "{bad}");
        assert!(!error.to_string().contains('\n'), "{error}");
    }
    let long = Search::new(&pattern(&"x".repeat(100_000))).unwrap_err();
    assert!(matches!(long, SearchError::PatternTooLong { .. }));
    let globs = SearchOptions { globs: vec!["a[".to_owned()], ..pattern("x") };
    assert!(matches!(Search::new(&globs).unwrap_err(), SearchError::Glob(_)));
}

#[test]
fn each_line_of_context_is_reported_once() {
    let text = (1..=12).map(|n| format!("{}\n", if n % 5 == 0 { "hit" } else { "-" }));
    let root = tree(&[("f", &text.collect::<String>())]);
    let options = SearchOptions { before: 3, after: 2, ..pattern("hit") };
    let (matches, _) = search(root.path(), &options);
    let lines = |found: &Match| -> (Vec<u64>, u64, Vec<u64>) {
        let numbers = |lines: &[exec_server_host::fs::search::Line]| {
            lines.iter().map(|line| line.line_number).collect()
        };
        (numbers(&found.before), found.line_number, numbers(&found.after))
    };
    assert_eq!(lines(&matches[0]), (vec![2, 3, 4], 5, vec![6, 7]));
    assert_eq!(lines(&matches[1]), (vec![8, 9], 10, vec![11, 12]));
    assert_eq!(matches.len(), 2);
}

#[test]
fn the_last_match_has_its_context() {
    let root = tree(&[("f", "hit\n1\n2\nhit\n3\n4\nhit\n"), ("g", "hit\n")]);
    let options = SearchOptions { after: 1, max_matches: 2, ..pattern("hit") };
    let (matches, summary) = search(root.path(), &options);
    assert_eq!(matches.len(), 2);
    assert_eq!(matches[1].after[0].text, "3");
    assert!(summary.truncated && !summary.cancelled && summary.files_searched == 1);
    let (matches, _) = search(root.path(), &SearchOptions { max_matches: 1, ..pattern("hit") });
    assert_eq!(matches.len(), 1);
    let (matches, summary) = search(root.path(), &SearchOptions { max_matches: 0, ..options });
    assert!(matches.is_empty() && summary.truncated);
}

#[test]
fn binary_files_are_searched_up_to_their_first_nul() {
    let root = tree(&[("binary", "needle\0\nneedle\n"), ("text", "needle\n")]);
    assert_eq!(places(root.path(), &pattern("needle")), ["text:1"]);
}

#[test]
fn submatches_are_right_in_lines_that_are_not_utf8() {
    let root = tree(&[]);
    fs::write(root.path().join("f"), b"\xe9\xff caf\xe9 needle\r\n").unwrap();
    let (matches, _) = search(root.path(), &pattern("needle"));
    assert_eq!(matches[0].text, "\u{fffd}\u{fffd} caf\u{fffd} needle");
    assert_eq!(&matches[0].text[matches[0].submatches[0].clone()], "needle");
}

#[test]
fn results_are_bounded() {
    let long = format!("needle{}needle\n", "x".repeat(100_000));
    let root = tree(&[("f", &long.repeat(10))]);
    let (matches, summary) = search(root.path(), &pattern("needle"));
    assert!(matches.iter().all(|found| found.text.len() == 4096
        && found.is_cut
        && found.submatches.as_slice() == std::slice::from_ref(&(0..6))));
    assert!(!summary.truncated);
    let root = tree(&[("f", &format!("needle\n{}\n", "x".repeat(5000)))]);
    let (matches, _) = search(root.path(), &SearchOptions { after: 1, ..pattern("needle") });
    assert!(!matches[0].is_cut && matches[0].after[0].is_cut);

    let line = format!("needle{}\n", "x".repeat(4000));
    let root = tree(&[("f", &line.repeat(6000))]);
    let (matches, summary) = search(root.path(), &pattern("needle"));
    let bytes: usize = matches.iter().map(|found| found.text.len()).sum();
    assert!(summary.truncated && bytes <= 16 << 20 && bytes > 15 << 20, "{bytes}");
}

#[test]
fn an_overlong_line_ends_the_search_of_its_file() {
    let root = tree(&[("after", "needle\n")]);
    let endless = fs::File::create(root.path().join("endless")).unwrap();
    let block = [b'x'; 1 << 20];
    for _ in 0..40 {
        std::io::Write::write_all(&mut &endless, &block).unwrap();
    }
    let (matches, summary) = search(root.path(), &pattern("needle"));
    assert_eq!((matches.len(), summary.unreadable), (1, 1));
}

#[test]
fn receiver_and_canceller_can_stop_a_search() {
    let root = tree(&[("a", "x\nx\nx\n"), ("b", "x\n")]);
    let search = Search::new(&pattern("x")).unwrap();
    let mut count = 0;
    let stopped = search.run(root.path(), &AtomicBool::new(false), &mut |_| {
        count += 1;
        ControlFlow::Break(())
    });
    assert_eq!((count, stopped.unwrap().truncated), (1, true));

    let cancelled = AtomicBool::new(false);
    let summary = search.run(root.path(), &cancelled, &mut |_| {
        cancelled.store(true, Ordering::Relaxed);
        ControlFlow::Continue(())
    });
    let summary = summary.unwrap();
    assert!(summary.cancelled && summary.files_searched == 1, "{summary:?}");
    let summary =
        search.run(root.path(), &cancelled, &mut |_| panic!("a match after cancellation")).unwrap();
    assert!(summary.cancelled && summary.files_searched == 0);
}

/// The walker of crate `ignore` would block forever on the FIFO, and read `/dev/zero` until memory
/// is exhausted.
#[test]
fn only_regular_files_are_opened() {
    let root = tree(&[("real/file", "needle\n"), ("outside", "needle\n")]);
    let real = root.path().join("real");
    fifo(&real.join("fifo"));
    fifo(&real.join(".gitignore"));
    std::os::unix::fs::symlink("/dev/zero", real.join(".ignore")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", real.join("zero")).unwrap();
    std::os::unix::fs::symlink("../outside", real.join("link")).unwrap();
    std::os::unix::fs::symlink("..", real.join("up")).unwrap();
    let options = SearchOptions { hidden: true, ..pattern("needle") };
    assert_eq!(places(&real, &options), ["file:1"]);

    let error = Search::new(&options).unwrap().run(
        &real.join("fifo"),
        &AtomicBool::new(false),
        &mut |_| ControlFlow::Continue(()),
    );
    assert!(matches!(error, Err(FsError::WrongKind { .. })));
}

#[test]
fn an_oversized_ignore_file_is_reported() {
    // The file has only comments, so that nothing but its length is a problem.
    let long = "# a comment\n".repeat(6000);
    let root = tree(&[(".gitignore", &long), ("file", "needle\n")]);
    let (matches, summary) = search(root.path(), &pattern("needle"));
    assert_eq!((matches.len(), summary.unreadable), (1, 1));
}

#[test]
fn the_total_size_of_ignore_files_is_bounded() {
    let rules = "# a comment\n".repeat(5000);
    let directories = ["", "a/", "a/b/", "a/b/c/", "a/b/c/d/"];
    let paths = directories.map(|directory| format!("{directory}.gitignore"));
    let root = tree(&paths.each_ref().map(|path| (path.as_str(), rules.as_str())));
    let (_, summary) = search(root.path(), &pattern("needle"));
    assert_eq!(summary.unreadable, 1, "four fit, the fifth does not");
}

#[test]
fn the_depth_of_a_search_is_bounded() {
    let root = tree(&[("file", "needle\n")]);
    let mut directory =
        rustix::fs::open(root.path(), rustix::fs::OFlags::PATH, Mode::empty()).unwrap();
    for _ in 0..400 {
        rustix::fs::mkdirat(&directory, "d", Mode::RWXU).unwrap();
        directory =
            rustix::fs::openat(&directory, "d", rustix::fs::OFlags::PATH, Mode::empty()).unwrap();
    }
    let (matches, summary) = search(root.path(), &pattern("needle"));
    assert_eq!((matches.len(), summary.unreadable), (1, 1));
}

fn globbed(root: &Path, options: &GlobOptions) -> Vec<String> {
    let show = |path: &Path| path.strip_prefix(root).unwrap().display().to_string();
    let entries = glob(root, options, &CancelFlag::never()).unwrap().entries;
    entries.iter().map(|entry| show(&entry.path)).collect()
}

fn patterns(patterns: &[&str]) -> GlobOptions {
    GlobOptions {
        patterns: patterns.iter().map(ToString::to_string).collect(),
        max_entries: 1000,
        max_bytes: 1 << 20,
        ..GlobOptions::default()
    }
}

#[test]
fn a_glob_lists_names_in_order() {
    let root = tree(&[
        (".gitignore", "*.log\n"),
        ("b.rs", ""),
        ("a.rs", ""),
        ("x.log", ""),
        ("src/c.rs", ""),
        ("src/deep/d.rs", ""),
        (".hidden/e.rs", ""),
        ("target/f.rs", ""),
    ]);
    std::os::unix::fs::symlink("src", root.path().join("link.rs")).unwrap();
    let of = |options: GlobOptions| globbed(root.path(), &options);
    let everywhere = ["a.rs", "b.rs", "link.rs", "src/c.rs", "src/deep/d.rs"];
    assert_eq!(of(patterns(&["*.rs", "!target"])), everywhere);
    assert_eq!(of(patterns(&["/*.rs"])), ["a.rs", "b.rs", "link.rs"]);
    assert_eq!(of(patterns(&["src/**/*.rs"])), ["src/c.rs", "src/deep/d.rs"]);
    assert_eq!(of(patterns(&["*.log"])), [""; 0]);
    assert_eq!(of(GlobOptions { ignored: true, ..patterns(&["*.log"]) }), ["x.log"]);
    assert_eq!(of(GlobOptions { hidden: true, ..patterns(&["e.rs"]) }), [".hidden/e.rs"]);
    assert_eq!(of(patterns(&["deep"])), ["src/deep"]);
    std::os::unix::fs::symlink("missing", root.path().join("dangling")).unwrap();
    fifo(&root.path().join("fifo"));
    let options = patterns(&["deep", "link.rs", "dangling", "fifo"]);
    let kinds = glob(root.path(), &options, &CancelFlag::never())
        .unwrap()
        .entries
        .into_iter()
        .map(|entry| entry.kind);
    let expected = [TreeKind::File, TreeKind::Directory, TreeKind::Directory];
    assert_eq!(kinds.collect::<Vec<_>>(), expected);
}

#[test]
fn a_glob_is_bounded() {
    let root = tree(&[("a", ""), ("b", ""), ("c", "")]);
    let some = glob(
        root.path(),
        &GlobOptions { max_entries: 2, ..patterns(&["*"]) },
        &CancelFlag::never(),
    )
    .unwrap();
    assert!(some.truncated && some.entries.len() == 2);
    let max_bytes = 2 * (root.path().as_os_str().len() + 2 + 48);
    let some =
        glob(root.path(), &GlobOptions { max_bytes, ..patterns(&["*"]) }, &CancelFlag::never())
            .unwrap();
    assert!(some.truncated && some.entries.len() == 2);
    let all = glob(
        root.path(),
        &GlobOptions { max_entries: 3, ..patterns(&["*"]) },
        &CancelFlag::never(),
    )
    .unwrap();
    assert!(!all.truncated);
}

#[test]
fn a_glob_reads_a_bounded_number_of_directories() {
    let root = tree(&[]);
    for index in 0..10_000 {
        fs::create_dir(root.path().join(index.to_string())).unwrap();
    }
    // Counting the root, there is one directory more than the limit.
    let found = glob(root.path(), &patterns(&["nothing"]), &CancelFlag::never()).unwrap();
    assert!(found.truncated && found.entries.is_empty());
    fs::remove_dir(root.path().join("0")).unwrap();
    assert!(!glob(root.path(), &patterns(&["nothing"]), &CancelFlag::never()).unwrap().truncated);
    let cancel = CancelFlag::new();
    cancel.request();
    let abandoned = glob(root.path(), &patterns(&["nothing"]), &cancel).unwrap_err();
    assert!(abandoned.to_string().contains("no longer waits"), "{abandoned}");
}

#[test]
fn globs_of_bad_patterns_and_missing_roots_fail() {
    let root = tree(&[("file", "")]);
    assert!(matches!(
        glob(root.path(), &patterns(&["a["]), &CancelFlag::never()),
        Err(GlobError::Pattern(_))
    ));
    let missing = glob(&root.path().join("missing"), &patterns(&["*"]), &CancelFlag::never());
    assert!(matches!(missing, Err(GlobError::Fs(error)) if error.is_not_found()));
    assert!(matches!(
        glob(&root.path().join("file"), &patterns(&["*"]), &CancelFlag::never()),
        Err(GlobError::Fs(_))
    ));
}

#[test]
fn names_that_are_not_utf8_are_found_and_searched() {
    let root = tree(&[]);
    let odd: PathBuf = root.path().join(OsStr::from_bytes(b"odd\xff.rs"));
    fs::write(&odd, "needle\n").unwrap();
    assert_eq!(
        glob(root.path(), &patterns(&["*.rs"]), &CancelFlag::never()).unwrap().entries[0].path,
        odd
    );
    assert_eq!(search(root.path(), &pattern("needle")).0[0].path, odd);
}
