use std::io;
use std::net::IpAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use super::super::GateSettings;
use super::super::names::{Family, Reach};
use super::super::test_support::{
    FakeClient, FakeResolver, connected, listener, local_rules, rules, settings, state,
};
use super::*;
use crate::network::policy::{Mode, Rules};

struct Dialled {
    program: TcpStream,
    _gate: JoinSet<()>,
}

async fn dial(state: &Arc<GateState>, destination: SocketAddr) -> Dialled {
    let (program, inside) = connected().await;
    let mut gate = JoinSet::new();
    gate.spawn(serve_destination(Arc::clone(state), inside, destination));
    Dialled { program, _gate: gate }
}

/// Returns the address that DNS would return, as a dual-stack socket shows it.
fn synthetic(state: &GateState, name: &str, port: u16) -> SocketAddr {
    let mut names = state.names.lock().unwrap();
    let address = names.address_of(name, Reach::Open, Family::V4).unwrap();
    let IpAddr::V4(address) = address else { panic!("IPv4 was asked for") };
    (address.to_ipv6_mapped(), port).into()
}

async fn is_reset(mut program: TcpStream) -> bool {
    program.read_u8().await.unwrap_err().kind() == io::ErrorKind::ConnectionReset
}

#[tokio::test]
async fn a_synthetic_address_leads_to_its_name() {
    let (server, address) = listener().await;
    let client = FakeClient::silent();
    let state = state(local_rules(&[&format!("a.test:{}", address.port())]), &client);
    let mut dialled = dial(&state, synthetic(&state, "a.test", address.port())).await;
    let (mut accepted, _) = server.accept().await.unwrap();
    dialled.program.write_all(b"x").await.unwrap();
    assert_eq!(accepted.read_u8().await.unwrap(), b'x');
    let record = &client.records()[0];
    assert_eq!((&*record.host, record.protocol), ("a.test", Protocol::Socks5Tcp));
}

#[tokio::test]
async fn a_refused_literal_is_reset() {
    let client = FakeClient::silent();
    let state = state(rules(&["a.test"]), &client);
    let dialled = dial(&state, "[::ffff:192.0.2.1]:443".parse().unwrap()).await;
    assert!(is_reset(dialled.program).await);
    let record = &client.records()[0];
    assert_eq!((&*record.host, record.protocol), ("192.0.2.1", Protocol::HttpsConnect));
}

#[tokio::test]
async fn a_synthetic_address_without_a_name_is_reset() {
    let state = state(local_rules(&["a.test"]), &FakeClient::silent());
    for unknown in ["198.18.0.9:443", "198.19.0.1:443"] {
        let dialled = dial(&state, unknown.parse().unwrap()).await;
        assert!(is_reset(dialled.program).await);
    }
}

#[tokio::test]
async fn a_name_that_resolves_to_a_private_address_is_reset() {
    let client = FakeClient::silent();
    let state = state(rules(&["a.test"]), &client);
    let dialled = dial(&state, synthetic(&state, "a.test", 443)).await;
    assert!(is_reset(dialled.program).await);
    let reasons: Vec<_> = client.records().into_iter().map(|record| record.reason).collect();
    assert_eq!(reasons, ["not_allowed_local"]);
}

#[tokio::test]
async fn one_private_address_among_others_refuses_the_name() {
    let client = FakeClient::silent();
    let resolver = FakeResolver::default().with("a.test", &["8.8.8.8", "::ffff:169.254.169.254"]);
    let settings =
        GateSettings { resolver: Arc::new(resolver), ..settings(rules(&["a.test"]), &client) };
    let state = Arc::new(GateState::new(settings));
    let dialled = dial(&state, synthetic(&state, "a.test", 443)).await;
    assert!(is_reset(dialled.program).await);
    assert_eq!(client.records().len(), 1);
}

#[tokio::test]
async fn a_name_is_resolved_once_for_each_connection() {
    // The first connection dials the first answer. The second answer, for the second connection,
    // is refused.
    let (server, address) = listener().await;
    let client = FakeClient::silent();
    let allow = [&*format!("a.test:{}", address.port()), "127.0.0.1"];
    let resolver =
        FakeResolver::default().with("a.test", &["127.0.0.1"]).with("a.test", &["169.254.169.254"]);
    let settings =
        GateSettings { resolver: Arc::new(resolver), ..settings(rules(&allow), &client) };
    let state = Arc::new(GateState::new(settings));
    let _first = dial(&state, synthetic(&state, "a.test", address.port())).await;
    server.accept().await.unwrap();
    let second = dial(&state, synthetic(&state, "a.test", address.port())).await;
    assert!(is_reset(second.program).await);
}

#[tokio::test]
async fn a_loopback_port_is_dialled_without_the_policy() {
    let (server, address) = listener().await;
    let client = FakeClient::silent();
    let settings = GateSettings {
        loopback_ports: vec![address.port()],
        ..settings(rules(&["a.test"]), &client)
    };
    let state = Arc::new(GateState::new(settings));
    for loopback in ["127.9.9.9", "::1"] {
        let destination = SocketAddr::new(loopback.parse().unwrap(), address.port());
        let _dialled = dial(&state, destination).await;
        server.accept().await.unwrap();
    }
    assert!(client.records().is_empty());
    let other = dial(&state, SocketAddr::new("192.0.2.1".parse().unwrap(), address.port())).await;
    assert!(is_reset(other.program).await);
}

#[tokio::test]
async fn a_failed_dial_is_a_reset() {
    let (server, address) = listener().await;
    drop(server);
    let state = state(local_rules(&["a.test"]), &FakeClient::silent());
    let dialled = dial(&state, synthetic(&state, "a.test", address.port())).await;
    assert!(is_reset(dialled.program).await);
}

#[tokio::test]
async fn in_limited_mode_each_request_is_judged() {
    let (server, address) = listener().await;
    let port = address.port();
    let client = FakeClient::silent();
    let limited = Rules { mode: Mode::Limited, ..local_rules(&[&format!("a.test:{port}")]) };
    let state = state(limited, &client);
    let Dialled { mut program, _gate } = dial(&state, synthetic(&state, "a.test", port)).await;
    let get = format!("GET /x HTTP/1.1\r\nHost: a.test:{port}\r\n\r\n");
    program.write_all(get.as_bytes()).await.unwrap();
    let (mut accepted, _) = server.accept().await.unwrap();
    let mut head = [0; 15];
    accepted.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"GET /x HTTP/1.1");
    accepted.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
    let post = format!("POST /x HTTP/1.1\r\nHost: a.test:{port}\r\nConnection: close\r\n\r\n");
    program.write_all(post.as_bytes()).await.unwrap();
    let mut text = String::new();
    program.read_to_string(&mut text).await.unwrap();
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    assert!(text.contains("\r\nx-proxy-error: blocked-by-method-policy\r\n"), "{text}");
}
