//! Frames between nodes that share a NATS server.

use std::time::Duration;

use bytes::Bytes;
use exec_server_relay::frame::{Body, MAX_FRAME_BYTES, StreamId};
use exec_server_rendezvous::{Role, TunnelTimes};
use exec_server_transport::{CloseCode, Received};
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::cluster::{Cluster, SHORT, arrives, wait_for};
use crate::support::{LIMIT, Peer, bearer, data, key};

/// Returns a frame of exactly this size, most of it a field that only a newer version knows.
fn frame_of(size: usize, stream: StreamId) -> Bytes {
    const FIELD_100: [u8; 2] = [0xa2, 0x06];
    let known = data(stream, b"payload");
    let rest = size - known.len() - FIELD_100.len() - 3;
    // Three groups of seven bits.
    let len = [(rest & 0x7f) as u8 | 0x80, (rest >> 7 & 0x7f) as u8 | 0x80, (rest >> 14) as u8];
    let frame = Bytes::from([&*known, &FIELD_100, &len, &vec![7; rest]].concat());
    assert_eq!(frame.len(), size);
    frame
}

async fn next_bytes(peer: &mut Peer) -> Bytes {
    match timeout(LIMIT, peer.0.incoming.recv()).await.unwrap() {
        Some(Received::Message(bytes)) => bytes,
        other => panic!("{other:?} instead of a frame"),
    }
}

#[tokio::test]
async fn frames_pass_between_nodes_both_ways() {
    let Some(cluster) = Cluster::start(3, TunnelTimes::default()).await else { return };
    let (mut environment, token) = cluster.environment(0).await;
    for node in 0..3 {
        let (mut harness, stream) = cluster.harness(node, &token, &mut environment).await;
        environment.send(stream, b"welcome").await;
        assert_eq!(harness.payload().await, (stream, "welcome".into()));
        for number in 0..200_u32 {
            harness.send(stream, &number.to_be_bytes()).await;
            environment.send(stream, &number.to_be_bytes()).await;
        }
        for number in 0..200_u32 {
            assert_eq!(environment.payload().await.1[..], number.to_be_bytes());
            assert_eq!(harness.payload().await.1[..], number.to_be_bytes());
        }
    }
    let page = cluster.service(1).status_page().await;
    assert!(page.contains("<td>Frames between nodes</td><td>over NATS</td>"), "{page}");
    cluster.stop().await;
}

#[tokio::test]
async fn the_largest_frames_pass() {
    let Some(cluster) = Cluster::start(2, TunnelTimes::default()).await else { return };
    let (mut environment, token) = cluster.environment(0).await;
    let (mut harness, stream) = cluster.harness(1, &token, &mut environment).await;
    let frame = frame_of(MAX_FRAME_BYTES, stream);
    harness.send_bytes(&frame).await;
    assert_eq!(next_bytes(&mut environment).await, frame);
    environment.send_bytes(&frame).await;
    assert_eq!(next_bytes(&mut harness).await, frame);
    cluster.stop().await;
}

#[tokio::test]
async fn a_closed_harness_ends_its_streams() {
    let Some(cluster) = Cluster::start(2, TunnelTimes::default()).await else { return };
    let (mut environment, token) = cluster.environment(0).await;
    let (mut harness, stream) = cluster.harness(1, &token, &mut environment).await;
    harness.0.outgoing.close(CloseCode::Normal, "").await;
    let ended = environment.next().await.unwrap();
    assert_eq!(ended.stream_id, stream);
    assert!(matches!(ended.body, Body::Reset { .. }), "{ended:?}");
    cluster.stop().await;
}

#[tokio::test]
async fn a_revoked_token_closes_a_harness_at_another_node() {
    let Some(cluster) = Cluster::start(2, TunnelTimes::default()).await else { return };
    let (mut environment, kept) = cluster.environment(0).await;
    let (id, token) = cluster.token(Role::Harness).await;
    let (mut harness, stream) = cluster.harness(1, &kept, &mut environment).await;
    let (mut revoked, _) = cluster.harness(1, &token, &mut environment).await;
    assert!(cluster.nodes[1].directory.revoke_credential(&(*id).into()).await.unwrap());
    revoked.closed().await;
    environment.send(stream, b"still here").await;
    assert_eq!(harness.payload().await.1, "still here");
    cluster.stop().await;
}

