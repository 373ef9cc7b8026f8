//! The proxy between plain sockets: the effect of each fault on both sides.

#![expect(clippy::unwrap_used, reason = "a failed step fails its test")]

use std::io;
use std::time::Duration;

use exec_server_test_support::{Cut, FaultProxy, PlannedCut, Way};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

const HEAD: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\n\r\n";

/// How one side sees the end of a connection.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Fin,
    Rst,
}

struct Network {
    proxy: FaultProxy,
    server: TcpListener,
}

impl Network {
    async fn start() -> Self {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = FaultProxy::start(server.local_addr().unwrap()).await;
        Self { proxy, server }
    }

    async fn dial(&self) -> TcpStream {
        TcpStream::connect(self.proxy.address()).await.unwrap()
    }

    async fn accept(&self) -> TcpStream {
        self.server.accept().await.unwrap().0
    }

    /// Returns a client and a server that have exchanged data.
    async fn pair(&self) -> (TcpStream, TcpStream) {
        let (mut client, mut server) = (self.dial().await, self.accept().await);
        pass(&mut client, &mut server, b"GET / HTTP/1.1\r\n\r\n").await;
        pass(&mut server, &mut client, HEAD).await;
        (client, server)
    }
}

async fn pass(from: &mut TcpStream, to: &mut TcpStream, bytes: &[u8]) {
    from.write_all(bytes).await.unwrap();
    expect(to, bytes).await;
}

async fn expect(socket: &mut TcpStream, expected: &[u8]) {
    let mut bytes = vec![0; expected.len()];
    socket.read_exact(&mut bytes).await.unwrap();
    assert_eq!(bytes, expected);
}

async fn rest(socket: &mut TcpStream) -> (Vec<u8>, End) {
    let mut bytes = Vec::new();
    let end = match socket.read_to_end(&mut bytes).await {
        Ok(_) => End::Fin,
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => End::Rst,
        Err(error) => panic!("cannot read to the end: {error}"),
    };
    (bytes, end)
}

#[tokio::test]
async fn planned_cuts_hit_their_messages() {
    let network = Network::start().await;
    let (mut client, mut server) = network.pair().await;
    network.proxy.plan_cuts([
        PlannedCut { way: Way::ToClient, after: 2, how: Cut::MidFrame },
        // The head of the next connection passes.
        PlannedCut { way: Way::ToServer, after: 1, how: Cut::Rst },
    ]);
    pass(&mut client, &mut server, b"\x81\x05hello").await;
    server.write_all(b"\x81\x03one\x81\x03two\x81\x05three").await.unwrap();
    let (received, end) = rest(&mut client).await;
    assert_eq!((&received[..10], end), (&b"\x81\x03one\x81\x03two"[..], End::Fin));
    assert!((11..17).contains(&received.len()), "{received:?}");
    assert_eq!(network.proxy.planned_cuts_done(), 1);

    let (mut client, mut server) = network.pair().await;
    client.write_all(b"\x81\x05hello").await.unwrap();
    assert_eq!(rest(&mut server).await, (Vec::new(), End::Rst));
    network.proxy.wait_for_planned_cuts(2).await;
    let (mut client, mut server) = network.pair().await;
    pass(&mut client, &mut server, b"\x81\x05hello").await;
}

