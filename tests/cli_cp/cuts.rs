//! Copies, and `cat`, over a connection that is cut repeatedly.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStderr, Stdio};
use std::sync::{Arc, Mutex};

use exec_server_test_support::Cut;

use super::interrupted::{OnTheWay, Way};
use super::tree;
use crate::support::{eventually, random_file};

const FILES: usize = 300;
/// Files copied concurrently.
const AT_ONCE: usize = 16;
/// The size of a small file, which is sent as one message of about 26 KiB.
const SMALL: usize = 20_000;
/// The size of a file that is copied in blocks.
const MEDIUM: usize = 300_000;
/// Bytes that the proxy moves in each direction of a connection before it holds the rest: the
/// medium file and some small files, or fewer than twenty small files.
const PER_CONNECTION: u64 = 512 << 10;
const LARGE: usize = 32 << 20;
const PART: usize = 2 << 20;

/// The error lines of a program, and its `-v` output.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<String>>>);

impl Told {
    fn by(stderr: ChildStderr) -> Self {
        let told = Self::default();
        let lines = told.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                lines.0.lock().unwrap().push(line);
            }
        });
        told
    }

    /// Returns how many files `cp` has begun to copy. After the first [`AT_ONCE`], it begins a file
    /// when another has finished.
    fn begun(&self) -> usize {
        let lines = self.0.lock().unwrap();
        lines.iter().filter(|line| !line.contains(": ")).count()
    }

    fn complaints(&self) -> Vec<String> {
        let lines = self.0.lock().unwrap();
        lines.iter().filter(|line| line.starts_with("exec-server:")).cloned().collect()
    }
}

/// A program that is killed when its test ends.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Cuts the connection whenever another file has begun. Networks on which no file makes progress
/// are not tested here.
fn every_file_survives_many_cuts(way: Way) {
    let mut copy = OnTheWay::with_bytes(way, MEDIUM);
    copy.proxy.hold_after(PER_CONNECTION);
    let machines = &copy.machines;
    let (from, to) = match way {
        Way::Up => (machines.here("tree"), machines.there("copy")),
        Way::Down => (machines.there("tree"), machines.here("copy")),
    };
    fs::create_dir(&from).unwrap();
    fs::rename(&copy.from, from.join("medium")).unwrap();
    for n in 0..FILES {
        fs::rename(random_file(&from, SMALL), from.join(n.to_string())).unwrap();
    }
    let arguments = match way {
        Way::Up => [machines.local("tree"), machines.remote("copy")],
        Way::Down => [machines.remote("tree"), machines.local("copy")],
    };
    copy.to = to.join("medium");
    let mut cp = machines.server.command(&["cp", "-vr", "--connect", &copy.proxy.url()]);
    let mut cp = Ended(cp.args(arguments).stderr(Stdio::piped()).spawn().unwrap());
    let told = Told::by(cp.0.stderr.take().unwrap());
    let mut cuts = 0;
    let mut cut = || {
        cuts += 1;
        copy.runtime.block_on(copy.proxy.cut(Cut::ALL[cuts % Cut::ALL.len()]));
        eventually("the command reconnects", || copy.proxy.connections() > cuts);
    };
    let mut begun = AT_ONCE;
    // Once the last file has begun, `-v` prints no more lines that show progress.
    while begun < FILES {
        eventually("another file is copied", || told.begun() > begun);
        cut();
        begun = told.begun();
    }
    // No connection has moved more than twenty files.
    assert!(cuts >= 10, "{way:?}: only {cuts} cuts");
    copy.proxy.resume();
    let status = cp.0.wait().unwrap();
    assert_eq!((status.code(), told.complaints()), (Some(0), vec![]), "{way:?}");
    assert!(tree(&from) == tree(&to), "{way:?}: the copy differs");
}

#[test]
fn every_file_of_an_upload_survives_many_cuts() {
    every_file_survives_many_cuts(Way::Up);
}

#[test]
fn every_file_of_a_download_survives_many_cuts() {
    every_file_survives_many_cuts(Way::Down);
}

/// A running `cat` of a large file, which has printed the first megabytes.
struct Printing {
    copy: OnTheWay,
    cat: Child,
    printed: Vec<u8>,
}

impl Printing {
    fn start() -> Self {
        let copy = OnTheWay::with_bytes(Way::Down, LARGE);
        let (url, path) = (copy.proxy.url(), copy.from.display().to_string());
        let mut cat = copy.machines.server.command(&["cat", "--connect", &url, &path]);
        let cat = cat.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut printing = Self { copy, cat, printed: Vec::new() };
        printing.read_on();
        printing
    }

    /// Reads more of the output. `cat` reads only a few blocks ahead of its output, so it is far
    /// from the end of the file.
    fn read_on(&mut self) {
        let mut part = vec![0; PART];
        self.cat.stdout.as_mut().unwrap().read_exact(&mut part).unwrap();
        self.printed.extend(part);
    }

    fn cut(&self, how: Cut) {
        self.copy.runtime.block_on(self.copy.proxy.cut(how));
    }

    /// Returns the output, the exit code and the error lines.
    fn finish(mut self) -> (Vec<u8>, Option<i32>, String) {
        self.cat.stdout.as_mut().unwrap().read_to_end(&mut self.printed).unwrap();
        let outcome = self.cat.wait_with_output().unwrap();
        let errors = String::from_utf8(outcome.stderr).unwrap();
        (self.printed, outcome.status.code(), errors)
    }
}

#[test]
fn cat_continues_after_each_of_many_cuts() {
    let mut printing = Printing::start();
    let expected = fs::read(&printing.copy.from).unwrap();
    for cut in 0..LARGE / PART - 4 {
        printing.cut(Cut::ALL[cut % Cut::ALL.len()]);
        printing.read_on();
    }
    let (printed, code, errors) = printing.finish();
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert!(printed == expected, "{} bytes", printed.len());
}

#[test]
fn cat_does_not_mix_two_files() {
    let printing = Printing::start();
    let copy = &printing.copy;
    copy.proxy.refuse();
    printing.cut(Cut::Rst);
    copy.runtime.block_on(copy.proxy.wait_for_refusals(1));
    let before = fs::read(&copy.from).unwrap();
    let after: Vec<_> = before.iter().rev().copied().collect();
    fs::write(&copy.from, after).unwrap();
    copy.proxy.resume();
    let (printed, code, errors) = printing.finish();
    assert_eq!((code, errors.lines().count()), (Some(1), 1), "{errors}");
    assert!(errors.contains("has changed since it was opened"), "{errors}");
    assert!(before.starts_with(&printed), "{} bytes", printed.len());
}
