//! A writable root below another writable root. Rules protect names in the inner root by their
//! paths, so neither the inner root nor a directory above it may be removed or replaced.
//!
//! ```text
//! work/above/root/        writable, like `work`; `.git` in it is protected and missing
//! ```

use std::ffi::OsStr;
use std::os::unix::fs::symlink as link;
use std::path::{Path, PathBuf};

use exec_server_host::fs::{
    CancelFlag, FsError, NewFile, NewFileOptions, RemoveOptions, Replace, Symlinks, WriteOptions,
    copy, create_directory, remove, rename, symlink, write_file,
};
use exec_server_host::sandbox::{Access, Policy};

use crate::scene::{Scene, User};

const ROOT: &str = "work/above/root";
const FOLLOW: Symlinks = Symlinks::Follow;
const TREE: RemoveOptions = RemoveOptions { recursive: true, force: true, symlinks: FOLLOW };
const EMPTY: RemoveOptions = RemoveOptions { recursive: false, force: false, symlinks: FOLLOW };

/// An operation on a name. If it needs a second path, that path is in `work`.
type Operation = fn(name: &Path, work: &Path) -> Result<(), FsError>;

/// Operations that would remove the directory with this name, or put something else in its place.
const TAKING: &[(&str, Operation)] = &[
    ("remove", |name, _| remove(name, &TREE, &CancelFlag::never())),
    ("remove what is empty", |name, _| remove(name, &EMPTY, &CancelFlag::never())),
    ("rename away", |name, work| rename(name, &work.join("away"), Replace::No, FOLLOW)),
    ("rename over it", |name, work| rename(&work.join("prepared"), name, Replace::Yes, FOLLOW)),
    ("rename to it", |name, work| rename(&work.join("prepared"), name, Replace::No, FOLLOW)),
    ("symlink", |name, work| symlink(work.join("prepared").as_os_str(), name, FOLLOW)),
    ("symlink without links", |name, _| symlink(OsStr::new("x"), name, Symlinks::Refuse)),
    ("copy a link", |name, work| copy(&work.join("in"), name, false, &CancelFlag::never())),
    ("upload", |name, _| NewFile::create(name, NewFileOptions::default())?.commit().map(drop)),
    ("upload with a key", |name, _| {
        let resume_key = Some("key".to_owned());
        NewFile::create(name, NewFileOptions { resume_key, ..NewFileOptions::default() })?
            .commit()
            .map(drop)
    }),
    ("write atomically", |name, _| {
        let options = WriteOptions { atomic: true, ..WriteOptions::default() };
        write_file(name, b"x", &options).map(drop)
    }),
];

/// Operations that change the content of an existing file with that name.
const FILLING: &[(&str, Operation)] = &[
    ("write", |name, _| write_file(name, b"x", &WriteOptions::default()).map(drop)),
    ("write without links", |name, _| {
        let options = WriteOptions { symlinks: Symlinks::Refuse, ..WriteOptions::default() };
        write_file(name, b"x", &options).map(drop)
    }),
    ("copy a file", |name, work| copy(&work.join("movable"), name, false, &CancelFlag::never())),
];

