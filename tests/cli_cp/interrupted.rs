//! Interrupted copies, sources that change during a copy, and terminal output.

use std::fs;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use exec_server_test_support::{Cut, FaultProxy};
use rustix::process::{Pid, Signal};
use serde_json::Value;
use tokio::runtime::Runtime;

use super::{Machines, Thing, look, tree};
use crate::support::tmux::Tmux;
use crate::support::{PROGRAM, Running, eventually, random_file};

const LARGE: usize = 24 << 20;
/// Half of the file: more than the blocks in flight, which an interruption loses.
const HALFWAY: u64 = 12 << 20;
/// Bytes on the wire, where base64 turns three into four: enough for half of the file, but not for
/// all of it.
const HALFWAY_ON_THE_WIRE: u64 = 24 << 20;

/// A large file being copied over a network that a test can degrade.
pub(super) struct OnTheWay {
    pub(super) machines: Machines,
    pub(super) runtime: Runtime,
    pub(super) proxy: FaultProxy,
    pub(super) arguments: [String; 2],
    pub(super) from: PathBuf,
    pub(super) to: PathBuf,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Way {
    Up,
    Down,
}

impl OnTheWay {
    /// Returns a copy that will pause in the middle of the file until the proxy is resumed.
    fn new(way: Way) -> Self {
        let copy = Self::with_bytes(way, LARGE);
        copy.proxy.hold_after(HALFWAY_ON_THE_WIRE);
        copy
    }

    pub(super) fn with_bytes(way: Way, len: usize) -> Self {
        let machines = Machines::new();
        let runtime = Runtime::new().unwrap();
        let upstream = machines.server.url().strip_prefix("ws://").unwrap().parse().unwrap();
        let proxy = runtime.block_on(FaultProxy::start(upstream));
        // Slow enough for a test to observe the copy.
        proxy.delay(Duration::from_millis(1));
        let (directory, arguments, to) = match way {
            Way::Up => (
                machines.here.path(),
                [machines.local("random"), machines.remote("copy")],
                machines.there("copy"),
            ),
            Way::Down => (
                machines.there.path(),
                [machines.remote("random"), machines.local("copy")],
                machines.here("copy"),
            ),
        };
        let from = random_file(directory, len);
        Self { machines, runtime, proxy, arguments, from, to }
    }

    pub(super) fn start(&self, options: &[&str]) -> Running {
        let url = self.proxy.url();
        let paths = self.arguments.each_ref().map(String::as_str);
        let arguments = [&["cp", "--connect", &url, "--json"], options, &paths].concat();
        Running::start(self.machines.server.command(&arguments))
    }

    pub(super) fn partial_bytes(&self) -> Option<u64> {
        partial_bytes(self.to.parent().unwrap())
    }

    fn wait_until_halfway(&self) {
        eventually("half of the file has arrived", || self.partial_bytes() >= Some(HALFWAY));
        assert!(!self.to.exists(), "a half-written file is not visible");
    }

    /// Waits for a copy to succeed. Returns its summary.
    fn finish(&self, running: Running) -> Value {
        let (status, out, errors) = running.finish();
        assert_eq!(status.code(), Some(0), "{errors}");
        assert!(fs::read(&self.from).unwrap() == fs::read(&self.to).unwrap(), "the copy differs");
        assert_eq!(self.partial_bytes(), None, "a temporary file is left");
        serde_json::from_str(&out).unwrap()
    }

    fn assert_resumed(&self, summary: &Value) {
        let (resumed, transferred) = (
            summary["resumedBytes"].as_u64().unwrap(),
            summary["transferredBytes"].as_u64().unwrap(),
        );
        // Up to eight blocks may have been in flight.
        assert!(resumed + (8 << 20) >= HALFWAY, "{summary}");
        assert_eq!(resumed + transferred, LARGE as u64, "{summary}");
    }

