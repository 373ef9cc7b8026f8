use super::*;
use crate::fs::watch::Change;

fn tree() -> ChangeWindow {
    ChangeWindow::new(PathBuf::from("/root"), WatchDepth::Tree)
}

fn event(path: &str, kind: FsEventKind) -> FsEvent<'_> {
    FsEvent { path: Path::new(path), kind, directory: false }
}

fn created(path: &str) -> FsEvent<'_> {
    event(path, FsEventKind::Created)
}

fn as_directory(event: FsEvent<'_>) -> FsEvent<'_> {
    FsEvent { directory: true, ..event }
}

fn directory_created(path: &str) -> FsEvent<'_> {
    as_directory(created(path))
}

fn modified(path: &str) -> FsEvent<'_> {
    event(path, FsEventKind::Modified)
}

fn removed(path: &str) -> FsEvent<'_> {
    event(path, FsEventKind::Removed)
}

fn renamed<'a>(from: &'a str, to: &'a str) -> [FsEvent<'a>; 2] {
    let cookie = u32::try_from(from.len() * 1000 + to.len()).unwrap();
    [event(from, FsEventKind::MovedFrom { cookie }), event(to, FsEventKind::MovedTo { cookie })]
}

fn outcome<'a>(events: impl IntoIterator<Item = FsEvent<'a>>) -> Vec<String> {
    let mut window = tree();
    for event in events {
        window.apply(event);
    }
    window.take().map(|taken| shown(&taken)).unwrap_or_default()
}

fn shown(changes: &Changes) -> Vec<String> {
    let show = |change: &Change| match &change.from {
        Some(from) => {
            format!("{:?} {} <- {}", change.kind, change.path.display(), from.display())
        }
        None => format!("{:?} {}", change.kind, change.path.display()),
    };
    changes.changes.iter().map(show).collect()
}

#[test]
fn the_difference_is_reported_not_the_history() {
    assert_eq!(outcome([created("/a"), modified("/a")]), ["Created /a"]);
    assert_eq!(outcome([modified("/a"), modified("/a")]), ["Modified /a"]);
    assert_eq!(outcome([created("/a"), modified("/a"), removed("/a")]), [""; 0]);
    assert_eq!(outcome([removed("/a"), created("/a")]), ["Modified /a"]);
    assert_eq!(outcome([removed("/a"), created("/a"), removed("/a")]), ["Removed /a"]);
    assert_eq!(outcome([modified("/a"), removed("/a")]), ["Removed /a"]);
    assert_eq!(outcome([removed("/a"), modified("/a")]), ["Removed /a"]);
}

#[test]
fn directories_moved_back_and_forth_do_not_accumulate() {
    let mut window = tree();
    for _ in 0..1000 {
        for event in renamed("/a", "/b").into_iter().chain(renamed("/b", "/a")) {
            window.apply(as_directory(event));
        }
    }
    assert!(window.departed.len() <= 2 && window.names.len() <= 2);
    let deep: Vec<_> = (0..=MAX_PATHS).map(|number| format!("/b/{number}")).collect();
    for (number, arrived) in deep.iter().enumerate() {
        window.apply(directory_created(arrived));
        let held = window.pending_scan.arrived.len() + window.pending_scan.moved.len();
        assert!(held <= MAX_PATHS, "{held} after {number}");
    }
    assert!(window.take().unwrap().rescan);
}

#[test]
fn a_rename_is_reported_only_if_both_halves_arrive() {
    assert_eq!(outcome(renamed("/a", "/b")), ["Renamed /b <- /a"]);
    assert_eq!(
        outcome([renamed("/a", "/bb"), renamed("/bb", "/c")].concat()),
        ["Removed /bb", "Renamed /c <- /a"]
    );
    assert_eq!(outcome([renamed("/a", "/bb"), renamed("/bb", "/a")].concat()), ["Removed /bb"]);
    let [from, to] = renamed("/a", "/b");
    assert_eq!(outcome([from]), ["Removed /a"]);
    assert_eq!(outcome([to]), ["Created /b"]);
    assert_eq!(outcome([from, to, modified("/b")]), ["Renamed /b <- /a", "Modified /b"]);
    assert_eq!(outcome([modified("/a"), from, to]), ["Renamed /b <- /a", "Modified /b"]);
    assert_eq!(outcome([from, to, created("/a")]), ["Modified /a", "Renamed /b <- /a"]);
    assert_eq!(outcome([from, to, removed("/b")]), ["Removed /a", "Removed /b"]);
}

#[test]
fn a_temporary_name_is_not_reported() {
    let [from, to] = renamed("/file.tmp", "/file");
    assert_eq!(outcome([created("/file.tmp"), modified("/file.tmp"), from, to]), ["Created /file"]);
}

