//! `exec-server forward`: a server without relay support serves clients of the relay.

use std::sync::Arc;

use exec_server_relay::harness::{Harness, RegistryProvider};
use exec_server_relay::registry::{BearerToken, RegistryClient};
use exec_server_transport::{
    Connection, Incoming, ListenUrl, Listener, ListenerOptions, Outgoing, Received, TlsOptions,
};
use rustix::process::Signal;
use tokio::time::timeout;

use crate::support::relay::ENVIRONMENT_ID;
use crate::support::{Choices, HANG, Relay, Running, Server, random_file, run_with_input};

/// More than fits into one record, or into all buffers on the way.
const LARGE: usize = 8 << 20;

fn forwarding_to(url: &str) -> Relay {
    Relay::with(&["forward", "--connect", url])
}

#[test]
fn commands_and_copies_reach_the_server() {
    let server = Server::start();
    let relay = forwarding_to(server.url());
    let script = "echo out; echo err >&2; exit 3";
    let outcome = relay.run(&["run", "--on", "box", "--", "sh", "-c", script]);
    assert_eq!((outcome.code, &*outcome.stdout, &*outcome.stderr), (Some(3), "out\n", "err\n"));
    let scratch = tempfile::tempdir().unwrap();
    let here = random_file(scratch.path(), LARGE);
    let (there, back) = (scratch.path().join("there"), scratch.path().join("back"));
    let remote = format!("box:{}", there.display());
    for [from, to] in [[here.to_str().unwrap(), &remote], [&remote, back.to_str().unwrap()]] {
        let outcome = relay.run(&["cp", from, to]);
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    }
    let content = std::fs::read(here).unwrap();
    assert!(std::fs::read(there).unwrap() == content);
    assert!(std::fs::read(back).unwrap() == content);
}

#[test]
fn bulk_data_passes_both_ways_at_once() {
    let server = Server::start();
    let relay = forwarding_to(server.url());
    let scratch = tempfile::tempdir().unwrap();
    let input = std::fs::read(random_file(scratch.path(), 3 * LARGE)).unwrap();
    let output = run_with_input(relay.command(&["run", "--on", "box", "--", "cat"]), &input);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout == input, "{} bytes were echoed", output.stdout.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_with_its_server_and_the_next_one_reaches_a_new_server() {
    let mut server = Server::start();
    let url = server.url().to_owned();
    let relay = forwarding_to(&url);
    // On TERM, the server still reports how its processes ended.
    for (signal, code) in [(Signal::TERM, 143), (Signal::KILL, 125)] {
        let mut stream = open_stream(&relay).await;
        let arguments = ["run", "--on", "box", "--", "sh", "-c", "echo begun; exec sleep 1000"];
        let mut command = Running::start(relay.command(&arguments));
        assert_eq!(command.line(), "begun\n");
        server.signal(signal);
        assert_eq!(received(&mut stream.incoming).await, None);
        server.wait();
        server = Server::with(&["--listen", &url]);
        let outcome = relay.run(&["run", "--on", "box", "--", "echo", "again"]);
        assert_eq!((outcome.code, &*outcome.stdout), (Some(0), "again\n"), "{}", outcome.stderr);
        assert_eq!(command.finish().0.code(), Some(code));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn large_messages_pass_unchanged_both_ways_at_once() {
    let mut listener = listen().await;
    let relay = forwarding_to(&listener.local_url().to_string());
    let (mut client, mut server) = tokio::join!(open_stream(&relay), listener.accept());
    let (question, answer) = (message(1, LARGE), message(2, LARGE));
    let exchange = async {
        tokio::join!(
            send(&mut client.outgoing, &question, 3),
            send(&mut server.outgoing, &answer, 3),
            expect(&mut server.incoming, &question, 3),
            expect(&mut client.incoming, &answer, 3),
        )
    };
    timeout(HANG, exchange).await.expect("neither direction waits for the other");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_messages_of_a_server_arrive_after_it_has_closed() {
    let mut listener = listen().await;
    let relay = forwarding_to(&listener.local_url().to_string());
    // More than the stream holds, and less than the stream and the socket hold in total.
    let (len, count) = (64 << 10, 20);
    let (mut client, mut server) = tokio::join!(open_stream(&relay), listener.accept());
    for number in 0..count {
        send(&mut server.outgoing, &message(number, len), 1).await;
    }
    drop(server);
    // Writing these shows `forward` that the socket is closed, while messages are still unread.
    for _ in 0..20 {
        send(&mut client.outgoing, b"unread", 1).await;
    }
    for number in 0..count {
        expect(&mut client.incoming, &message(number, len), 1).await;
    }
    assert_eq!(received(&mut client.incoming).await, None);
}

/// Connects a client of the relay whose messages the test controls.
async fn open_stream(relay: &Relay) -> Connection {
    let (token, tls) = (BearerToken::File(relay.token_file()), TlsOptions::default());
    let registry = RegistryClient::new(relay.url(), ENVIRONMENT_ID, Arc::new(token), &tls).unwrap();
    let harness = Harness::new(Arc::new(RegistryProvider::new(registry)), tls);
    Arc::new(harness).connect().await.unwrap()
}

/// Starts a server whose messages the test controls.
async fn listen() -> Listener {
    let url: ListenUrl = "ws://127.0.0.1:0".parse().unwrap();
    Listener::bind(&url, ListenerOptions::default()).await.unwrap()
}

async fn send(outgoing: &mut Outgoing, message: &[u8], count: u32) {
    for _ in 0..count {
        outgoing.push(message);
        outgoing.flush().await.unwrap();
    }
}

async fn expect(incoming: &mut Incoming, message: &[u8], count: u32) {
    for _ in 0..count {
        match received(incoming).await {
            Some(Received::Message(received)) => assert!(received == message, "altered"),
            other => panic!("expected a message, found {other:?}"),
        }
    }
}

async fn received(incoming: &mut Incoming) -> Option<Received> {
    timeout(HANG, incoming.recv()).await.expect("a message or the end arrives")
}

/// Returns a message that differs in every part from those with another seed.
fn message(seed: u64, len: usize) -> Vec<u8> {
    let mut choices = Choices::new(seed + 1);
    std::iter::repeat_with(|| choices.next().to_le_bytes()).flatten().take(len).collect()
}
