use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::test_support::{FakeClient, LOOPBACK, listener, local_rules, rules, settings};
use super::*;
use crate::network::policy::{Rules, Unnamed};

fn bind() -> (TcpListener, std::net::SocketAddr) {
    let listener = TcpListener::bind((LOOPBACK, 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

#[tokio::test]
async fn a_gate_serves_its_listeners_and_counts_traffic() {
    let (server, outside) = listener().await;
    let (http_proxy, proxy) = bind();
    let (socks5, socks) = bind();
    let (direct, dialled) = bind();
    let (dns_tcp, dns) = bind();
    let udp = || {
        let socket = UdpSocket::bind((LOOPBACK, 0)).unwrap();
        socket.set_nonblocking(true).unwrap();
        Some(socket)
    };
    let listeners = GateListeners {
        are_shared: false,
        dns_udp: udp(),
        dns_tcp: Some(dns_tcp),
        direct: vec![direct],
        http_proxy: Some(http_proxy),
        socks5: Some(socks5),
        socks5_udp: udp(),
    };
    let client = FakeClient::silent();
    let gate = Gate::open(listeners, settings(local_rules(&["a.test"]), &client)).unwrap();

    let mut program = TcpStream::connect(proxy).await.unwrap();
    let connect = format!("CONNECT a.test:{} HTTP/1.1\r\n\r\n", outside.port());
    program.write_all(connect.as_bytes()).await.unwrap();
    let (mut accepted, _) = server.accept().await.unwrap();
    accepted.write_all(b"hello").await.unwrap();
    drop(accepted);
    let mut text = String::new();
    program.read_to_string(&mut text).await.unwrap();
    assert!(text.ends_with("\r\n\r\nhello"), "{text}");

    let refused = async { TcpStream::connect(dialled).await?.read_u8().await };
    refused.await.unwrap_err();
    let mut socks = TcpStream::connect(socks).await.unwrap();
    socks.write_all(&[5, 1, 0]).await.unwrap();
    assert_eq!(socks.read_u16().await.unwrap(), 0x0500);
    let mut dns = TcpStream::connect(dns).await.unwrap();
    let query = b"\0\x19\0\x07\x01\0\0\x01\0\0\0\0\0\0\x01x\x03org\0\0\x01\0\x01";
    let query = [&u16::try_from(query.len() - 2).unwrap().to_be_bytes(), &query[2..]].concat();
    dns.write_all(&query).await.unwrap();
    dns.read_u16().await.unwrap();

    let summary = gate.summary();
    assert_eq!((summary.bytes_up, summary.bytes_down), (0, 5));
    let literal = RefusedHost { host: "127.0.0.1".into(), port: Some(dialled.port()) };
    let name = RefusedHost { host: "x.org".into(), port: None };
    assert_eq!(summary.refused, [literal, name]);
    assert!(!summary.refused_more);

    drop(gate);
    // A remaining connection would block this read.
    assert_eq!(socks.read(&mut [0; 8]).await.unwrap(), 0);
}

#[tokio::test]
async fn an_unanswered_question_ends_with_the_gate() {
    let (http_proxy, proxy) = bind();
    let listeners = GateListeners { http_proxy: Some(http_proxy), ..GateListeners::default() };
    let client = FakeClient::silent();
    let asking = Rules { unnamed: Unnamed::Ask, ..rules(&["a.test"]) };
    let gate = Gate::open(listeners, settings(asking, &client)).unwrap();
    let mut program = TcpStream::connect(proxy).await.unwrap();
    program.write_all(b"CONNECT new.org:443 HTTP/1.1\r\n\r\n").await.unwrap();
    client.wait_for_questions(1).await;
    drop(gate);
    client.wait_until_abandoned().await;
    assert_eq!(program.read(&mut [0; 8]).await.unwrap_or(0), 0);
}
