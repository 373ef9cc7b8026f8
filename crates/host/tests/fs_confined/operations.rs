//! Applies each file operation to the entries that every directory of a scene contains.

use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use exec_server_host::fs::glob::{GlobError, GlobOptions, glob};
use exec_server_host::fs::search::{Search, SearchOptions};
use exec_server_host::fs::{
    CancelFlag, EntryTypes, FsError, NewFile, NewFileOptions, OpenFile, RemoveOptions, Replace,
    Symlinks, WalkOptions, WriteOptions, canonicalize, copy, create_directory, metadata,
    read_directory, read_link, remove, rename, set_permissions, symlink, walk, write_file,
};

use Effect::{Changes, Reads};

/// An operation in a directory; `work` is a directory where everything is allowed.
type Operation = fn(directory: &Path, work: &Path) -> Result<(), FsError>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    Reads,
    Changes,
}

pub(crate) const OPERATIONS: &[(&str, Effect, Operation)] = &[
    ("open and read", Reads, |at, _| read(&at.join("file"), FOLLOW)),
    ("open without links", Reads, |at, _| read(&at.join("file"), Symlinks::Refuse)),
    ("metadata", Reads, |at, _| metadata(&at.join("file"), FOLLOW).map(drop)),
    ("metadata of a link", Reads, |at, _| metadata(&at.join("link"), FOLLOW).map(drop)),
    ("metadata of a directory", Reads, |at, _| metadata(at, FOLLOW).map(drop)),
    ("metadata without links", Reads, |at, _| {
        metadata(&at.join("file"), Symlinks::Refuse).map(drop)
    }),
    ("canonicalize", Reads, |at, _| canonicalize(&at.join("link")).map(drop)),
    ("read_directory", Reads, |at, _| read_directory(at, EntryTypes::Own, 100).map(drop)),
    ("read_directory, followed", Reads, |at, _| {
        read_directory(&at.join("sub"), EntryTypes::Followed, 100).map(drop)
    }),
    ("walk", Reads, |at, _| walk(at, &WALK, &CancelFlag::never()).map(drop)),
    ("glob", Reads, |at, _| find(at)),
    ("search a tree", Reads, |at, _| search(at)),
    ("search a file", Reads, |at, _| search(&at.join("file"))),
    ("read_link", Reads, |at, _| read_link(&at.join("link"), FOLLOW).map(drop)),
    ("copy from it", Reads, |at, work| {
        copy(&at.join("file"), &work.join("copy"), false, &CancelFlag::never())
    }),
    ("copy a link from it", Reads, |at, work| {
        copy(&at.join("link"), &work.join("copy"), false, &CancelFlag::never())
    }),
    ("copy a tree from it", Reads, |at, work| {
        copy(&at.join("sub"), &work.join("copy"), true, &CancelFlag::never())
    }),
    ("write", Changes, |at, _| write(&at.join("file"), false, FOLLOW)),
    ("write through a link", Changes, |at, _| write(&at.join("link"), false, FOLLOW)),
    ("write without links", Changes, |at, _| write(&at.join("file"), false, Symlinks::Refuse)),
    ("create by writing", Changes, |at, _| write(&at.join("new"), false, FOLLOW)),
    ("write atomically", Changes, |at, _| write(&at.join("file"), true, FOLLOW)),
    ("upload", Changes, |at, _| upload(&at.join("file"), None)),
    ("upload something new", Changes, |at, _| upload(&at.join("new"), None)),
    ("upload with a key", Changes, |at, _| upload(&at.join("new"), Some("key"))),
    ("create_directory", Changes, |at, _| create_directory(&at.join("new"), false, FOLLOW)),
    ("create directories", Changes, |at, _| create_directory(&at.join("new/a/b"), true, FOLLOW)),
    ("remove a file", Changes, |at, _| remove(&at.join("file"), &REMOVE, &CancelFlag::never())),
    ("remove by force", Changes, |at, _| remove(&at.join("file"), &FORCE, &CancelFlag::never())),
    ("remove a tree", Changes, |at, _| remove(&at.join("sub"), &REMOVE, &CancelFlag::never())),
    ("copy into it", Changes, |at, work| {
        copy(&work.join("movable"), &at.join("new"), false, &CancelFlag::never())
    }),
    ("copy over it", Changes, |at, work| {
        copy(&work.join("movable"), &at.join("file"), false, &CancelFlag::never())
    }),
    ("copy a tree into it", Changes, |at, work| {
        copy(&work.join("sub"), &at.join("new"), true, &CancelFlag::never())
    }),
    ("copy a tree over it", Changes, |at, work| {
        copy(&work.join("sub"), &at.join("sub"), true, &CancelFlag::never())
    }),
    ("rename out of it", Changes, |at, work| {
        rename(&at.join("file"), &work.join("renamed"), Replace::Yes, FOLLOW)
    }),
    ("rename a directory out of it", Changes, |at, work| {
        rename(&at.join("sub"), &work.join("renamed"), Replace::No, FOLLOW)
    }),
    ("rename into it", Changes, |at, work| {
        rename(&work.join("movable"), &at.join("file"), Replace::Yes, FOLLOW)
    }),
    ("rename to something new in it", Changes, |at, work| {
        rename(&work.join("movable"), &at.join("new"), Replace::No, FOLLOW)
    }),
    ("symlink", Changes, |at, _| symlink(OsStr::new("file"), &at.join("new"), FOLLOW)),
    ("set_permissions", Changes, |at, _| set_permissions(&at.join("file"), 0o600, FOLLOW)),
];

