//! Tests of the halves of a connection together, over memory and in virtual time.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, WriteHalf, duplex};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tungstenite::protocol::frame::coding::{CloseCode, Control, Data, OpCode};

use super::decoder::{Decoder, Event};
use super::{KeepAlive, MAX_FRAME_BYTES, Role, WebSocketWriter, connection, frame};
use crate::connection::{Connection, MalformedMessage, Outgoing, Received};

const PIPE: usize = 64 << 10;

fn pair() -> (Connection, Connection) {
    let (near, far) = duplex(PIPE);
    (
        connection(near, Role::Server, b"", KeepAlive::default()),
        connection(far, Role::Client, b"", KeepAlive::default()),
    )
}

/// Returns a server's connection and the raw bytes of its client.
fn server_of(pipe: usize) -> (Connection, DuplexStream) {
    let (near, far) = duplex(pipe);
    (connection(near, Role::Server, b"", KeepAlive::default()), far)
}

/// Returns a client's connection and the raw bytes of its server.
fn client_of(pipe: usize) -> (Connection, DuplexStream) {
    let (near, far) = duplex(pipe);
    (connection(near, Role::Client, b"", KeepAlive::for_client()), far)
}

/// Decodes a client's bytes as a server. Frames without a mask are a violation.
fn events_from_client(bytes: &[u8]) -> Vec<Event> {
    let mut decoder = Decoder::new(Role::Server, MAX_FRAME_BYTES, bytes);
    std::iter::from_fn(|| decoder.next_event().unwrap()).collect()
}

fn client_frame(opcode: OpCode, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let fill = |buffer: &mut Vec<u8>| buffer.extend_from_slice(payload);
    frame::append(&mut bytes, Role::Client, opcode, true, payload.len(), fill);
    bytes
}

fn text(payload: &[u8]) -> Vec<u8> {
    client_frame(OpCode::Data(Data::Text), payload)
}

fn message(payload: &[u8]) -> Option<Received> {
    Some(Received::Message(Bytes::copy_from_slice(payload)))
}

/// Writes control frames as they become pending, like a server's writer without messages.
fn serve_control(mut outgoing: Outgoing) -> JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            outgoing.control_pending().await;
            if outgoing.flush().await.is_err() {
                return;
            }
        }
    })
}

/// Keeps reading, so that pings are answered.
fn serve_incoming(connection: Connection) -> JoinHandle<()> {
    let Connection { mut incoming, outgoing, .. } = connection;
    tokio::spawn(async move {
        let writer = serve_control(outgoing);
        while incoming.recv().await.is_some() {}
        writer.abort();
    })
}

async fn expect_bytes(peer: &mut DuplexStream, expected: &[u8]) {
    let mut bytes = vec![0; expected.len()];
    peer.read_exact(&mut bytes).await.unwrap();
    assert_eq!(bytes, expected);
}

#[tokio::test]
async fn text_is_malformed_if_binary_messages_are_expected() {
    let (mut server, mut client) = server_of(PIPE);
    server.incoming.expect_binary();
    let binary = client_frame(OpCode::Data(Data::Binary), b"binary");
    client.write_all(&[text(b"text"), binary].concat()).await.unwrap();
    let malformed = Received::Malformed(MalformedMessage::Text);
    assert_eq!(server.incoming.recv().await, Some(malformed));
    assert_eq!(server.incoming.recv().await, message(b"binary"));
}

#[tokio::test]
async fn messages_go_both_ways() {
    let (mut server, mut client) = pair();
    for len in [0, 1, 125, 126, 65535, 65536, 300_000] {
        let payload: Vec<u8> = (0..len).map(|index: u32| index.to_le_bytes()[0]).collect();
        for (from, to) in [(&mut server, &mut client)] {
            from.outgoing.push(&payload);
            from.outgoing.push_with(payload.len(), |buffer| buffer.extend_from_slice(&payload));
            let (sent, received) = tokio::join!(from.outgoing.flush(), async {
                (to.incoming.recv().await, to.incoming.recv().await)
            });
            sent.unwrap();
            assert_eq!(received, (message(&payload), message(&payload)));
        }
        client.outgoing.push(&payload);
        let (sent, received) = tokio::join!(client.outgoing.flush(), server.incoming.recv());
        sent.unwrap();
        assert_eq!(received, message(&payload));
    }
}

