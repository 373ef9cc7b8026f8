//! Ways to reach a file: links, magic links, single-file grants and nested grants.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use exec_server_host::fs::{
    CancelFlag, FsError, NewFile, NewFileOptions, OpenFile, RemoveOptions, Symlinks, WriteOptions,
    canonicalize, metadata, read_link, remove, write_file,
};
use exec_server_host::sandbox::Access;
use exec_server_test_support::skipped;

use crate::scene::{Scene, User, on_confined_thread, policy};

fn read(path: &Path) -> Result<Vec<u8>, FsError> {
    OpenFile::open(path, Symlinks::Follow)?.read_to_end(1 << 20)
}

fn write(path: &Path) -> Result<(), FsError> {
    write_file(path, b"written", &WriteOptions::default()).map(drop)
}

#[track_caller]
#[expect(clippy::needless_pass_by_value, reason = "calls read better without a reference")]
fn expect_denied<T: std::fmt::Debug>(outcome: Result<T, FsError>) {
    assert!(matches!(outcome, Err(FsError::Denied { .. })), "{outcome:?}");
}

#[test]
fn links_inside_are_followed() {
    let scene = Scene::new();
    symlink(scene.at("work/in"), scene.at("work/sub/absolute")).unwrap();
    symlink("../sub/absolute/../plain/file", scene.at("work/plain/winding")).unwrap();
    symlink(scene.at("ro"), scene.at("work/to_ro")).unwrap();
    symlink(scene.at("work/made_by_it"), scene.at("work/.git/dangling")).unwrap();
    symlink("loop", scene.at("work/loop")).unwrap();
    let work = scene.at("work");
    scene.confined(&scene.policy(), User::Own, || {
        assert_eq!(read(&work.join("sub/absolute/file")).unwrap(), b"inside");
        assert_eq!(read(&work.join("plain/winding")).unwrap(), b"inside");
        assert_eq!(read(&work.join("to_ro/file")).unwrap(), b"inside");
        let real = canonicalize(&work.join("sub/absolute/./sub/../link")).unwrap();
        assert_eq!(real, work.join("plain/file"));
        assert!(metadata(&work.join("in"), Symlinks::Follow).unwrap().is_symlink);
        write(&work.join("sub/absolute/file")).unwrap();
        // A link in a read-only directory may be followed; its target decides whether the write is
        // allowed.
        write(&work.join(".git/dangling")).unwrap();
        expect_denied(write(&work.join("to_ro/file")));
        expect_denied(write(&work.join("out_file")));
        expect_denied(write(&work.join("out_nothing")));
        expect_denied(read(&work.join("out_file")));
        expect_denied(read(&work.join("out_nothing")));
        // The text of a link is not secret.
        assert_eq!(read_link(&work.join("out_file"), Symlinks::Follow).unwrap(), "../outside/file");
        let endless = read(&work.join("loop")).unwrap_err();
        assert!(endless.to_string().contains("too many symlinks"), "{endless}");
    });
    assert_eq!(std::fs::read(scene.at("work/plain/file")).unwrap(), b"written");
    assert_eq!(std::fs::read(scene.at("work/made_by_it")).unwrap(), b"written");
}

#[test]
fn missing_paths_inside_are_reported_as_missing() {
    let scene = Scene::new();
    let work = scene.at("work");
    scene.confined(&scene.policy(), User::Own, || {
        for missing in ["nothing", "nothing/x", "plain/../nothing", "in/nothing", ".git/nothing"] {
            let error = read(&work.join(missing)).unwrap_err();
            assert!(error.is_not_found(), "{missing}: {error}");
        }
        let error = read(&work.join("movable/x")).unwrap_err();
        assert!(error.to_string().contains("Not a directory"), "{error}");
        let error = read(&work.join("movable/")).unwrap_err();
        assert!(error.to_string().contains("Not a directory"), "{error}");
    });
}

