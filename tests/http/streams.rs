//! Bodies streamed in chunks.

use serde_json::{Value, json};

use super::web::{PIECE, pattern_byte};
use super::{INVALID_PARAMS, Web, delta, get, header, rest_of_body, streamed, with};
use crate::support::{Client, Cut, Server, decoded, eventually};

#[test]
fn a_body_of_unknown_length_arrives_in_numbered_chunks() {
    let web = Web::start();
    let server = Server::start();
    let mut client = server.client();
    for (path, expected) in [("/pieces", &b"one,two,three"[..]), ("/echo", b"GET ")] {
        let head = client.call("http/request", streamed(&web, path));
        assert_eq!(head["bodyBase64"], "");
        let (body, last) = rest_of_body(&mut client);
        assert_eq!(body, expected);
        assert_eq!(last["error"], Value::Null);
    }
}

/// Each event arrives before the next is sent.
#[test]
fn events_arrive_while_their_stream_is_open() {
    let web = Web::start();
    let server = Server::start();
    let mut client = server.client();
    let head = client.call("http/request", streamed(&web, "/stream"));
    assert_eq!(header(&head, "content-type"), Some("text/event-stream"));
    for (seq, event) in (1..).zip(["data: one\n\n", "data: two\n\n", "data: three\n\n"]) {
        web.push(event);
        let (bytes, params) = delta(&mut client, seq);
        assert_eq!(bytes, event.as_bytes());
        assert_eq!(params["done"], false);
        // The connection remains usable for other requests.
        client.call("environment/status", json!({}));
    }
    web.end_stream();
    let (bytes, params) = delta(&mut client, 4);
    assert_eq!((bytes, &params["done"], &params["error"]), (vec![], &json!(true), &Value::Null));
    assert_eq!(web.abandoned(), 0);
}

#[test]
fn an_incomplete_stream_ends_with_an_error() {
    let web = Web::start();
    let server = Server::start();
    let mut client = server.client();
    client.call("http/request", streamed(&web, "/stream"));
    web.push("some");
    assert_eq!(delta(&mut client, 1).0, b"some");
    web.break_off();
    let (bytes, last) = delta(&mut client, 2);
    assert_eq!((bytes, &last["done"]), (vec![], &json!(true)));
    let error = last["error"].as_str().unwrap();
    assert!(!error.is_empty() && !error.contains("127.0.0.1"), "{error}");

    client.call("http/request", streamed(&web, "/short"));
    let (body, last) = rest_of_body(&mut client);
    assert!(b"part".starts_with(&body[..]));
    assert!(last["error"].is_string(), "{last}");
}

/// The timeout of a stream covers only its headers. Another request with a slightly longer timeout
/// shows that it has expired.
#[test]
fn a_stream_outlives_its_timeout() {
    let web = Web::start();
    let server = Server::start();
    let (mut client, mut other) = (server.client(), server.client());
    client.call("http/request", with(streamed(&web, "/stream"), &json!({"timeoutMs": 2_000})));
    let later = with(get(&web, "/never"), &json!({"timeoutMs": 2_100}));
    let refused = other.refused("http/request", later);
    assert_eq!(refused.kind.as_deref(), Some("timedOut"), "{refused:?}");
    web.push("late");
    assert_eq!(delta(&mut client, 1).0, b"late");
}

#[test]
fn an_id_names_one_stream_at_a_time() {
    let web = Web::start();
    let server = Server::start();
    let mut client = server.client();
    client.call("http/request", streamed(&web, "/stream"));
    let refused = client.refused("http/request", streamed(&web, "/echo"));
    assert_eq!(refused.code, INVALID_PARAMS, "{refused:?}");
    assert_eq!(refused.kind.as_deref(), Some("duplicateId"), "{refused:?}");
    // On another connection the id names another stream.
    let mut other = server.client();
    other.call("http/request", streamed(&web, "/pieces"));
    assert_eq!(rest_of_body(&mut other).0, b"one,two,three");
    web.end_stream();
    assert_eq!(delta(&mut client, 1).1["done"], true);
    client.call("http/request", streamed(&web, "/pieces"));
    assert_eq!(rest_of_body(&mut client).0, b"one,two,three");
}

