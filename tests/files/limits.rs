//! Limits on number, length and size.

use std::fs::{self, File};

use serde_json::json;

use super::{INVALID_PARAMS, INVALID_REQUEST, Scratch, read, write};
use crate::support::{Server, encoded};

#[test]
fn a_connection_has_128_handles_and_others_have_their_own() {
    let scene = Scratch::new();
    fs::write(scene.path("file"), "x").unwrap();
    let path = scene.uri("file");
    let server = Server::start();
    let mut client = server.client();
    // Both kinds of handles count.
    for number in 0..127 {
        client.call("fs/open", json!({"path": path, "handleId": format!("{number}")}));
    }
    client.call("fs/create", json!({"path": path, "handleId": "127"}));
    for method in ["fs/open", "fs/create"] {
        let refused = client.refused(method, json!({"path": path, "handleId": "one more"}));
        assert_eq!(refused.kind.as_deref(), Some("tooManyOpen"), "{refused:?}");
    }
    server.client().call("fs/open", json!({"path": path, "handleId": "0"}));
    client.call("fs/close", json!({"handleId": "5"}));
    client.call("fs/open", json!({"path": path, "handleId": "one more"}));
    // A failed open takes no slot.
    client.call("fs/close", json!({"handleId": "6"}));
    for _ in 0..200 {
        let missing = json!({"path": scene.uri("missing"), "handleId": "m"});
        assert_eq!(client.refused("fs/open", missing).code, -32004);
    }
    client.call("fs/open", json!({"path": path, "handleId": "m"}));
}

#[test]
fn ids_and_blocks_have_a_maximum_length() {
    let scene = Scratch::new();
    fs::write(scene.path("file"), "x").unwrap();
    let path = scene.uri("file");
    let server = Server::start();
    let mut client = server.client();
    let longest = "ü".repeat(16);
    client.call("fs/open", json!({"path": path, "handleId": longest}));
    for id in [String::new(), "x".repeat(33), format!("{longest}x")] {
        let refused = client.refused("fs/open", json!({"path": path, "handleId": id}));
        assert_eq!(refused.code, INVALID_REQUEST, "{id:?}: {refused:?}");
    }
    let twice = client.refused("fs/open", json!({"path": path, "handleId": longest}));
    assert_eq!(twice.kind.as_deref(), Some("duplicateId"), "{twice:?}");

    let block = |len: u64| json!({"handleId": longest, "offset": 0, "len": len});
    client.call("fs/readBlock", block(1 << 20));
    assert_eq!(client.call("fs/readBlock", block(0)), json!({"chunk": "", "eof": false}));
    for len in [(1 << 20) + 1, u64::MAX] {
        assert_eq!(client.refused("fs/readBlock", block(len)).code, INVALID_REQUEST);
    }
    client.call("fs/create", json!({"path": path, "handleId": "out"}));
    let large = json!({"handleId": "out", "offset": 0, "chunk": encoded(vec![0; (1 << 20) + 1])});
    assert_eq!(client.refused("fs/writeBlock", large).code, INVALID_REQUEST);
    let wrong_way = json!({"handleId": "out", "offset": 0, "len": 1});
    client.refused("fs/readBlock", wrong_way);
    let unknown = json!({"handleId": "unknown", "offset": 0, "len": 1});
    let refused = client.refused("fs/readBlock", unknown);
    assert_eq!(refused.kind.as_deref(), Some("unknownHandle"), "{refused:?}");
    assert_eq!(client.call("fs/close", json!({"handleId": "unknown"})), json!({}));
}

#[test]
fn a_message_carries_at_most_47_mebibytes_of_content() {
    const MOST: usize = 47 << 20;
    let scene = Scratch::new();
    let path = scene.uri("large");
    let server = Server::start();
    let mut client = server.client();
    let content: Vec<u8> = (0..MOST).map(|index| index.to_le_bytes()[index % 3]).collect();
    write(&mut client, &path, &content);
    assert!(fs::read(scene.path("large")).unwrap() == content);
    assert!(read(&mut client, &path) == content);
    let file = File::options().append(true).open(scene.path("large")).unwrap();
    file.set_len(MOST as u64 + 1).unwrap();
    let refused = client.refused("fs/readFile", json!({"path": path}));
    assert_eq!(refused.kind.as_deref(), Some("fileTooLarge"), "{refused:?}");
    assert!(refused.message.contains("fs/open"), "{refused:?}");
}

#[test]
fn modes_beyond_the_permission_bits_are_refused() {
    let scene = Scratch::new();
    let path = scene.uri("new");
    let server = Server::start();
    let mut client = server.client();
    for (method, params, code) in [
        (
            "fs/writeFile",
            json!({"path": path, "dataBase64": "", "mode": 0o10_000}),
            INVALID_REQUEST,
        ),
        ("fs/create", json!({"path": path, "handleId": "h", "mode": 0o10_000}), INVALID_REQUEST),
        ("fs/setPermissions", json!({"path": path, "mode": 0o10_000}), INVALID_REQUEST),
        ("fs/setPermissions", json!({"path": path, "mode": -1}), INVALID_PARAMS),
    ] {
        assert_eq!(client.refused(method, params).code, code, "{method}");
    }
    assert_eq!(scene.names(), [] as [&str; 0]);
}
