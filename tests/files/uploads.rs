//! Files written in blocks: visible once closed, removed with their connection, resumed by their
//! key.

use std::fs;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::Scratch;
use crate::support::{Client, Cut, Server, encoded, eventually};

const BLOCK: usize = 1 << 18;

fn create(client: &mut Client, scene: &Scratch, more: &Value) -> u64 {
    let mut params = json!({"path": scene.uri("file"), "handleId": "up"});
    params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    client.call("fs/create", params)["size"].as_u64().unwrap()
}

fn write_block(client: &mut Client, number: usize) {
    let chunk = encoded(block(number));
    let params = json!({"handleId": "up", "offset": number * BLOCK, "chunk": chunk});
    assert_eq!(client.call("fs/writeBlock", params), json!({}));
}

fn block(number: usize) -> Vec<u8> {
    vec![number.to_le_bytes()[0] + 1; BLOCK]
}

fn blocks(count: usize) -> Vec<u8> {
    (0..count).flat_map(block).collect()
}

#[test]
fn an_uploaded_file_appears_only_when_it_is_closed() {
    let scene = Scratch::new();
    fs::write(scene.path("file"), "old").unwrap();
    let server = Server::start();
    let mut client = server.client();
    assert_eq!(create(&mut client, &scene, &json!({"mode": 0o640})), 0);
    for number in [2, 0, 1] {
        write_block(&mut client, number);
        assert_eq!(fs::read(scene.path("file")).unwrap(), b"old");
    }
    let closed = client.call("fs/close", json!({"handleId": "up"}));
    assert_eq!(closed["committed"], true);
    assert_eq!(closed["size"], 3 * BLOCK);
    assert!(fs::read(scene.path("file")).unwrap() == blocks(3));
    let metadata = client.call("fs/getMetadata", json!({"path": scene.uri("file")}));
    assert_eq!(metadata["modifiedAtMs"], closed["modifiedAtMs"]);
    assert_eq!(metadata["mode"], 0o640);
    assert_eq!(scene.names(), ["file"]);

    create(&mut client, &scene, &json!({}));
    write_block(&mut client, 7);
    let discarded = client.call("fs/close", json!({"handleId": "up", "discard": true}));
    assert_eq!(discarded, json!({}));
    assert!(fs::read(scene.path("file")).unwrap() == blocks(3));
    assert_eq!(scene.names(), ["file"]);
}

#[test]
fn an_upload_is_removed_when_its_connection_ends() {
    let scene = Scratch::new();
    fs::write(scene.path("file"), "old").unwrap();
    let server = Server::start();
    for cut in Cut::ALL {
        let mut client = server.client();
        create(&mut client, &scene, &json!({}));
        write_block(&mut client, 0);
        assert_eq!(scene.names().len(), 2, "{cut:?}");
        // Some requests are in flight when the connection ends.
        for number in 1..4 {
            let chunk = encoded(block(number));
            let params = json!({"handleId": "up", "offset": number * BLOCK, "chunk": chunk});
            client.request("fs/writeBlock", params);
        }
        client.cut(cut);
        eventually("the temporary file is removed", || scene.names() == ["file"]);
        assert_eq!(fs::read(scene.path("file")).unwrap(), b"old", "{cut:?}");
    }
}

#[test]
fn an_upload_whose_connection_ends_at_once_leaves_no_file() {
    let scene = Scratch::new();
    let server = Server::start();
    for _ in 0..50 {
        let mut client = server.client();
        for handle in 0..10 {
            let path = scene.uri(format!("file{handle}"));
            client.request("fs/create", json!({"path": path, "handleId": format!("{handle}")}));
        }
        client.cut(Cut::Rst);
    }
    // Requests still queued when their connection ended may start, but must leave no file.
    let mut last = server.client();
    last.call("session/list", json!({}));
    eventually("every temporary file is removed", || scene.names().is_empty());
}

