//! The file resources of a connection, and their lifetimes.

use exec_server_server::ServerConfig;
use exec_server_test_support::{RpcClient, Scratch, TestServer, decoded, encoded, uri};
use serde_json::{Value, json};

fn kind(error: &Value) -> &str {
    error["data"]["kind"].as_str().unwrap_or("")
}

async fn open_client() -> (TestServer, RpcClient) {
    let server = TestServer::new(ServerConfig::default());
    let (client, _) = RpcClient::open(&server, json!({"clientName": "files"})).await;
    (server, client)
}

#[tokio::test]
async fn a_handle_reads_the_file_that_was_opened() {
    let (_server, mut client) = open_client().await;
    let directory = Scratch::new();
    let path = directory.path("file");
    std::fs::write(&path, "the first").unwrap();
    let open = json!({"path": uri(&path), "handleId": "h"});
    client.call("fs/open", open.clone()).await.unwrap();
    assert_eq!(kind(&client.call("fs/open", open).await.unwrap_err()), "duplicateId");

    std::fs::write(directory.path("other"), "the second").unwrap();
    std::fs::rename(directory.path("other"), &path).unwrap();
    let read = json!({"handleId": "h", "offset": 4, "len": 100});
    let block = client.call("fs/readBlock", read.clone()).await.unwrap();
    assert_eq!((decoded(&block["chunk"]).as_slice(), &block["eof"]), (&b"first"[..], &json!(true)));

    let too_long = json!({"handleId": "h", "offset": 0, "len": (1 << 20) + 1});
    assert_eq!(client.call("fs/readBlock", too_long).await.unwrap_err()["code"], -32600);
    for _ in 0..2 {
        assert_eq!(client.call("fs/close", json!({"handleId": "h"})).await.unwrap(), json!({}));
    }
    assert_eq!(kind(&client.call("fs/readBlock", read).await.unwrap_err()), "unknownHandle");
}

#[tokio::test]
async fn a_connection_has_at_most_128_handles() {
    let (server, mut client) = open_client().await;
    let directory = Scratch::new();
    let path = directory.path("file");
    std::fs::write(&path, "x").unwrap();
    let open = |handle: usize| json!({"path": uri(&path), "handleId": handle.to_string()});
    for handle in 0..128 {
        client.call("fs/open", open(handle)).await.unwrap();
    }
    assert_eq!(kind(&client.call("fs/open", open(128)).await.unwrap_err()), "tooManyOpen");
    client.call("fs/close", json!({"handleId": "7"})).await.unwrap();
    client.call("fs/open", open(128)).await.unwrap();

    let (mut other, _) = RpcClient::open(&server, json!({"clientName": "other"})).await;
    other.call("fs/open", open(0)).await.expect("handles of another connection do not count");
    let long = json!({"path": uri(&path), "handleId": "x".repeat(33)});
    assert_eq!(other.call("fs/open", long).await.unwrap_err()["code"], -32600);
}

#[tokio::test]
async fn an_upload_is_visible_only_once_it_is_closed() {
    let (_server, mut client) = open_client().await;
    let directory = Scratch::new();
    let path = directory.path("file");
    let create = json!({"path": uri(&path), "handleId": "h"});
    assert_eq!(
        client.call("fs/create", create).await.unwrap(),
        json!({"handleId": "h", "size": 0})
    );
    for (offset, text) in [(5, "world"), (0, "hello")] {
        let block = json!({"handleId": "h", "offset": offset, "chunk": encoded(text.as_bytes())});
        client.call("fs/writeBlock", block).await.unwrap();
    }
    assert!(!path.exists());
    let read = json!({"handleId": "h", "offset": 0, "len": 1});
    assert!(client.call("fs/readBlock", read).await.is_err(), "it is open for writing");
    let closed = client.call("fs/close", json!({"handleId": "h"})).await.unwrap();
    assert_eq!((&closed["committed"], &closed["size"]), (&json!(true), &json!(10)));
    assert_eq!(std::fs::read(&path).unwrap(), b"helloworld");
    assert_eq!(directory.names(), ["file"]);

    let create = json!({"path": uri(&path), "handleId": "h", "createNew": true});
    let created = client.call("fs/create", create).await;
    let refused = match created {
        Ok(_) => client.call("fs/close", json!({"handleId": "h"})).await.unwrap_err(),
        Err(error) => error,
    };
    assert_eq!(kind(&refused), "conflict");
    assert_eq!(directory.names(), ["file"]);
}