#[tokio::test]
async fn large_messages_are_sent_in_fragments() {
    let (mut server, mut peer) = server_of(PIPE);
    let payload = vec![b'x'; MAX_FRAME_BYTES + 1];
    server.outgoing.push_with(payload.len(), |buffer| buffer.extend_from_slice(&payload));
    let receive = async {
        expect_bytes(&mut peer, &[0x01, 127, 0, 0, 0, 0, 1, 0, 0, 0]).await;
        let mut first = vec![0; MAX_FRAME_BYTES];
        peer.read_exact(&mut first).await.unwrap();
        expect_bytes(&mut peer, &[0x80, 1, b'x']).await;
    };
    let (sent, ()) = tokio::join!(server.outgoing.flush(), receive);
    sent.unwrap();

    let (mut server, mut client) = pair();
    client.outgoing.push(&payload);
    let (sent, received) = tokio::join!(client.outgoing.flush(), server.incoming.recv());
    sent.unwrap();
    assert_eq!(received, message(&payload));
}

#[tokio::test]
async fn bad_utf8_is_passed_on_and_the_connection_stays_open() {
    let (mut server, mut peer) = server_of(PIPE);
    peer.write_all(&[text(b"\"\xff\""), text(b"{}")].concat()).await.unwrap();
    assert_eq!(server.incoming.recv().await, message(b"\"\xff\""));
    assert_eq!(server.incoming.recv().await, message(b"{}"));
}

#[tokio::test]
async fn recv_can_be_cancelled_anywhere() {
    let (mut server, mut peer) = server_of(PIPE);
    let bytes = [text(b"first"), text(b"second")].concat();
    let mut received = Vec::new();
    for byte in bytes {
        peer.write_all(&[byte]).await.unwrap();
        tokio::select! {
            biased;
            message = server.incoming.recv() => received.push(message),
            () = std::future::ready(()) => {}
        }
    }
    assert_eq!(received, [message(b"first"), message(b"second")]);
}

#[tokio::test]
async fn pings_are_answered_between_messages() {
    let (mut server, mut peer) = server_of(PIPE);
    let ping = client_frame(OpCode::Control(Control::Ping), b"are you there");
    peer.write_all(&[ping, text(b"{}")].concat()).await.unwrap();
    assert_eq!(server.incoming.recv().await, message(b"{}"));
    server.outgoing.push(b"[]");
    server.outgoing.control_pending().await;
    server.outgoing.flush().await.unwrap();
    expect_bytes(&mut peer, b"\x8a\x0dare you there\x81\x02[]").await;
}

#[tokio::test]
async fn a_pong_waits_for_half_written_messages() {
    let (mut server, mut peer) = server_of(1000);
    let payload = Bytes::from(vec![b'x'; 50_000]);
    for _ in 0..3 {
        server.outgoing.push_owned(payload.clone());
    }
    tokio::select! {
        biased;
        _ = server.outgoing.flush() => panic!("the pipe is too small for that"),
        () = std::future::ready(()) => {}
    }
    let ping = client_frame(OpCode::Control(Control::Ping), b"?");
    peer.write_all(&[ping, text(b"{}")].concat()).await.unwrap();
    assert_eq!(server.incoming.recv().await, message(b"{}"));
    let receive = async {
        for _ in 0..3 {
            expect_bytes(&mut peer, b"\x81\x7e\xc3\x50").await;
            expect_bytes(&mut peer, &payload).await;
        }
        expect_bytes(&mut peer, b"\x8a\x01?").await;
    };
    let (sent, ()) = tokio::join!(server.outgoing.flush(), receive);
    sent.unwrap();
}

