//! `exec-server cp` in both directions. `interrupted` tests interrupted copies and the output on a
//! terminal, `cuts` cut connections, and `unfinished` directories that were copied only in part.

mod cuts;
mod interrupted;
mod unfinished;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use exec_server_test_support::TemporaryMode;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Server, random_file, run_command};

/// The properties of a file that a copy preserves.
#[derive(Debug, PartialEq, Eq)]
enum Thing {
    Directory { mode: u32 },
    File { mode: u32, content: Vec<u8> },
    Symlink { target: PathBuf },
}

fn look(path: &Path) -> Thing {
    let metadata = fs::symlink_metadata(path).unwrap();
    let mode = metadata.permissions().mode() & 0o7777;
    if metadata.is_symlink() {
        Thing::Symlink { target: fs::read_link(path).unwrap() }
    } else if metadata.is_dir() {
        Thing::Directory { mode }
    } else {
        Thing::File { mode, content: fs::read(path).unwrap() }
    }
}

/// Returns a whole tree; the root has the empty path.
fn tree(root: &Path) -> BTreeMap<PathBuf, Thing> {
    let mut things = BTreeMap::new();
    let mut waiting = vec![PathBuf::new()];
    while let Some(relative) = waiting.pop() {
        let path =
            if relative.as_os_str().is_empty() { root.to_owned() } else { root.join(&relative) };
        let thing = look(&path);
        if matches!(thing, Thing::Directory { .. }) {
            let entries = fs::read_dir(&path).unwrap();
            waiting.extend(entries.map(|entry| relative.join(entry.unwrap().file_name())));
        }
        things.insert(relative, thing);
    }
    things
}

/// Creates a tree with every kind of file that `cp` copies.
fn varied_tree(root: &Path) {
    let set_mode = |name: &str, mode| {
        fs::set_permissions(root.join(name), PermissionsExt::from_mode(mode)).unwrap();
    };
    for directory in ["empty", "a/b/c", "closed"] {
        fs::create_dir_all(root.join(directory)).unwrap();
    }
    fs::write(root.join("plain"), "plain\n").unwrap();
    fs::write(root.join("script"), "#!/bin/sh\n").unwrap();
    fs::write(root.join("nothing"), "").unwrap();
    fs::write(root.join(".hidden"), "hidden").unwrap();
    fs::write(root.join("a/b/c/deep"), "deep").unwrap();
    fs::write(root.join("closed/file"), "in a closed directory").unwrap();
    fs::write(root.join(OsStr::from_bytes(b"a/odd\xff\xfe\nname")), "odd").unwrap();
    fs::create_dir(root.join(OsStr::from_bytes(b"dir\xff"))).unwrap();
    fs::write(root.join(OsStr::from_bytes(b"dir\xff/in it")), "in it").unwrap();
    fs::rename(random_file(&root.join("a"), 3_333_333), root.join("a/large")).unwrap();
    symlink("plain", root.join("link")).unwrap();
    symlink("../..", root.join("a/b/up")).unwrap();
    symlink(OsStr::from_bytes(b"/no/\xff/where"), root.join("dangling")).unwrap();
    set_mode("script", 0o755);
    set_mode("plain", 0o600);
    set_mode("a/b", 0o750);
    set_mode("closed", 0o555);
}

struct Machines {
    server: Server,
    here: TempDir,
    there: TempDir,
}

impl Machines {
    fn new() -> Self {
        let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        Self { server: Server::start(), here, there }
    }

    fn here(&self, name: &str) -> PathBuf {
        self.here.path().join(name)
    }

    fn there(&self, name: &str) -> PathBuf {
        self.there.path().join(name)
    }

    /// Returns a server path in the syntax of `cp`.
    fn remote(&self, name: &str) -> String {
        format!(":{}", self.there(name).display())
    }

    fn local(&self, name: &str) -> String {
        self.here(name).display().to_string()
    }

    /// Returns the exit code and the error output.
    fn cp(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let outcome = self.server.run(&[&["cp"], arguments].concat());
        assert_eq!(outcome.stdout, "");
        (outcome.code, outcome.stderr)
    }

    fn copied(&self, arguments: &[&str]) {
        assert_eq!(self.cp(arguments), (Some(0), String::new()), "{arguments:?}");
    }

    fn refused(&self, arguments: &[&str], because: &str) {
        let (code, error) = self.cp(arguments);
        assert_eq!((code, error.lines().count()), (Some(1), 1), "{arguments:?}: {error}");
        assert!(error.contains(because), "{arguments:?}: {error}");
    }
}

impl Drop for Machines {
    /// An ordinary user cannot remove the content of a closed directory or of its copies.
    fn drop(&mut self) {
        for top in [&self.here, &self.there] {
            open_directories(top.path());
        }
    }
}

