//! Responses that could be too large for a message, or too many for a client that does not read.

use std::path::PathBuf;

use exec_server_server::{Server, ServerConfig};
use exec_server_test_support::{RpcClient, Scratch, TestServer, decoded, uri};
use serde_json::{Value, json};

use crate::memory::{io_count, open_over_pipe};

/// Creates a directory whose path takes eleven thousand bytes on the wire, with this many files. It
/// is in memory if possible.
fn deep_directory(files: usize) -> (Scratch, PathBuf) {
    let top = Scratch::in_memory();
    let deep = top.directory(["%".repeat(240).as_str(); 15].join("/"));
    for number in 0..files {
        std::fs::write(deep.join(format!("{number:05}")), "").unwrap();
    }
    (top, deep)
}

fn names(listing: &Value) -> Vec<String> {
    let entries = listing["entries"].as_array().unwrap().iter();
    entries.map(|entry| entry["fileName"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn an_oversized_listing_is_refused_and_available_in_pages() {
    const FILES: usize = 6_500;
    let (_top, deep) = deep_directory(FILES);
    let server = TestServer::new(ServerConfig::default());
    let (mut client, _) = RpcClient::open(&server, json!({})).await;
    for details in [false, true] {
        let listing = json!({"path": uri(&deep), "details": details});
        let refused = client.call("fs/readDirectory", listing).await.unwrap_err();
        assert_eq!(refused["data"]["kind"], "tooManyEntries");
        assert!(refused["message"].as_str().unwrap().contains("MiB"), "{refused}");
    }
    let (mut listed, mut next, mut pages) = (Vec::new(), Value::Null, 0);
    loop {
        let page = json!({"path": uri(&deep), "after": next, "limit": 50_000});
        let page = client.call("fs/readDirectory", page).await.unwrap();
        listed.extend(names(&page));
        pages += 1;
        next = page["next"].clone();
        if next.is_null() {
            break;
        }
    }
    assert!(pages > 1);
    assert_eq!(listed, (0..FILES).map(|number| format!("{number:05}")).collect::<Vec<_>>());
}

#[tokio::test]
async fn pages_have_the_requested_size() {
    let directory = Scratch::new();
    for name in ["a", "b", "c", "d", "e"] {
        std::fs::write(directory.path(name), "").unwrap();
    }
    let server = TestServer::new(ServerConfig::default());
    let (mut client, _) = RpcClient::open(&server, json!({})).await;
    let path = uri(directory.root());
    let mut page = async |more: Value| {
        let mut params = json!({"path": path});
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        client.call("fs/readDirectory", params).await
    };
    let first = page(json!({"limit": 2})).await.unwrap();
    assert_eq!(names(&first), ["a", "b"]);
    assert_eq!(first["next"], format!("{path}/b"));
    let second = page(json!({"limit": 2, "after": first["next"]})).await.unwrap();
    assert_eq!(
        (names(&second), &second["next"]),
        (vec!["c".into(), "d".into()], &json!(format!("{path}/d")))
    );
    let rest = page(json!({"after": second["next"]})).await.unwrap();
    assert_eq!((names(&rest), rest.get("next")), (vec!["e".to_owned()], None));
    let whole = page(json!({"limit": 5})).await.unwrap();
    assert_eq!((names(&whole).len(), whole.get("next")), (5, None));

    for wrong in [
        json!({"limit": 0}),
        json!({"limit": 50_001}),
        json!({"limit": 25_001, "details": true}),
        json!({"after": "/"}),
    ] {
        assert_eq!(page(wrong.clone()).await.unwrap_err()["code"], -32600, "{wrong}");
    }
    assert_eq!(page(json!({"after": "b"})).await.unwrap_err()["code"], -32602);
}

#[tokio::test]
async fn a_response_over_the_largest_message_is_an_error_and_the_connection_lives() {
    let directory = Scratch::new();
    let path = directory.path("large");
    std::fs::File::create(&path).unwrap().set_len(47 << 20).unwrap();
    let server = TestServer::new(ServerConfig::default());
    let (mut client, _) = RpcClient::open(&server, json!({})).await;
    // The file fits into a message, but not together with the id of the request.
    let id = "i".repeat(2 << 20);
    client.send(json!({"id": id, "method": "fs/readFile", "params": {"path": uri(&path)}})).await;
    let answer = client.response_with(&json!(id)).await;
    assert_eq!(answer["error"]["data"]["kind"], "answerTooLarge", "{}", answer["error"]);
    let read = client.call("fs/readFile", json!({"path": uri(&path)})).await.unwrap();
    assert_eq!(decoded(&read["dataBase64"]).len(), 47 << 20);
}

#[tokio::test]
async fn arguments_too_large_for_a_list_are_an_error() {
    let server = TestServer::new(ServerConfig::default());
    let (mut client, _) = RpcClient::open(&server, json!({})).await;
    let words = vec!["x".repeat(100_000); 10];
    for number in 0..17 {
        let shell = ["/bin/sh", "-c", "exec sleep 1000"].map(str::to_owned);
        let argv: Vec<_> = shell.into_iter().chain(words.clone()).collect();
        let start = json!({"processId": number.to_string(), "argv": argv, "cwd": "file:///"});
        client.call("process/start", start).await.unwrap();
    }
    let refused = client.call("process/list", json!({})).await.unwrap_err();
    assert_eq!(refused["data"]["kind"], "answerTooLarge", "{refused}");
    client.call("process/terminate", json!({"processId": "0"})).await.unwrap();
}

/// Returns the bytes that this process has read so far. Under nextest each test runs in its own
/// process.
fn bytes_read() -> u64 {
    io_count("self", "rchar: ")
}

#[tokio::test]
async fn files_requested_by_a_dead_connection_are_not_read() {
    const FILES: u64 = 40;
    const FILE_BYTES: u64 = 4 << 20;
    let directory = Scratch::new();
    let path = directory.path("large");
    std::fs::File::create(&path).unwrap().set_len(FILE_BYTES).unwrap();
    let server = TestServer::new(ServerConfig::default());
    let (mut client, _) = RpcClient::open(&server, json!({})).await;
    // More responses than the transport accepts, so that later ones wait for the client to read.
    for _ in 0..100 {
        client.request("environment/status", json!({})).await;
    }
    let before = bytes_read();
    for _ in 0..FILES {
        client.request("fs/readFile", json!({"path": uri(&path)})).await;
    }
    client.cut().await;
    server.shutdown().await;
    let read = bytes_read() - before;
    assert!(read < FILES * FILE_BYTES / 2, "{read} bytes were read for a dead connection");
}

async fn ask_without_reading(server: &Server, path: &str) -> RpcClient {
    let mut client = open_over_pipe(server, json!({})).await;
    for _ in 0..10 {
        client.request("fs/readFile", json!({"path": path})).await;
    }
    client
}

#[tokio::test]
async fn clients_that_do_not_read_share_one_budget_and_others_are_served() {
    const BUDGET: usize = 8 << 20;
    let directory = Scratch::new();
    let path = directory.path("file");
    std::fs::write(&path, vec![7; 1 << 20]).unwrap();
    let config = ServerConfig { max_buffered_bytes: BUDGET as u64, ..ServerConfig::default() };
    let server = TestServer::new(config);
    let mut deaf = Vec::new();
    for _ in 0..8 {
        deaf.push(ask_without_reading(&server, &uri(&path)).await);
    }
    let (mut client, _) = RpcClient::open(&server, json!({})).await;
    // The server may close the clients that do not read, so the memory that they hold only shrinks.
    let mut most = server.buffered_bytes();
    for _ in 0..5 {
        let content = client.call("fs/readFile", json!({"path": uri(&path)})).await.unwrap();
        assert_eq!(decoded(&content["dataBase64"]).len(), 1 << 20);
        most = most.max(server.buffered_bytes());
        assert!(most <= BUDGET, "{most} bytes");
    }
    assert!(most > 0, "the others hold no memory");
}

#[tokio::test]
async fn a_file_too_large_for_the_budget_is_not_read() {
    let directory = Scratch::new();
    let path = directory.path("large");
    std::fs::File::create(&path).unwrap().set_len(40 << 20).unwrap();
    let config = ServerConfig { max_buffered_bytes: 8 << 20, ..ServerConfig::default() };
    let server = TestServer::new(config);
    let (mut client, _) = RpcClient::open(&server, json!({})).await;
    let before = bytes_read();
    let refused = client.call("fs/readFile", json!({"path": uri(&path)})).await.unwrap_err();
    assert_eq!(refused["data"]["kind"], "answerTooLarge", "{refused}");
    let read = bytes_read() - before;
    assert!(read < 1 << 20, "{read} bytes were read without budget");
}
