//! Dialling as a client does, over real sockets, to hand-written servers.

#![expect(clippy::unwrap_used, reason = "a step that fails fails its test")]

use std::error::Error as _;
use std::io;
use std::net::SocketAddr;

use exec_server_test_support::{Cut, FaultProxy};
use exec_server_transport::{
    Connection, DialError, DialOptions, ListenUrl, Listener, ListenerOptions, NotWebSocket,
    Received, dial,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

async fn listen(url: &str) -> (Listener, SocketAddr) {
    let options = ListenerOptions::default();
    let listener = Listener::bind(&url.parse().unwrap(), options).await.unwrap();
    let ListenUrl::WebSocket(address) = *listener.local_url() else { panic!("not a TCP listener") };
    (listener, address)
}

async fn connect(url: &str) -> Result<Connection, DialError> {
    dial(url, &DialOptions::default()).await
}

async fn talk(mut client: Connection, mut server: Connection) {
    client.outgoing.push(b"{}");
    client.outgoing.flush().await.unwrap();
    assert_eq!(server.incoming.recv().await, Some(Received::Message("{}".into())));
}

async fn request(stream: &mut TcpStream) -> String {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).await.unwrap();
        head.push(char::from(byte[0]));
    }
    head
}

/// Returns the error of a dial to a server that sends `answer` and closes.
async fn refused_by(answer: &[u8], options: &DialOptions) -> DialError {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/?token=SECRET", server.local_addr().unwrap());
    let answering = async {
        let (mut stream, _) = server.accept().await.unwrap();
        request(&mut stream).await;
        stream.write_all(answer).await.unwrap();
    };
    let error = tokio::join!(dial(&url, options), answering).0.unwrap_err();
    let printed = format!("{error} {error:?}");
    assert!(printed.contains("ws://127.0.0.1:") && !printed.contains("SECRET"), "{printed}");
    error
}

#[tokio::test]
async fn names_addresses_paths_and_queries_are_dialled() {
    let (mut listener, address) = listen("ws://127.0.0.1:0").await;
    for url in [
        format!("ws://{address}"),
        format!("ws://{address}/any/path"),
        format!("ws://{address}?token=x"),
        format!("ws://localhost:{}/?token=x", address.port()),
    ] {
        let client = connect(&url).await.unwrap();
        talk(client, listener.accept().await).await;
    }
    // A machine without IPv6 cannot run this part.
    if TcpListener::bind("[::1]:0").await.is_ok() {
        let (mut listener, address) = listen("ws://[::1]:0").await;
        let client = connect(&format!("ws://{address}/")).await.unwrap();
        talk(client, listener.accept().await).await;
    }
}

#[tokio::test]
async fn the_token_and_the_query_reach_the_server() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    let options = DialOptions { bearer_token: Some("SECRET".into()), ..Default::default() };
    let url = format!("ws://{address}/rpc?a=b");
    let accepting = async { request(&mut server.accept().await.unwrap().0).await };
    let (dialled, head) = tokio::join!(dial(&url, &options), accepting);
    assert!(head.starts_with("GET /rpc?a=b HTTP/1.1\r\n"), "{head}");
    assert!(head.contains(&format!("\r\nHost: {address}\r\n")), "{head}");
    assert!(head.contains("\r\nAuthorization: Bearer SECRET\r\n"), "{head}");
    let error = dialled.unwrap_err();
    assert!(!format!("{error} {error:?}").contains("SECRET"));
}

#[tokio::test]
async fn the_response_decides_whether_a_retry_is_worthwhile() {
    let options = DialOptions::default();
    let denied = refused_by(b"HTTP/1.1 401 Unauthorized\r\n\r\n/?token=SECRET", &options).await;
    assert!(matches!(&denied, DialError::Refused { status, .. } if *status == 401));
    assert!(denied.to_string().contains("401 Unauthorized") && denied.is_permanent());

    let draining = refused_by(b"HTTP/1.1 503 Service Unavailable\r\n\r\n", &options).await;
    assert!(matches!(draining, DialError::Refused { .. }) && !draining.is_permanent());

    let other = refused_by(b"220 mail.example ESMTP\r\n", &options).await;
    let DialError::NotWebSocket { why: NotWebSocket::NotHttp(_), .. } = other else {
        panic!("{other:?}")
    };
    let forged = b"HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: x\r\n\r\n";
    let forged = refused_by(forged, &options).await;
    assert!(matches!(&forged, DialError::NotWebSocket { why: NotWebSocket::WrongKey, .. }));
    assert!(forged.is_permanent());

    let endless = [b"HTTP/1.1 200 OK\r\nX: ".as_slice(), &[b'x'; 20_000]].concat();
    let endless = refused_by(&endless, &options).await;
    assert!(matches!(
        endless,
        DialError::NotWebSocket { why: NotWebSocket::HeadTooLarge { .. }, .. }
    ));

    let gone = refused_by(b"HTTP/1.1 101 Switching", &options).await;
    assert!(matches!(gone, DialError::Unreachable { .. }) && !gone.is_permanent());
}

#[tokio::test]
async fn an_absent_server_is_worth_a_retry() {
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    for url in [format!("ws://{nobody}?token=SECRET"), "unix:///nonexistent/x.sock".into()] {
        let error = connect(&url).await.unwrap_err();
        assert!(matches!(error, DialError::Unreachable { .. }) && !error.is_permanent());
        assert!(!format!("{error} {error:?}").contains("SECRET"));
        assert!(error.source().unwrap().downcast_ref::<io::Error>().is_some());
    }
}

#[tokio::test]
async fn a_dropped_dial_closes_its_socket() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}", server.local_addr().unwrap());
    let mut stream = tokio::select! {
        never = connect(&url) => panic!("the server has not responded: {never:?}"),
        stream = async {
            let (mut stream, _) = server.accept().await.unwrap();
            request(&mut stream).await;
            stream
        } => stream,
    };
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
}

#[tokio::test]
async fn every_kind_of_cut_ends_both_sides() {
    let (mut listener, address) = listen("ws://127.0.0.1:0").await;
    let proxy = FaultProxy::start(address).await;
    for cut in Cut::ALL {
        let mut client = connect(&proxy.url()).await.unwrap();
        let mut server = listener.accept().await;
        proxy.black_hole();
        for connection in [&mut client, &mut server] {
            connection.outgoing.push(b"half of this arrives at most");
            connection.outgoing.flush().await.unwrap();
        }
        proxy.cut(cut).await;
        assert_eq!(client.incoming.recv().await, None, "{cut:?}");
        assert_eq!(server.incoming.recv().await, None, "{cut:?}");
        proxy.resume();
    }
}
