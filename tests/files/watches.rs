//! Change notifications.

use std::fs;

use exec_server_test_support::skipped;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::{Scratch, uri};
use crate::support::{Client, Server};

fn watch(client: &mut Client, path: &str, recursive: bool) {
    let params = json!({"path": path, "watchId": "w", "recursive": recursive});
    assert_eq!(client.call("fs/watch", params)["path"], path);
}

/// Takes notifications until one mentions this path. Returns that change.
fn change_of(client: &mut Client, path: &str) -> Value {
    loop {
        let changed = client.notification();
        let params = &changed["params"];
        assert_eq!(changed["method"], "fs/changed");
        assert_eq!(params["watchId"], "w");
        let changes = params["changes"].as_array().unwrap();
        if let Some(change) = changes.iter().find(|change| change["path"] == path) {
            assert!(params["changedPaths"].as_array().unwrap().contains(&json!(path)), "{changed}");
            return change.clone();
        }
    }
}

#[test]
fn each_kind_of_change_is_reported_with_its_name() {
    let scene = Scratch::new();
    let elsewhere = Scratch::new();
    let server = Server::start();
    let mut client = server.client();
    watch(&mut client, &uri(scene.root()), false);

    fs::write(scene.path("a"), "1").unwrap();
    assert_eq!(change_of(&mut client, &scene.uri("a"))["kind"], "created");
    fs::write(scene.path("a"), "2").unwrap();
    assert_eq!(change_of(&mut client, &scene.uri("a"))["kind"], "modified");
    fs::rename(scene.path("a"), scene.path("b")).unwrap();
    let renamed = json!({"path": scene.uri("b"), "kind": "renamed", "from": scene.uri("a")});
    assert_eq!(change_of(&mut client, &scene.uri("b")), renamed);
    fs::rename(scene.path("b"), elsewhere.path("b")).unwrap();
    assert_eq!(change_of(&mut client, &scene.uri("b"))["kind"], "removed");
    fs::rename(elsewhere.path("b"), scene.path("c")).unwrap();
    assert_eq!(change_of(&mut client, &scene.uri("c"))["kind"], "created");
    fs::remove_file(scene.path("c")).unwrap();
    assert_eq!(change_of(&mut client, &scene.uri("c"))["kind"], "removed");

    assert_eq!(client.call("fs/unwatch", json!({"watchId": "w"})), json!({}));
    assert_eq!(client.call("fs/unwatch", json!({"watchId": "w"})), json!({}));
}

#[test]
fn new_directories_of_a_tree_are_watched() {
    let scene = Scratch::new();
    fs::create_dir_all(scene.path("a/b")).unwrap();
    let server = Server::start();
    let mut client = server.client();
    watch(&mut client, &uri(scene.root()), true);
    fs::write(scene.path("a/b/file"), "x").unwrap();
    assert_eq!(change_of(&mut client, &scene.uri("a/b/file"))["kind"], "created");
    // Created in quick succession: a directory may have content before the server watches it.
    fs::create_dir_all(scene.path("c/d/e")).unwrap();
    fs::write(scene.path("c/d/e/file"), "x").unwrap();
    change_of(&mut client, &scene.uri("c/d/e/file"));
    fs::write(scene.path("c/d/e/later"), "x").unwrap();
    assert_eq!(change_of(&mut client, &scene.uri("c/d/e/later"))["kind"], "created");
    fs::rename(scene.path("c"), scene.path("a/moved")).unwrap();
    let renamed = change_of(&mut client, &scene.uri("a/moved"));
    assert_eq!((&renamed["kind"], &renamed["from"]), (&json!("renamed"), &json!(scene.uri("c"))));
    fs::write(scene.path("a/moved/d/e/last"), "x").unwrap();
    change_of(&mut client, &scene.uri("a/moved/d/e/last"));
}

