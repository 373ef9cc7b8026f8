use tokio::task::JoinSet;

use super::super::GateSettings;
use super::super::test_support::{
    FakeClient, LOOPBACK, connected, listener, local_rules, rules, settings, state, upstream,
};
use super::*;
use crate::network::policy::Rules;

struct Client {
    stream: TcpStream,
    _gate: JoinSet<()>,
}

impl Client {
    async fn new(state: &Arc<GateState>, associations: Option<Arc<Associations>>) -> Self {
        let (stream, inside) = connected().await;
        let mut gate = JoinSet::new();
        gate.spawn(serve(Arc::clone(state), associations, inside));
        Self { stream, _gate: gate }
    }

    async fn greeted(state: &Arc<GateState>, associations: Option<Arc<Associations>>) -> Self {
        let mut client = Self::new(state, associations).await;
        client.stream.write_all(&[5, 1, 0]).await.unwrap();
        let mut method = [0; 2];
        client.stream.read_exact(&mut method).await.unwrap();
        assert_eq!(method, [5, 0]);
        client
    }

    /// Returns the code of the reply and the bound port.
    async fn request(&mut self, command: u8, address: &[u8], port: u16) -> (u8, u16) {
        let message = [&[5, command, 0], address, &port.to_be_bytes()].concat();
        self.stream.write_all(&message).await.unwrap();
        let mut reply = [0; 10];
        self.stream.read_exact(&mut reply).await.unwrap();
        assert_eq!((reply[0], reply[2], reply[3]), (5, 0, 1));
        (reply[1], u16::from_be_bytes([reply[8], reply[9]]))
    }
}

fn domain(name: &[u8]) -> Vec<u8> {
    [&[3, u8::try_from(name.len()).unwrap()], name].concat()
}

async fn code(rules: Rules, address: &[u8], port: u16) -> u8 {
    let state = state(rules, &FakeClient::silent());
    Client::greeted(&state, None).await.request(CONNECT, address, port).await.0
}

#[tokio::test]
async fn every_form_of_an_allowed_address_connects() {
    let (server, address) = listener().await;
    let mapped = [&[4][..], &Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets()].concat();
    let forms = [vec![1, 127, 0, 0, 1], mapped, domain(b"127.0.0.1"), domain(b"A.test.")];
    let state = state(local_rules(&["127.0.0.1", "a.test"]), &FakeClient::silent());
    for form in forms {
        let mut client = Client::greeted(&state, None).await;
        assert_eq!(client.request(CONNECT, &form, address.port()).await.0, 0, "{form:?}");
        let (mut accepted, _) = server.accept().await.unwrap();
        client.stream.write_all(b"x").await.unwrap();
        assert_eq!(accepted.read_u8().await.unwrap(), b'x');
    }
}

#[tokio::test]
async fn refused_addresses_get_the_code_not_allowed() {
    let mapped = [&[4][..], &Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets()].concat();
    let forms =
        [vec![1, 127, 0, 0, 1], mapped, domain(b"127.1"), domain(b"[::1]"), domain(b"a.test")];
    for form in forms {
        assert_eq!(code(rules(&["a.test"]), &form, 80).await, 2, "{form:?}");
    }
}

#[tokio::test]
async fn invalid_requests_are_refused_with_their_code() {
    let anything = || local_rules(&["a.test"]);
    assert_eq!(code(anything(), &domain(b""), 80).await, 4);
    assert_eq!(code(anything(), &domain(&[b'a'; 255]), 80).await, 4);
    assert_eq!(code(anything(), &domain(b"\xff\xfe"), 80).await, 4);
    assert_eq!(code(anything(), &domain(b"a.test\0.evil"), 80).await, 4);
    assert_eq!(code(anything(), &domain(b"a.test"), 0).await, 4);
    assert_eq!(code(anything(), &[1, 198, 18, 0, 77], 80).await, 4);
    let state = state(anything(), &FakeClient::silent());
    for (command, expected) in [(2, 7), (UDP_ASSOCIATE, 7), (9, 7)] {
        let mut client = Client::greeted(&state, None).await;
        assert_eq!(client.request(command, &[1, 0, 0, 0, 0], 0).await.0, expected);
    }
    let mut client = Client::greeted(&state, None).await;
    assert_eq!(client.request(CONNECT, &[2, 0, 0, 0, 0], 0).await.0, 8);
}

#[tokio::test]
async fn a_failed_dial_is_reported_with_its_code() {
    let (server, address) = listener().await;
    drop(server);
    assert_eq!(code(local_rules(&["a.test"]), &domain(b"a.test"), address.port()).await, 5);
    assert_eq!(code(local_rules(&["gone.test"]), &domain(b"gone.test"), 80).await, 4);
}