#[tokio::test]
async fn bytes_pass_both_ways() {
    let network = Network::start().await;
    let (client, mut server) = network.pair().await;
    let sent: Vec<u8> =
        (0..3_000_000_u32).map(|index| index.to_le_bytes()[index as usize % 3]).collect();
    let echo = tokio::spawn(async move {
        let (mut read, mut write) = server.split();
        tokio::io::copy(&mut read, &mut write).await
    });
    let (mut read, mut write) = client.into_split();
    let expected = sent.clone();
    let writer = tokio::spawn(async move {
        write.write_all(&sent).await.unwrap();
        write.shutdown().await.unwrap();
    });
    let mut received = Vec::new();
    read.read_to_end(&mut received).await.unwrap();
    assert!(received == expected);
    writer.await.unwrap();
    echo.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_cut_has_the_same_kind_on_both_sides() {
    let network = Network::start().await;
    for cut in Cut::ALL {
        let (mut client, mut server) = network.pair().await;
        let (mut second, _second_server) = network.pair().await;
        network.proxy.cut(cut).await;
        for socket in [&mut client, &mut server, &mut second] {
            assert_eq!(rest(socket).await, (Vec::new(), end_of(cut)), "{cut:?}");
        }

        let (mut client, mut server) = network.pair().await;
        pass(&mut client, &mut server, b"a later connection is whole").await;
    }
}

fn end_of(cut: Cut) -> End {
    match cut {
        Cut::Fin | Cut::MidFrame => End::Fin,
        Cut::Rst | Cut::MidFrameRst => End::Rst,
    }
}

/// Unread bytes would turn a close into a reset, and unsent data a reset into an orderly end.
#[tokio::test]
async fn full_buffers_do_not_change_the_kind_of_a_cut() {
    for cut in Cut::ALL {
        let network = Network::start().await;
        let (client, server) = network.pair().await;
        let fill = |socket: TcpStream| async move {
            let (read, mut write) = socket.into_split();
            let megabyte = vec![b'x'; 1 << 20];
            let stuffed = tokio::time::timeout(Duration::from_secs(3600), async {
                while write.write_all(&megabyte).await.is_ok() {}
            });
            assert!(stuffed.await.is_err(), "no one reads, so the writer is stuck");
            (read, write)
        };
        tokio::time::pause();
        let ((mut client, _keep_client), (mut server, _keep_server)) =
            tokio::join!(fill(client), fill(server));
        tokio::time::resume();
        network.proxy.cut(cut).await;
        for half in [&mut client, &mut server] {
            let mut bytes = Vec::new();
            let is_fin = half.read_to_end(&mut bytes).await.is_ok();
            assert_eq!(is_fin, end_of(cut) == End::Fin, "{cut:?}");
        }
    }
}

#[tokio::test]
async fn a_frame_is_cut_in_two() {
    let frame = [b"\x82\x7e\x03\xe8".as_slice(), &[7; 1000]].concat();
    let masked = b"\x81\x85\0\0\0\0hello";
    for cut in [Cut::MidFrame, Cut::MidFrameRst] {
        let network = Network::start().await;
        let (mut client, mut server) = network.pair().await;
        pass(&mut server, &mut client, &frame).await;
        network.proxy.black_hole();
        server.write_all(&frame.repeat(3)).await.unwrap();
        client.write_all(masked).await.unwrap();
        network.proxy.cut(cut).await;

        let (down, end) = rest(&mut client).await;
        assert!(!down.is_empty() && down.len() < frame.len() && frame.starts_with(&down));
        assert_eq!(end, end_of(cut));
        let (up, end) = rest(&mut server).await;
        assert!(!up.is_empty() && up.len() < masked.len() && masked.starts_with(&up));
        assert_eq!(end, end_of(cut));
    }
}

#[tokio::test]
async fn a_black_hole_holds_everything_until_resumed() {
    let network = Network::start().await;
    let (mut client, mut server) = network.pair().await;
    let (mut lost_client, mut lost_server) = network.pair().await;
    network.proxy.black_hole();
    client.write_all(b"up").await.unwrap();
    server.write_all(b"down").await.unwrap();
    server.shutdown().await.unwrap();
    let mut new_client = network.dial().await;
    new_client.write_all(b"new").await.unwrap();
    network.proxy.wait_for_connections(3).await;

    network.proxy.resume();
    expect(&mut server, b"up").await;
    assert_eq!(rest(&mut client).await, (b"down".to_vec(), End::Fin));
    expect(&mut network.accept().await, b"new").await;

    network.proxy.black_hole();
    lost_client.write_all(b"never arrives").await.unwrap();
    let mut unheard = network.dial().await;
    network.proxy.wait_for_connections(4).await;
    network.proxy.cut(Cut::Rst).await;
    assert_eq!(rest(&mut lost_server).await, (Vec::new(), End::Rst));
    assert_eq!(rest(&mut unheard).await, (Vec::new(), End::Rst));
}

#[tokio::test]
async fn each_direction_of_each_connection_is_held_after_the_limit() {
    let network = Network::start().await;
    network.proxy.hold_after(5);
    let (mut client, mut server) = (network.dial().await, network.accept().await);
    client.write_all(b"to the server").await.unwrap();
    server.write_all(b"down").await.unwrap();
    expect(&mut server, b"to th").await;
    expect(&mut client, b"down").await;
    network.proxy.cut(Cut::Fin).await;
    assert_eq!(rest(&mut server).await, (Vec::new(), End::Fin), "the rest was held");

    let (mut client, mut server) = (network.dial().await, network.accept().await);
    client.write_all(b"once more").await.unwrap();
    expect(&mut server, b"once ").await;
    network.proxy.resume();
    expect(&mut server, b"more").await;
}

#[tokio::test]
async fn refused_connections_are_reset_and_others_continue() {
    let network = Network::start().await;
    let (mut client, mut server) = network.pair().await;
    network.proxy.refuse();
    for count in 1..=3 {
        let mut refused = network.dial().await;
        network.proxy.wait_for_refusals(count).await;
        assert_eq!(rest(&mut refused).await, (Vec::new(), End::Rst));
    }
    pass(&mut client, &mut server, b"still here").await;
    network.proxy.resume();
    network.pair().await;
    assert_eq!((network.proxy.connections(), network.proxy.refusals()), (2, 3));
}

#[tokio::test(start_paused = true)]
async fn a_delay_keeps_the_order() {
    const HOUR: Duration = Duration::from_secs(3600);
    let network = Network::start().await;
    let (mut client, mut server) = network.pair().await;
    let start = Instant::now();
    let mut expected = Vec::new();
    network.proxy.delay(HOUR);
    for number in 0..100_u32 {
        client.write_all(&number.to_be_bytes()).await.unwrap();
        expected.extend(number.to_be_bytes());
        match number {
            40 => network.proxy.delay(HOUR / 2),
            80 => network.proxy.resume(),
            _ => {}
        }
        tokio::task::yield_now().await;
    }
    client.shutdown().await.unwrap();
    assert_eq!(rest(&mut server).await, (expected, End::Fin));
    assert!(start.elapsed() >= HOUR, "the first chunk was delayed");
}

#[tokio::test]
async fn the_end_of_one_side_reaches_the_other() {
    let network = Network::start().await;
    let (mut client, mut server) = network.pair().await;
    client.shutdown().await.unwrap();
    assert_eq!(rest(&mut server).await, (Vec::new(), End::Fin));
    pass(&mut server, &mut client, b"half closed").await;
    drop(server);
    assert_eq!(rest(&mut client).await, (Vec::new(), End::Fin));

    let (client, mut server) = network.pair().await;
    client.set_zero_linger().unwrap();
    drop(client);
    assert_eq!(rest(&mut server).await, (Vec::new(), End::Rst));

    let Network { proxy, server } = network;
    drop(server);
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(rest(&mut client).await, (Vec::new(), End::Rst), "no server");
}

#[tokio::test]
async fn a_dropped_proxy_frees_its_port() {
    let network = Network::start().await;
    let (mut client, mut server) = network.pair().await;
    let Network { proxy, server: _listener } = network;
    let address = proxy.address();
    drop(proxy);
    rest(&mut client).await;
    rest(&mut server).await;
    while TcpStream::connect(address).await.is_ok() {
        tokio::task::yield_now().await;
    }
}
