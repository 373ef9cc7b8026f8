//! Concurrent requests: ordered on request, in bounded memory, and all of them completed.

use std::fs;

use serde_json::json;

use super::{Scratch, uri};
use crate::support::{Server, decoded, encoded};

/// With `--concurrent-requests 1`, a client may send a read without waiting for the write on which
/// it depends.
#[test]
fn requests_run_in_order_if_only_one_may_run_at_a_time() {
    let scene = Scratch::new();
    let path = scene.uri("file");
    let server = Server::with(&["--concurrent-requests", "1"]);
    let mut client = server.client();
    let mut reads = Vec::new();
    for number in 0..200 {
        let content = encoded(number.to_string());
        client.request("fs/writeFile", json!({"path": path, "dataBase64": content}));
        reads.push(client.request("fs/readFile", json!({"path": path})));
    }
    for (number, id) in reads.into_iter().enumerate() {
        let content = decoded(&client.answer(id).unwrap()["dataBase64"]);
        assert_eq!(content, number.to_string().into_bytes());
    }
}

#[test]
fn requests_before_the_end_of_input_are_completed() {
    const FILES: usize = 100;
    let scene = Scratch::new();
    fs::write(scene.path("large"), vec![b'x'; 5 << 20]).unwrap();
    let (mut server, mut client) = Server::stdio();
    client.initialize(&json!({})).unwrap();
    client.call("fs/create", json!({"path": scene.uri("uploaded"), "handleId": "up"}));
    let block = json!({"handleId": "up", "offset": 0, "chunk": encoded("whole")});
    client.call("fs/writeBlock", block);
    client.call("fs/open", json!({"path": scene.uri("large"), "handleId": "in"}));

    let mut piped = String::new();
    let mut say = |id: String, method: &str, params: serde_json::Value| {
        piped.push_str(&json!({"id": id, "method": method, "params": params}).to_string());
        piped.push('\n');
    };
    for number in 0..FILES {
        let path = scene.uri(format!("file{number}"));
        let content = encoded(number.to_string());
        let atomic = number % 2 == 0;
        let params = json!({"path": path, "dataBase64": content, "atomic": atomic});
        say(format!("write{number}"), "fs/writeFile", params);
    }
    for number in 0..20 {
        let params = json!({"handleId": "in", "offset": number << 18, "len": 1 << 20});
        say(format!("block{number}"), "fs/readBlock", params);
        say(format!("read{number}"), "fs/readFile", json!({"path": scene.uri("large")}));
    }
    let search = json!({"path": uri(scene.root()), "searchId": "s", "pattern": "x"});
    say("search".to_owned(), "fs/search", search);
    say("close".to_owned(), "fs/close", json!({"handleId": "up"}));
    client.send_raw(piped.as_bytes());
    client.finish();

    let (mut answered, mut committed) = (0, false);
    while let Some(message) = client.receive() {
        if message.get("method").is_none() {
            assert!(message.get("error").is_none(), "{message}");
            answered += 1;
            committed |= message["id"] == "close" && message["result"]["committed"] == true;
        }
    }
    assert_eq!(answered, FILES + 40 + 2);
    assert!(committed);
    assert_eq!(server.wait().code(), Some(0));
    for number in 0..FILES {
        let content = fs::read(scene.path(format!("file{number}"))).unwrap();
        assert_eq!(content, number.to_string().into_bytes());
    }
    assert_eq!(fs::read(scene.path("uploaded")).unwrap(), b"whole");
    let leftovers = scene.names().into_iter().filter(|name| name.starts_with('.'));
    assert_eq!(leftovers.count(), 0);
}

#[test]
fn open_uploads_are_removed_at_the_end_of_input() {
    let scene = Scratch::new();
    let (mut server, mut client) = Server::stdio();
    client.initialize(&json!({})).unwrap();
    for number in 0..100 {
        let path = scene.uri(format!("new{number}"));
        client.call("fs/create", json!({"path": path, "handleId": number.to_string()}));
    }
    assert_eq!(scene.names().len(), 100);
    client.finish();
    while client.receive().is_some() {}
    assert_eq!(server.wait().code(), Some(0));
    assert_eq!(scene.names(), [] as [&str; 0], "the server left temporary files");
}
