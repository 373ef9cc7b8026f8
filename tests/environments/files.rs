//! Files: every method, in every environment.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

use exec_server::protocol::{
    ErrorKind, FsCanonicalizeParams, FsCopyParams, FsCreateDirectoryParams, FsGetMetadataParams,
    FsGlobParams, FsReadDirectoryParams, FsReadFileParams, FsReadLinkParams, FsRemoveParams,
    FsRenameParams, FsSetPermissionsParams, FsSymlinkParams, FsWalkParams, FsWriteFileParams,
    TreeEntryKind, WalkOptions,
};
use exec_server::{ExecServerError, ExecutorFileSystem as _};

use super::*;

in_every_environment! {
    whole:
    files_are_written_and_read_whole,
    names_that_are_not_utf8_are_preserved,
    directories_are_created_listed_and_removed,
    trees_are_walked_and_matched,
    trees_are_copied_and_renamed,
    symlinks_are_followed_or_refused,
    permissions_are_set,
    an_unmet_condition_is_a_conflict,
}

fn metadata(path: PathUri) -> FsGetMetadataParams {
    FsGetMetadataParams { path, follow_symlinks: None, sandbox: None }
}

fn directory(path: PathUri) -> FsCreateDirectoryParams {
    FsCreateDirectoryParams { path, recursive: None, follow_symlinks: None, sandbox: None }
}

fn listing(path: PathUri) -> FsReadDirectoryParams {
    FsReadDirectoryParams::new(path)
}

fn removal(path: PathUri) -> FsRemoveParams {
    FsRemoveParams { path, recursive: None, force: None, follow_symlinks: None, sandbox: None }
}

fn renaming(source_path: PathUri, destination_path: PathUri) -> FsRenameParams {
    FsRenameParams {
        source_path,
        destination_path,
        replace: None,
        follow_symlinks: None,
        sandbox: None,
    }
}

fn link_of(path: PathUri) -> FsReadLinkParams {
    FsReadLinkParams { path, follow_symlinks: None, sandbox: None }
}

async fn files_are_written_and_read_whole(environment: Environment) {
    let place = Place::new();
    let uri = place.uri("file");
    for content in [pattern(0), pattern(10), pattern(3 << 20)] {
        environment.write_file(FsWriteFileParams::new(uri.clone(), content.clone())).await.unwrap();
        assert!(place.read("file") == content);
        let read = environment.read_file(FsReadFileParams::new(uri.clone())).await.unwrap();
        assert!(read == content);
        let known = environment.metadata(metadata(uri.clone())).await.unwrap();
        assert!(known.is_file && !known.is_directory && !known.is_symlink);
        assert_eq!(known.size, content.len() as u64);
    }
    let inode = || std::fs::metadata(place.path("file")).unwrap().ino();
    let before = inode();
    environment.write_file(FsWriteFileParams::new(uri.clone(), "in place")).await.unwrap();
    assert_eq!(inode(), before);
    let atomic = FsWriteFileParams { atomic: true, ..FsWriteFileParams::new(uri, "replaced") };
    environment.write_file(atomic).await.unwrap();
    assert_eq!(place.read("file"), b"replaced");
    assert_ne!(inode(), before);
}

async fn names_that_are_not_utf8_are_preserved(environment: Environment) {
    let place = Place::new();
    let odd = OsStr::from_bytes(b"odd \xff\xfe %41 name");
    environment.write_file(FsWriteFileParams::new(place.uri(odd), "odd")).await.unwrap();
    assert_eq!(std::fs::read(place.path(odd)).unwrap(), b"odd");
    let read = environment.read_file(FsReadFileParams::new(place.uri(odd))).await.unwrap();
    assert_eq!(read, "odd");

    let listed = environment.read_directory(listing(place.uri(""))).await.unwrap();
    let names: Vec<_> = listed.iter().map(|entry| entry.path.as_path().file_name()).collect();
    assert_eq!(names, [Some(odd)]);

    let link = OsStr::from_bytes(b"link \xf0");
    environment.symlink(FsSymlinkParams::new(place.uri(link), odd)).await.unwrap();
    assert_eq!(environment.read_link(link_of(place.uri(link))).await.unwrap(), odd);
    assert_eq!(std::fs::read(place.path(link)).unwrap(), b"odd");

    let options = WalkOptions::default();
    let walk = FsWalkParams { path: place.uri(""), options, sandbox: None };
    let walked = environment.walk(walk).await.unwrap();
    assert!(walked.entries.iter().any(|entry| entry.path == place.uri(odd)), "{walked:?}");

    let new = OsStr::from_bytes(b"new \x80");
    environment.rename(renaming(place.uri(odd), place.uri(new))).await.unwrap();
    environment.remove(removal(place.uri(new))).await.unwrap();
    assert!(!place.path(odd).exists() && !place.path(new).exists());
}

