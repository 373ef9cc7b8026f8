//! A directory is exchanged with a symlink to another directory while files in it are used. Crate
//! `host` has the thorough race test; this one shows that `followSymlinks` takes effect for each
//! method.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::{Value, json};

use super::{Scratch, without_symlinks};
use crate::support::{Client, Server, decoded, encoded};

/// The content of the file that requests may reach.
const INSIDE: &str = "inside";
/// The content of the file that requests must not reach. It is longer, so its size reveals it.
const OUTSIDE: &str = "the outside, which must stay secret";

#[test]
fn no_method_escapes_through_a_directory_that_becomes_a_symlink() {
    race(250);
}

#[test]
#[ignore = "soak: 400,000 requests, run by `just soak-counts`"]
fn soak_no_method_escapes_through_a_directory_that_becomes_a_symlink() {
    race(27_000);
}

fn race(rounds: usize) {
    let scene = Scratch::new();
    for (directory, content) in [("dir", INSIDE), ("outside", OUTSIDE)] {
        std::fs::create_dir(scene.path(directory)).unwrap();
        std::fs::write(scene.path(directory).join("file"), content).unwrap();
        symlink(content, scene.path(directory).join("link")).unwrap();
    }
    symlink(scene.path("outside"), scene.path("swap")).unwrap();
    let server = Server::start();
    let mut client = server.client();
    let over = AtomicBool::new(false);
    let (mut done, mut refused) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| exchange(&scene, &over));
        for round in 0..rounds {
            let asked: Vec<_> = requests(&scene, round)
                .into_iter()
                .map(|(method, params)| (method, client.request(method, without_symlinks(params))))
                .collect();
            for (method, id) in asked {
                match client.answer(id) {
                    Ok(result) => {
                        expect_inside(method, &result);
                        done += 1;
                    }
                    Err(failure) if failure.kind.as_deref() == Some("symlink") => refused += 1,
                    // Other failures are expected: names are created and removed all the time.
                    Err(_) => {}
                }
            }
            finish_handles(&mut client);
            expect_outside_untouched(&scene, round);
        }
        over.store(true, Ordering::Relaxed);
    });
    println!("{rounds} rounds: {done} done, {refused} refused");
    assert!(done > 0 && refused > 0, "there was no race: {done} done, {refused} refused");
}

fn exchange(scene: &Scratch, over: &AtomicBool) {
    let (one, two) = (scene.path("dir"), scene.path("swap"));
    while !over.load(Ordering::Relaxed) {
        renameat_with(CWD, &one, CWD, &two, RenameFlags::EXCHANGE).unwrap();
    }
}

fn requests(scene: &Scratch, round: usize) -> Vec<(&'static str, Value)> {
    let at = |name: &str| scene.uri(format!("dir/{name}"));
    let content = encoded(INSIDE);
    let file = at("file");
    vec![
        ("fs/readFile", json!({"path": file})),
        ("fs/getMetadata", json!({"path": file})),
        ("fs/open", json!({"path": file, "handleId": "in", "details": true})),
        ("fs/create", json!({"path": at("uploaded"), "handleId": "out"})),
        ("fs/writeFile", json!({"path": file, "dataBase64": content})),
        ("fs/writeFile", json!({"path": at("new"), "dataBase64": content})),
        ("fs/writeFile", json!({"path": at("whole"), "dataBase64": content, "atomic": true})),
        ("fs/setPermissions", json!({"path": file, "mode": 0o604})),
        ("fs/createDirectory", json!({"path": at(&format!("made{}/deep", round % 2))})),
        ("fs/remove", json!({"path": at(&format!("made{}", (round + 1) % 2))})),
        ("fs/remove", json!({"path": at("new")})),
        ("fs/symlink", json!({"path": at("planted"), "target": "x"})),
        ("fs/readLink", json!({"path": at("link")})),
        ("fs/rename", json!({"sourcePath": at("planted"), "destinationPath": at("moved")})),
        ("fs/rename", json!({"sourcePath": at("moved"), "destinationPath": at("planted")})),
    ]
}

/// Checks that a result shows nothing of the file outside. A read during a write may see only the
/// start of [`INSIDE`].
fn expect_inside(method: &str, result: &Value) {
    match method {
        "fs/readFile" => assert!(INSIDE.as_bytes().starts_with(&decoded(&result["dataBase64"]))),
        "fs/getMetadata" => assert!(result["size"].as_u64().unwrap() <= INSIDE.len() as u64),
        "fs/open" => {
            assert!(result["metadata"]["size"].as_u64().unwrap() <= INSIDE.len() as u64);
        }
        "fs/readLink" => assert_eq!(result["target"], INSIDE),
        _ => {}
    }
}

fn finish_handles(client: &mut Client) {
    let block = json!({"handleId": "in", "offset": 0, "len": 1024});
    if let Ok(read) = client.try_call("fs/readBlock", block) {
        assert!(INSIDE.as_bytes().starts_with(&decoded(&read["chunk"])));
    }
    let _ = client.try_call("fs/close", json!({"handleId": "in"}));
    let block = json!({"handleId": "out", "offset": 0, "chunk": encoded(INSIDE)});
    let _ = client.try_call("fs/writeBlock", block);
    let _ = client.try_call("fs/close", json!({"handleId": "out"}));
}

fn expect_outside_untouched(scene: &Scratch, round: usize) {
    let outside = scene.path("outside");
    assert_eq!(scene.names_in(&outside), ["file", "link"], "round {round}");
    assert_eq!(std::fs::read_to_string(outside.join("file")).unwrap(), OUTSIDE, "round {round}");
    let mode = std::fs::metadata(outside.join("file")).unwrap().permissions().mode();
    assert_ne!(mode & 0o7777, 0o604, "round {round}");
}