const FOLLOW: Symlinks = Symlinks::Follow;
const REMOVE: RemoveOptions = RemoveOptions { recursive: true, force: false, symlinks: FOLLOW };
const FORCE: RemoveOptions = RemoveOptions { force: true, ..REMOVE };
pub(crate) const WALK: WalkOptions = WalkOptions {
    max_depth: 64,
    max_directories: 1_000,
    max_entries: 10_000,
    max_bytes: 1 << 20,
    follow_directory_symlinks: true,
    prune_hidden_directories: false,
};

fn read(path: &Path, symlinks: Symlinks) -> Result<(), FsError> {
    OpenFile::open(path, symlinks)?.read_to_end(1_000).map(drop)
}

fn write(path: &Path, atomic: bool, symlinks: Symlinks) -> Result<(), FsError> {
    let options = WriteOptions { symlinks, atomic, ..WriteOptions::default() };
    write_file(path, b"written", &options).map(drop)
}

fn upload(path: &Path, key: Option<&str>) -> Result<(), FsError> {
    let options =
        NewFileOptions { resume_key: key.map(str::to_owned), ..NewFileOptions::default() };
    let file = NewFile::create(path, options)?;
    file.write_block(0, b"written")?;
    file.commit().map(drop)
}

fn find(path: &Path) -> Result<(), FsError> {
    match glob(path, &everything(), &CancelFlag::never()) {
        Ok(_) => Ok(()),
        Err(GlobError::Fs(error)) => Err(error),
        Err(GlobError::Pattern(error)) => panic!("{error}"),
    }
}

pub(crate) fn everything() -> GlobOptions {
    GlobOptions {
        hidden: true,
        ignored: true,
        max_entries: 1_000,
        max_bytes: 1 << 20,
        ..GlobOptions::default()
    }
}

fn search(path: &Path) -> Result<(), FsError> {
    let options = SearchOptions {
        pattern: ".".to_owned(),
        hidden: true,
        max_matches: 1_000,
        ..SearchOptions::default()
    };
    let search = Search::new(&options).unwrap();
    search.run(path, &AtomicBool::new(false), &mut |_| ControlFlow::Continue(())).map(drop)
}
