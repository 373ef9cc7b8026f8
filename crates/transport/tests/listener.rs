//! The listener as a client sees it: real sockets, hand-written bytes.

#![expect(clippy::unwrap_used, reason = "a step that fails fails its test")]

use std::time::Duration;

use exec_server_transport::{
    BindError, CloseCode, Connection, DialError, DialOptions, ListenUrl, Listener, ListenerOptions,
    Outgoing, Received, TransportKind, dial,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

const UPGRADE: &str = "Upgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

async fn listen(url: &str, options: ListenerOptions) -> Listener {
    Listener::bind(&url.parse().unwrap(), options).await.unwrap()
}

async fn on_loopback() -> (Listener, std::net::SocketAddr) {
    let listener = listen("ws://127.0.0.1:0", ListenerOptions::default()).await;
    let ListenUrl::WebSocket(address) = *listener.local_url() else { panic!("not a TCP listener") };
    (listener, address)
}

async fn connect(url: &str) -> Result<Connection, DialError> {
    dial(url, &DialOptions::default()).await
}

/// Returns the whole response to one request.
async fn ask(address: std::net::SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    response
}

fn text(received: Option<Received>) -> String {
    match received {
        Some(Received::Message(message)) => String::from_utf8(message.to_vec()).unwrap(),
        other => panic!("{other:?}"),
    }
}

async fn send(outgoing: &mut Outgoing, message: &str) {
    outgoing.push(message.as_bytes());
    outgoing.flush().await.unwrap();
}

async fn talk(mut client: Connection, mut server: Connection) {
    send(&mut client.outgoing, "question").await;
    assert_eq!(text(server.incoming.recv().await), "question");
    send(&mut server.outgoing, "answer").await;
    assert_eq!(text(client.incoming.recv().await), "answer");

    client.outgoing.close(CloseCode::Normal, "").await;
    assert_eq!(
        tokio::join!(client.incoming.recv(), async {
            let end = server.incoming.recv().await;
            drop(server);
            end
        }),
        (None, None)
    );
}

#[tokio::test]
async fn clients_connect_over_tcp_and_unix_sockets() {
    let (mut listener, address) = on_loopback().await;
    let client = connect(&format!("ws://{address}/any/path")).await.unwrap();
    let server = listener.accept().await;
    assert_eq!(server.kind, TransportKind::WebSocket);
    talk(client, server).await;

    let directory = tempfile::tempdir().unwrap();
    let url = format!("unix://{}", directory.path().join("x.sock").display());
    let mut listener = listen(&url, ListenerOptions::default()).await;
    assert_eq!(listener.local_url().to_string(), url);
    let client = connect(&url).await.unwrap();
    let server = listener.accept().await;
    assert_eq!(server.kind, TransportKind::Unix);
    talk(client, server).await;
}

#[tokio::test]
async fn health_and_refusals_are_one_line_of_text() {
    let (listener, address) = on_loopback().await;
    let host = format!("Host: {address}\r\n");
    let get = |path: &str, headers: &str| format!("GET {path} HTTP/1.1\r\n{headers}\r\n");

    let response = ask(address, &get("/healthz", &host)).await;
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    assert!(response.ends_with("\r\n\r\nok\n"), "{response}");

    for (request, status) in [
        (get("/", &host), 426),
        (get("/other", &host), 404),
        (format!("POST / HTTP/1.1\r\n{host}Content-Length: 0\r\n\r\n"), 405),
        (get("/readyz", "Host: evil.example\r\n"), 403),
        (get("/", &format!("Host: evil.example\r\n{UPGRADE}")), 403),
        (get("/", &format!("{host}Origin: http://localhost\r\n{UPGRADE}")), 403),
        ("GET /healthz HTTP/1.1\r\n\r\n".to_owned(), 403),
        ("GET /healthz HTTP/1.0\r\n\r\n".to_owned(), 403),
    ] {
        let response = ask(address, &request).await;
        assert_eq!(response[9..12], status.to_string(), "{request}{response}");
        assert_eq!(response.split_once("\r\n\r\n").unwrap().1.lines().count(), 1);
    }

    listener.readiness().drain();
    for (request, status) in [
        (get("/readyz", &host), "503"),
        (get("/healthz", &host), "200"),
        (get("/", &format!("{host}{UPGRADE}")), "503"),
    ] {
        assert_eq!(ask(address, &request).await[9..12], *status);
    }
}

#[tokio::test]
async fn allowed_origins_and_hosts_pass() {
    let options = ListenerOptions {
        allowed_origins: vec!["https://good.example".into()],
        allowed_hosts: vec!["box.example".into()],
        ..ListenerOptions::default()
    };
    let mut listener = listen("ws://127.0.0.1:0", options).await;
    let ListenUrl::WebSocket(address) = *listener.local_url() else { panic!("not a TCP listener") };
    let mut client = TcpStream::connect(address).await.unwrap();
    let request = format!(
        "GET / HTTP/1.1\r\nHost: box.example\r\nOrigin: https://good.example\r\n{UPGRADE}\r\n"
    );
    client.write_all(request.as_bytes()).await.unwrap();
    listener.accept().await;
}

/// The key and the response are the example of RFC 6455.
#[tokio::test]
async fn bytes_sent_along_with_the_upgrade_are_not_lost() {
    let (mut listener, address) = on_loopback().await;
    let mut client = TcpStream::connect(address).await.unwrap();
    let request = format!("GET / HTTP/1.1\r\nHost: localhost\r\n{UPGRADE}\r\n");
    let frame = b"\x81\x82\0\0\0\0{}";
    client.write_all(&[request.as_bytes(), frame].concat()).await.unwrap();
    let mut server = listener.accept().await;
    assert_eq!(text(server.incoming.recv().await), "{}");

    drop(server);
    let mut response = String::new();
    client.read_to_string(&mut response).await.unwrap();
    assert!(response.starts_with("HTTP/1.1 101 "), "{response}");
    let headers = response.to_ascii_lowercase();
    assert!(
        headers.contains("sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=\r\n"),
        "{headers}"
    );
    assert!(headers.contains("connection: upgrade\r\n"), "{headers}");
}

#[tokio::test]
async fn silent_sockets_are_dropped_and_lock_out_no_client() {
    let options =
        ListenerOptions { handshake_timeout: Duration::from_secs(1), ..Default::default() };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.sock");
    let url = format!("unix://{}", path.display());
    let mut listener = listen(&url, options).await;

    let mut silent = Vec::new();
    for index in 0..200 {
        let mut stream = UnixStream::connect(&path).await.unwrap();
        if index % 2 == 0 {
            stream.write_all(b"GET / HTTP/1.1\r\nHost:").await.unwrap();
        }
        silent.push(stream);
    }
    let (client, server) = tokio::join!(connect(&url), listener.accept());
    talk(client.unwrap(), server).await;
    for mut stream in silent {
        let mut nothing = Vec::new();
        // A close with unread bytes is a reset, which is accepted as well.
        let _ = stream.read_to_end(&mut nothing).await;
        assert!(nothing.is_empty());
    }
}

#[tokio::test]
async fn the_oldest_handshake_makes_room_for_the_newest() {
    let options = ListenerOptions { max_handshakes: 8, ..Default::default() };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.sock");
    let url = format!("unix://{}", path.display());
    let mut listener = listen(&url, options).await;
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(UnixStream::connect(&path).await.unwrap());
    }
    let (client, server) = tokio::join!(connect(&url), listener.accept());
    for stream in &mut silent[..12] {
        assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
    }
    talk(client.unwrap(), server).await;
}