#[tokio::test]
async fn harnesses_follow_an_environment_to_another_node() {
    let Some(cluster) = Cluster::start(3, TunnelTimes::default()).await else { return };
    let registered = cluster.register(0).await;
    let (_, token) = cluster.token(Role::Harness).await;
    // The environment registered at a node other than the one that it reaches.
    let mut environment = cluster.attach(1, &registered).await;
    let (mut remote, _) = cluster.harness(0, &token, &mut environment).await;
    let (mut local, _) = cluster.harness(1, &token, &mut environment).await;
    // The first socket is still open, as if a load balancer had not noticed its loss.
    let mut moved = cluster.attach(2, &registered).await;
    environment.closed().await;
    remote.closed().await;
    local.closed().await;
    for node in 0..3 {
        let (mut harness, stream) = cluster.harness(node, &token, &mut moved).await;
        moved.send(stream, b"here").await;
        assert_eq!(harness.payload().await.1, "here");
    }
    // This time the environment moves after it has lost its socket.
    drop(moved);
    let mut back = cluster.attach(1, &registered).await;
    cluster.harness(2, &token, &mut back).await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_harness_is_closed_when_the_node_of_its_environment_stops_or_dies() {
    let Some(mut cluster) = Cluster::start(3, SHORT).await else { return };
    let registered = cluster.register(0).await;
    let (_, token) = cluster.token(Role::Harness).await;
    let mut environment = cluster.attach(1, &registered).await;
    let (mut harness, _) = cluster.harness(0, &token, &mut environment).await;
    cluster.nodes.remove(1).service.stop().await;
    harness.closed().await;

    let mut environment = cluster.attach(1, &registered).await;
    let (mut harness, _) = cluster.harness(0, &token, &mut environment).await;
    cluster.nodes.remove(1).service.kill().await;
    harness.closed().await;

    let mut environment = cluster.attach(0, &registered).await;
    cluster.harness(0, &token, &mut environment).await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_harness_leaves_a_dead_node_once_its_environment_is_at_another_one() {
    let patient = TunnelTimes { silence_limit: Duration::from_secs(3600), ..SHORT };
    let Some(mut cluster) = Cluster::start(3, patient).await else { return };
    let registered = cluster.register(0).await;
    let (_, token) = cluster.token(Role::Harness).await;
    let mut environment = cluster.attach(1, &registered).await;
    let (mut harness, _) = cluster.harness(0, &token, &mut environment).await;
    cluster.nodes.remove(1).service.kill().await;
    let mut environment = cluster.attach(1, &registered).await;
    harness.closed().await;
    cluster.harness(0, &token, &mut environment).await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_harness_does_not_wait_for_a_node_that_its_environment_has_left() {
    let patient = TunnelTimes { request_timeout: Duration::from_secs(3600), ..SHORT };
    let Some(mut cluster) = Cluster::start(3, patient).await else { return };
    let registered = cluster.register(0).await;
    let (_, token) = cluster.token(Role::Harness).await;
    let _environment = cluster.attach(1, &registered).await;
    let lease = cluster.nodes[0].directory.lookup(&"box".parse().unwrap()).await;
    let subject = format!("exec-server.node.{}.open", lease.unwrap().unwrap().node.unwrap());
    // To NATS, the dead node still seems present.
    let client = async_nats::connect(&cluster.nats.urls()[0]).await.unwrap();
    let mut requests = client.subscribe(subject).await.unwrap();
    cluster.nodes.remove(1).service.kill().await;
    let body = json!({"harness_public_key": key("h")});
    let (status, answer) = cluster.service(0).call("box", "connect", &bearer(&token), &body).await;
    assert_eq!(status, 200, "{answer}");
    let mut harness = Peer::dial(&answer["url"]).await;
    timeout(LIMIT, requests.next()).await.unwrap();
    let mut environment = cluster.attach(1, &registered).await;
    harness.closed().await;
    cluster.harness(0, &token, &mut environment).await;
    cluster.stop().await;
}

#[tokio::test]
async fn the_streams_of_a_harness_wait_when_its_node_dies() {
    let Some(mut cluster) = Cluster::start(3, SHORT).await else { return };
    let (mut environment, token) = cluster.environment(0).await;
    let (_lost, stream) = cluster.harness(1, &token, &mut environment).await;
    cluster.nodes.remove(1).service.kill().await;
    let (mut harness, _) = cluster.harness(1, &token, &mut environment).await;
    // The first frame takes the stream over from the lost socket. Frames of other streams may
    // arrive before it.
    wait_for("the stream", async || {
        harness.send(stream, b"again").await;
        match environment.next().await.unwrap() {
            frame if frame.stream_id == stream => Some(()),
            _ => None,
        }
    })
    .await;
    environment.send(stream, b"back").await;
    while !matches!(harness.next().await.unwrap().body, Body::Data { .. }) {}
    cluster.stop().await;
}

#[tokio::test]
async fn harnesses_are_closed_without_nats_and_reconnect_when_it_returns() {
    let Some(mut cluster) = Cluster::start(2, SHORT).await else { return };
    let (mut environment, token) = cluster.environment(0).await;
    let (mut remote, _) = cluster.harness(1, &token, &mut environment).await;
    let (mut local, stream) = cluster.harness(0, &token, &mut environment).await;
    cluster.nats.kill(0);
    remote.closed().await;
    // A harness at the same node does not need NATS.
    local.send(stream, b"on").await;
    arrives(&mut environment, stream).await;
    cluster.nats.restart(&[0]);
    let (mut harness, stream) = cluster.harness(1, &token, &mut environment).await;
    environment.send(stream, b"back").await;
    assert_eq!(harness.payload().await.1, "back");
    cluster.stop().await;
}

#[tokio::test]
async fn a_tunnel_survives_a_restart_of_nats() {
    let Some(mut cluster) = Cluster::start(2, TunnelTimes::default()).await else { return };
    let (mut environment, token) = cluster.environment(0).await;
    let (mut harness, stream) = cluster.harness(1, &token, &mut environment).await;
    cluster.nats.kill(0);
    harness.send(stream, b"lost").await;
    cluster.nats.restart(&[0]);
    // Like the ends of a stream, resend until the other end has the frame.
    let resend = async {
        loop {
            harness.send(stream, b"again").await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        () = arrives(&mut environment, stream) => {}
        never = resend => never,
    }
    environment.send(stream, b"back").await;
    assert_eq!(harness.payload().await.1, "back");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_harness_that_does_not_read_affects_only_itself() {
    let Some(cluster) = Cluster::start(2, TunnelTimes::default()).await else { return };
    let (mut environment, token) = cluster.environment(0).await;
    let (mut slow, to_slow) = cluster.harness(1, &token, &mut environment).await;
    let (mut fast, to_fast) = cluster.harness(1, &token, &mut environment).await;
    let payload = vec![7; 60 << 10];
    // More than the queue and all kernel buffers hold; `slow` reads nothing.
    for _ in 0..512 {
        environment.send(to_slow, &payload).await;
        environment.send(to_fast, b"ping").await;
        assert_eq!(fast.payload().await.1, "ping");
    }
    slow.closed().await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_tunnel_to_an_environment_at_another_node_is_refused() {
    let Some(cluster) = Cluster::start(2, TunnelTimes::default()).await else { return };
    let (mut environment, token) = cluster.environment(0).await;
    let (mut harness, stream) = cluster.harness(1, &token, &mut environment).await;
    let id = "box".parse().unwrap();
    let lease = cluster.nodes[0].directory.lookup(&id).await.unwrap().unwrap();
    let client = async_nats::connect(&cluster.nats.urls()[0]).await.unwrap();
    let subject = format!("exec-server.node.{}.open", lease.node.unwrap());
    let tunnel = "0123456789abcdef0123456789abcdef";
    let ask = async |environment: &str, generation: u64| -> Value {
        let request = json!({"tunnel": tunnel, "environment": environment,
            "generation": generation, "credential": "forged", "expires": null});
        let answer = client.request(subject.clone(), request.to_string().into()).await.unwrap();
        serde_json::from_slice(&answer.payload).unwrap()
    };
    let refused = json!({"refused": {"reason": "this registration is not connected to this node"}});
    assert_eq!(ask("other", lease.generation).await, refused);
    assert_eq!(ask("box", lease.generation + 1).await, refused);
    // A credential that does not exist is handled like a revoked one.
    let mut down = client.subscribe(format!("exec-server.tunnel.{tunnel}.down")).await.unwrap();
    assert_eq!(ask("box", lease.generation).await, json!("accepted"));
    let close = wait_for("a close", async || {
        let message = down.next().await.unwrap();
        message.payload.ends_with(b"the credential was revoked").then_some(())
    });
    close.await;
    environment.send(stream, b"undisturbed").await;
    assert_eq!(harness.payload().await.1, "undisturbed");
    cluster.stop().await;
}