#[test]
fn handles_are_not_part_of_a_session() {
    let scene = Scratch::new();
    fs::write(scene.path("file"), "old").unwrap();
    let server = Server::start();
    let mut client = server.client();
    create(&mut client, &scene, &json!({}));
    let mut other = server.client();
    let block = json!({"handleId": "up", "offset": 0, "chunk": encoded("x")});
    let refused = other.refused("fs/writeBlock", block.clone());
    assert_eq!(refused.kind.as_deref(), Some("unknownHandle"), "{refused:?}");
    let session = client.session();
    client.cut(Cut::Fin);
    let mut client = server.resume(&session, &json!({}));
    let refused = client.refused("fs/writeBlock", block);
    assert_eq!(refused.kind.as_deref(), Some("unknownHandle"), "{refused:?}");
    // Only `committed` confirms that the file exists.
    assert_eq!(client.call("fs/close", json!({"handleId": "up"})), json!({}));
}

#[test]
fn an_upload_with_a_key_resumes_after_a_cut() {
    let scene = Scratch::new();
    let server = Server::start();
    let key = json!({"resumeKey": "digest-of_1"});
    let mut client = server.client();
    assert_eq!(create(&mut client, &scene, &key), 0);
    for number in 0..3 {
        write_block(&mut client, number);
    }
    let mut other = server.client();
    let same = json!({"path": scene.uri("file"), "handleId": "up", "resumeKey": "digest-of_1"});
    let refused = other.refused("fs/create", same.clone());
    assert_eq!(refused.kind.as_deref(), Some("conflict"), "{refused:?}");
    client.cut(Cut::Rst);

    let mut client = server.client();
    let size = loop {
        // Retries until the server has noticed the cut.
        match client.try_call("fs/create", same.clone()) {
            Ok(created) => break created["size"].as_u64().unwrap(),
            Err(failure) => assert_eq!(failure.kind.as_deref(), Some("conflict"), "{failure:?}"),
        }
    };
    assert_eq!(size, 3 * BLOCK as u64);
    let fresh = json!({"path": scene.uri("file"), "handleId": "x", "resumeKey": "another"});
    assert_eq!(client.call("fs/create", fresh)["size"], 0);
    client.call("fs/close", json!({"handleId": "x", "discard": true}));
    for number in 3..5 {
        write_block(&mut client, number);
    }
    assert_eq!(client.call("fs/close", json!({"handleId": "up"}))["committed"], true);
    assert!(fs::read(scene.path("file")).unwrap() == blocks(5));
    assert_eq!(scene.names(), ["file"]);
    for key in ["", "a/b", "..", "ü", &"x".repeat(65)] {
        let params = json!({"path": scene.uri("file"), "handleId": "bad", "resumeKey": key});
        assert_eq!(client.refused("fs/create", params).code, super::INVALID_REQUEST, "{key:?}");
    }
}

/// If the upload has a key, the next server continues the temporary file. Otherwise, the next write
/// to the name replaces it.
#[test]
fn a_killed_server_leaves_the_old_file_and_a_temporary_file() {
    let scene = Scratch::new();
    fs::write(scene.path("file"), "old").unwrap();
    let server = Server::start();
    let mut client = server.client();
    create(&mut client, &scene, &json!({"resumeKey": "k"}));
    write_block(&mut client, 0);
    client.call("fs/create", json!({"path": scene.uri("file"), "handleId": "keyless"}));
    server.signal(Signal::KILL);
    drop(server);
    assert_eq!(fs::read(scene.path("file")).unwrap(), b"old");
    let names = scene.names();
    assert_eq!(names.len(), 3, "{names:?}");
    for name in names.iter().filter(|name| *name != "file") {
        assert!(name.starts_with(".file.") && name.ends_with(".tmp"), "{name}");
    }

    let server = Server::start();
    let mut client = server.client();
    assert_eq!(create(&mut client, &scene, &json!({})), 0);
    client.call("fs/close", json!({"handleId": "up", "discard": true}));
    assert_eq!(scene.names().len(), 2, "only the temporary file with a key is left");
    assert_eq!(create(&mut client, &scene, &json!({"resumeKey": "k"})), BLOCK as u64);
    write_block(&mut client, 1);
    client.call("fs/close", json!({"handleId": "up"}));
    assert!(fs::read(scene.path("file")).unwrap() == blocks(2));
    assert_eq!(scene.names(), ["file"]);
}