    fn kill_and_start_again(&self) {
        let killed = self.start(&[]);
        self.wait_until_halfway();
        self.proxy.black_hole();
        killed.signal(Signal::KILL);
        drop(killed);
        self.proxy.resume();
        let mut again = self.start(&["-v"]);
        let source = again.error_line();
        assert!(source.trim_end().ends_with("/random"), "{source}");
        let resumed = again.error_line();
        assert!(resumed.contains("resumed at ") && resumed.contains(" of 24.0 MiB"), "{resumed}");
        self.assert_resumed(&self.finish(again));
    }
}

/// Returns the size of the largest temporary file in a directory.
fn partial_bytes(directory: &Path) -> Option<u64> {
    let entries = fs::read_dir(directory).unwrap().filter_map(Result::ok);
    let hidden = entries.filter(|entry| entry.file_name().as_bytes().starts_with(b"."));
    hidden.filter_map(|entry| Some(entry.metadata().ok()?.len())).max()
}

#[test]
fn an_upload_resumes_after_kill_9() {
    OnTheWay::new(Way::Up).kill_and_start_again();
}

#[test]
fn a_download_resumes_after_kill_9() {
    OnTheWay::new(Way::Down).kill_and_start_again();
}

#[test]
fn a_copy_resumes_after_ctrl_c() {
    for way in [Way::Up, Way::Down] {
        let copy = OnTheWay::new(way);
        let interrupted = copy.start(&[]);
        copy.wait_until_halfway();
        interrupted.signal(Signal::INT);
        let (status, _, errors) = interrupted.finish();
        let hint = "exec-server: interrupted; run the same command again to resume\n";
        assert_eq!((status.code(), errors.as_str()), (Some(130), hint), "{way:?}");
        copy.proxy.resume();
        copy.assert_resumed(&copy.finish(copy.start(&[])));
    }
}

#[test]
fn a_cut_costs_only_the_bytes_in_flight() {
    for (way, cut) in [(Way::Up, Cut::Rst), (Way::Down, Cut::MidFrame)] {
        let copy = OnTheWay::new(way);
        let mut running = copy.start(&["-v"]);
        copy.wait_until_halfway();
        copy.runtime.block_on(copy.proxy.cut(cut));
        copy.proxy.resume();
        running.error_line();
        let resumed = running.error_line();
        assert!(resumed.contains("resumed at "), "{way:?}: {resumed}");
        let summary = copy.finish(running);
        let transferred = summary["transferredBytes"].as_u64().unwrap();
        assert!(transferred < (LARGE as u64) + (9 << 20), "{way:?}: {summary}");
    }
}

#[test]
fn a_long_outage_is_reported() {
    let copy = OnTheWay::new(Way::Up);
    let mut running = copy.start(&[]);
    copy.wait_until_halfway();
    copy.proxy.refuse();
    copy.runtime.block_on(copy.proxy.cut(Cut::Rst));
    assert_eq!(
        running.error_line(),
        "exec-server: connection lost, reconnecting… (Ctrl-C gives up)\n"
    );
    copy.proxy.resume();
    copy.finish(running);
}

#[test]
fn a_changed_source_is_copied_from_the_start() {
    for options in [&[][..], &["--no-resume"]] {
        let copy = OnTheWay::new(Way::Up);
        let killed = copy.start(&[]);
        copy.wait_until_halfway();
        copy.proxy.black_hole();
        killed.signal(Signal::KILL);
        drop(killed);
        copy.proxy.resume();
        if options.is_empty() {
            let mut content = fs::read(&copy.from).unwrap();
            content.reverse();
            content.push(b'!');
            fs::write(&copy.from, content).unwrap();
        }
        let running = copy.start(options);
        let (status, out, errors) = running.finish();
        assert_eq!(status.code(), Some(0), "{errors}");
        let summary: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(summary["resumedBytes"], 0);
        assert!(fs::read(&copy.from).unwrap() == fs::read(&copy.to).unwrap(), "the copy differs");
    }
}

fn turn_around(path: &Path) {
    let mut content = fs::read(path).unwrap();
    content.rotate_left(1 << 20);
    let mut file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all(&content).unwrap();
}

#[test]
fn a_source_that_hides_its_change_is_copied_from_the_start() {
    let copy = OnTheWay::new(Way::Up);
    let killed = copy.start(&[]);
    copy.wait_until_halfway();
    copy.proxy.black_hole();
    killed.signal(Signal::KILL);
    drop(killed);
    copy.proxy.resume();
    let modified = fs::metadata(&copy.from).unwrap().modified().unwrap();
    turn_around(&copy.from);
    fs::File::open(&copy.from).unwrap().set_modified(modified).unwrap();
    let (status, out, errors) = copy.start(&[]).finish();
    assert_eq!(status.code(), Some(0), "{errors}");
    let summary: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(summary["resumedBytes"], 0);
    assert!(
        fs::read(&copy.from).unwrap() == fs::read(&copy.to).unwrap(),
        "the copy mixes two versions"
    );
}

#[test]
fn a_source_overwritten_during_the_copy_is_copied_again() {
    for way in [Way::Up, Way::Down] {
        let copy = OnTheWay::new(way);
        let running = copy.start(&[]);
        copy.wait_until_halfway();
        // Holds the copy, so that it does not finish before the source is overwritten.
        copy.proxy.black_hole();
        turn_around(&copy.from);
        copy.proxy.resume();
        copy.finish(running);
    }
}

#[test]
fn a_source_that_becomes_shorter_fails_the_copy() {
    for way in [Way::Up, Way::Down] {
        let copy = OnTheWay::new(way);
        let running = copy.start(&[]);
        copy.wait_until_halfway();
        copy.proxy.black_hole();
        fs::OpenOptions::new().write(true).open(&copy.from).unwrap().set_len(1 << 20).unwrap();
        copy.proxy.resume();
        let (status, _, errors) = running.finish();
        assert_eq!(status.code(), Some(1), "{way:?}: {errors}");
        assert!(errors.contains("random: became shorter while it was copied"), "{errors}");
        assert!(!copy.to.exists());
        assert_eq!(copy.partial_bytes(), None, "a temporary file is left");
    }
}

#[test]
fn a_private_directory_is_private_from_the_beginning() {
    let mut copy = OnTheWay::new(Way::Up);
    let machines = &copy.machines;
    fs::create_dir_all(machines.here("tree/private")).unwrap();
    fs::rename(&copy.from, machines.here("tree/private/random")).unwrap();
    for directory in ["tree", "tree/private"] {
        let mode = PermissionsExt::from_mode(0o700);
        fs::set_permissions(machines.here(directory), mode).unwrap();
    }
    copy.arguments = [machines.local("tree"), machines.remote("copy")];
    copy.to = machines.there("copy/private/random");
    let modes = ["copy", "copy/private"].map(|name| machines.there(name));
    let running = copy.start(&["-r"]);
    eventually("the directories exist", || modes[1].exists());
    copy.wait_until_halfway();
    for path in &modes {
        assert_eq!(look(path), Thing::Directory { mode: 0o700 });
    }
    drop(running);
}

#[test]
fn a_symlink_does_not_replace_a_directory() {
    let machines = Machines::new();
    fs::create_dir(machines.here("tree")).unwrap();
    symlink("target", machines.here("tree/name")).unwrap();
    fs::create_dir_all(machines.there("tree/name")).unwrap();
    let (code, error) = machines.cp(&["-r", &machines.local("tree/."), &machines.remote("tree")]);
    assert_eq!((code, error.lines().count()), (Some(1), 1), "{error}");
    assert_eq!(
        fs::read_dir(machines.there("tree")).unwrap().count(),
        1,
        "a temporary file is left"
    );
    assert!(machines.there("tree/name").is_dir());

    fs::remove_dir(machines.there("tree/name")).unwrap();
    fs::write(machines.there("tree/name"), "a file gives way").unwrap();
    machines.copied(&["-r", &machines.local("tree/."), &machines.remote("tree")]);
    assert_eq!(tree(&machines.there("tree")), tree(&machines.here("tree")));
}

impl Machines {
    /// Copies the last of these arguments to a server that is a child of `cp`. Also returns a
    /// function that finds the pid of the server.
    fn copy_to_child(&self, arguments: &[&str]) -> (Running, impl Fn() -> Pid + '_) {
        let (pid, environments) = (self.here("pid"), self.here("environments.toml"));
        let script = format!("echo $$ > {}; exec {PROGRAM} --listen stdio", pid.display());
        let text = format!(
            "[[environments]]\nid = \"box\"\nprogram = \"sh\"\nargs = [\"-c\", {script:?}]\n"
        );
        fs::write(&environments, text).unwrap();
        let (source, options) = arguments.split_last().unwrap();
        let mut cp = self.server.command(&[&["cp", "--json"], options].concat());
        cp.arg(self.here(source)).arg(format!("box:{}", self.there("copy").display()));
        cp.env("EXEC_SERVER_ENVIRONMENTS", &environments);
        let find = move || {
            let pid = fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
            Pid::from_raw(pid).unwrap()
        };
        (Running::start(cp), find)
    }
}

#[test]
fn the_end_of_a_server_is_reported_once() {
    const FILES: usize = 40;
    let machines = Machines::new();
    fs::create_dir(machines.here("tree")).unwrap();
    for n in 0..FILES {
        let file = fs::File::create(machines.here("tree").join(n.to_string())).unwrap();
        file.set_len(64 << 20).unwrap();
    }
    let (running, server) = machines.copy_to_child(&["-r", "tree"]);
    eventually("the copy has started", || {
        fs::read_dir(machines.there("copy")).is_ok_and(|mut entries| entries.next().is_some())
    });
    rustix::process::kill_process(server(), Signal::KILL).unwrap();
    let (status, out, errors) = running.finish();
    assert_eq!((status.code(), errors.lines().count()), (Some(1), 2), "{errors}");
    assert!(errors.contains(" more could not be copied"), "{errors}");
    let summary: Value = serde_json::from_str(&out).unwrap();
    let count = |name: &str| summary[name].as_u64().unwrap();
    assert_eq!(count("files") + count("failed"), FILES as u64, "{summary}");
}

#[test]
fn the_end_of_a_server_is_noticed_while_only_holes_are_copied() {
    let machines = Machines::new();
    // Some content, followed by more holes than can be read during a test.
    let sparse = random_file(machines.here.path(), 1 << 20);
    fs::OpenOptions::new().write(true).open(&sparse).unwrap().set_len(1 << 40).unwrap();
    let (running, server) = machines.copy_to_child(&["random"]);
    eventually("the copy has started", || partial_bytes(machines.there.path()) >= Some(1 << 20));
    let before = running.bytes_read();
    eventually("only holes are left", || running.bytes_read() > before + (32 << 20));
    rustix::process::kill_process(server(), Signal::KILL).unwrap();
    let (status, _, errors) = running.finish();
    assert_eq!((status.code(), errors.lines().count()), (Some(1), 1), "{errors}");
}

#[test]
fn a_terminal_shows_the_progress() {
    let copy = OnTheWay::with_bytes(Way::Up, 32 << 20);
    copy.proxy.delay(Duration::from_millis(5));
    let tmux = Tmux::start(&copy.machines.server);
    let (url, paths) = (copy.proxy.url(), copy.arguments.join(" "));
    // In a script, so that a narrow terminal does not wrap the command.
    let script = copy.machines.here("script");
    let text = format!("clear; $X cp $1 --connect {url} {paths}; echo code-$?-$2");
    fs::write(&script, text).unwrap();
    let run = |option: &str, label: &str| {
        tmux.line(&format!(". {} '{option}' {label}", script.display()));
    };
    run("", "wide");
    tmux.wait_for("ETA 0:");
    tmux.wait_for("MiB of 32.0 MiB");
    tmux.wait_for("code-0-wide");
    let screen = tmux.screen();
    assert!(screen.contains("1 file, 32.0 MiB in "), "{screen}");
    assert!(!screen.contains("ETA"), "the bar disappears at the end: {screen}");

    tmux.line("clear");
    tmux.resize(20, 30);
    run("", "narrow");
    tmux.wait_for("MiB/s\n");
    tmux.wait_for("code-0-narrow");
    let screen = tmux.screen();
    assert!(!screen.contains('%'), "the bar disappears from a narrow terminal too: {screen}");

    tmux.resize(100, 30);
    run("-q", "quiet");
    tmux.wait_for("code-0-quiet");
    assert!(!tmux.screen().contains("MiB"), "{}", tmux.screen());
}
