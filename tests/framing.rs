//! Malformed messages get one error each, and other clients are not affected.

use std::io::{Read as _, Write as _};

use serde_json::json;

use crate::support::{Client, Server, frame, machine, wire};

const TEXT: u8 = 0x81;
const TEXT_UNFINISHED: u8 = 0x01;
const CONTINUATION: u8 = 0x80;
const BINARY: u8 = 0x82;
const TOO_BIG: Option<u16> = Some(1009);
const MAX_MESSAGE: u64 = 64 << 20;

#[test]
fn a_frame_over_the_limit_is_refused_before_its_body() {
    let server = Server::start();
    for claimed in [MAX_MESSAGE + 1, 1 << 40, (1 << 63) - 1, 1 << 63, u64::MAX] {
        let mut client = server.client();
        client.send_raw(&wire::frame_header(TEXT, claimed));
        // No byte of the body was sent, so the server decided by the header.
        assert_eq!(client.close_code(), TOO_BIG, "{claimed}");
    }
}

#[test]
fn the_limit_applies_to_the_sum_of_fragments() {
    let server = Server::start();
    let mut client = server.client();
    client.send_raw(&frame(TEXT_UNFINISHED, b"{"));
    client.send_raw(&wire::frame_header(CONTINUATION, MAX_MESSAGE));
    assert_eq!(client.close_code(), TOO_BIG);
}

#[test]
fn a_line_over_the_limit_is_skipped_and_the_next_one_is_served() {
    let (_server, mut client) = Server::stdio();
    client.initialize(&json!({})).unwrap();
    let mebibyte = vec![b'x'; 1 << 20];
    for _ in 0..=MAX_MESSAGE >> 20 {
        client.send_raw(&mebibyte);
    }
    client.send_raw(b"\n");
    assert_one_error_and_life(&mut client, "an endless line");
}

#[test]
fn a_malformed_message_gets_one_error_on_a_websocket() {
    let server = Server::start();
    let mut client = server.client();
    for (name, text) in malformed() {
        client.send_raw(&frame(TEXT, &text));
        assert_one_error_and_life(&mut client, name);
        client.send_raw(&frame(BINARY, &text));
        assert_one_error_and_life(&mut client, name);
    }
}

#[test]
fn a_malformed_message_gets_one_error_on_stdio() {
    let (_server, mut client) = Server::stdio();
    client.initialize(&json!({})).unwrap();
    for (name, text) in malformed() {
        client.send_raw(&text);
        client.send_raw(b"\n");
        assert_one_error_and_life(&mut client, name);
    }
}

#[test]
fn a_binary_message_with_json_is_served() {
    let server = Server::start();
    let mut client = server.client();
    client.send_raw(&frame(BINARY, br#"{"id":"binary","method":"environment/status"}"#));
    assert_eq!(client.answer_with(&json!("binary"))["result"], json!({"status": "ready"}));
}

#[test]
fn stdio_accepts_single_bytes_and_both_line_endings() {
    let (_server, mut client) = Server::stdio();
    client.initialize(&json!({})).unwrap();
    let text = concat!(
        "{\"id\":\"a\",\"method\":\"environment/status\"}\n",
        "{\"id\":\"b\",\"method\":\"environment/status\"}\r\n",
        "{\"id\":\"c\",\"jsonrpc\":\"2.0\",\"method\":\"environment/status\",\"params\":null}\n",
    );
    for byte in text.bytes() {
        client.send_raw(&[byte]);
    }
    let answered: Vec<_> = (0..3).map(|_| client.receive().unwrap()["id"].clone()).collect();
    assert_eq!(answered, ["a", "b", "c"]);
    // One response each: the next message is the response to the next request.
    client.send_text(r#"{"id":"last","method":"environment/status"}"#);
    assert_eq!(client.receive().unwrap()["id"], "last");
}

#[test]
fn the_last_line_needs_no_newline() {
    let (mut server, mut client) = Server::stdio();
    client.initialize(&json!({})).unwrap();
    client.send_raw(br#"{"id":"last","method":"environment/status"}"#);
    client.finish();
    assert_eq!(client.receive().unwrap()["id"], "last");
    assert_eq!(client.receive(), None);
    assert!(server.wait().success());
}

#[test]
fn sockets_that_never_finish_the_upgrade_do_not_block_clients() {
    machine::raise_descriptor_limit();
    let server = Server::start();
    let mut silent: Vec<_> = (0..1000)
        .map(|_| {
            let mut stream = wire::tcp(server.url()).unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n").unwrap();
            stream
        })
        .collect();
    let mut client = server.client();
    assert_eq!(client.call("environment/status", json!({})), json!({"status": "ready"}));
    for stream in &mut silent {
        // A response such as 408 may come first; only the end matters.
        let mut answer = Vec::new();
        match stream.read_to_end(&mut answer) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
        }
    }
}

fn assert_one_error_and_life(client: &mut Client, name: &str) {
    client.send_text(r#"{"id":"alive","method":"environment/status"}"#);
    let error = client.receive().unwrap_or_else(|| panic!("{name} ended the connection"));
    assert_eq!(error["id"], -1, "{name}: {error}");
    assert_eq!(error["error"]["code"], -32600, "{name}: {error}");
    let message = error["error"]["message"].as_str().unwrap();
    assert!(!message.is_empty() && !message.contains('\n'), "{name}: {message:?}");
    let next = client.receive().unwrap_or_else(|| panic!("{name} ended the connection"));
    assert_eq!(next["id"], "alive", "{name}: {next}");
}

fn malformed() -> Vec<(&'static str, Vec<u8>)> {
    let nested = |depth: usize| "[".repeat(depth).into_bytes();
    let deep_params = format!(
        r#"{{"id":1,"method":"environment/status","params":{}{}}}"#,
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    let many = |count: usize| {
        let zeros = vec!["0"; count].join(",");
        format!(r#"{{"id":1,"method":"environment/status","params":[{zeros}]}}"#).into_bytes()
    };
    vec![
        ("no JSON", b"hello".to_vec()),
        ("half an object", br#"{"id":1,"method":"#.to_vec()),
        ("two objects", br#"{"id":1,"method":"environment/status"} {}"#.to_vec()),
        ("not an object", b"42".to_vec()),
        ("neither request nor response", br#"{"params":{}}"#.to_vec()),
        ("unclosed depth", nested(100_000)),
        ("deep params", deep_params.into_bytes()),
        ("too many values", many(262_145)),
        ("duplicate keys", br#"{"id":1,"id":2,"method":"environment/status"}"#.to_vec()),
        (
            "duplicate keys in params",
            br#"{"id":1,"method":"process/wait","params":{"processId":"a","processId":"b"}}"#
                .to_vec(),
        ),
        ("bad UTF-8", b"{\"id\":1,\"method\":\"\xff\xfe\"}".to_vec()),
        ("a batch", br#"[{"id":1,"method":"environment/status"}]"#.to_vec()),
        ("an unknown notification", br#"{"method":"environment/changed"}"#.to_vec()),
        ("an id that is neither text nor integer", br#"{"id":1.5,"method":"x"}"#.to_vec()),
    ]
}
