//! Streams over working sockets, and over sockets that are cut.

use exec_server_relay::frame::{Body, Frame};
use exec_server_transport::CloseCode;

use crate::fixture::{Fixture, receive, send};
use crate::rendezvous::To;

#[tokio::test(flavor = "multi_thread")]
async fn messages_pass_both_ways() {
    let fixture = Fixture::start().await;
    let mut connection = fixture.harness().connect().await.unwrap();
    for len in [1, 2, 1000, 61_436, 61_437, 200_000, 5_000_000] {
        let message: Vec<u8> = (0..len).map(|index| (index % 251) as u8).collect();
        connection.outgoing.push(&message);
        let (outgoing, incoming) = (&mut connection.outgoing, &mut connection.incoming);
        let (flushed, received) = tokio::join!(outgoing.flush(), incoming.recv());
        flushed.unwrap();
        let expected = exec_server_transport::Received::Message(message.into());
        assert!(received == Some(expected), "a message of {len} bytes");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_stream_ends_at_the_other_end() {
    let mut fixture = Fixture::start().await;
    let mut connection = fixture.harness().connect().await.unwrap();
    send(&mut connection, b"last words").await;
    connection.outgoing.close(CloseCode::Normal, "").await;
    // Echoes that the environment sent before it noticed the end may still arrive.
    while receive(&mut connection).await.is_some() {}
    assert_eq!(*fixture.served.borrow_and_update(), 1);
    let mut next = fixture.harness().connect().await.unwrap();
    send(&mut next, b"still there?").await;
    assert_eq!(receive(&mut next).await.unwrap(), "still there?");
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_survive_the_loss_of_either_socket() {
    let mut fixture = Fixture::start().await;
    let harness = fixture.harness();
    let mut connection = harness.connect().await.unwrap();
    let numbers = 400_u32;
    for number in 0..numbers {
        send(&mut connection, &number.to_be_bytes()).await;
        if number % 40 == 20 {
            fixture.rendezvous.cut(To::Harness);
        }
        if number % 40 == 30 {
            fixture.rendezvous.cut(To::Environment);
        }
        if number >= 10 {
            let received = receive(&mut connection).await.expect("the stream lives");
            assert_eq!(received[..], (number - 10).to_be_bytes());
        }
    }
    assert_eq!(*fixture.served.borrow_and_update(), 1, "a single stream was used");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handshake_lost_with_a_socket_is_restarted() {
    let fixture = Fixture::start().await;
    let mut lost = false;
    fixture
        .rendezvous
        .meddle(move |to, bytes| {
            let frame = Frame::decode(bytes.clone()).unwrap();
            let is_handshake = matches!(frame.body, Body::Handshake { .. });
            if to == To::Environment && is_handshake && !lost {
                lost = true;
                return Vec::new();
            }
            vec![(to, bytes)]
        })
        .await;
    let mut connection = fixture.harness().connect().await.unwrap();
    send(&mut connection, b"hello").await;
    assert_eq!(receive(&mut connection).await.unwrap(), "hello");
}

/// Takes as long as a harness waits for a response: 10 s.
#[tokio::test(flavor = "multi_thread")]
async fn an_unanswered_handshake_is_retried_once() {
    let fixture = Fixture::start().await;
    let mut silenced = None;
    fixture
        .rendezvous
        .meddle(move |to, bytes| {
            let stream = Frame::decode(bytes.clone()).unwrap().stream_id;
            match *silenced.get_or_insert(stream) == stream {
                true => Vec::new(),
                false => vec![(to, bytes)],
            }
        })
        .await;
    let mut connection = fixture.harness().connect().await.unwrap();
    send(&mut connection, b"hello").await;
    assert_eq!(receive(&mut connection).await.unwrap(), "hello");
}
