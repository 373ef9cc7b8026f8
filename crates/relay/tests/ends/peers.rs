//! Peers of other implementations, limits, and a rendezvous that refuses.

use std::cell::Cell;
use std::collections::HashSet;

use bytes::Bytes;
use exec_server_relay::frame::{Body, Frame, ResetReason, StreamId};
use exec_server_relay::harness::HarnessError;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::fixture::{Fixture, receive, send};
use crate::rendezvous::To;

/// Makes each end believe that the other does not support acknowledgements.
async fn without_acknowledgements(fixture: &Fixture) {
    fixture
        .rendezvous
        .meddle(|to, frame| {
            let frame = Frame { ack: 0, ack_bits: 0, ..Frame::decode(frame).unwrap() };
            match frame.body {
                Body::Ack | Body::Heartbeat => Vec::new(),
                _ => vec![(to, frame.encode())],
            }
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_never_acknowledges_is_served_until_its_socket_is_lost() {
    let mut fixture = Fixture::start().await;
    without_acknowledgements(&fixture).await;
    let mut connection = fixture.harness().connect().await.unwrap();
    let message = vec![7; 300_000];
    for _ in 0..20 {
        send(&mut connection, &message).await;
        assert!(receive(&mut connection).await.unwrap() == message);
    }
    fixture.rendezvous.cut(To::Harness);
    assert_eq!(receive(&mut connection).await, None, "the stream ends with its socket");
    let mut next = fixture.harness().connect().await.unwrap();
    send(&mut next, b"again").await;
    assert_eq!(receive(&mut next).await.unwrap(), "again");
    // The environment cannot resend on a new socket either, and resets the stream.
    fixture.rendezvous.cut(To::Environment);
    assert_eq!(receive(&mut next).await, None);
    assert_eq!(*fixture.served.borrow_and_update(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_environment_registers_again_with_the_same_key() {
    let fixture = Fixture::start_refused(1).await;
    {
        let state = fixture.registry.state.lock().unwrap();
        assert_eq!(state.keys.len(), 2);
        assert_eq!(state.keys[0], state.keys[1], "the key lasts as long as the process");
    }
    let mut connection = fixture.harness().connect().await.unwrap();
    send(&mut connection, b"hello").await;
    assert_eq!(receive(&mut connection).await.unwrap(), "hello");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_eighth_failed_handshake_closes_the_socket() {
    let mut fixture = Fixture::start().await;
    for _ in 0..8 {
        assert_eq!(*fixture.rendezvous.environments.borrow(), 1);
        let payload = vec![0; 4000].into();
        fixture.rendezvous.inject_new(Body::Handshake { payload }).await;
    }
    fixture.rendezvous.environments.wait_for(|count| *count == 2).await.unwrap();
    assert_eq!(*fixture.served.borrow_and_update(), 0);
    fixture.harness().connect().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_harness_of_a_closing_socket_is_reset() {
    let mut fixture = Fixture::start().await;
    let (report, mut resets) = mpsc::channel(64);
    let record = move |to, bytes: Bytes| {
        let frame = Frame::decode(bytes.clone()).unwrap();
        if let Body::Reset { .. } = frame.body {
            report.try_send(frame.stream_id).unwrap();
        }
        vec![(to, bytes)]
    };
    fixture.rendezvous.meddle(record).await;
    let mut refused = HashSet::new();
    for _ in 0..8 {
        let payload = vec![0; 4000].into();
        refused.insert(fixture.rendezvous.inject_new(Body::Handshake { payload }).await);
    }
    while !refused.is_empty() {
        refused.remove(&resets.recv().await.unwrap());
    }
    fixture.rendezvous.environments.wait_for(|count| *count == 2).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn harnesses_that_the_registry_cannot_judge_do_not_close_the_socket() {
    let fixture = Fixture::start().await;
    let mut connection = fixture.harness().connect().await.unwrap();
    fixture.registry.state.lock().unwrap().hangs_up = true;
    let mut attempts = JoinSet::new();
    for _ in 0..20 {
        let harness = fixture.harness();
        attempts.spawn(async move { harness.connect().await.unwrap_err() });
    }
    for error in attempts.join_all().await {
        let expected = ResetReason::from_static("limit_reached");
        let is_refused = matches!(&error, HarnessError::Refused { reason } if *reason == expected);
        assert!(is_refused, "{error:?}");
    }
    send(&mut connection, b"still open").await;
    assert_eq!(receive(&mut connection).await.unwrap(), "still open");
    assert_eq!(*fixture.rendezvous.environments.borrow(), 1);
    fixture.registry.state.lock().unwrap().hangs_up = false;
    fixture.harness().connect().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn at_most_128_streams_are_open_and_an_ended_one_makes_room() {
    let fixture = Fixture::start().await;
    let harness = fixture.harness();
    let mut connections = Vec::new();
    for _ in 0..128 {
        connections.push(harness.connect().await.unwrap());
    }
    let error = harness.connect().await.unwrap_err();
    let expected = ResetReason::from_static("limit_reached");
    assert!(matches!(&error, HarnessError::Refused { reason } if *reason == expected), "{error:?}");
    for connection in &mut connections {
        send(connection, b"all live").await;
        assert_eq!(receive(connection).await.unwrap(), "all live");
    }
    drop(connections.pop());
    loop {
        // The environment may not have noticed the end yet.
        match harness.connect().await {
            Ok(_) => break,
            Err(HarnessError::Refused { .. }) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unread_stream_stalls_no_other() {
    let fixture = Fixture::start().await;
    let harness = fixture.harness();
    let mut stuck = harness.connect().await.unwrap();
    let message = vec![7; 1 << 20];
    let fitted = Cell::new(0);
    let fill = async {
        // The echo is not read, so this stalls.
        loop {
            send(&mut stuck, &message).await;
            fitted.set(fitted.get() + 1);
            assert!(fitted.get() < 16, "an unread stream took every message");
        }
    };
    let use_another = async {
        let mut other = harness.connect().await.unwrap();
        let mut before = None;
        // Stops once the first stream has made no progress for a whole round.
        while before.replace(fitted.get()) != Some(fitted.get()) {
            for _ in 0..20 {
                send(&mut other, &message).await;
                assert!(receive(&mut other).await.unwrap() == message);
            }
        }
    };
    tokio::select! {
        () = fill => {}
        () = use_another => {}
    }
    // The first stream continues once it is read.
    let (outgoing, incoming) = (&mut stuck.outgoing, &mut stuck.incoming);
    let (flushed, ()) = tokio::join!(outgoing.flush(), async {
        for _ in 0..=fitted.get() {
            assert!(incoming.recv().await.is_some());
        }
    });
    flushed.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_of_an_unknown_stream_are_answered_with_a_reset() {
    let fixture = Fixture::start().await;
    let (resets, mut reset) = tokio::sync::mpsc::channel(8);
    fixture
        .rendezvous
        .meddle(move |to, frame| {
            let decoded = Frame::decode(frame.clone()).unwrap();
            if to == To::Harness && matches!(decoded.body, Body::Reset { .. }) {
                resets.try_send(decoded.stream_id).unwrap();
            }
            vec![(to, frame)]
        })
        .await;
    for body in [
        Body::Resume { next_seq: 5 },
        Body::Heartbeat,
        Body::Data { seq: 0, segment_index: 0, segment_count: 1, payload: "x".into() },
    ] {
        let stream_id: StreamId = fixture.rendezvous.inject_new(body).await;
        assert_eq!(reset.recv().await, Some(stream_id));
    }
}
