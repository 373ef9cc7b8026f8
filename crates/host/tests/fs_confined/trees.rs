//! Trees with a part that the policy restricts further: an operation on such a tree is refused as a
//! whole, before anything is changed.

use std::path::Path;

use exec_server_host::fs::{
    CancelFlag, FsError, RemoveOptions, Replace, Symlinks, copy, remove, rename,
};
use exec_server_host::sandbox::Access;

use crate::scene::{Scene, User};

const RECURSIVE: RemoveOptions =
    RemoveOptions { recursive: true, force: true, symlinks: Symlinks::Follow };

fn move_to(from: &Path, to: &Path) -> Result<(), FsError> {
    rename(from, to, Replace::Yes, Symlinks::Follow)
}

#[track_caller]
fn expect_refused(scene: &Scene, more: &[(&str, Access)], work: fn(&Path) -> Result<(), FsError>) {
    let more: Vec<_> = more.iter().map(|(path, access)| (scene.at(path), *access)).collect();
    let policy = scene.policy_with(&more);
    for &user in User::all() {
        let before = scene.snapshot();
        let outcome = scene.confined(&policy, user, || work(&scene.at("work")));
        assert!(matches!(outcome, Err(FsError::Denied { .. })), "{user:?}: {outcome:?}");
        assert_eq!(scene.snapshot(), before);
    }
}

#[test]
fn a_directory_with_denied_content_is_not_moved() {
    let scene = Scene::new();
    // It contains `deep.pem`, which is denied.
    expect_refused(&scene, &[], |work| move_to(&work.join("plain"), &work.join("new")));
    std::fs::remove_file(scene.at("work/plain/deep.pem")).unwrap();
    for access in [Access::Deny, Access::Read] {
        for held in ["work/plain/sub", "work/plain/sub/inner", "work/plain/sub/nothing_yet"] {
            let more = [(held, access)];
            expect_refused(&scene, &more, |work| move_to(&work.join("plain"), &work.join("new")));
        }
    }
    let work = scene.at("work");
    scene
        .confined(&scene.policy(), User::Own, || move_to(&work.join("plain"), &work.join("new")))
        .unwrap();
}

/// The error does not name the denied path. It does not blame the directory either, which is
/// readable.
#[test]
fn a_refusal_does_not_name_a_hidden_path() {
    let scene = Scene::new();
    let plain = scene.at("work/plain");
    let copied = scene.confined(&scene.policy(), User::Own, || {
        copy(&plain, &scene.at("work/new"), true, &CancelFlag::never())
    });
    let text = copied.unwrap_err().to_string();
    let expected = format!("cannot read something in {}: Permission denied", plain.display());
    assert!(text.contains(&expected), "{text}");
    assert!(!text.contains("deep.pem"), "{text}");
}

#[test]
fn a_tree_is_not_moved_to_where_a_rule_denies_it() {
    let scene = Scene::new();
    let more = [("work/new/inner", Access::Deny)];
    expect_refused(&scene, &more, |work| move_to(&work.join("sub"), &work.join("new")));
    std::fs::write(scene.at("work/sub/key"), "inside").unwrap();
    // A glob that matches only at the new place.
    let policy = crate::scene::policy(
        &scene.at("work"),
        &[(scene.at("work"), Access::Write)],
        &["new/**/key"],
    );
    let before = scene.snapshot();
    let work = scene.at("work");
    let moved =
        scene.confined(&policy, User::Own, || move_to(&work.join("sub"), &work.join("new")));
    assert!(matches!(moved, Err(FsError::Denied { .. })), "{moved:?}");
    assert_eq!(scene.snapshot(), before);
}

#[test]
fn a_tree_with_denied_content_is_not_even_partly_removed() {
    let scene = Scene::new();
    let remove_plain = |work: &Path| remove(&work.join("plain"), &RECURSIVE, &CancelFlag::never());
    expect_refused(&scene, &[], remove_plain);
    std::fs::remove_file(scene.at("work/plain/deep.pem")).unwrap();
    expect_refused(&scene, &[("work/plain/sub/inner", Access::Read)], remove_plain);
    // The whole workspace, with its protected names.
    expect_refused(&scene, &[], |work| remove(work, &RECURSIVE, &CancelFlag::never()));
    let work = scene.at("work");
    scene.confined(&scene.policy(), User::Own, || remove_plain(&work)).unwrap();
    assert!(!scene.at("work/plain").exists());
}

#[test]
fn a_writable_root_itself_is_not_removed() {
    let scene = Scene::new();
    let more = [("outside", Access::Write)];
    expect_refused(&scene, &more, |work| {
        remove(&work.with_file_name("outside"), &RECURSIVE, &CancelFlag::never())
    });
}

#[test]
fn a_tree_with_denied_content_is_not_copied() {
    let scene = Scene::new();
    let copy_plain =
        |work: &Path| copy(&work.join("plain"), &work.join("new"), true, &CancelFlag::never());
    expect_refused(&scene, &[], copy_plain);
    std::fs::remove_file(scene.at("work/plain/deep.pem")).unwrap();
    expect_refused(&scene, &[("work/plain/sub/inner", Access::Deny)], copy_plain);
    expect_refused(&scene, &[("work/new/sub", Access::Read)], copy_plain);
    expect_refused(&scene, &[("work/new/file", Access::Deny)], copy_plain);
    // Read-only content can be copied.
    let policy = scene.policy_with(&[(scene.at("work/plain/sub"), Access::Read)]);
    let work = scene.at("work");
    scene.confined(&policy, User::Own, || copy_plain(&work)).unwrap();
    assert_eq!(std::fs::read(scene.at("work/new/sub/inner")).unwrap(), b"inside");
    // The protected names of the destination are checked, too.
    std::fs::create_dir(scene.at("work/plain/.git")).unwrap();
    expect_refused(&scene, &[], |work| copy(&work.join("plain"), work, true, &CancelFlag::never()));
}

#[test]
fn the_error_names_only_visible_paths() {
    let scene = Scene::new();
    let policy = scene.policy_with(&[(scene.at("work/new/inner"), Access::Read)]);
    let work = scene.at("work");
    let errors = scene.confined(&policy, User::Own, || {
        let removed = remove(&work.join("plain"), &RECURSIVE, &CancelFlag::never());
        let copied = copy(&work.join("sub"), &work.join("new"), true, &CancelFlag::never());
        [removed, copied].map(|outcome| outcome.unwrap_err().to_string())
    });
    // The error does not mention `deep.pem`.
    assert!(errors[0].contains("work/plain: Permission denied"), "{}", errors[0]);
    // It names the path that may not be changed, not its readable source.
    assert!(errors[1].contains("work/new/inner: Permission denied"), "{}", errors[1]);
}