#[tokio::test]
async fn an_upload_dies_with_its_connection_unless_it_can_be_resumed() {
    let (server, mut client) = open_client().await;
    let directory = Scratch::new();
    for (handle, key) in [("lost", Value::Null), ("kept", json!("key-1"))] {
        let path = directory.uri(handle);
        let create = json!({"path": path, "handleId": handle, "resumeKey": key});
        client.call("fs/create", create).await.unwrap();
        let block = json!({"handleId": handle, "offset": 0, "chunk": encoded(b"half")});
        client.call("fs/writeBlock", block).await.unwrap();
    }
    assert_eq!(directory.names().len(), 2);
    client.cut().await;
    server.shutdown().await;
    assert_eq!(directory.names().len(), 1, "{:?}", directory.names());

    let (_server, mut client) = open_client().await;
    let path = directory.path("kept");
    let create = json!({"path": uri(&path), "handleId": "h", "resumeKey": "key-1"});
    assert_eq!(client.call("fs/create", create).await.unwrap()["size"], 4);
    let block = json!({"handleId": "h", "offset": 4, "chunk": encoded(b"whole")});
    client.call("fs/writeBlock", block).await.unwrap();
    client.call("fs/close", json!({"handleId": "h"})).await.unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"halfwhole");
    assert_eq!(directory.names(), ["kept"]);
}

#[tokio::test]
async fn an_upload_can_be_kept_and_resumed() {
    let (_server, mut client) = open_client().await;
    let directory = Scratch::new();
    let path = directory.uri("file");
    for (key, kept) in [(json!("key"), json!(4)), (Value::Null, json!(0))] {
        let create = json!({"path": path, "handleId": "h", "resumeKey": key});
        client.call("fs/create", create.clone()).await.unwrap();
        let block = json!({"handleId": "h", "offset": 0, "chunk": encoded(b"half")});
        client.call("fs/writeBlock", block).await.unwrap();
        client.call("fs/close", json!({"handleId": "h", "keep": true})).await.unwrap();
        assert_eq!(client.call("fs/create", create).await.unwrap()["size"], kept);
        client.call("fs/close", json!({"handleId": "h", "discard": true})).await.unwrap();
        assert!(directory.names().is_empty());
    }
}

#[tokio::test]
async fn an_upload_may_be_pipelined_with_its_end() {
    let server =
        TestServer::new(ServerConfig { concurrent_requests: 4, ..ServerConfig::default() });
    let (mut client, _) = RpcClient::open(&server, json!({"clientName": "files"})).await;
    let directory = Scratch::new();
    let block = vec![7; 4096];
    for round in 0..20 {
        let path = directory.path(round.to_string());
        client.call("fs/create", json!({"path": uri(&path), "handleId": "h"})).await.unwrap();
        let mut asked = Vec::new();
        for index in 0..32 {
            let params =
                json!({"handleId": "h", "offset": index * block.len(), "chunk": encoded(&block)});
            asked.push(client.request("fs/writeBlock", params).await);
        }
        let closed = client.request("fs/close", json!({"handleId": "h"})).await;
        for id in asked {
            client.response(id).await.unwrap();
        }
        assert_eq!(client.response(closed).await.unwrap()["committed"], true);
        assert!(std::fs::read(&path).unwrap() == vec![7; 32 * block.len()], "it has a hole");
    }
}

#[tokio::test]
async fn a_client_that_lists_a_lot_and_reads_late_gets_everything() {
    let (_server, mut client) = open_client().await;
    let directory = Scratch::new();
    for index in 0..5_000 {
        let name = format!("{index}-{}", "x".repeat(200));
        std::fs::write(directory.path(name), "").unwrap();
    }
    let mut asked = Vec::new();
    for _ in 0..64 {
        asked.push(client.request("fs/walk", json!({"path": uri(directory.root())})).await);
    }
    for id in asked {
        let walk = client.response(id).await.unwrap();
        assert_eq!(walk["entries"].as_array().unwrap().len(), 5_000);
    }
}

