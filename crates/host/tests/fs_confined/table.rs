//! Every operation at every kind of place.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use exec_server_host::fs::FsError;

use crate::operations::{Effect, OPERATIONS};
use crate::scene::{Scene, User};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    Done,
    ReadOnly,
    Denied,
}

fn places(scene: &Scene) -> Vec<(&'static str, PathBuf, Expected)> {
    use Expected::{Denied, Done, ReadOnly};
    let through_proc =
        Path::new("/proc/self/root").join(scene.at("outside").strip_prefix("/").unwrap());
    vec![
        ("allowed", scene.at("work/plain"), Done),
        ("allowed, by a link", scene.at("work/in"), Done),
        ("allowed, by ..", scene.at("work/.git/../plain"), Done),
        ("allowed, with slashes and dots", scene.at("work/./plain/"), Done),
        ("allowed, not UTF-8", scene.hard("work"), Done),
        ("read-only", scene.at("ro"), ReadOnly),
        ("protected", scene.at("work/.git"), ReadOnly),
        ("protected, by ..", scene.at("work/plain/../.git"), ReadOnly),
        ("denied", scene.at("work/secret"), Denied),
        ("denied, by ..", scene.at("work/plain/../secret"), Denied),
        ("denied by a glob", scene.at("work/directory.pem"), Denied),
        ("outside", scene.at("outside"), Denied),
        ("outside, missing", scene.at("absent"), Denied),
        ("outside, not UTF-8", scene.hard("outside"), Denied),
        ("outside, by a link", scene.at("work/out"), Denied),
        ("outside, by ..", scene.at("work/../outside"), Denied),
        ("outside, by .. out of a denied directory", scene.at("work/secret/../../outside"), Denied),
        ("inside, by .. out of the outside", scene.at("outside/../work/plain"), Denied),
        ("outside, by /proc/self/root", through_proc, Denied),
        ("outside, by /proc/self/cwd", PathBuf::from("/proc/self/cwd"), Denied),
    ]
}

#[test]
fn every_operation_at_every_place_is_allowed_or_denied_as_expected() {
    for &user in User::all() {
        for (operation, effect, run) in OPERATIONS {
            let mut scene = Scene::new();
            for index in 0..places(&scene).len() {
                let (place, directory, expected) = places(&scene).swap_remove(index);
                let before = scene.snapshot();
                let work = scene.at("work");
                let outcome = scene.confined(&scene.policy(), user, || run(&directory, &work));
                let what = format!("{operation}, {place}, as {user:?}: {outcome:?}");
                let is_allowed = expected == Expected::Done
                    || (expected == Expected::ReadOnly && *effect == Effect::Reads);
                if operation.ends_with("without links") && place.ends_with("by a link") {
                    assert!(matches!(outcome, Err(FsError::Symlink { .. })), "{what}");
                } else if is_allowed {
                    assert!(outcome.is_ok(), "{what}");
                    scene = Scene::new();
                } else {
                    assert!(matches!(outcome, Err(FsError::Denied { .. })), "{what}");
                    assert_eq!(scene.snapshot(), before, "{what}");
                }
            }
        }
    }
}

/// The error contains only the requested path, so it is the same whether the path exists or not.
#[test]
fn errors_do_not_reveal_whether_outside_paths_exist() {
    for &user in User::all() {
        for (operation, _, run) in OPERATIONS {
            let mut errors = Vec::new();
            for place in ["outside", "absent", "outside/file", "outside/sub/absent"] {
                let scene = Scene::new();
                let (directory, work) = (scene.at(place), scene.at("work"));
                let outcome = scene.confined(&scene.policy(), user, || run(&directory, &work));
                let error = outcome.unwrap_err().to_string();
                let asked = directory.to_str().unwrap();
                assert!(error.contains(asked), "{operation}: {error}");
                errors.push(error.replace(asked, "PATH"));
            }
            errors.dedup();
            assert_eq!(errors.len(), 1, "{operation}: {errors:?}");
        }
    }
}

#[test]
fn links_do_not_reveal_whether_their_targets_exist() {
    for (operation, _, run) in OPERATIONS {
        let mut errors = Vec::new();
        for target in ["outside", "absent", "outside/file", "work/secret", "work/secret/absent"] {
            let scene = Scene::new();
            let (link, work) = (scene.at("work/to"), scene.at("work"));
            std::os::unix::fs::symlink(scene.at(target), &link).unwrap();
            let outcome = scene.confined(&scene.policy(), User::Own, || run(&link, &work));
            let error = outcome.unwrap_err().to_string();
            errors.push(error.replace(link.to_str().unwrap(), "PATH"));
        }
        errors.dedup();
        assert_eq!(errors.len(), 1, "{operation}: {errors:?}");
    }
}

#[test]
fn a_name_that_is_not_utf8_is_denied_like_any_other() {
    let scene = Scene::new();
    let denied = scene.at("work").join(OsStr::from_bytes(b"k\xffy.pem"));
    std::fs::create_dir_all(denied.join("sub")).unwrap();
    std::fs::write(denied.join("file"), "secret").unwrap();
    for (operation, _, run) in OPERATIONS {
        let work = scene.at("work");
        let outcome = scene.confined(&scene.policy(), User::Own, || run(&denied, &work));
        assert!(matches!(outcome, Err(FsError::Denied { .. })), "{operation}: {outcome:?}");
    }
}