const MAKING: &[(&str, Operation)] = &[
    ("create_directory", |name, _| create_directory(name, false, FOLLOW)),
    ("create directories", |name, _| create_directory(name, true, FOLLOW)),
    ("create directories below", |name, _| create_directory(&name.join("a/b"), true, FOLLOW)),
    ("copy a tree", |name, work| copy(&work.join("plain/sub"), name, true, &CancelFlag::never())),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum There {
    Directory,
    File,
    Nothing,
}

/// Creates a scene with `there` at the name. The policy is resolved while the root still exists, as
/// a server does at its start.
fn scene(name: &str, there: There) -> (Scene, Policy, PathBuf) {
    let scene = Scene::new();
    std::fs::create_dir_all(scene.at(ROOT)).unwrap();
    std::fs::create_dir_all(scene.at("work/prepared/.git/hooks")).unwrap();
    let policy = scene.policy_with(&[(scene.at(ROOT), Access::Write)]);
    let name = scene.at(name);
    if there != There::Directory {
        std::fs::remove_dir_all(&name).unwrap();
    }
    if there == There::File {
        std::fs::write(&name, "file").unwrap();
    }
    (scene, policy, name)
}

fn names_and_users() -> impl Iterator<Item = (&'static str, User)> {
    let names = [ROOT, "work/above"].into_iter();
    names.flat_map(|name| User::all().iter().map(move |user| (name, *user)))
}

fn expect_denied(name: &str, user: User, there: There, operation: &str, run: Operation) {
    let (scene, policy, path) = scene(name, there);
    let (before, work) = (scene.snapshot(), scene.at("work"));
    let outcome = scene.confined(&policy, user, || run(&path, &work));
    let what = format!("{operation}, {name}, {there:?}, as {user:?}: {outcome:?}");
    assert!(matches!(outcome, Err(FsError::Denied { .. })), "{what}");
    assert_eq!(scene.snapshot(), before, "{what}");
}

#[test]
fn a_path_above_a_protected_name_is_neither_removed_nor_replaced() {
    for (name, user) in names_and_users() {
        for (operation, run) in TAKING {
            for there in [There::Directory, There::File, There::Nothing] {
                expect_denied(name, user, there, operation, *run);
            }
        }
        for (operation, run) in FILLING {
            expect_denied(name, user, There::Nothing, operation, *run);
        }
    }
}

#[test]
fn a_file_above_a_protected_name_is_written_and_a_directory_is_created() {
    for (name, user) in names_and_users() {
        for (there, operations) in [(There::File, FILLING), (There::Nothing, MAKING)] {
            for (operation, run) in operations {
                let (scene, policy, path) = scene(name, there);
                let work = scene.at("work");
                let outcome = scene.confined(&policy, user, || run(&path, &work));
                assert!(outcome.is_ok(), "{operation}, {name}, as {user:?}: {outcome:?}");
                assert_eq!(path.symlink_metadata().unwrap().is_dir(), there == There::Nothing);
            }
        }
    }
}

/// Beside a directory above a protected name, and inside the root, all operations are allowed.
#[test]
fn a_path_without_protected_names_below_is_unrestricted() {
    for name in ["work/above/beside", "work/above/root/inside"] {
        for (operation, run) in TAKING.iter().chain(FILLING) {
            for there in [There::Directory, There::File, There::Nothing] {
                let (scene, policy, path) = {
                    let (scene, policy, _) = scene(ROOT, There::Directory);
                    let path = scene.at(name);
                    match there {
                        There::Directory => std::fs::create_dir(&path).unwrap(),
                        There::File => std::fs::write(&path, "").unwrap(),
                        There::Nothing => {}
                    }
                    // Here `prepared` contains no protected name.
                    std::fs::remove_dir_all(scene.at("work/prepared/.git")).unwrap();
                    (scene, policy, path)
                };
                let work = scene.at("work");
                let outcome = scene.confined(&policy, User::Own, || run(&path, &work));
                let what = format!("{operation}, {name}, {there:?}: {outcome:?}");
                assert!(!matches!(outcome, Err(FsError::Denied { .. })), "{what}");
            }
        }
    }
}

/// Above a protected name, copying a tree may create directories and nothing else.
#[test]
fn a_copied_tree_puts_only_directories_above_a_protected_name() {
    for &user in User::all() {
        for what in ["directory", "link", "file"] {
            let (scene, policy, _) = scene("work/above", There::Nothing);
            let (tree, work) = (scene.at("work/plain/tree"), scene.at("work"));
            std::fs::create_dir_all(tree.join("another")).unwrap();
            match what {
                "directory" => std::fs::create_dir(tree.join("above")).unwrap(),
                "link" => link(scene.at("work/prepared"), tree.join("above")).unwrap(),
                _ => std::fs::write(tree.join("above"), "").unwrap(),
            }
            let copied = || copy(&tree, &work, true, &CancelFlag::never());
            let (before, outcome) = (scene.snapshot(), scene.confined(&policy, user, copied));
            if what == "directory" {
                outcome.unwrap();
                assert!(scene.at("work/above").is_dir());
            } else {
                assert!(matches!(outcome, Err(FsError::Denied { .. })), "{what}: {outcome:?}");
                assert_eq!(scene.snapshot(), before, "{what}");
            }
        }
    }
}
