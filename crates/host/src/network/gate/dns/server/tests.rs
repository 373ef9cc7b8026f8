use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::task::JoinSet;

use super::super::super::GateSettings;
use super::super::super::names::is_synthetic;
use super::super::super::test_support::{FakeClient, connected, rules, settings, state};
use super::super::SearchDomains;
use super::*;

const A: u16 = 1;
const AAAA: u16 = 28;
const MX: u16 = 15;

fn query(name: &str, kind: u16) -> Vec<u8> {
    let mut message = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        message.push(u8::try_from(label.len()).unwrap());
        message.extend(label.as_bytes());
    }
    message.push(0);
    message.extend(kind.to_be_bytes());
    message.extend([0, 1]);
    message
}

/// Returns the response code and the address of the only answer.
fn read_response(response: &[u8]) -> (u8, Option<IpAddr>) {
    assert_eq!(&response[..2], [0, 7]);
    let code = response[3] & 0xf;
    let address = match response[7] {
        0 => None,
        1 => response
            .last_chunk::<18>()
            .filter(|end| end[..2] == [0, 16])
            .map(|end| IpAddr::V6(Ipv6Addr::from(*end.last_chunk::<16>().unwrap())))
            .or_else(|| Some(IpAddr::V4(Ipv4Addr::from(*response.last_chunk::<4>().unwrap())))),
        count => panic!("expected at most one answer, got {count}"),
    };
    (code, address)
}

fn ask(state: &GateState, name: &str, kind: u16) -> (u8, Option<IpAddr>) {
    let peer: SocketAddr = "127.0.0.1:9".parse().unwrap();
    read_response(&respond(state, &query(name, kind), peer).unwrap())
}

#[test]
fn an_allowed_name_gets_a_synthetic_address_of_each_family() {
    let state = state(rules(&["*.a.test"]), &FakeClient::silent());
    for kind in [A, AAAA] {
        let (code, address) = ask(&state, "X.a.test", kind);
        assert_eq!(code, 0);
        let address = address.unwrap();
        assert_eq!((is_synthetic(address), address.is_ipv4()), (true, kind == A));
        assert_eq!(state.names.lock().unwrap().name_of(address), Some("x.a.test"));
    }
    assert_eq!(ask(&state, "x.a.test", MX), (0, None));
}

#[test]
fn a_refused_name_gets_an_unreachable_address_or_does_not_exist() {
    let client = FakeClient::silent();
    let open = state(rules(&["a.test"]), &client);
    let (code, address) = ask(&open, "secret.evil.org", A);
    assert_eq!((code, open.names.lock().unwrap().name_of(address.unwrap())), (0, None));
    assert!(is_synthetic(address.unwrap()));
    assert_eq!(ask(&open, "secret.evil.org", MX), (3, None));
    assert_eq!(client.records().len(), 1);
    let hiding = GateSettings { hide_refused: true, ..settings(rules(&["a.test"]), &client) };
    let hiding = GateState::new(hiding);
    assert_eq!(ask(&hiding, "secret.evil.org", A), (3, None));
}

#[test]
fn names_with_a_search_domain_do_not_exist_unless_a_rule_names_them() {
    let client = FakeClient::silent();
    let search_domains = SearchDomains::parse("search ns.cluster.local cluster.local");
    let rules = rules(&["a.test", "single", "db.other.cluster.local", "**.other.cluster.local"]);
    let state = GateState::new(GateSettings { search_domains, ..settings(rules, &client) });
    for expansion in ["a.test.ns.cluster.local", "single.ns.cluster.local", "b.test.cluster.local"]
    {
        assert_eq!(ask(&state, expansion, A), (3, None), "{expansion}");
    }
    assert!(client.records().is_empty());
    for open in ["a.test", "db.other.cluster.local"] {
        let (_, address) = ask(&state, open, A);
        assert_eq!(state.names.lock().unwrap().name_of(address.unwrap()), Some(open));
    }
}

#[test]
fn special_names_are_answered_without_a_recorded_decision() {
    let client = FakeClient::silent();
    let state = state(rules(&["a.test"]), &client);
    let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
    assert_eq!(ask(&state, "localhost", A), (0, Some(loopback)));
    assert_eq!(ask(&state, "x.localhost", AAAA), (0, Some(Ipv6Addr::LOCALHOST.into())));
    assert_eq!(ask(&state, "1.0.0.127.in-addr.arpa", 12), (3, None));
    assert!(client.records().is_empty());
}

#[tokio::test]
async fn udp_responses_come_from_the_queried_address() {
    for (bound, asked) in [("0.0.0.0", "127.0.0.9"), ("::", "127.0.0.9"), ("::", "::1")] {
        let socket = std::net::UdpSocket::bind((bound, 0)).unwrap();
        socket.set_nonblocking(true).unwrap();
        let port = socket.local_addr().unwrap().port();
        let state = state(rules(&["a.test"]), &FakeClient::silent());
        let mut tasks = JoinSet::new();
        tasks.spawn(serve_udp(socket, state).unwrap());
        let asked: IpAddr = asked.parse().unwrap();
        let any = if asked.is_ipv4() { "0.0.0.0" } else { "::" };
        let program = tokio::net::UdpSocket::bind((any, 0)).await.unwrap();
        // A message that is not a query is dropped; the next one is answered.
        program.send_to(b"x", (asked, port)).await.unwrap();
        program.send_to(&query("a.test", A), (asked, port)).await.unwrap();
        let mut buffer = [0; 512];
        let (bytes, from) = program.recv_from(&mut buffer).await.unwrap();
        assert_eq!(from, SocketAddr::new(asked, port));
        assert!(read_response(&buffer[..bytes]).1.is_some());
    }
}

#[tokio::test]
async fn a_tcp_connection_carries_several_queries() {
    let state = state(rules(&["a.test"]), &FakeClient::silent());
    let (mut program, inside) = connected().await;
    let mut tasks = JoinSet::new();
    tasks.spawn(serve_tcp(state, inside));
    for kind in [A, AAAA] {
        write_message(&mut program, &query("a.test", kind)).await.unwrap();
        let response = read_message(&mut program).await.unwrap();
        assert!(read_response(&response).1.is_some());
    }
    program.write_u16(u16::MAX).await.unwrap();
    tasks.join_next().await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_idle_tcp_connection_is_closed() {
    let state = state(rules(&["a.test"]), &FakeClient::silent());
    let (_program, inside) = connected().await;
    let mut tasks = JoinSet::new();
    tasks.spawn(serve_tcp(state, inside));
    tasks.join_next().await.unwrap().unwrap();
}