#[test]
fn a_replaced_file_stays_watched() {
    let scene = Scratch::new();
    fs::write(scene.path("file"), "0").unwrap();
    let server = Server::start();
    let mut client = server.client();
    watch(&mut client, &scene.uri("file"), false);
    for round in 0..5 {
        fs::write(scene.path("new"), round.to_string()).unwrap();
        fs::rename(scene.path("new"), scene.path("file")).unwrap();
        change_of(&mut client, &scene.uri("file"));
        fs::write(scene.path("file"), "in place").unwrap();
        change_of(&mut client, &scene.uri("file"));
    }
    fs::remove_file(scene.path("file")).unwrap();
    assert_eq!(change_of(&mut client, &scene.uri("file"))["kind"], "removed");
    fs::write(scene.path("file"), "again").unwrap();
    assert_eq!(change_of(&mut client, &scene.uri("file"))["kind"], "created");
}

#[test]
fn a_recreated_path_is_watched_again() {
    let scene = Scratch::new();
    fs::create_dir(scene.path("d")).unwrap();
    fs::write(scene.path("d/file"), "0").unwrap();
    let server = Server::start();
    for watched in ["d/file", "d"] {
        let mut client = server.client();
        watch(&mut client, &scene.uri(watched), false);
        for _ in 0..3 {
            fs::remove_dir_all(scene.path("d")).unwrap();
            assert_eq!(change_of(&mut client, &scene.uri(watched))["kind"], "removed");
            fs::create_dir(scene.path("d")).unwrap();
            fs::write(scene.path("d/file"), "1").unwrap();
            assert_eq!(change_of(&mut client, &scene.uri(watched))["kind"], "created");
            fs::write(scene.path("d/file"), "2").unwrap();
            change_of(&mut client, &scene.uri("d/file"));
        }
    }
}

#[test]
fn files_of_a_recreated_directory_are_reported() {
    let scene = Scratch::new();
    let server = Server::start();
    let mut client = server.client();
    watch(&mut client, &uri(scene.root()), true);
    fs::create_dir(scene.path("src")).unwrap();
    fs::write(scene.path("src/a"), "0").unwrap();
    assert_eq!(change_of(&mut client, &scene.uri("src/a"))["kind"], "created");
    for _ in 0..10 {
        fs::remove_dir_all(scene.path("src")).unwrap();
        fs::create_dir(scene.path("src")).unwrap();
        fs::write(scene.path("src/a"), "1").unwrap();
        // The removal is reported first if a notification is sent before the new file exists.
        while change_of(&mut client, &scene.uri("src/a"))["kind"] == "removed" {}
    }
}

#[test]
fn changes_that_the_kernel_dropped_are_declared() {
    let queue = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    let queue: usize = queue.trim().parse().unwrap();
    if queue > 100_000 {
        return skipped(format_args!("the inotify queue is too large to overflow: {queue} events"));
    }
    let scene = Scratch::new();
    let server = Server::start();
    let mut client = server.client();
    fs::write(scene.path("one"), "x").unwrap();
    watch(&mut client, &uri(scene.root()), false);
    server.signal(Signal::STOP);
    // Only two names, so that only the kernel's queue can overflow.
    for _ in 0..queue / 2 + 1_000 {
        fs::rename(scene.path("one"), scene.path("other")).unwrap();
        fs::rename(scene.path("other"), scene.path("one")).unwrap();
    }
    server.signal(Signal::CONT);
    while client.notification()["params"]["rescan"] != true {}
    // The server continues to watch once it has emptied the queue.
    let told = (0..).find(|number| {
        let name = format!("after{number}");
        fs::create_dir(scene.path(&name)).unwrap();
        loop {
            let changed = client.notification();
            let paths = changed["params"]["changedPaths"].as_array().unwrap();
            if paths.contains(&json!(scene.uri(&name))) {
                return true;
            }
            if changed["params"]["rescan"] == true {
                return false;
            }
        }
    });
    assert!(told.is_some());
}