#[tokio::test]
async fn bind_errors_state_the_reason() {
    let bind = async |url: &str| {
        let url = url.parse().unwrap();
        Listener::bind(&url, ListenerOptions::default()).await.unwrap_err()
    };
    let error = bind("ws://0.0.0.0:0").await;
    assert!(matches!(error, BindError::NeedsAuthentication { .. }));
    assert!(error.to_string().contains("authentication"), "{error}");
    assert!(matches!(bind("ws://[::]:0").await, BindError::NeedsAuthentication { .. }));
    assert!(matches!(bind("off").await, BindError::NotAnAddress { .. }));

    let (_listener, address) = on_loopback().await;
    assert!(matches!(bind(&format!("ws://{address}")).await, BindError::AddressInUse { .. }));
    assert!(matches!(bind("unix:///nonexistent/x.sock").await, BindError::Unix { .. }));
}

#[tokio::test]
async fn a_dropped_listener_frees_its_address_and_keeps_its_connections() {
    let (mut listener, address) = on_loopback().await;
    let url = format!("ws://{address}");
    let client = connect(&url).await.unwrap();
    let server = listener.accept().await;
    drop(listener);
    while connect(&url).await.is_ok() {
        tokio::task::yield_now().await;
    }
    talk(client, server).await;
}
