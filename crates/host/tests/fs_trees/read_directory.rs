use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;

use exec_server_host::fs::{
    Entry, EntryTypes, FileKind, FsError, read_directory, read_directory_page,
};
use exec_server_test_support::{Scratch, TemporaryMode, as_nobody};
use rustix::fs::{CWD, FileType, Mode, Timespec, Timestamps};

use crate::set_mode;

#[test]
fn entry_types_are_those_of_the_names_or_their_targets() {
    let scratch = Scratch::new();
    scratch.directory("d");
    scratch.file("f", "1234");
    scratch.fifo("p");
    let _listener = UnixListener::bind(scratch.path("s")).unwrap();
    scratch.symlink("d", "to_d");
    scratch.symlink("f", "to_f");
    scratch.symlink("p", "to_p");
    scratch.symlink("nothing", "to_nothing");
    scratch.symlink("loop", "loop");
    scratch.symlink("f/below", "to_below_a_file");
    let list = |types| -> Vec<(String, FileKind, bool)> {
        let entries = read_directory(scratch.root(), types, 100).unwrap();
        let plain = |name: &OsStr| name.to_str().unwrap().to_owned();
        entries.iter().map(|e| (plain(&e.name), e.kind, e.is_symlink)).collect()
    };
    let entry = |name: &str, kind, is_symlink| (name.to_owned(), kind, is_symlink);
    let plain = [
        entry("d", FileKind::Directory, false),
        entry("f", FileKind::Regular, false),
        entry("p", FileKind::Fifo, false),
        entry("s", FileKind::Socket, false),
    ];
    let mut followed = plain.to_vec();
    followed.extend([
        entry("to_d", FileKind::Directory, true),
        entry("to_f", FileKind::Regular, true),
        entry("to_p", FileKind::Fifo, true),
    ]);
    assert_eq!(list(EntryTypes::Followed), followed);
    let links = ["loop", "to_below_a_file", "to_d", "to_f", "to_nothing", "to_p"];
    let mut own = plain.to_vec();
    own.extend(links.map(|name| entry(name, FileKind::Symlink, true)));
    own.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(list(EntryTypes::Own), own);
}

#[test]
fn details_are_those_of_the_name_itself() {
    let scratch = Scratch::new();
    let file = scratch.file("f", "12345");
    scratch.symlink("f", "link");
    set_mode(&file, 0o4751);
    // 1.5 s before 1970.
    let time = Timespec { tv_sec: -2, tv_nsec: 500_000_000 };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, &file, &times, rustix::fs::AtFlags::empty()).unwrap();
    let entries = read_directory(scratch.root(), EntryTypes::Own, 2).unwrap();
    let details = entries[0].details.unwrap();
    assert_eq!((details.mode, details.size, details.modified_at_ms), (0o4751, 5, -1_500));
    assert_eq!(entries[1].details.unwrap().size, 1);
    let followed = read_directory(scratch.root(), EntryTypes::Followed, 2).unwrap();
    assert!(followed.iter().all(|entry| entry.details.is_none()));
}

#[test]
fn names_are_sorted_by_their_bytes() {
    let scratch = Scratch::new();
    let names: [&[u8]; 6] = [b"\n", b"...", b"B", b"a", b"a\xff\xfe", b"\xc3\xa4"];
    for name in names.iter().rev() {
        scratch.file(OsStr::from_bytes(name), "");
    }
    let entries = read_directory(scratch.root(), EntryTypes::Followed, 6).unwrap();
    let found: Vec<&[u8]> = entries.iter().map(|entry| entry.name.as_bytes()).collect();
    assert_eq!(found, names);
}

#[test]
fn only_a_directory_is_read() {
    let scratch = Scratch::new();
    for path in [scratch.file("f", ""), scratch.fifo("p"), scratch.path("missing")] {
        assert!(read_directory(&path, EntryTypes::Followed, 1).is_err(), "{path:?}");
    }
}