#[tokio::test]
async fn a_client_that_requests_a_lot_and_reads_late_gets_everything() {
    let (_server, mut client) = open_client().await;
    let directory = Scratch::new();
    let path = directory.path("file");
    let content: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    std::fs::write(&path, &content).unwrap();
    client.call("fs/open", json!({"path": uri(&path), "handleId": "h"})).await.unwrap();
    // As base64, these responses are more than twice as large as a connection may leave unread.
    let mut asked = Vec::new();
    for _ in 0..30 {
        asked.push(client.request("fs/readFile", json!({"path": uri(&path)})).await);
    }
    for _ in 0..30 {
        let block = json!({"handleId": "h", "offset": 0, "len": 1 << 20});
        asked.push(client.request("fs/readBlock", block).await);
    }
    for (index, id) in asked.into_iter().enumerate() {
        let answer = client.response(id).await.unwrap();
        match index {
            0..30 => assert!(decoded(&answer["dataBase64"]) == content),
            _ => assert!(decoded(&answer["chunk"]) == content[..1 << 20]),
        }
    }
}

#[tokio::test]
async fn the_error_for_a_file_larger_than_a_message_names_the_remedy() {
    let (_server, mut client) = open_client().await;
    let directory = Scratch::new();
    let path = directory.path("file");
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(47 << 20).unwrap();
    let read = json!({"path": uri(&path)});
    let content = client.call("fs/readFile", read.clone()).await.unwrap();
    assert_eq!(decoded(&content["dataBase64"]).len(), 47 << 20);
    file.set_len((47 << 20) + 1).unwrap();
    let error = client.call("fs/readFile", read).await.unwrap_err();
    assert_eq!(kind(&error), "fileTooLarge");
    assert!(error["message"].as_str().unwrap().contains("fs/open"), "{error}");
}

#[tokio::test]
async fn a_search_streams_its_matches_and_can_be_cancelled() {
    let (_server, mut client) = open_client().await;
    let directory = Scratch::new();
    std::fs::write(directory.path("a"), "needle\nhay\nneedle\n").unwrap();
    let search = json!({"path": uri(directory.root()), "searchId": "s", "pattern": "needle"});
    let ended = client.call("fs/search", search).await.unwrap();
    assert_eq!(ended["matches"], 2);
    let found = client.notification().await;
    assert_eq!(found["method"], "fs/searchResults");
    assert_eq!(found["params"]["results"].as_array().unwrap().len(), 2);

    // More results than may be left unread, so that the search is still running when it is
    // cancelled.
    let line = format!("needle {}\n", "x".repeat(2000));
    std::fs::write(directory.path("b"), line.repeat(50_000)).unwrap();
    let search = json!({
        "path": uri(directory.root()), "searchId": "s", "pattern": "needle", "maxMatches": 100_000,
    });
    let id = client.request("fs/search", search.clone()).await;
    assert_eq!(client.notification().await["method"], "fs/searchResults");
    assert_eq!(kind(&client.call("fs/search", search).await.unwrap_err()), "duplicateId");
    client.call("fs/cancelSearch", json!({"searchId": "s"})).await.unwrap();
    let ended = client.response(id).await.unwrap();
    assert_eq!(ended["cancelled"], true, "{ended}");

    let bad = json!({"path": uri(directory.root()), "searchId": "s", "pattern": "("});
    assert_eq!(kind(&client.call("fs/search", bad).await.unwrap_err()), "badPattern");
}

#[tokio::test]
async fn a_watch_reports_changes_until_it_is_ended() {
    let (_server, mut client) = open_client().await;
    let directory = Scratch::new();
    let watch = json!({"path": uri(directory.root()), "watchId": "w"});
    client.call("fs/watch", watch.clone()).await.unwrap();
    assert_eq!(kind(&client.call("fs/watch", watch.clone()).await.unwrap_err()), "duplicateId");
    std::fs::write(directory.path("new"), "x").unwrap();
    let changed = client.notification().await;
    assert_eq!(changed["params"]["watchId"], "w");
    assert_eq!(changed["params"]["changedPaths"], json!([directory.uri("new")]));

    client.call("fs/unwatch", json!({"watchId": "w"})).await.unwrap();
    client.call("fs/unwatch", json!({"watchId": "w"})).await.unwrap();
    client.call("fs/watch", watch).await.unwrap();
    std::fs::remove_file(directory.path("new")).unwrap();
    let changed = client.notification().await;
    assert_eq!(changed["params"]["changes"][0]["kind"], "removed");
}

#[tokio::test]
async fn a_connection_has_at_most_1000_watches() {
    let (_server, mut client) = open_client().await;
    let directory = Scratch::new();
    let watch = |n: usize| json!({"path": uri(directory.root()), "watchId": n.to_string()});
    for n in 0..1000 {
        client.call("fs/watch", watch(n)).await.unwrap();
    }
    assert_eq!(kind(&client.call("fs/watch", watch(1000)).await.unwrap_err()), "tooManyOpen");
}
