use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use super::*;
use crate::sandbox::policy::fake::FakeNames;
use crate::sandbox::policy::{
    DeclaredFiles, DeclaredPolicy, Entry, EntryPath, Network, PolicyContext,
};

fn policy(writable: &[&str]) -> Policy {
    let entry = |path: &&str| Entry {
        path: EntryPath::Path(PathBuf::from(*path)),
        access: Access::Write,
        skip_missing: false,
    };
    let entries = writable.iter().map(entry).collect();
    let files = DeclaredFiles::Restricted { entries, glob_scan_max_depth: None };
    let declared = DeclaredPolicy { files, network: Network::Restricted };
    let names = FakeNames::default().file("/dev/null");
    Policy::resolve(&declared, &PolicyContext::default(), &names).unwrap()
}

fn place() -> (tempfile::TempDir, PathBuf) {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("state/exec-server/roots");
    (home, file)
}

#[track_caller]
fn roots(history: &WriteHistory) -> Vec<String> {
    match history.roots().unwrap() {
        WrittenRoots::Known(roots) => {
            roots.iter().map(|root| root.to_str().unwrap().to_owned()).collect()
        }
        WrittenRoots::Unknown => panic!("the history is unknown"),
    }
}

#[test]
fn later_and_concurrent_servers_share_the_history() {
    let (_home, file) = place();
    let [one, other] = [(); 2].map(|()| WriteHistory::new(vec![file.clone()]));
    assert_eq!(roots(&other), [""; 0]);
    one.add(&policy(&["/src/a"])).unwrap();
    other.add(&policy(&["/src/b", "/tmp/x", "/var/tmp"])).unwrap();
    one.add(&policy(&["/src/a/below"])).unwrap();
    for history in [&one, &other, &WriteHistory::new(vec![file.clone()])] {
        assert_eq!(roots(history), ["/src/a", "/src/b"]);
    }
    let content = fs::read_to_string(&file).unwrap();
    assert_eq!(content, "\n/src/a\n\n/src/b\n");
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!((mode(&file), mode(file.parent().unwrap())), (0o600, 0o700));
}

#[test]
fn without_a_file_the_history_ends_with_the_server() {
    let history = WriteHistory::new(vec![]);
    history.add(&policy(&["/src/a"])).unwrap();
    history.add(&Policy::unrestricted(Network::Restricted)).unwrap();
    assert_eq!(roots(&history), ["/src/a"]);
}