async fn directories_are_created_listed_and_removed(environment: Environment) {
    let place = Place::new();
    environment.create_directory(directory(place.uri("a/b/c"))).await.unwrap();
    environment.create_directory(directory(place.uri("a/b/c"))).await.unwrap();
    let single = FsCreateDirectoryParams { recursive: Some(false), ..directory(place.uri("a/b")) };
    environment.create_directory(single).await.unwrap_err();
    place.write("a/file", "x");
    symlink("nowhere", place.path("a/dangling")).unwrap();
    let entries = environment.read_directory(listing(place.uri("a"))).await.unwrap();
    let mut seen: Vec<_> = entries
        .iter()
        .map(|entry| (entry.file_name.as_str(), entry.is_directory, entry.is_file))
        .collect();
    seen.sort();
    assert_eq!(seen, [("b", true, false), ("file", false, true)]);
    let details = FsReadDirectoryParams { details: true, ..listing(place.uri("a")) };
    let entries = environment.read_directory(details.clone()).await.unwrap();
    let dangling = entries.iter().find(|entry| entry.file_name == "dangling").unwrap();
    assert_eq!(dangling.is_symlink, Some(true));
    let pages_of_one = FsReadDirectoryParams { limit: Some(1), ..details };
    let page = environment.read_directory_page(pages_of_one.clone()).await.unwrap();
    assert_eq!((page.entries.as_slice(), page.next), (&entries[..1], Some(place.uri("a/b"))));
    assert_eq!(environment.read_directory(pages_of_one).await.unwrap(), entries);

    let flat = FsRemoveParams { recursive: Some(false), ..removal(place.uri("a")) };
    environment.remove(flat).await.unwrap_err();
    environment.remove(removal(place.uri("a"))).await.unwrap();
    assert!(!place.path("a").exists());
    environment.remove(removal(place.uri("a"))).await.unwrap();
    let strict = FsRemoveParams { force: Some(false), ..removal(place.uri("a")) };
    let error = environment.remove(strict).await.unwrap_err();
    assert!(matches!(&error, ExecServerError::Server(error) if error.code == -32004), "{error}");
}

async fn trees_are_walked_and_matched(environment: Environment) {
    let place = Place::new();
    std::fs::create_dir_all(place.path("src/deep")).unwrap();
    for name in ["src/a.rs", "src/deep/b.rs", "src/deep/c.txt", "top.rs"] {
        place.write(name, "x");
    }
    let options = WalkOptions { max_entries: Some(1000), ..WalkOptions::default() };
    let walk = FsWalkParams { path: place.uri(""), options, sandbox: None };
    let walked = environment.walk(walk.clone()).await.unwrap();
    let kind = |name: &str| {
        let entry = walked.entries.iter().find(|entry| entry.path == place.uri(name));
        entry.map(|entry| entry.kind)
    };
    assert_eq!(kind("src/deep"), Some(TreeEntryKind::Directory));
    assert_eq!(kind("src/deep/b.rs"), Some(TreeEntryKind::File));
    assert!(walked.errors.is_empty() && !walked.truncated);
    let short = WalkOptions { max_entries: Some(2), ..options };
    assert!(environment.walk(FsWalkParams { options: short, ..walk }).await.unwrap().truncated);

    let glob = FsGlobParams {
        path: place.uri(""),
        patterns: vec!["**/*.rs".into(), "!top.rs".into()],
        hidden: false,
        ignored: false,
        max_entries: None,
        sandbox: None,
    };
    let found = environment.glob(glob).await.unwrap();
    let mut found: Vec<_> = found.entries.into_iter().map(|entry| entry.path).collect();
    found.sort();
    assert_eq!(found, [place.uri("src/a.rs"), place.uri("src/deep/b.rs")]);
}

async fn trees_are_copied_and_renamed(environment: Environment) {
    let place = Place::new();
    std::fs::create_dir(place.path("from")).unwrap();
    place.write("from/file", pattern(100_000));
    symlink("file", place.path("from/link")).unwrap();
    let copy = FsCopyParams {
        source_path: place.uri("from"),
        destination_path: place.uri("to"),
        recursive: true,
        sandbox: None,
    };
    environment.copy(copy.clone()).await.unwrap();
    assert!(place.read("to/file") == pattern(100_000));
    assert_eq!(std::fs::read_link(place.path("to/link")).unwrap(), OsStr::new("file"));
    let flat = FsCopyParams { destination_path: place.uri("flat"), recursive: false, ..copy };
    environment.copy(flat).await.unwrap_err();

    environment.rename(renaming(place.uri("to"), place.uri("moved"))).await.unwrap();
    assert!(!place.path("to").exists() && place.path("moved/file").exists());
    place.write("taken", "mine");
    let polite = FsRenameParams {
        replace: Some(false),
        ..renaming(place.uri("moved/file"), place.uri("taken"))
    };
    environment.rename(polite).await.unwrap_err();
    assert_eq!(place.read("taken"), b"mine");
}