#[test]
fn a_hundred_thousand_entries_are_listed() {
    let scratch = Scratch::in_memory();
    for number in 0..100_000 {
        let path = scratch.path(format!("{number:06}"));
        rustix::fs::mknodat(CWD, &path, FileType::RegularFile, Mode::RUSR, 0).unwrap();
    }
    for types in [EntryTypes::Followed, EntryTypes::Own] {
        let refused = read_directory(scratch.root(), types, 50_000);
        assert!(matches!(refused, Err(FsError::TooManyEntries { max: 50_000, .. })));
        let refused = read_directory(scratch.root(), types, 99_999);
        assert!(matches!(refused, Err(FsError::TooManyEntries { .. })));
        for max in [100_000, 200_000] {
            let entries = read_directory(scratch.root(), types, max).unwrap();
            assert_eq!(entries.len(), 100_000);
            assert_eq!(
                (&*entries[0].name, &*entries[99_999].name),
                ("000000".as_ref(), "099999".as_ref())
            );
        }
    }
}

#[test]
fn permission_errors_are_reported() {
    let scratch = Scratch::new();
    let closed = scratch.directory("closed");
    scratch.file("closed/secret", "");
    let open = scratch.directory("open");
    scratch.symlink("../closed/secret", "open/link");
    let listed = scratch.directory("listed");
    scratch.file("listed/file", "");
    set_mode(scratch.root(), 0o755);
    let _listed = TemporaryMode::set(&listed, 0o444);
    let _closed = TemporaryMode::set(&closed, 0o000);
    as_nobody(|| {
        let refused = read_directory(&closed, EntryTypes::Followed, 9).unwrap_err();
        assert!(refused.to_string().contains("closed: Permission denied"), "{refused}");
        let entries = read_directory(&open, EntryTypes::Followed, 9).unwrap();
        assert_eq!((entries[0].kind, entries[0].is_symlink), (FileKind::Unknown, true));
        // The directory may be listed, but not searched.
        let entries = read_directory(&listed, EntryTypes::Own, 9).unwrap();
        assert_eq!(entries.len(), 1);
        assert_eq!((entries[0].name.to_str(), entries[0].details), (Some("file"), None));
    });
}

fn in_pages(path: &Path, types: EntryTypes, limit: usize) -> (Vec<Entry>, usize) {
    let (mut entries, mut after, mut pages) = (Vec::new(), None, 0);
    loop {
        let limit = limit.try_into().unwrap();
        let page = read_directory_page(path, types, after.as_deref(), limit).unwrap();
        assert!(page.entries.len() <= limit.get());
        entries.extend(page.entries);
        pages += 1;
        after = page.last;
        if after.is_none() {
            return (entries, pages);
        }
    }
}

#[test]
fn all_pages_together_equal_the_listing() {
    let scratch = Scratch::new();
    for number in 0..100_u32 {
        // Unsorted names that are not UTF-8.
        let name = [b"n".as_slice(), &(number * 7_919 % 251).to_be_bytes()[3..], b"\xff"].concat();
        if !name.contains(&0) && !name.contains(&b'/') {
            scratch.file(OsStr::from_bytes(&name), "");
        }
    }
    scratch.symlink("nowhere", "n-dangling");
    for types in [EntryTypes::Followed, EntryTypes::Own] {
        let whole = read_directory(scratch.root(), types, 1_000).unwrap();
        for limit in [1, 2, 7, whole.len(), 1_000] {
            let (entries, pages) = in_pages(scratch.root(), types, limit);
            assert_eq!(entries, whole, "pages of {limit}");
            assert!(pages >= whole.len().div_ceil(limit));
        }
    }
    assert_eq!(in_pages(&scratch.directory("empty"), EntryTypes::Own, 1), (Vec::new(), 1));
}

#[test]
fn a_name_that_stays_is_on_exactly_one_page() {
    let scratch = Scratch::new();
    for name in ["b", "d", "f", "h"] {
        scratch.file(name, "");
    }
    let page = |after: Option<&OsStr>| {
        let limit = 2.try_into().unwrap();
        let page = read_directory_page(scratch.root(), EntryTypes::Own, after, limit).unwrap();
        let names: Vec<_> = page.entries.into_iter().map(|entry| entry.name).collect();
        (names, page.last)
    };
    let (names, last) = page(None);
    assert_eq!((names, last.as_deref()), (vec!["b".into(), "d".into()], Some(OsStr::new("d"))));
    std::fs::remove_file(scratch.path("d")).unwrap();
    scratch.file("a", "");
    scratch.file("e", "");
    let (names, last) = page(last.as_deref());
    assert_eq!((names, last.as_deref()), (vec!["e".into(), "f".into()], Some(OsStr::new("f"))));
    assert_eq!(page(last.as_deref()), (vec!["h".into()], None));
}