#[test]
fn every_file_has_the_whole_history() {
    let places = [place(), place(), place()];
    let [old, one, other] = places.each_ref().map(|(_, file)| file.clone());
    fs::create_dir_all(old.parent().unwrap()).unwrap();
    fs::set_permissions(old.parent().unwrap(), fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(&old, "/src/old\n").unwrap();
    let history = WriteHistory::new(vec![old.clone(), one.clone(), other.clone()]);
    assert_eq!(roots(&history), ["/src/old"]);
    history.add(&policy(&["/src/a"])).unwrap();
    history.add(&policy(&["/src/b"])).unwrap();
    let expected = ["/src/a", "/src/b", "/src/old"];
    for file in [&old, &one, &other] {
        assert_eq!(roots(&WriteHistory::new(vec![file.clone()])), expected, "{file:?}");
    }
    // New entries are also added to files that another program removed or changed.
    fs::remove_file(&one).unwrap();
    fs::write(&other, "/src/x\n/src/y\n").unwrap();
    history.add(&policy(&["/src/a"])).unwrap();
    assert_eq!(roots(&WriteHistory::new(vec![one])), ["/src/a"]);
    assert_eq!(roots(&WriteHistory::new(vec![other])), ["/src/a", "/src/x", "/src/y"]);
    assert_eq!(roots(&history), ["/src/a", "/src/b", "/src/old", "/src/x", "/src/y"]);
}

#[test]
fn state_directories_below_a_writable_root_are_created_before_the_start() {
    let (home, file) = place();
    let (links, _) = place();
    std::os::unix::fs::symlink(home.path(), links.path().join("home")).unwrap();
    let linked = links.path().join("home/other/exec-server/roots");
    // Directories that are never trusted need no record.
    let history = WriteHistory::new(vec![linked.clone(), file.clone()]);
    history.add(&policy(&["/tmp/elsewhere"])).unwrap();
    assert!(!linked.parent().unwrap().exists() && !file.parent().unwrap().exists());
    let real = home.path().canonicalize().unwrap();
    history.add(&policy(&[real.to_str().unwrap()])).unwrap();
    assert!(linked.parent().unwrap().is_dir() && file.parent().unwrap().is_dir());
}

#[test]
fn many_directories_collapse_into_their_parent() {
    let (_home, file) = place();
    let history = WriteHistory::new(vec![file.clone()]);
    for number in 0..2 * MAX_SIBLINGS {
        history.add(&policy(&[&format!("/srv/{number}")])).unwrap();
    }
    let known = roots(&WriteHistory::new(vec![file]));
    assert_eq!(known.len(), MAX_SIBLINGS + 1);
    assert_eq!(known[0], "/srv");
}

#[test]
fn a_path_with_a_newline_is_recorded_by_its_parent() {
    let (_home, file) = place();
    let history = WriteHistory::new(vec![file.clone()]);
    history.add(&policy(&["/src/a\n/b/c"])).unwrap();
    assert_eq!(roots(&WriteHistory::new(vec![file])), ["/src"]);
}

#[test]
fn a_full_file_covers_everything() {
    let (_home, file) = place();
    let history = WriteHistory::new(vec![file.clone()]);
    history.add(&policy(&["/src/a"])).unwrap();
    let line = format!("/{}\n", "x".repeat(1 << 10));
    fs::write(&file, line.repeat(1 << 10)).unwrap();
    history.add(&policy(&["/src/b"])).unwrap();
    assert_eq!(roots(&WriteHistory::new(vec![file]))[0], "/");
}

/// An unfinished line may be the beginning of any path.
#[test]
fn an_unfinished_line_covers_nothing() {
    for unfinished in ["/", "/src", "/src/unfin"] {
        let (_home, file) = place();
        let history = WriteHistory::new(vec![file.clone()]);
        history.add(&policy(&["/src/a"])).unwrap();
        fs::write(&file, format!("/src/a\n{unfinished}")).unwrap();
        assert_eq!(roots(&WriteHistory::new(vec![file.clone()])), ["/src/a"]);
        let root = "/src/unfinished/below";
        for history in [history, WriteHistory::new(vec![file.clone()])] {
            history.add(&policy(&[root])).unwrap();
        }
        let content = fs::read_to_string(&file).unwrap();
        assert_eq!(content, format!("/src/a\n{unfinished}\n{root}\n"));
    }
}

#[test]
fn an_untrusted_or_damaged_file_is_an_error() {
    let (_home, file) = place();
    let history = WriteHistory::new(vec![file.clone()]);
    history.add(&policy(&["/src/a"])).unwrap();
    let fails = || WriteHistory::new(vec![file.clone()]).roots().unwrap_err();

    fs::write(&file, b"/src/a\n\0\0\0\n").unwrap();
    assert!(matches!(fails(), WriteHistoryError::Damaged { line: 2, .. }), "{}", fails());

    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    assert!(matches!(fails(), WriteHistoryError::Untrusted { .. }), "{}", fails());
    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", &file).unwrap();
    assert!(matches!(fails(), WriteHistoryError::Io { .. }), "{}", fails());
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    assert!(matches!(fails(), WriteHistoryError::Untrusted { .. }), "{}", fails());
    assert!(history.add(&policy(&["/more"])).is_err());
}

#[test]
fn without_a_usable_file_the_history_is_an_error() {
    let (home, file) = place();
    std::os::unix::fs::symlink("/etc", home.path().join("foreign")).unwrap();
    fs::write(home.path().join("file"), "").unwrap();
    let unusable = ["foreign/roots", "file/roots", "file/exec-server/roots"]
        .map(|name| home.path().join(name));
    let alone = WriteHistory::new(unusable.to_vec());
    for error in [alone.roots().unwrap_err(), alone.add(&policy(&["/a"])).unwrap_err()] {
        assert!(matches!(error, WriteHistoryError::NoPlace { .. }), "{error}");
        assert!(error.to_string().contains("XDG_STATE_HOME"), "{error}");
    }
    // Without entries to record no file is needed.
    alone.add(&policy(&["/tmp/x"])).unwrap();
    alone.add(&policy(&[])).unwrap();
    // One usable file is enough.
    let [unusable, ..] = unusable;
    WriteHistory::new(vec![unusable, file.clone()]).add(&policy(&["/a"])).unwrap();
    assert_eq!(roots(&WriteHistory::new(vec![file])), ["/a"]);
}