#[test]
fn magic_links_are_not_followed() {
    let scene = Scene::new();
    let all = policy(&scene.at("work"), &[(PathBuf::from("/"), Access::Read)], &[]);
    let below_root = scene.at("outside/file");
    let below_root = below_root.strip_prefix("/").unwrap();
    let file = std::fs::File::open(scene.at("outside/file")).unwrap();
    let descriptor = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    let pid = std::process::id();
    on_confined_thread(&all, User::Own, || {
        for link in [
            Path::new("/proc/self/root").join(below_root),
            Path::new("/proc/thread-self/root").join(below_root),
            PathBuf::from(format!("/proc/{pid}/cwd/x")),
            PathBuf::from(&descriptor),
        ] {
            let error = read(&link).unwrap_err().to_string();
            assert!(error.contains("a magic link"), "{link:?}: {error}");
        }
        // Symlinks in /proc that are not magic links are followed; private files stay private.
        assert!(!read(Path::new("/proc/self/status")).unwrap().is_empty());
        assert!(!read(Path::new("/proc/mounts")).unwrap().is_empty());
        assert!(read(Path::new("/proc/self/environ")).is_err());
    });
}

#[test]
fn a_single_file_can_be_granted() {
    let scene = Scene::new();
    let (file, missing) = (scene.at("outside/file"), scene.at("outside/missing"));
    let entries = [(file.clone(), Access::Write), (missing.clone(), Access::Write)];
    let granted = policy(&scene.at("work"), &entries, &[]);
    for &user in User::all() {
        scene.confined(&granted, user, || {
            read(&file).unwrap();
            write(&file).unwrap();
            assert!(read(&missing).unwrap_err().is_not_found());
            expect_denied(write(&missing));
            // The file is granted, but not its name in the directory.
            let options = NewFileOptions::default();
            expect_denied(NewFile::create(&file, options));
            let removal =
                RemoveOptions { recursive: true, force: true, symlinks: Symlinks::Follow };
            expect_denied(remove(&file, &removal, &CancelFlag::never()));
            expect_denied(read(&file.with_file_name("link")));
            expect_denied(metadata(file.parent().unwrap(), Symlinks::Follow));
        });
    }
}

#[test]
fn a_link_of_another_user_in_tmp_is_not_followed() {
    if !rustix::process::geteuid().is_root() {
        skipped("only root can change the owner of a link");
        return;
    }
    let scene = Scene::new();
    let shared = scene.at("work/shared");
    std::fs::create_dir(&shared).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o1777);
    std::fs::set_permissions(&shared, mode).unwrap();
    symlink(scene.at("work/movable"), shared.join("planted")).unwrap();
    std::os::unix::fs::lchown(shared.join("planted"), Some(12_345), Some(12_345)).unwrap();
    symlink(scene.at("work/movable"), shared.join("own")).unwrap();
    scene.confined(&scene.policy(), User::Own, || {
        assert_eq!(read(&shared.join("own")).unwrap(), b"inside");
        let error = read(&shared.join("planted")).unwrap_err();
        assert!(error.to_string().contains("Permission denied"), "{error}");
        assert!(write(&shared.join("planted")).is_err());
    });
}

/// The granted directory is inside a denied directory, which is inside another granted directory.
#[test]
fn a_grant_inside_a_denied_directory_works() {
    let scene = Scene::new();
    let policy = scene.policy_with(&[(scene.at("work/secret/sub"), Access::Write)]);
    let secret = scene.at("work/secret");
    scene.confined(&policy, User::Own, || {
        assert_eq!(read(&secret.join("sub/inner")).unwrap(), b"secret");
        write(&secret.join("sub/new")).unwrap();
        expect_denied(read(&secret.join("file")));
        expect_denied(read(&secret.join("sub/../file")));
        expect_denied(read(&secret.join("sub/../nothing")));
    });
}

#[test]
fn an_upload_is_committed_under_the_policy_of_that_moment() {
    let scene = Scene::new();
    let path = scene.at("work/plain/upload");
    let upload = scene.confined(&scene.policy(), User::Own, || {
        let upload = NewFile::create(&path, NewFileOptions::default()).unwrap();
        upload.write_block(0, b"written").unwrap();
        upload
    });
    // The directory is moved to a denied place.
    std::fs::rename(scene.at("work/plain"), scene.at("work/secret/plain")).unwrap();
    let ended = scene.confined(&scene.policy(), User::Own, || upload.commit());
    expect_denied(ended);
    assert!(!scene.at("work/secret/plain/upload").exists());
}