#[test]
fn a_stream_ends_with_its_connection_or_when_it_is_cancelled() {
    let web = Web::start();
    let server = Server::start();
    for (index, cut) in Cut::ALL.into_iter().enumerate() {
        let mut client = server.client();
        client.call("http/request", streamed(&web, "/stall"));
        client.cut(cut);
        eventually("the request to the web server is cancelled", || web.abandoned() == index + 1);
    }
    let before = web.abandoned();
    let mut client = server.client();
    client.call("http/request", streamed(&web, "/stall"));
    assert_eq!(client.call("http/cancel", json!({"requestId": "r"})), json!({}));
    eventually("the request to the web server is cancelled", || web.abandoned() == before + 1);
    // `http/cancel` also ends a request whose headers have not arrived.
    let asked = web.asked().len();
    let id = client.request("http/request", streamed(&web, "/never"));
    eventually("the web server received the request", || web.asked().len() > asked);
    client.call("http/cancel", json!({"requestId": "r"}));
    assert_eq!(client.answer(id).unwrap_err().kind.as_deref(), Some("cancelled"));
    eventually("the request to the web server is cancelled", || web.abandoned() == before + 2);
}

#[test]
fn a_client_that_does_not_read_throttles_the_download() {
    download_slowly(256 << 20);
}

#[test]
#[ignore = "soak: 1 GiB, run by `just soak-counts`"]
fn soak_a_client_that_does_not_read_throttles_the_download() {
    download_slowly(1 << 30);
}

fn download_slowly(len: u64) {
    /// The outbox of the connection, a chunk on its way there, and the buffers of both HTTP
    /// libraries.
    const IN_PROGRAMS: u64 = 4 << 20;
    let under_way = 2 * largest_socket_buffers() + IN_PROGRAMS;
    let web = Web::start();
    let server = Server::start();
    let (mut client, mut other) = (server.client(), server.client());
    client.request("http/request", streamed(&web, &format!("/pattern?{len}")));
    let mut sent = u64::MAX;
    // The download has stopped if it made no progress during 50 other requests.
    while sent != web.sent() || sent == 0 {
        sent = web.sent();
        for _ in 0..50 {
            other.call("environment/status", json!({}));
        }
    }
    let most = under_way.min(40 << 20);
    assert!(sent <= most, "{sent} bytes were buffered for a client that reads nothing");

    let mut received = 0;
    for seq in 1.. {
        let (bytes, params) = delta(&mut client, seq);
        expect_pattern(received, &bytes);
        received += bytes.len() as u64;
        let ahead = web.sent().saturating_sub(received);
        assert!(ahead <= under_way, "{ahead} bytes were buffered for a client that reads slowly");
        if params["done"] == true {
            assert_eq!(params["error"], Value::Null);
            break;
        }
    }
    assert_eq!(received, len);
}

/// Returns the most that the kernel buffers for one TCP connection, at both of its ends.
fn largest_socket_buffers() -> u64 {
    let largest = |name: &str| {
        let sizes = std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).unwrap();
        sizes.split_whitespace().last().unwrap().parse::<u64>().unwrap()
    };
    largest("tcp_rmem") + largest("tcp_wmem")
}

fn expect_pattern(mut at: u64, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let in_piece = (PIECE - at % PIECE).min(bytes.len() as u64);
        let (piece, rest) = bytes.split_at(usize::try_from(in_piece).unwrap());
        assert!(piece == vec![pattern_byte(at); piece.len()], "wrong bytes at {at}");
        (at, bytes) = (at + in_piece, rest);
    }
}

/// The client reads other messages from its socket, but the body still waits for confirmations.
#[test]
fn a_confirming_client_receives_one_window_ahead() {
    const LEN: u64 = 32 << 20;
    let web = Web::start();
    let server = Server::start();
    let mut client = server.client();
    let acks = json!({"acks": true});
    client.call("http/request", with(streamed(&web, &format!("/pattern?{LEN}")), &acks));
    let (mut received, mut last) = (0, 0);
    while received < LEN {
        let ahead = take_while_it_comes(&mut client, &mut last);
        assert!(ahead > 0, "no chunk after a confirmation");
        assert!(ahead <= 4 << 20, "{ahead} bytes arrived ahead of a confirmation");
        received += ahead;
        client.notify("http/request/ack", json!({"requestId": "r", "seq": last}));
    }
    assert_eq!(received, LEN);
}

/// Receives at least one chunk, and then all that arrive before the responses to a few other
/// requests.
fn take_while_it_comes(client: &mut Client, last: &mut u64) -> u64 {
    let mut taken = 0;
    let mut take = |message: &Value| {
        if message["method"] == "http/request/bodyDelta" {
            *last += 1;
            assert_eq!(message["params"]["seq"], *last);
            taken += decoded(&message["params"]["deltaBase64"]).len() as u64;
        }
    };
    take(&client.notification());
    for _ in 0..20 {
        let id = client.request("environment/status", json!({}));
        loop {
            let message = client.receive().unwrap();
            take(&message);
            if message["id"] == json!(id) {
                break;
            }
        }
    }
    taken
}
