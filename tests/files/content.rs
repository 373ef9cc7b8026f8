//! File metadata and content.

use std::fs::{self, File, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::sync::atomic::{AtomicBool, Ordering};

use exec_server_test_support::skipped;
use serde_json::json;

use super::{Scratch, read, uri, write};
use crate::support::{Server, decoded, encoded};

#[test]
fn metadata_has_the_fields_that_deployed_clients_read() {
    let scene = Scratch::new();
    fs::write(scene.path("file"), "12345").unwrap();
    fs::set_permissions(scene.path("file"), Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::symlink("file", scene.path("link")).unwrap();
    std::os::unix::fs::symlink("missing", scene.path("dangling")).unwrap();
    let server = Server::start();
    let mut client = server.client();
    let times = fs::metadata(scene.path("file")).unwrap();
    let modified = times.mtime() * 1_000 + times.mtime_nsec() / 1_000_000;
    let born = times.created().unwrap().duration_since(std::time::UNIX_EPOCH).unwrap();

    let expected = |is_symlink| {
        json!({
            "isDirectory": false, "isFile": true, "isSymlink": is_symlink, "size": 5,
            "createdAtMs": u64::try_from(born.as_millis()).unwrap(), "modifiedAtMs": modified,
            "mode": 0o640,
        })
    };
    let file = client.call("fs/getMetadata", json!({"path": scene.uri("file")}));
    assert_eq!(file, expected(false));
    assert!(file["createdAtMs"].as_u64().unwrap() > 0);
    assert_eq!(client.call("fs/getMetadata", json!({"path": scene.uri("link")})), expected(true));

    let directory = client.call("fs/getMetadata", json!({"path": uri(scene.root())}));
    assert_eq!(directory["isDirectory"], true);
    assert_eq!(directory["isFile"], false);
    assert_eq!(directory["isSymlink"], false);
    for member in ["size", "createdAtMs", "modifiedAtMs"] {
        assert!(directory[member].is_u64(), "{directory}");
    }
    let dangling = client.refused("fs/getMetadata", json!({"path": scene.uri("dangling")}));
    assert_eq!(dangling.code, -32004, "{dangling:?}");

    // Exactly these members, for clients that know no others.
    let listing = client.call("fs/readDirectory", json!({"path": uri(scene.root())}));
    assert_eq!(
        listing,
        json!({"entries": [
            {"fileName": "file", "isDirectory": false, "isFile": true, "path": scene.uri("file")},
            {"fileName": "link", "isDirectory": false, "isFile": true, "path": scene.uri("link")},
        ]})
    );
}

#[test]
fn a_write_keeps_the_inode_but_an_atomic_write_only_the_mode() {
    let scene = Scratch::new();
    fs::write(scene.path("file"), "a longer old content").unwrap();
    fs::set_permissions(scene.path("file"), Permissions::from_mode(0o751)).unwrap();
    fs::hard_link(scene.path("file"), scene.path("twin")).unwrap();
    let inode = |name: &str| fs::metadata(scene.path(name)).unwrap().ino();
    let mode = || fs::metadata(scene.path("file")).unwrap().mode() & 0o7777;
    let before = inode("file");
    let server = Server::start();
    let mut client = server.client();
    write(&mut client, &scene.uri("file"), "new");
    assert_eq!((inode("file"), mode()), (before, 0o751));
    assert_eq!(fs::read(scene.path("twin")).unwrap(), b"new");

    let content = encoded("newer");
    let params = json!({"path": scene.uri("file"), "dataBase64": content, "atomic": true});
    client.call("fs/writeFile", params);
    assert_ne!(inode("file"), before);
    assert_eq!(mode(), 0o751);
    assert_eq!(fs::read(scene.path("twin")).unwrap(), b"new");
    assert_eq!(scene.names(), ["file", "twin"]);
}

#[test]
fn files_that_report_size_zero_are_read_to_their_end() {
    let server = Server::start();
    let mut client = server.client();
    for path in ["/proc/version", "/proc/filesystems"] {
        let metadata = client.call("fs/getMetadata", json!({"path": path}));
        assert_eq!(metadata["size"], 0, "{path}");
        let expected = fs::read(path).unwrap();
        assert!(!expected.is_empty());
        assert_eq!(read(&mut client, path), expected, "{path}");
        client.call("fs/open", json!({"path": path, "handleId": "h"}));
        let block = json!({"handleId": "h", "offset": 0, "len": 1 << 20});
        let block = client.call("fs/readBlock", block);
        assert_eq!(decoded(&block["chunk"]), expected, "{path}");
        assert_eq!(block["eof"], true, "{path}");
        client.call("fs/close", json!({"handleId": "h"}));
    }
}

#[test]
fn any_block_of_a_sparse_terabyte_can_be_read() {
    const LEN: u64 = 1 << 40;
    let scene = Scratch::new();
    let file = File::create(scene.path("sparse")).unwrap();
    if let Err(error) = file.set_len(LEN) {
        return skipped(format_args!(
            "the file system does not support such a large file: {error}"
        ));
    }
    file.write_all_at(b"the end", LEN - 7).unwrap();
    let server = Server::start();
    let mut client = server.client();
    let path = scene.uri("sparse");
    let opened = client.call("fs/open", json!({"path": path, "handleId": "h", "details": true}));
    assert_eq!(opened["metadata"]["size"], LEN);
    let mut block = |offset: u64, len: u64| {
        let params = json!({"handleId": "h", "offset": offset, "len": len});
        let block = client.call("fs/readBlock", params);
        (decoded(&block["chunk"]), block["eof"].as_bool().unwrap())
    };
    assert_eq!(block(LEN / 2, 3), (vec![0; 3], false));
    assert_eq!(block(LEN - 9, 100), (b"\0\0the end".to_vec(), true));
    assert_eq!(block(LEN, 100), (vec![], true));
    assert_eq!(block(u64::MAX, 1), (vec![], true));
    assert_eq!(block(i64::MAX as u64, 1 << 20), (vec![], true));
    let refused = client.refused("fs/readFile", json!({"path": path}));
    assert_eq!(refused.kind.as_deref(), Some("fileTooLarge"), "{refused:?}");
    assert!(refused.message.contains("fs/open"), "{refused:?}");
}

#[test]
fn a_read_of_a_growing_file_is_a_consistent_prefix() {
    let scene = Scratch::new();
    let line = |number: usize| format!("{number:07}\n");
    let mut file = File::create(scene.path("log")).unwrap();
    let server = Server::start();
    let mut client = server.client();
    let over = AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut number = 0;
            while !over.load(Ordering::Relaxed) && number < 1 << 17 {
                let lines: String = (number..number + 16).map(line).collect();
                file.write_all(lines.as_bytes()).unwrap();
                number += 16;
            }
            number
        });
        let mut before = 0;
        for _ in 0..30 {
            let content = read(&mut client, &scene.uri("log"));
            assert!(content.len() >= before, "{} after {before}", content.len());
            before = content.len();
            expect_lines(&content);
        }
        over.store(true, Ordering::Relaxed);
        writer.join().unwrap()
    });
    assert_eq!(read(&mut client, &scene.uri("log")).len(), written * 8);

    // A handle also reads data that was appended after it was opened.
    client.call("fs/open", json!({"path": scene.uri("log"), "handleId": "h"}));
    file.write_all(line(written).as_bytes()).unwrap();
    let params = json!({"handleId": "h", "offset": written * 8, "len": 100});
    let block = client.call("fs/readBlock", params);
    assert_eq!(decoded(&block["chunk"]), line(written).into_bytes());
    assert_eq!(block["eof"], true);
}

/// Expects numbered lines of 8 bytes; the last may be cut.
fn expect_lines(content: &[u8]) {
    for (index, found) in content.chunks(8).enumerate() {
        let expected = format!("{index:07}\n");
        assert_eq!(found, &expected.as_bytes()[..found.len()], "line {index}");
    }
}

#[test]
fn an_open_file_survives_changes_of_its_name() {
    let scene = Scratch::new();
    let path = scene.uri("file");
    let server = Server::start();
    let mut client = server.client();
    write(&mut client, &path, "first");
    client.call("fs/open", json!({"path": path, "handleId": "h"}));
    client.call("fs/rename", json!({"sourcePath": path, "destinationPath": scene.uri("moved")}));
    write(&mut client, &path, "second");
    client.call("fs/remove", json!({"path": scene.uri("moved")}));
    let block = client.call("fs/readBlock", json!({"handleId": "h", "offset": 0, "len": 100}));
    assert_eq!(decoded(&block["chunk"]), b"first");
}
