//! Shutdown with requests in flight.

use rustix::process::Signal;
use serde_json::Value;

use super::{Web, delta, get, streamed};
use crate::support::{Server, decoded, eventually};

#[test]
fn requests_in_flight_finish_before_the_server_exits() {
    let (whole, pieces) = (Web::start(), Web::start());
    let mut server = Server::with(&["--shutdown-grace-period-ms", "600000"]);
    let (mut client, mut other) = (server.client(), server.client());
    let waiting = client.request("http/request", get(&whole, "/stream"));
    eventually("the request has arrived", || !whole.asked().is_empty());
    other.call("http/request", streamed(&pieces, "/stream"));
    pieces.push("one");
    assert_eq!(delta(&mut other, 1).0, b"one");

    server.signal(Signal::TERM);
    eventually("the shutdown begins", || server.get("/readyz") == 503);
    let late = client.refused("http/request", get(&whole, "/echo"));
    assert_eq!(late.kind.as_deref(), Some("shuttingDown"), "{late:?}");

    pieces.push("two");
    assert_eq!(delta(&mut other, 2).0, b"two");
    pieces.end_stream();
    let (_, last) = delta(&mut other, 3);
    assert_eq!((&last["done"], &last["error"]), (&Value::Bool(true), &Value::Null));
    whole.push("all of it");
    whole.end_stream();
    let answer = client.answer(waiting).unwrap();
    assert_eq!(decoded(&answer["bodyBase64"]), b"all of it");
    assert_eq!(server.wait().code(), Some(0));
    assert_eq!((whole.abandoned(), pieces.abandoned()), (0, 0));
}

#[test]
fn unfinished_requests_are_dropped_after_the_grace_period() {
    let web = Web::start();
    let mut server = Server::with(&["--shutdown-grace-period-ms", "100"]);
    let (mut client, mut other) = (server.client(), server.client());
    client.request("http/request", get(&web, "/never"));
    other.call("http/request", streamed(&web, "/stall"));
    eventually("both requests have arrived", || web.asked().len() == 2);
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
    eventually("the requests to the web server are cancelled", || web.abandoned() == 2);
}
