//! FIFOs, sockets and devices: refused, without blocking or touching them.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;

use exec_server_test_support::skipped;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{CWD, FileType, OFlags, mknodat};
use serde_json::json;

use super::{INVALID_REQUEST, Scratch, calls_on, uri};
use crate::support::machine::is_root;
use crate::support::{Client, Server};

/// Creates one file of each kind; the device only if this user may create one.
fn special_files(scene: &Scratch) -> Vec<&'static str> {
    let make = |name, kind, device| mknodat(CWD, scene.path(name), kind, 0o666.into(), device);
    make("fifo", FileType::Fifo, 0).unwrap();
    drop(UnixListener::bind(scene.path("socket")).unwrap());
    let mut names = vec!["fifo", "socket"];
    let tty = rustix::fs::makedev(5, 0);
    match is_root().then(|| make("device", FileType::CharacterDevice, tty)) {
        Some(Ok(())) => names.push("device"),
        _ => skipped("device files: only root can create one, and not in every container"),
    }
    names
}

#[test]
fn every_method_refuses_the_content_of_a_special_file() {
    let scene = Scratch::new();
    let server = Server::start();
    let mut client = server.client();
    for name in special_files(&scene) {
        for (method, mut params) in calls_on(&scene.uri(name)) {
            let opens = ["readFile", "writeFile", "open", "create", "copy"];
            if !opens.contains(&method.trim_start_matches("fs/")) {
                continue;
            }
            if params["destinationPath"] == "/nonexistent/copy" {
                params["destinationPath"] = scene.uri("copy").into();
            } else if params["sourcePath"] == "/nonexistent/source" {
                std::fs::write(scene.path("source"), "x").unwrap();
                params["sourcePath"] = scene.uri("source").into();
            }
            let refused = client.refused(method, params);
            assert_eq!(refused.code, INVALID_REQUEST, "{method} {name}: {refused:?}");
            assert_eq!(refused.kind.as_deref(), Some("wrongFileKind"), "{method}: {refused:?}");
        }
        assert!(!scene.path("copy").exists());
    }
}

#[test]
fn standard_devices_are_refused() {
    let server = Server::start();
    let mut client = server.client();
    for device in ["/dev/zero", "/dev/null", "/dev/tty", "/dev/full"] {
        for method in ["fs/readFile", "fs/open"] {
            let refused = client.refused(method, json!({"path": device, "handleId": "h"}));
            assert_eq!(refused.kind.as_deref(), Some("wrongFileKind"), "{method}: {refused:?}");
        }
    }
}

#[test]
fn a_special_file_is_listed_but_left_out_of_trees() {
    let scene = Scratch::new();
    let server = Server::start();
    let mut client = server.client();
    let names = special_files(&scene);
    for name in &names {
        let metadata = client.call("fs/getMetadata", json!({"path": scene.uri(name)}));
        assert_eq!(metadata["isFile"], false, "{name}");
        assert_eq!(metadata["isDirectory"], false, "{name}");
        assert_eq!(metadata["isSymlink"], false, "{name}");
    }
    let root = uri(scene.root());
    let listed = client.call("fs/readDirectory", json!({"path": root}));
    assert_eq!(listed["entries"].as_array().unwrap().len(), names.len());
    let walked = client.call("fs/walk", json!({"path": root}));
    assert_eq!(walked, json!({"entries": [], "errors": [], "truncated": false}));
    let copy = Scratch::new();
    std::fs::write(scene.path("plain"), "x").unwrap();
    client.call(
        "fs/copy",
        json!({"sourcePath": root, "destinationPath": copy.uri("tree"), "recursive": true}),
    );
    assert_eq!(copy.names_in("tree"), ["plain"]);
}

/// Each request gets a response although no process writes to the FIFO. With 20 of each in flight,
/// other requests get responses too.
#[test]
fn no_request_on_a_special_file_blocks() {
    let scene = Scratch::new();
    let names = special_files(&scene);
    let server = Server::with(&["--concurrent-requests", "8"]);
    for name in names {
        let mut client = server.client();
        // If a request had opened the FIFO for writing, its reader would see the end of file.
        let reader = reader(&scene.path(name));
        // Methods that change the name come last, and run once.
        let (last, calls): (Vec<_>, Vec<_>) = calls_on(&scene.uri(name))
            .into_iter()
            .partition(|(method, _)| ["fs/remove", "fs/rename"].contains(method));
        let mut ids = Vec::new();
        for round in 0..20 {
            for (method, params) in &calls {
                let mut params = params.clone();
                for id in ["handleId", "watchId", "searchId"] {
                    if params.get(id).is_some() {
                        params[id] = format!("{round}").into();
                    }
                }
                ids.push(client.request(method, params));
            }
        }
        client.call("environment/status", json!({}));
        for id in ids {
            // The outcome does not matter, only that there is a response.
            let _ = client.answer(id);
        }
        assert_untouched(reader.as_ref());
        for (method, params) in last {
            let _ = client.try_call(method, params);
        }
        assert!(scene.path(name).symlink_metadata().is_err(), "{name} was not removed");
        assert_lives(&mut client);
    }
}

fn reader(path: &Path) -> Option<File> {
    let nonblocking = i32::try_from(OFlags::NONBLOCK.bits()).unwrap();
    path.ends_with("fifo")
        .then(|| File::options().read(true).custom_flags(nonblocking).open(path).unwrap())
}

fn assert_untouched(fifo: Option<&File>) {
    let Some(fifo) = fifo else { return };
    let mut watched = [PollFd::new(fifo, PollFlags::IN)];
    let now = rustix::event::Timespec::default();
    assert_eq!(poll(&mut watched, Some(&now)).unwrap(), 0, "the FIFO was opened");
}

fn assert_lives(client: &mut Client) {
    assert_eq!(client.call("environment/status", json!({}))["status"], "ready");
}