/// Gives the owner all rights to a directory and to all directories below it.
fn open_directories(path: &Path) {
    let _ = fs::set_permissions(path, fs::Permissions::from_mode(0o755));
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            open_directories(&entry.path());
        }
    }
}

#[test]
fn a_tree_survives_a_round_trip() {
    let machines = Machines::new();
    fs::create_dir(machines.here("tree")).unwrap();
    varied_tree(&machines.here("tree"));
    let original = tree(&machines.here("tree"));

    machines.copied(&["-r", &machines.local("tree"), &machines.remote("up")]);
    assert_eq!(tree(&machines.there("up")), original);
    machines.copied(&["-r", &machines.remote("up"), &machines.local("down")]);
    assert_eq!(tree(&machines.here("down")), original);
    machines.copied(&["-r", &machines.remote("up"), &machines.remote("beside")]);
    assert_eq!(tree(&machines.there("beside")), original);
    // Copies the tree over its copy: existing symlinks and directories are not in the way.
    fs::remove_file(machines.there("up/link")).unwrap();
    symlink("elsewhere", machines.there("up/link")).unwrap();
    // Only root can write in a closed directory.
    let open = TemporaryMode::set(machines.there("up/closed"), 0o755);
    machines.copied(&["-r", &machines.local("tree/."), &machines.remote("up")]);
    drop(open);
    assert_eq!(tree(&machines.there("up")), original);
}

#[test]
fn holes_stay_holes() {
    const SIZE: u64 = 32 << 20;
    let machines = Machines::new();
    let sparse = fs::File::create(machines.here("sparse")).unwrap();
    sparse.write_all_at(b"in the middle", SIZE / 2 + 1).unwrap();
    sparse.set_len(SIZE).unwrap();
    machines.copied(&[&machines.local("sparse"), &machines.remote("up")]);
    machines.copied(&[&machines.remote("up"), &machines.local("down")]);
    let original = fs::read(machines.here("sparse")).unwrap();
    for copy in [machines.there("up"), machines.here("down")] {
        assert!(fs::read(&copy).unwrap() == original, "{}", copy.display());
        let on_disk = fs::metadata(&copy).unwrap().blocks() * 512;
        assert!(on_disk < SIZE / 8, "{}: {on_disk} bytes on disk", copy.display());
    }
}

#[test]
fn a_tree_is_copied_from_one_server_to_another() {
    let (machines, other) = (Machines::new(), Server::start());
    fs::create_dir(machines.here("tree")).unwrap();
    varied_tree(&machines.here("tree"));
    let environment = |id: &str, server: &Server| {
        format!("[[environments]]\nid = {id:?}\nurl = {:?}\n", server.url())
    };
    let file = machines.here("environments.toml");
    let text = environment("one", &machines.server) + &environment("two", &other);
    fs::write(&file, text).unwrap();
    let mut cp = machines.server.command(&["cp", "-r"]);
    cp.arg(format!("one:{}", machines.local("tree")));
    cp.arg(format!("two:{}", machines.there("copy").display()));
    cp.env("EXEC_SERVER_ENVIRONMENTS", &file);
    let outcome = run_command(cp);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
    assert_eq!(tree(&machines.there("copy")), tree(&machines.here("tree")));
}

#[test]
fn destinations_work_as_in_cp() {
    let machines = Machines::new();
    fs::write(machines.here("a"), "a").unwrap();
    fs::write(machines.here("b"), "b").unwrap();
    fs::create_dir(machines.there("dir")).unwrap();
    let (a, b) = (machines.local("a"), machines.local("b"));
    let (dir, new) = (machines.remote("dir"), machines.remote("new"));

    machines.copied(&[&a, &new]);
    assert_eq!(fs::read(machines.there("new")).unwrap(), b"a");
    machines.copied(&[&b, &new]);
    assert_eq!(fs::read(machines.there("new")).unwrap(), b"b");
    machines.copied(&[&a, &b, &dir]);
    assert_eq!(fs::read(machines.there("dir/b")).unwrap(), b"b");
    machines.copied(&[&a, &format!("{dir}/")]);
    machines.copied(&[&a, "-q", &b, "--no-resume", &dir]);
    let (code, error) = machines.cp(&[&a]);
    assert_eq!(code, Some(2));
    assert!(error.contains("SOURCE... DESTINATION"), "{error}");

    machines.refused(&[&a, &b, &new], "is not a directory");
    machines.refused(&[&a, &machines.remote("missing/x")], "No such file");
    machines.refused(&[&a, &machines.remote("missing/")], "does not exist");
    let nothing = machines.local("nothing");
    machines.refused(&[&nothing, &new], &format!(" {nothing}: No such file or directory\n"));
    machines.refused(&[&dir, &machines.local("x")], "is a directory; use -r");
    machines.refused(&["-r", &dir, &a], "cannot be replaced by a directory");
    machines.refused(&[&a, &a, &dir], "another source already has this name");
    assert_eq!(fs::read(machines.there("new")).unwrap(), b"b", "a refused copy changes nothing");
}

