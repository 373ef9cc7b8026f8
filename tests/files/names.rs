//! Names that are not text, and directories with very many names.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::{Scratch, read, uri, write};
use crate::support::{Server, decoded, encoded};

const NOT_TEXT: &[u8] = b"na\xffme \xe2\x82 %2F?#\n\"\\";

fn odd(scene: &Scratch, suffix: &str) -> PathBuf {
    let name = [NOT_TEXT, suffix.as_bytes()].concat();
    scene.root().join(OsStr::from_bytes(&name))
}

fn only<'a>(result: &'a Value, list: &str) -> &'a Value {
    let list = result[list].as_array().unwrap();
    assert_eq!(list.len(), 1, "{result}");
    &list[0]
}

#[test]
fn names_that_are_not_text_round_trip_through_every_method() {
    let scene = Scratch::new();
    let server = Server::start();
    let mut client = server.client();
    let root = uri(scene.root());
    let missing = client.refused("fs/readFile", json!({"path": uri(odd(&scene, ""))}));
    assert_eq!(missing.code, -32004, "{missing:?}");
    assert!(!missing.message.contains('\n'), "an error is one line: {missing:?}");
    write(&mut client, &uri(odd(&scene, "")), "needle");
    assert_eq!(fs::read(odd(&scene, "")).unwrap(), b"needle");

    // From here on, the test uses the name as the server lists it.
    let listing = client.call("fs/readDirectory", json!({"path": root}));
    let listed = only(&listing, "entries");
    assert!(listed["fileName"].as_str().unwrap().contains('\u{fffd}'), "{listed}");
    let path = listed["path"].as_str().unwrap().to_owned();
    assert_eq!(read(&mut client, &path), b"needle");
    assert_eq!(client.call("fs/getMetadata", json!({"path": path}))["size"], 6);
    assert_eq!(client.call("fs/canonicalize", json!({"path": path}))["path"], path);
    client.call("fs/setPermissions", json!({"path": path, "mode": 0o600}));

    let walked = client.call("fs/walk", json!({"path": root}));
    assert_eq!(*only(&walked, "entries"), json!({"path": path, "kind": "file"}));
    let found = client.call("fs/glob", json!({"path": root, "patterns": ["na*"]}));
    assert_eq!(only(&found, "entries")["path"], path);
    let search = json!({"path": root, "searchId": "s", "pattern": "needle"});
    assert_eq!(client.call("fs/search", search)["matches"], 1);
    let results = client.notification();
    assert_eq!(only(&results["params"], "results")["path"], path);

    client.call("fs/open", json!({"path": path, "handleId": "in"}));
    let block = client.call("fs/readBlock", json!({"handleId": "in", "offset": 0, "len": 9}));
    assert_eq!(decoded(&block["chunk"]), b"needle");

    let (copy, moved) = (uri(odd(&scene, "copy")), uri(odd(&scene, "moved")));
    client.call("fs/copy", json!({"sourcePath": path, "destinationPath": copy}));
    client.call("fs/rename", json!({"sourcePath": path, "destinationPath": moved}));
    assert!(!odd(&scene, "").exists());
    assert_eq!(fs::read(odd(&scene, "copy")).unwrap(), b"needle");
    assert_eq!(fs::read(odd(&scene, "moved")).unwrap(), b"needle");

    let content = encoded("atomic");
    client.call("fs/writeFile", json!({"path": copy, "dataBase64": content, "atomic": true}));
    client.call("fs/create", json!({"path": moved, "handleId": "out"}));
    client.call("fs/writeBlock", json!({"handleId": "out", "offset": 0, "chunk": content}));
    assert_eq!(client.call("fs/close", json!({"handleId": "out"}))["committed"], true);
    assert_eq!(fs::read(odd(&scene, "copy")).unwrap(), b"atomic");
    assert_eq!(fs::read(odd(&scene, "moved")).unwrap(), b"atomic");

    let link = uri(odd(&scene, "link"));
    let target = encoded([NOT_TEXT, b"copy"].concat());
    client.call("fs/symlink", json!({"path": link, "targetBase64": target}));
    assert_eq!(client.call("fs/readLink", json!({"path": link})), json!({"targetBase64": target}));
    assert_eq!(read(&mut client, &link), b"atomic");

    let directory = uri(odd(&scene, "dir"));
    client.call("fs/createDirectory", json!({"path": directory}));
    client.call("fs/watch", json!({"path": directory, "watchId": "w"}));
    let inside = odd(&scene, "dir").join(OsStr::from_bytes(b"\xfe"));
    fs::create_dir(&inside).unwrap();
    let changed = client.notification();
    assert_eq!(changed["params"]["changedPaths"], json!([uri(&inside)]));

    for gone in [copy, moved, link, directory] {
        client.call("fs/remove", json!({"path": gone, "force": false}));
    }
    assert_eq!(fs::read_dir(scene.root()).unwrap().count(), 0);
}

#[test]
fn a_listing_refuses_100_000_entries_and_a_walk_truncates_them() {
    const ENTRIES: usize = 100_000;
    // In memory if possible: so many names keep a slow disk busy for minutes.
    let memory = Scratch::in_memory();
    let many = memory.directory("many");
    for number in 0..ENTRIES {
        fs::File::create(many.join(number.to_string())).unwrap();
    }
    let server = Server::start();
    let mut client = server.client();
    let path = uri(&many);
    for details in [false, true] {
        let refused = client.refused("fs/readDirectory", json!({"path": path, "details": details}));
        assert_eq!(refused.kind.as_deref(), Some("tooManyEntries"), "{refused:?}");
    }
    for (method, params) in
        [("fs/walk", json!({"path": path})), ("fs/glob", json!({"path": path, "patterns": ["*"]}))]
    {
        let found = client.call(method, params);
        assert_eq!(found["truncated"], true, "{method}");
        assert_eq!(found["errors"], json!([]), "{method}");
        let entries = found["entries"].as_array().unwrap();
        assert!(entries.len() > 10_000, "{method}: {}", entries.len());
        assert!(found.to_string().len() < 6 << 20, "{method}");
    }
    let few = json!({"path": path, "options": {"maxEntries": 10}});
    let found = client.call("fs/walk", few);
    assert_eq!(found["entries"].as_array().unwrap().len(), 10);
    assert_eq!(found["truncated"], true);
    let over = json!({"path": path, "options": {"maxEntries": 50_001}});
    assert_eq!(client.refused("fs/walk", over).code, super::INVALID_REQUEST);
    client.call("fs/remove", json!({"path": path}));
    assert!(!many.exists());
}
