//! The routing of frames.

use std::time::Duration;

use exec_server_relay::frame::{Body, StreamId};
use exec_server_rendezvous::Role;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::support::{LIMIT, Peer, Service, data, raw_socket};

#[tokio::test]
async fn frames_pass_both_ways_unchanged() {
    let service = Service::start().await;
    let (mut environment, _) = service.environment("box").await;
    let token = service.token(Role::Harness, "box").await;
    let mut harness = service.harness("box", &token).await;
    let stream = StreamId::random();
    for len in [1, 100, 60 << 10, 65_535] {
        let payload = vec![len as u8; len];
        harness.send(stream, &payload).await;
        assert_eq!(environment.payload().await, (stream, payload.clone().into()));
        environment.send(stream, &payload).await;
        assert_eq!(harness.payload().await, (stream, payload.into()));
    }
    service.stop().await;
}

#[tokio::test]
async fn each_harness_gets_its_own_streams() {
    let service = Service::start().await;
    let (mut environment, _) = service.environment("box").await;
    let token = service.token(Role::Harness, "box").await;
    let mut harnesses =
        [service.harness("box", &token).await, service.harness("box", &token).await];
    let streams = [StreamId::random(), StreamId::random()];
    for (harness, stream) in harnesses.iter_mut().zip(streams) {
        harness.send(stream, b"hello").await;
        assert_eq!(environment.payload().await.0, stream);
    }
    for stream in streams {
        environment.send(stream, stream.as_str().as_bytes()).await;
    }
    for (harness, stream) in harnesses.iter_mut().zip(streams) {
        assert_eq!(harness.payload().await.1, stream.as_str().as_bytes());
    }
    service.stop().await;
}

#[tokio::test]
async fn a_stream_continues_only_with_a_socket_of_the_same_token() {
    let service = Service::start().await;
    let (mut environment, _) = service.environment("box").await;
    let alice = service.token(Role::Harness, "box").await;
    let bob = service.token(Role::Harness, "box").await;
    let stream = StreamId::random();
    let mut first = service.harness("box", &alice).await;
    first.send(stream, b"one").await;
    assert_eq!(environment.payload().await.1, "one");

    let mut thief = service.harness("box", &bob).await;
    thief.send(stream, b"mine").await;
    let refused = thief.next().await.unwrap();
    assert!(matches!(refused.body, Body::Reset { .. }), "{refused:?}");

    let mut second = service.harness("box", &alice).await;
    second.send(stream, b"two").await;
    assert_eq!(environment.payload().await.1, "two", "the frame of the thief was dropped");
    environment.send(stream, b"back").await;
    assert_eq!(second.payload().await.1, "back");
    service.stop().await;
}

#[tokio::test]
async fn a_lost_harness_is_reset_after_its_grace_period() {
    let service = Service::start_with(|config| {
        config.stream_grace = Duration::from_millis(50);
    })
    .await;
    let (mut environment, _) = service.environment("box").await;
    let token = service.token(Role::Harness, "box").await;
    let mut harness = service.harness("box", &token).await;
    let stream = StreamId::random();
    harness.send(stream, b"hello").await;
    environment.payload().await;
    drop(harness);
    let frame = environment.next().await.unwrap();
    assert_eq!(frame.stream_id, stream);
    assert!(matches!(frame.body, Body::Reset { .. }));
    service.stop().await;
}

#[tokio::test]
async fn harnesses_of_a_lost_environment_are_closed_after_its_grace_period() {
    let service = Service::start_with(|config| {
        config.environment_grace = Duration::from_millis(50);
    })
    .await;
    let (environment, _) = service.environment("box").await;
    let token = service.token(Role::Harness, "box").await;
    let mut harness = service.harness("box", &token).await;
    drop(environment);
    harness.closed().await;
    service.stop().await;
}

