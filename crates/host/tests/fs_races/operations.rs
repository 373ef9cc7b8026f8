//! All operations that promise not to follow symlinks.

use std::ffi::OsStr;
use std::path::Path;

use exec_server_host::fs::{
    CancelFlag, Condition, FsError, NewFile, NewFileOptions, OpenFile, RemoveOptions, Replace,
    Symlinks, WalkOptions, WriteOptions, copy, create_directory, metadata, read_link, remove,
    rename, set_permissions, symlink, walk, write_file,
};

use crate::arena::{Arena, INSIDE, OUTSIDE, SECRET};

type Operation = fn(&Arena) -> Result<(), FsError>;

pub(crate) const OPERATIONS: &[(&str, Operation)] = &[
    ("metadata", look),
    ("open and read", read),
    ("read_link", read_pointer),
    ("write", |arena| write(arena, "victim", false)),
    ("write atomically", |arena| write(arena, "victim", true)),
    ("create by writing", |arena| write(arena, "written", false)),
    ("remove a file", |arena| remove(&arena.through("written"), &REMOVE, &CancelFlag::never())),
    ("new file", write_new),
    ("set_permissions", |arena| set_permissions(&arena.through("victim"), 0o640, REFUSE)),
    ("symlink", |arena| symlink(OsStr::new("x"), &arena.through("symlink"), REFUSE)),
    ("rename", rename_inside),
    ("rename into it", rename_into),
    ("rename out of it", rename_out),
    ("create_directory", |arena| create_directory(&arena.through("made"), false, REFUSE)),
    ("create directories", |arena| create_directory(&arena.through("made/a/b"), true, REFUSE)),
    ("remove a directory", |arena| remove(&arena.through("made"), &REMOVE, &CancelFlag::never())),
    ("remove what exists outside too", |arena| {
        remove(&arena.through("sub"), &REMOVE, &CancelFlag::never())
    }),
    ("walk", list),
    ("copy from it", copy_from),
    ("copy over it", |arena| {
        copy(&arena.at("source"), &arena.at("work"), true, &CancelFlag::never())
    }),
    ("remove a tree", remove_tree),
];

const REFUSE: Symlinks = Symlinks::Refuse;
const REMOVE: RemoveOptions = RemoveOptions { recursive: true, force: false, symlinks: REFUSE };

fn look(arena: &Arena) -> Result<(), FsError> {
    let metadata = metadata(&arena.through("victim"), REFUSE)?;
    assert_ne!(metadata.size, OUTSIDE.len() as u64, "metadata of the outside");
    Ok(())
}

fn read(arena: &Arena) -> Result<(), FsError> {
    let content = OpenFile::open(&arena.through("victim"), REFUSE)?.read_to_end(1_000)?;
    assert_ne!(content, OUTSIDE, "content of the outside");
    Ok(())
}

fn read_pointer(arena: &Arena) -> Result<(), FsError> {
    assert_eq!(read_link(&arena.through("pointer"), REFUSE)?, "inside");
    Ok(())
}

fn write(arena: &Arena, name: &str, atomic: bool) -> Result<(), FsError> {
    let options = WriteOptions { symlinks: REFUSE, atomic, ..WriteOptions::default() };
    write_file(&arena.through(name), INSIDE, &options).map(drop)
}

fn write_new(arena: &Arena) -> Result<(), FsError> {
    let condition = Condition::default();
    let options = NewFileOptions { symlinks: REFUSE, mode: None, condition, resume_key: None };
    let file = NewFile::create(&arena.through("victim"), options)?;
    file.write_block(0, INSIDE)?;
    file.commit().map(drop)
}

fn rename_inside(arena: &Arena) -> Result<(), FsError> {
    rename(&arena.through("victim"), &arena.through("renamed"), Replace::Yes, REFUSE)?;
    rename(&arena.through("renamed"), &arena.through("victim"), Replace::No, REFUSE)
}

fn rename_into(arena: &Arena) -> Result<(), FsError> {
    rename(&arena.at("work/movable"), &arena.through("victim"), Replace::Yes, REFUSE)
}

fn rename_out(arena: &Arena) -> Result<(), FsError> {
    rename(&arena.through("victim"), &arena.at("work/movable"), Replace::Yes, REFUSE)?;
    assert_ne!(std::fs::read(arena.at("work/movable")).unwrap(), OUTSIDE);
    Ok(())
}

fn list(arena: &Arena) -> Result<(), FsError> {
    let options = WalkOptions {
        max_depth: 64,
        max_directories: 100,
        max_entries: 1_000,
        max_bytes: 1 << 20,
        follow_directory_symlinks: false,
        prune_hidden_directories: false,
    };
    let tree = walk(&arena.at("work"), &options, &CancelFlag::never())?;
    let secret = tree.entries.iter().find(|entry| entry.path.ends_with(SECRET));
    assert!(secret.is_none(), "walked outside: {secret:?}");
    Ok(())
}

fn copy_from(arena: &Arena) -> Result<(), FsError> {
    let destination = arena.at("copies/new");
    let copied = copy(&arena.at("work"), &destination, true, &CancelFlag::never());
    expect_no_secret(&destination);
    let force = RemoveOptions { force: true, ..REMOVE };
    remove(&destination, &force, &CancelFlag::never()).unwrap();
    copied
}

fn expect_no_secret(directory: &Path) {
    for name in ["swap", "link"] {
        let copied = directory.join(name);
        if copied.is_dir() && !copied.is_symlink() {
            for secret in [SECRET, "sub/secret"] {
                assert!(!copied.join(secret).exists(), "copied from outside");
            }
        }
    }
}

fn remove_tree(arena: &Arena) -> Result<(), FsError> {
    arena.plant_tree();
    remove(&arena.at("tree"), &REMOVE, &CancelFlag::never())
}