#[test]
fn only_a_symlink_named_as_a_source_is_followed() {
    let machines = Machines::new();
    fs::create_dir_all(machines.here("real")).unwrap();
    fs::write(machines.here("real/file"), "content").unwrap();
    symlink("real/file", machines.here("to-file")).unwrap();
    symlink("real", machines.here("to-directory")).unwrap();

    machines.copied(&[&machines.local("to-file"), &machines.remote("file")]);
    assert_eq!(look(&machines.there("file")), look(&machines.here("real/file")));
    machines.copied(&["-r", &machines.local("to-directory"), &machines.remote("directory")]);
    assert_eq!(tree(&machines.there("directory")), tree(&machines.here("real")));

    // A copy does not follow a symlink that leads out of its destination.
    let outside = machines.there("outside");
    fs::create_dir(&outside).unwrap();
    fs::create_dir_all(machines.there("into/real")).unwrap();
    symlink(&outside, machines.there("into/real/sub")).unwrap();
    fs::create_dir(machines.here("real/sub")).unwrap();
    fs::write(machines.here("real/sub/escapee"), "").unwrap();
    let (code, error) = machines.cp(&["-r", &machines.local("real"), &machines.remote("into")]);
    assert_eq!(code, Some(1));
    assert!(error.contains("into/real/sub"), "{error}");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    assert_eq!(fs::read(machines.there("into/real/file")).unwrap(), b"content");
}

#[test]
fn special_files_are_skipped_with_a_message() {
    let machines = Machines::new();
    fs::create_dir(machines.here("tree")).unwrap();
    fs::write(machines.here("tree/file"), "").unwrap();
    let fifo = rustix::fs::FileType::Fifo;
    let path = machines.here("tree/fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &path, fifo, 0o600.into(), 0).unwrap();
    machines.refused(&["-r", &machines.local("tree"), &machines.remote("tree")], "fifo: neither");
    assert!(machines.there("tree/file").exists() && !machines.there("tree/fifo").exists());
    machines.refused(&[&machines.local("tree/fifo"), &machines.remote("x")], "fifo: is neither");
}

#[test]
fn set_id_bits_are_not_preserved() {
    let machines = Machines::new();
    fs::write(machines.here("program"), "").unwrap();
    fs::set_permissions(machines.here("program"), PermissionsExt::from_mode(0o6755)).unwrap();
    machines.copied(&[&machines.local("program"), &machines.remote("program")]);
    let mode = fs::metadata(machines.there("program")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o755);
}

#[test]
fn files_without_a_size_are_copied_to_their_end() {
    let machines = Machines::new();
    machines.copied(&[":/proc/self/limits", &machines.local("limits")]);
    let limits = fs::read_to_string(machines.here("limits")).unwrap();
    assert!(limits.contains("Max open files"), "{limits}");
}

#[test]
fn many_small_files_arrive() {
    const FILES: usize = 500;
    let machines = Machines::new();
    for n in 0..FILES {
        let directory = machines.here("tree").join((n % 10).to_string());
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(n.to_string()), n.to_string()).unwrap();
    }
    let outcome = machines.server.run(&[
        "cp",
        "-r",
        "--json",
        &machines.local("tree"),
        &machines.remote("tree"),
    ]);
    let summary: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!((&summary["files"], &summary["directories"]), (&FILES.into(), &11.into()));
    assert_eq!((&summary["failed"], &summary["resumedBytes"]), (&0.into(), &0.into()));
    assert_eq!(tree(&machines.there("tree")), tree(&machines.here("tree")));
}

#[test]
fn unknown_counts_are_omitted() {
    let machines = Machines::new();
    fs::create_dir(machines.there("tree")).unwrap();
    fs::write(machines.there("tree/file"), "12345").unwrap();
    let summary = |arguments: &[&str]| -> Value {
        let outcome = machines.server.run(&[&["cp", "--json"], arguments].concat());
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
        serde_json::from_str(&outcome.stdout).unwrap()
    };
    let file = summary(&[&machines.remote("tree/file"), &machines.remote("copy")]);
    assert_eq!((&file["files"], &file["bytes"]), (&1.into(), &5.into()));
    let tree = summary(&["-r", &machines.remote("tree"), &machines.remote("copies")]);
    assert_eq!((&tree["failed"], tree.get("files"), tree.get("bytes")), (&0.into(), None, None));
}