#[tokio::test]
async fn an_environment_reconnects_to_its_streams() {
    let service = Service::start().await;
    let (mut environment, registered) = service.environment("box").await;
    let token = service.token(Role::Harness, "box").await;
    let mut harness = service.harness("box", &token).await;
    let stream = StreamId::random();
    harness.send(stream, b"one").await;
    environment.payload().await;
    // A second socket of the same registration replaces the first, which may be half dead.
    let mut again = Peer::dial(&registered["url"]).await;
    environment.closed().await;
    again.send(stream, b"back").await;
    assert_eq!(harness.payload().await.1, "back");
    harness.send(stream, b"two").await;
    assert_eq!(again.payload().await.1, "two");
    service.stop().await;
}

#[tokio::test]
async fn text_and_garbage_are_dropped_from_environments_and_close_harnesses() {
    let service = Service::start().await;
    let (mut environment, _) = service.environment("box").await;
    let token = service.token(Role::Harness, "box").await;
    let stream = StreamId::random();
    let mut good = service.harness("box", &token).await;
    good.send(stream, b"hello").await;
    environment.payload().await;
    environment.send_bytes(b"\xff\xff\xff").await;
    environment.send_bytes(b"").await;
    environment.send(StreamId::random(), b"to nobody").await;
    environment.send(stream, b"still here").await;
    assert_eq!(good.payload().await.1, "still here");

    let mut garbage = service.harness("box", &token).await;
    garbage.send_bytes(b"\xff\xff\xff").await;
    garbage.closed().await;
    let mut text = Peer(dial_for_text(&service, &token).await);
    text.send_bytes(&data(stream, b"text")).await;
    text.closed().await;
    good.send(stream, b"goes on").await;
    assert_eq!(environment.payload().await.1, "goes on");
    service.stop().await;
}