#[test]
fn changes_follow_a_renamed_directory() {
    let [from, to] = renamed("/d", "/ee").map(as_directory);
    assert_eq!(
        outcome([created("/d/new"), modified("/d/old"), modified("/dd"), from, to]),
        ["Modified /dd", "Renamed /ee <- /d", "Created /ee/new", "Modified /ee/old"]
    );
}

#[test]
fn a_rename_split_across_windows_is_not_joined() {
    let mut window = tree();
    let [from, to] = renamed("/a", "/b");
    window.apply(from);
    assert_eq!(shown(&window.take().unwrap()), ["Removed /a"]);
    window.apply(to);
    assert_eq!(shown(&window.take().unwrap()), ["Created /b"]);
}

#[test]
fn an_overlong_list_is_dropped() {
    let mut window = tree();
    let paths: Vec<String> = (0..=MAX_PATHS).map(|index| format!("/{index}")).collect();
    for path in &paths[..MAX_PATHS] {
        window.apply(created(path));
    }
    assert!(!window.rescan);
    window.apply(modified(&paths[0]));
    assert!(!window.rescan, "a repeated path does not count again");
    window.apply(created(&paths[MAX_PATHS]));
    window.apply(created("/later"));
    let taken = window.take().unwrap();
    assert!(taken.rescan && taken.changes.is_empty());
    window.apply(created("/after"));
    let taken = window.take().unwrap();
    assert!(!taken.rescan);
    assert_eq!(shown(&taken), ["Created /after"]);
}

#[test]
fn long_names_reach_the_byte_limit() {
    let mut window = tree();
    for index in 0..200 {
        window.apply(created(&format!("/{}/{index}", "x".repeat(4000))));
    }
    assert!(window.take().unwrap().rescan);
}

fn found(paths: &[&str]) -> Settled {
    Settled { listed: paths.iter().map(PathBuf::from).collect(), ..Settled::default() }
}

#[test]
fn later_events_override_a_listing() {
    let mut window = tree();
    window.apply(directory_created("/d"));
    let pending_scan = window.take_pending_scan().unwrap();
    assert_eq!(pending_scan.arrived, BTreeSet::from([PathBuf::from("/d")]));
    window.apply(removed("/d/gone"));
    window.apply(modified("/d/written"));
    window.settle(found(&["/d", "/d/gone", "/d/quiet", "/d/written"]));
    assert_eq!(
        shown(&window.take().unwrap()),
        ["Created /d", "Removed /d/gone", "Created /d/quiet", "Created /d/written"]
    );
}

/// A directory is removed with its files, and recreated with some of them, all within one window.
#[test]
fn a_listing_overrides_an_earlier_removal() {
    let mut window = tree();
    for path in ["/d/again", "/d/gone", "/d"] {
        window.apply(removed(path));
    }
    window.apply(directory_created("/d"));
    assert!(window.take_pending_scan().is_some());
    window.settle(found(&["/d", "/d/again", "/d/new"]));
    assert_eq!(
        shown(&window.take().unwrap()),
        ["Modified /d", "Modified /d/again", "Removed /d/gone", "Created /d/new"]
    );
}

/// A directory is removed and recreated during a scan. The new one is reported, and scanned, after
/// the removal.
#[test]
fn a_directory_recreated_during_a_scan_is_scanned_again() {
    let mut window = tree();
    window.apply(directory_created("/d"));
    assert!(window.take_pending_scan().is_some());
    for path in ["/d/again", "/d"] {
        window.apply(removed(path));
    }
    window.apply(directory_created("/d"));
    window.settle(found(&["/d", "/d/again"]));
    assert_eq!(shown(&window.take().unwrap()), ["Created /d", "Removed /d/again"]);
    assert_eq!(window.take_pending_scan().unwrap().arrived.len(), 1);
    window.settle(found(&["/d", "/d/again"]));
    assert_eq!(shown(&window.take().unwrap()), ["Created /d", "Created /d/again"]);
}

#[test]
fn no_changes_are_reported_in_a_removed_directory() {
    let [from, to] = renamed("/file", "/d/in");
    let [gone, _] = renamed("/d", "/elsewhere");
    let before = [created("/d/new"), modified("/d/old"), removed("/d/removed")];
    let told = outcome(before.into_iter().chain([from, to, gone, modified("/d/late")]));
    assert_eq!(told, ["Removed /d", "Removed /d/removed", "Removed /file"]);
}

/// The first rename may or may not have replaced a file.
#[test]
fn a_name_between_two_renames_is_reported_as_removed() {
    let chain = [renamed("/new", "/log"), renamed("/log", "/log.1")].concat();
    assert_eq!(outcome(chain), ["Removed /log", "Renamed /log.1 <- /new"]);
}