#[tokio::test]
async fn an_oversized_header_closes_with_1009() {
    let (server, mut peer) = server_of(PIPE);
    let serving = serve_incoming(server);
    let header = [0x81, 0xff, 0x80, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4];
    peer.write_all(&header).await.unwrap();
    // Further input from the peer is read, so that the close frame is not lost in a reset.
    peer.write_all(&vec![0; 4 * PIPE]).await.unwrap();
    let mut answer = Vec::new();
    peer.read_to_end(&mut answer).await.unwrap();
    assert_eq!(answer[0], 0x88);
    assert_eq!(answer[2..4], 1009_u16.to_be_bytes());
    drop(peer);
    serving.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn violations_close_with_1002_even_if_the_peer_stays() {
    let (server, mut peer) = server_of(PIPE);
    let serving = serve_incoming(server);
    peer.write_all(&[0x81, 0x02, b'{', b'}']).await.unwrap();
    let mut answer = Vec::new();
    peer.read_to_end(&mut answer).await.unwrap();
    assert_eq!(answer[2..4], 1002_u16.to_be_bytes());
    serving.await.unwrap();
}

#[tokio::test]
async fn either_side_can_close() {
    for server_closes in [true, false] {
        let (server, client) = pair();
        let (mut closing, closed) = if server_closes { (server, client) } else { (client, server) };
        let closed = serve_incoming(closed);
        closing.outgoing.push(b"last words");
        closing.outgoing.close(CloseCode::Away, "going").await;
        assert_eq!(closing.incoming.recv().await, None);
        closing.outgoing.push(b"too late");
        assert!(closing.outgoing.flush().await.is_err());
        drop(closing);
        closed.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn closing_does_not_wait_for_a_peer_that_does_not_read() {
    let (mut server, _peer) = server_of(16);
    server.outgoing.push(&[0; 1000]);
    server.outgoing.close(CloseCode::Away, "").await;
    assert!(server.outgoing.buffered() > 0);
}

#[tokio::test(start_paused = true)]
async fn a_silent_peer_is_pinged_and_disconnected() {
    let (server, mut peer) = server_of(PIPE);
    serve_incoming(server).await.unwrap();
    for number in 1..=3 {
        expect_bytes(&mut peer, &[0x89, 8, 0, 0, 0, 0, 0, 0, 0, number]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_peer_that_answers_stays_connected() {
    let (server, client) = pair();
    let (server, client) = (serve_incoming(server), serve_incoming(client));
    tokio::time::advance(Duration::from_secs(3600)).await;
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert!(!server.is_finished() && !client.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_probe_detects_a_dead_peer() {
    let (server, client) = pair();
    let prober = server.prober.clone();
    let (server, client) = (serve_incoming(server), serve_incoming(client));
    assert!(prober.probe(Duration::from_secs(2)).await);
    client.abort();
    assert!(!prober.probe(Duration::from_secs(2)).await);
    server.await.unwrap();
    assert!(!prober.probe(Duration::MAX).await, "the reader is gone");

    let (server, _silent) = server_of(PIPE);
    let prober = server.prober.clone();
    let _server = serve_incoming(server);
    assert!(!prober.probe(Duration::from_secs(2)).await);
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_does_not_read_is_still_heard() {
    let (server, mut peer) = server_of(1000);
    let Connection { mut incoming, mut outgoing, .. } = server;
    let payload = vec![b'x'; 1 << 20];
    outgoing.push(&payload);
    let writer = tokio::spawn(async move { outgoing.flush().await });
    for _ in 0..3 {
        peer.write_all(&text(b"stop")).await.unwrap();
        assert_eq!(incoming.recv().await, message(b"stop"));
    }
    assert!(!writer.is_finished());

    // A peer that does not read may stay silent for longer than one that does.
    let silence = tokio::time::timeout(Duration::from_secs(90), incoming.recv()).await;
    assert!(silence.is_err(), "the connection is not over");
    let mut all = vec![0; 10 + payload.len()];
    peer.read_exact(&mut all).await.unwrap();
    assert_eq!(all[10..], payload);
    writer.await.unwrap().unwrap();
}

#[tokio::test]
async fn bytes_received_with_the_handshake_are_decoded() {
    let (near, _far) = duplex(PIPE);
    let early = [text(b"one"), text(b"two")].concat();
    let mut server = connection(near, Role::Server, &early, KeepAlive::default());
    assert_eq!(server.incoming.recv().await, message(b"one"));
    assert_eq!(server.incoming.recv().await, message(b"two"));
}

#[tokio::test(start_paused = true)]
async fn a_client_uses_its_own_ping_and_silence_limits() {
    let (client, mut peer) = client_of(PIPE);
    let start = Instant::now();
    serve_incoming(client).await.unwrap();
    assert_eq!(start.elapsed().as_secs(), 10);
    let mut sent = Vec::new();
    peer.read_to_end(&mut sent).await.unwrap();
    let pings = [1_u64, 2, 3].map(|number| Event::Ping(number.to_be_bytes().to_vec().into()));
    assert_eq!(events_from_client(&sent), pings);
}

#[tokio::test]
async fn a_client_masks_every_frame() {
    let (mut client, mut peer) = client_of(PIPE);
    peer.write_all(b"\x89\x05there\x81\x02{}").await.unwrap();
    assert_eq!(client.incoming.recv().await, message(b"{}"));
    client.outgoing.control_pending().await;
    client.outgoing.push(b"one");
    client.outgoing.push_with(3, |buffer| buffer.extend_from_slice(b"two"));
    client.outgoing.flush().await.unwrap();
    client.outgoing.close(CloseCode::Normal, "done").await;
    let mut sent = Vec::new();
    peer.read_to_end(&mut sent).await.unwrap();
    let expected = [
        Event::Pong("there".into()),
        Event::Message("one".into()),
        Event::Message("two".into()),
        Event::Close(CloseCode::Normal),
    ];
    assert_eq!(events_from_client(&sent), expected);
}

/// Sends a message every second, like a server whose process prints.
async fn talk(mut peer: WriteHalf<DuplexStream>) {
    while peer.write_all(b"\x81\x02{}").await.is_ok() {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_gives_up_on_a_server_that_sends_but_answers_no_ping() {
    // Once with an empty message, once with a stuck message.
    for message in [&[][..], &[b'x'; 1 << 20]] {
        let (client, peer) = client_of(1000);
        let (_unread, peer) = tokio::io::split(peer);
        tokio::spawn(talk(peer));
        let Connection { mut incoming, mut outgoing, .. } = client;
        outgoing.push(message);
        let start = Instant::now();
        let writer = tokio::spawn(async move {
            while outgoing.flush().await.is_ok() {
                outgoing.control_pending().await;
            }
        });
        while incoming.recv().await.is_some() {}
        // At the first timeout, the bytes that the pipe accepted initially count as progress.
        let elapsed = start.elapsed().as_secs();
        assert!((10..=13).contains(&elapsed), "{elapsed}");
        writer.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_keeps_a_server_that_answers_pings() {
    let (client, server) = {
        let (near, far) = duplex(PIPE);
        (
            connection(near, Role::Client, b"", KeepAlive::for_client()),
            connection(far, Role::Server, b"", KeepAlive::default()),
        )
    };
    let _server = serve_incoming(server);
    let client = serve_incoming(client);
    assert!(tokio::time::timeout(Duration::from_secs(3600), client).await.is_err());
}

/// A sink that buffers until it is flushed, as TLS does, and needs two polls for a flush.
struct Hoarder {
    taken: Vec<u8>,
    was_polled: bool,
    passed_on: tokio::sync::mpsc::Sender<Vec<u8>>,
}

impl tokio::io::AsyncWrite for Hoarder {
    fn poll_write(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        bytes: &[u8],
    ) -> std::task::Poll<std::io::Result<usize>> {
        self.taken.extend_from_slice(bytes);
        std::task::Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        if !std::mem::replace(&mut self.was_polled, true) {
            return std::task::Poll::Pending;
        }
        let taken = std::mem::take(&mut self.taken);
        self.passed_on.try_send(taken).unwrap();
        std::task::Poll::Ready(Ok(()))
    }

    fn poll_shutdown(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::task::Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn a_dropped_flush_is_resumed() {
    let (passed_on, mut passed) = tokio::sync::mpsc::channel(1);
    let sink = Box::new(Hoarder { taken: Vec::new(), was_polled: false, passed_on });
    let (_, answers) = watch::channel(0);
    let control = Arc::default();
    let limit = Duration::from_secs(1);
    let mut writer = WebSocketWriter::new(sink, Role::Client, control, answers, limit);
    writer.push(b"message");
    tokio::select! {
        biased;
        _ = writer.flush() => panic!("the sink is not done"),
        () = std::future::ready(()) => {}
    }
    // Like the client: wait for pending frames, then flush.
    assert_eq!(writer.buffered(), 0);
    writer.control_pending().await;
    writer.flush().await.unwrap();
    assert!(!passed.recv().await.unwrap().is_empty());
}