#[tokio::test]
async fn only_version_5_without_authentication_is_accepted() {
    let state = state(local_rules(&["a.test"]), &FakeClient::silent());
    let mut client = Client::new(&state, None).await;
    client.stream.write_all(&[5, 1, 2]).await.unwrap();
    let mut answer = Vec::new();
    client.stream.read_to_end(&mut answer).await.unwrap();
    assert_eq!(answer, [5, 0xff]);
    let mut client = Client::new(&state, None).await;
    client.stream.write_all(&[4]).await.unwrap();
    assert_eq!(client.stream.read(&mut [0; 8]).await.unwrap(), 0);
}

#[tokio::test]
async fn an_upstream_proxy_receives_the_name() {
    let (proxy, address) = listener().await;
    let client = FakeClient::silent();
    let settings =
        GateSettings { upstream: upstream(address), ..settings(rules(&["far.org"]), &client) };
    let state = Arc::new(GateState::new(settings));
    let serve_proxy = async {
        let (mut stream, _) = proxy.accept().await.unwrap();
        let mut head = vec![0; 100];
        let expected = "CONNECT far.org:22 HTTP/1.1\r\nHost: far.org:22\r\n\
                        Proxy-Authorization: Basic dXNlcjpwdw==\r\n\r\n";
        head.truncate(expected.len());
        stream.read_exact(&mut head).await.unwrap();
        assert_eq!(str::from_utf8(&head).unwrap(), expected);
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nSSH-2.0").await.unwrap();
        stream
    };
    let mut client = Client::greeted(&state, None).await;
    let domain = domain(b"far.org");
    let ((code, _), _proxy) = tokio::join!(client.request(CONNECT, &domain, 22), serve_proxy);
    assert_eq!(code, 0);
    let mut banner = [0; 7];
    client.stream.read_exact(&mut banner).await.unwrap();
    assert_eq!(&banner, b"SSH-2.0");
}

struct Udp {
    state: Arc<GateState>,
    associations: Arc<Associations>,
    _receiving: JoinSet<()>,
}

fn udp(state: Arc<GateState>) -> Udp {
    let socket = std::net::UdpSocket::bind((LOOPBACK, 0)).unwrap();
    socket.set_nonblocking(true).unwrap();
    let associations = Arc::new(Associations::open(socket).unwrap());
    let mut receiving = JoinSet::new();
    let receiver = Arc::clone(&associations);
    receiving.spawn(async move { receiver.receive().await });
    Udp { state, associations, _receiving: receiving }
}

async fn bound() -> tokio::net::UdpSocket {
    tokio::net::UdpSocket::bind((LOOPBACK, 0)).await.unwrap()
}

fn wrapped(address: &[u8], port: u16, payload: &[u8]) -> Vec<u8> {
    [&[0, 0, 0], address, &port.to_be_bytes(), payload].concat()
}

#[tokio::test]
async fn datagrams_and_replies_pass_for_allowed_destinations() {
    let client = FakeClient::silent();
    let udp = udp(state(local_rules(&["a.test"]), &client));
    let (server, program) = (bound().await, bound().await);
    let port = server.local_addr().unwrap().port();
    let mut control = Client::greeted(&udp.state, Some(Arc::clone(&udp.associations))).await;
    let (code, relay) = control.request(UDP_ASSOCIATE, &[1, 0, 0, 0, 0], 0).await;
    assert_eq!((code, relay), (0, udp.associations.port()));

    let refused = wrapped(&domain(b"b.test"), port, b"no");
    program.send_to(&refused, (LOOPBACK, relay)).await.unwrap();
    for payload in [b"one", b"two"] {
        let datagram = wrapped(&domain(b"a.test"), port, payload);
        program.send_to(&datagram, (LOOPBACK, relay)).await.unwrap();
        let mut buffer = [0; 64];
        let (bytes, from) = server.recv_from(&mut buffer).await.unwrap();
        assert_eq!(&buffer[..bytes], payload);
        // Only the server may reply. The stranger's datagram arrives first, and is dropped.
        bound().await.send_to(b"stranger", from).await.unwrap();
        server.send_to(b"reply", from).await.unwrap();
        let bytes = program.recv(&mut buffer).await.unwrap();
        assert_eq!(&buffer[..bytes], wrapped(&[1, 127, 0, 0, 1], port, b"reply"));
    }
    let judged: Vec<_> = client.records().into_iter().map(|record| record.host).collect();
    assert_eq!(judged.len(), 2);
    assert_eq!((udp.state.traffic.bytes_up(), udp.state.traffic.bytes_down()), (6, 10));
}

#[tokio::test]
async fn an_association_ends_with_its_connection() {
    let udp = udp(state(local_rules(&["a.test"]), &FakeClient::silent()));
    let mut control = Client::greeted(&udp.state, Some(Arc::clone(&udp.associations))).await;
    control.request(UDP_ASSOCIATE, &[1, 0, 0, 0, 0], 7).await;
    assert_eq!(udp.associations.len(), 1);
    let Client { stream, mut _gate } = control;
    drop(stream);
    _gate.join_next().await.unwrap().unwrap();
    assert_eq!(udp.associations.len(), 0);
}