#[test]
fn only_a_tree_scans_new_directories() {
    let mut window = ChangeWindow::new(PathBuf::from("/root"), WatchDepth::Single);
    window.apply(directory_created("/d"));
    assert_eq!(window.take_pending_scan(), None);
}

#[test]
fn directories_are_scanned_after_the_list_was_dropped() {
    let mut window = tree();
    for index in 0..MAX_PATHS {
        let path = format!("/{index}");
        window.apply(directory_created(&path));
    }
    window.apply(created("/one too many"));
    let pending_scan = window.take_pending_scan().unwrap();
    assert_eq!((pending_scan.root, pending_scan.arrived.len()), (RootState::Incomplete, 0));
    window.apply(directory_created("/later"));
    window.settle(Settled { lost: true, ..Settled::default() });
    assert!(window.take().unwrap().rescan);
    assert_eq!(window.take_pending_scan().unwrap().root, RootState::Incomplete);
}

fn look_for_root(window: &mut ChangeWindow, is_there: bool) -> Vec<String> {
    window.expect_root(RootState::Stale);
    window.expect_root(RootState::Incomplete);
    assert_eq!(window.take_pending_scan().unwrap().root, RootState::Stale);
    let (root_is_there, lost) = (Some(is_there), true);
    window.settle(Settled { root_is_there, lost, ..Settled::default() });
    let taken = window.take().unwrap();
    assert!(taken.rescan && window.is_empty() && window.take().is_none());
    shown(&taken)
}

#[test]
fn a_scan_reports_the_root_as_found() {
    let mut window = tree();
    assert_eq!(look_for_root(&mut window, true), ["Modified /root"]);
    assert_eq!(look_for_root(&mut window, false), ["Removed /root"]);
    assert_eq!(look_for_root(&mut window, false), [""; 0]);
    assert_eq!(look_for_root(&mut window, true), ["Created /root"]);
    window.apply(removed("/root"));
    assert_eq!(shown(&window.take().unwrap()), ["Removed /root"]);
    window.apply(created("/root"));
    assert_eq!(look_for_root(&mut window, true), ["Created /root"]);
}

#[test]
fn an_incomplete_root_is_reported_only_if_it_changed() {
    let mut window = tree();
    let mut look = |is_there| {
        window.expect_root(RootState::Incomplete);
        assert!(window.take_pending_scan().is_some());
        let (root_is_there, lost) = (Some(is_there), true);
        window.settle(Settled { root_is_there, lost, ..Settled::default() });
        shown(&window.take().unwrap())
    };
    assert_eq!(look(true), [""; 0]);
    assert_eq!(look(false), ["Removed /root"]);
    assert_eq!(look(false), [""; 0]);
    assert_eq!(look(true), ["Created /root"]);
}

#[test]
fn only_a_renamed_directory_is_scanned() {
    let mut window = tree();
    renamed("/a", "/b").into_iter().for_each(|event| window.apply(event));
    assert!(!window.has_pending_scan());
    for event in renamed("/c", "/d") {
        window.apply(as_directory(event));
    }
    let pending_scan = window.take_pending_scan().unwrap();
    assert_eq!(pending_scan.moved, BTreeSet::from([PathBuf::from("/d")]));
}

/// The file is created under the name of a directory that was just removed.
#[test]
fn changes_do_not_follow_a_renamed_file() {
    let [from, to] = renamed("/d", "/ee");
    let told = outcome([removed("/d/old"), removed("/d"), created("/d"), from, to]);
    assert_eq!(told, ["Removed /d", "Removed /d/old", "Created /ee"]);
}

/// The name is reported as modified, and the content of the old directory is unknown.
#[test]
fn replacing_a_directory_that_was_moved_away_causes_a_rescan() {
    let away = as_directory(renamed("/d", "/elsewhere")[0]);
    for (depth, rescan) in [(WatchDepth::Tree, true), (WatchDepth::Single, false)] {
        let mut window = ChangeWindow::new(PathBuf::from("/"), depth);
        window.apply(away);
        window.apply(directory_created("/d"));
        let taken = window.take().unwrap();
        assert_eq!((shown(&taken), taken.rescan), (vec!["Modified /d".to_owned()], rescan));
        window.apply(away);
        let taken = window.take().unwrap();
        assert_eq!((shown(&taken), taken.rescan), (vec!["Removed /d".to_owned()], false));
    }
}

#[test]
fn a_root_removed_during_a_scan_is_reported_removed() {
    let mut window = tree();
    window.expect_root(RootState::Stale);
    assert!(window.take_pending_scan().is_some());
    window.apply(removed("/root"));
    window.settle(Settled { root_is_there: Some(true), ..Settled::default() });
    assert_eq!(shown(&window.take().unwrap()), ["Removed /root"]);
}