async fn symlinks_are_followed_or_refused(environment: Environment) {
    let place = Place::new();
    std::fs::create_dir(place.path("real")).unwrap();
    place.write("real/file", "behind");
    symlink("real", place.path("link")).unwrap();
    let through = place.uri("link/file");
    let read = environment.read_file(FsReadFileParams::new(through.clone())).await.unwrap();
    assert_eq!(read, "behind");
    let strict =
        FsReadFileParams { follow_symlinks: Some(false), ..FsReadFileParams::new(through) };
    environment.read_file(strict).await.unwrap_err();
    let known = environment.metadata(metadata(place.uri("link"))).await.unwrap();
    assert!(known.is_directory && known.is_symlink);
    let path = place.uri("link/../link/file");
    let canonical = environment.canonicalize(FsCanonicalizeParams { path, sandbox: None }).await;
    let expected = std::fs::canonicalize(place.path("real/file")).unwrap();
    assert_eq!(canonical.unwrap().into_path(), expected);
    environment.remove(removal(place.uri("link"))).await.unwrap();
    assert!(place.path("real/file").exists());
}

async fn permissions_are_set(environment: Environment) {
    let place = Place::new();
    let new =
        FsWriteFileParams { mode: Some(0o640), ..FsWriteFileParams::new(place.uri("file"), "x") };
    environment.write_file(new).await.unwrap();
    let mode = || std::fs::metadata(place.path("file")).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(), 0o640);
    let path = place.uri("file");
    let params = FsSetPermissionsParams { path, mode: 0o750, follow_symlinks: None, sandbox: None };
    environment.set_permissions(params).await.unwrap();
    assert_eq!(mode(), 0o750);
    let known = environment.metadata(metadata(place.uri("file"))).await.unwrap();
    assert_eq!(known.mode, Some(0o750));
}

async fn an_unmet_condition_is_a_conflict(environment: Environment) {
    let place = Place::new();
    let uri = place.uri("file");
    let new = FsWriteFileParams { create_new: true, ..FsWriteFileParams::new(uri.clone(), "one") };
    let first = environment.write_file(new.clone()).await.unwrap();
    let error = environment.write_file(new).await.unwrap_err();
    assert_eq!(error.kind(), Some(&ErrorKind::Conflict), "{error}");
    assert_eq!(place.read("file"), b"one");

    let next = |content: &'static str, like: exec_server::protocol::FsWriteFileResponse| {
        FsWriteFileParams {
            if_modified_at_ms: like.modified_at_ms,
            if_size: like.size,
            ..FsWriteFileParams::new(uri.clone(), content)
        }
    };
    let second = environment.write_file(next("second", first)).await.unwrap();
    assert_eq!(second.size, Some(6));
    let error = environment.write_file(next("lost update", first)).await.unwrap_err();
    assert_eq!(error.kind(), Some(&ErrorKind::Conflict), "{error}");
    assert_eq!(place.read("file"), b"second");
    environment.write_file(next("third", second)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_are_the_same_everywhere() {
    let place = Place::new();
    place.write("file", "x");
    rustix::fs::mkfifoat(rustix::fs::CWD, place.path("fifo"), rustix::fs::Mode::RWXU).unwrap();
    symlink("loop", place.path("loop")).unwrap();
    let mut told = Vec::new();
    for site in Site::every() {
        let environment = &site.environment;
        let mut errors = Vec::new();
        for name in ["missing", "missing/below", "file/below", "fifo", "loop", ""] {
            let read = FsReadFileParams::new(place.uri(name));
            errors.push(environment.read_file(read).await.unwrap_err());
        }
        errors.push(environment.read_directory(listing(place.uri("file"))).await.unwrap_err());
        errors.push(environment.read_link(link_of(place.uri("file"))).await.unwrap_err());
        let errors = errors.iter().map(|error| {
            let ExecServerError::Server(error) = error else { panic!("{error}") };
            (error.code, error.message.clone(), error.data.clone())
        });
        told.push(errors.collect::<Vec<_>>());
    }
    assert_eq!(told[0], told[1]);
    assert_eq!(told[0], told[2]);
    assert_eq!(told[0][0].0, -32004);
    assert!(told[0].iter().all(|(_, message, _)| message.contains("/")), "{:?}", told[0]);
}
