//! A directory copied to a new name, and copies of it that do not finish.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use exec_server_test_support::Cut;
use rustix::process::Signal;

use super::interrupted::{OnTheWay, Way};
use super::{open_directories, tree, varied_tree};
use crate::support::{Running, eventually};

/// A copy of a tree with a large file to a new name, killed halfway.
struct Killed {
    copy: OnTheWay,
    from: PathBuf,
    new: PathBuf,
}

impl Killed {
    fn new(way: Way) -> Self {
        let mut copy = OnTheWay::with_bytes(way, 32 << 20);
        let machines = &copy.machines;
        let (from, new) = match way {
            Way::Up => (machines.here("tree"), machines.there("new")),
            Way::Down => (machines.there("tree"), machines.here("new")),
        };
        varied_tree(&from);
        fs::rename(&copy.from, from.join("random")).unwrap();
        copy.arguments = match way {
            Way::Up => [machines.local("tree"), machines.remote("new")],
            Way::Down => [machines.remote("tree"), machines.local("new")],
        };
        copy.to = new.join("random");
        let running = copy.start(&["-r"]);
        eventually("the directory exists", || new.exists());
        eventually("a part of the file has arrived", || copy.partial_bytes() >= Some(4 << 20));
        copy.proxy.black_hole();
        running.signal(Signal::KILL);
        drop(running);
        copy.proxy.resume();
        Self { copy, from, new }
    }

    fn copy_again(&self) {
        let (status, _, errors) = self.copy.start(&["-r"]).finish();
        assert_eq!((status.code(), errors.as_str()), (Some(0), ""));
    }

    /// Counts the notes, hidden files beside the new directory that mark its copy as unfinished.
    fn notes(&self) -> usize {
        let entries = fs::read_dir(self.new.parent().unwrap()).unwrap().map(Result::unwrap);
        let names = entries.map(|entry| entry.file_name().into_string().unwrap());
        names.filter(|name| name.starts_with(".exec-server-cp-")).count()
    }
}

#[test]
fn the_same_command_continues_in_its_own_directory() {
    for way in [Way::Up, Way::Down] {
        let killed = Killed::new(way);
        assert_eq!(killed.notes(), 1, "{way:?}");
        killed.copy_again();
        assert!(tree(&killed.from) == tree(&killed.new), "{way:?}: the copy differs");
        assert_eq!(killed.notes(), 0, "{way:?}");
        // The copy is finished: now the name is an existing directory to copy into.
        killed.copy_again();
        assert!(tree(&killed.from) == tree(&killed.new.join("tree")), "{way:?}");
        assert_eq!(killed.notes(), 0, "{way:?}");
    }
}

#[test]
fn another_source_is_copied_into_an_unfinished_directory() {
    let killed = Killed::new(Way::Up);
    let machines = &killed.copy.machines;
    fs::create_dir(machines.here("other")).unwrap();
    fs::write(machines.here("other/file"), "other").unwrap();
    machines.copied(&["-r", &machines.local("other"), &machines.remote("new")]);
    assert_eq!(tree(&killed.new.join("other")), tree(&machines.here("other")));
    assert_eq!(killed.notes(), 1);
    fs::remove_dir_all(killed.new.join("other")).unwrap();
    killed.copy_again();
    assert!(tree(&killed.from) == tree(&killed.new), "the copy differs");
}

#[test]
fn another_directory_of_the_same_name_is_copied_into() {
    let killed = Killed::new(Way::Up);
    open_directories(&killed.new);
    fs::remove_dir_all(&killed.new).unwrap();
    fs::create_dir(&killed.new).unwrap();
    killed.copy_again();
    assert!(tree(&killed.from) == tree(&killed.new.join("tree")), "the copy differs");

    // If the directory is missing, it is created.
    open_directories(&killed.new);
    fs::remove_dir_all(&killed.new).unwrap();
    killed.copy_again();
    assert!(tree(&killed.from) == tree(&killed.new), "the copy differs");
    assert_eq!(killed.notes(), 0);
}

/// Starts a copy to `new`, or into it. Returns once the server has created the directory, before
/// the command receives the response.
fn copy_on_one_machine(into: bool) -> (OnTheWay, Running) {
    let mut copy = OnTheWay::with_bytes(Way::Up, 1);
    let machines = &copy.machines;
    varied_tree(&machines.there("tree"));
    copy.arguments = [machines.remote("tree"), machines.remote("new")];
    copy.to = machines.there("new");
    if into {
        fs::create_dir(&copy.to).unwrap();
        copy.to.push("tree");
    }
    // The server finishes long before the command receives its response.
    copy.proxy.delay(Duration::from_millis(200));
    let running = copy.start(&["-r"]);
    eventually("the directory exists", || copy.to.exists());
    (copy, running)
}

fn finish_on_one_machine(copy: &OnTheWay, running: Running) {
    let (status, _, errors) = running.finish();
    assert_eq!((status.code(), errors.as_str()), (Some(0), ""));
    let there = &copy.machines.there;
    assert!(tree(&there.path().join("tree")) == tree(&copy.to), "the copy differs");
    assert_eq!(fs::read_dir(there.path()).unwrap().count(), 2, "a note is left beside it");
}

#[test]
fn a_copy_on_one_machine_resumes_after_kill_9() {
    let (copy, running) = copy_on_one_machine(false);
    copy.proxy.black_hole();
    running.signal(Signal::KILL);
    drop(running);
    let _ = fs::remove_file(copy.to.join("plain"));
    copy.proxy.resume();
    finish_on_one_machine(&copy, copy.start(&["-r"]));
}

#[test]
fn a_copy_on_one_machine_resumes_after_a_cut() {
    for into in [false, true] {
        let (copy, running) = copy_on_one_machine(into);
        copy.runtime.block_on(copy.proxy.cut(Cut::Rst));
        finish_on_one_machine(&copy, running);
    }
}

#[test]
fn the_same_command_copies_failed_entries() {
    let killed = Killed::new(Way::Up);
    let in_the_way = killed.new.join("script");
    let _ = fs::remove_file(&in_the_way);
    fs::create_dir(&in_the_way).unwrap();
    let (status, _, errors) = killed.copy.start(&["-r"]).finish();
    assert_eq!((status.code(), errors.lines().count()), (Some(1), 1), "{errors}");
    assert_eq!(killed.notes(), 1, "the copy is unfinished");
    fs::remove_dir(&in_the_way).unwrap();
    killed.copy_again();
    assert!(tree(&killed.from) == tree(&killed.new), "the copy differs");
    assert_eq!(killed.notes(), 0);
}

#[test]
fn no_note_is_left_without_a_new_directory() {
    let machines = super::Machines::new();
    fs::create_dir(machines.here("tree")).unwrap();
    let missing = machines.remote("missing/new");
    machines.refused(&["-r", &machines.local("tree"), &missing], "No such file");
    machines.refused(
        &["-r", &machines.remote(""), &machines.remote("new")],
        "inside the source of the copy",
    );
    assert_eq!(fs::read_dir(machines.there.path()).unwrap().count(), 0);
}