/// Opens a harness socket that sends text messages.
async fn dial_for_text(service: &Service, token: &str) -> exec_server_transport::Connection {
    let url = service.connect("box", token).await["url"].as_str().unwrap().to_owned();
    exec_server_transport::dial(&url, &Default::default()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_harness_does_not_stall_another() {
    let service = Service::start_with(|config| {
        config.quotas.queued_bytes_per_socket = 1 << 20;
    })
    .await;
    let (mut environment, _) = service.environment("box").await;
    let token = service.token(Role::Harness, "box").await;
    let mut slow = service.harness("box", &token).await;
    let mut fast = service.harness("box", &token).await;
    let [to_slow, to_fast] = [StreamId::random(), StreamId::random()];
    slow.send(to_slow, b"hello").await;
    fast.send(to_fast, b"hello").await;
    environment.payload().await;
    environment.payload().await;
    let payload = vec![7; 60 << 10];
    // More than the queue and all kernel buffers hold; `slow` reads nothing.
    for _ in 0..512 {
        environment.send(to_slow, &payload).await;
        environment.send(to_fast, b"ping").await;
        assert_eq!(fast.payload().await.1, "ping");
    }
    slow.closed().await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_environment_delays_its_harnesses_and_loses_nothing() {
    let service = Service::start_with(|config| {
        config.quotas.queued_bytes_per_socket = 1 << 20;
    })
    .await;
    let (mut environment, _) = service.environment("box").await;
    let token = service.token(Role::Harness, "box").await;
    let mut senders = tokio::task::JoinSet::new();
    let mut expected = std::collections::HashMap::new();
    for _ in 0..2 {
        let mut harness = service.harness("box", &token).await;
        let stream = StreamId::random();
        expected.insert(stream, 0_u32);
        // Far more than the queue and the buffers of the kernel hold.
        senders.spawn(async move {
            for number in 0_u32..300 {
                let payload = [&number.to_be_bytes()[..], &[0; 60 << 10]].concat();
                harness.send(stream, &payload).await;
            }
            harness
        });
    }
    for _ in 0..600 {
        let (stream, payload) = environment.payload().await;
        let next = expected.get_mut(&stream).unwrap();
        assert_eq!(payload[..4], next.to_be_bytes());
        *next += 1;
    }
    senders.join_all().await;
    service.stop().await;
}

#[tokio::test]
async fn streams_of_an_environment_are_bounded() {
    let service = Service::start_with(|config| config.quotas.streams_per_environment = 2).await;
    let (mut environment, _) = service.environment("box").await;
    let token = service.token(Role::Harness, "box").await;
    let mut first = service.harness("box", &token).await;
    let streams = [StreamId::random(), StreamId::random(), StreamId::random()];
    first.send(streams[0], b"1").await;
    first.send(streams[1], b"2").await;
    environment.payload().await;
    environment.payload().await;
    let mut second = service.harness("box", &token).await;
    second.send(streams[2], b"3").await;
    let refused = second.next().await.unwrap();
    assert!(matches!(refused.body, Body::Reset { .. }));
    // A socket may replace its own oldest stream.
    first.send(streams[2], b"4").await;
    let ended = environment.next().await.unwrap();
    assert_eq!(ended.stream_id, streams[0]);
    assert_eq!(environment.payload().await, (streams[2], "4".into()));
    service.stop().await;
}

#[tokio::test]
async fn sockets_of_an_environment_are_bounded() {
    let service = Service::start_with(|config| config.quotas.sockets_per_environment = 1).await;
    let _environment = service.environment("box").await;
    let token = service.token(Role::Harness, "box").await;
    let _first = service.harness("box", &token).await;
    let url = service.connect("box", &token).await["url"].clone();
    assert_eq!(Peer::refusal(&url).await, 429);
    service.stop().await;
}

#[tokio::test]
async fn harnesses_share_the_frame_rate_of_their_environment() {
    let service = Service::start_with(|config| {
        config.quotas.frames_per_second_per_environment = 1;
    })
    .await;
    let (mut environment, _) = service.environment("box").await;
    let mut harnesses = Vec::new();
    for _ in 0..2 {
        let token = service.token(Role::Harness, "box").await;
        harnesses.push((service.harness("box", &token).await, StreamId::random()));
    }
    let [(hasty, hasty_stream), (modest, modest_stream)] = &mut harnesses[..] else { panic!() };
    // Without a shared rate, the hasty harness would be done before the other begins.
    for _ in 0..30 {
        hasty.send(*hasty_stream, b"again").await;
    }
    assert_eq!(environment.payload().await.0, *hasty_stream);
    modest.send(*modest_stream, b"once").await;
    let mut overtaken = 1;
    while environment.payload().await.0 != *modest_stream {
        overtaken += 1;
    }
    // The hasty harness has used the burst, and has reserved the next frame.
    assert!((2..30).contains(&overtaken), "{overtaken} frames came first");
    service.stop().await;
}

#[tokio::test]
async fn unfinished_frames_of_one_token_are_bounded() {
    let service = Service::start_with(|config| {
        config.quotas.unfinished_bytes_per_credential = 4 << 20;
    })
    .await;
    let (mut environment, _) = service.environment("box").await;
    let hoarder = service.token(Role::Harness, "box").await;
    // A binary message of 256 KiB whose last part never arrives.
    let announced = (256_u64 << 10).to_be_bytes();
    let part = [&[0x82, 0xff][..], &announced, &[0; 4], &vec![0; 255 << 10]].concat();
    let mut sockets = Vec::new();
    for _ in 0..20 {
        let url = service.connect("box", &hoarder).await["url"].as_str().unwrap().to_owned();
        let mut socket = raw_socket(service.address, &url).await;
        socket.write_all(&part).await.unwrap();
        sockets.push(socket);
    }
    let mut closed = tokio::task::JoinSet::new();
    for mut socket in sockets {
        closed.spawn(async move {
            let mut rest = Vec::new();
            let _ = socket.read_to_end(&mut rest).await;
            String::from_utf8_lossy(&rest).into_owned()
        });
    }
    let first = timeout(LIMIT, closed.join_next()).await.expect("one of them is closed");
    let last_words = first.unwrap().unwrap();
    assert!(last_words.contains("too many unfinished frames"), "{last_words:?}");
    // Other tokens are not affected.
    let token = service.token(Role::Harness, "box").await;
    let mut harness = service.harness("box", &token).await;
    let stream = StreamId::random();
    harness.send(stream, &vec![1; 60 << 10]).await;
    assert_eq!(environment.payload().await.0, stream);
    service.stop().await;
}
