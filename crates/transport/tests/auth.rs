//! Authentication by tokens, over real sockets.

#![expect(clippy::unwrap_used, reason = "a step that fails fails its test")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use exec_server_protocol::{Role, Subject};
use exec_server_transport::{
    AuthOptions, Authenticator, BindError, CapabilityToken, Claims, DialError, DialOptions,
    ListenUrl, Listener, ListenerOptions, SigningSecret, SubjectLimits, TokenRules, dial,
    new_token, sha256,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const UPGRADE: &str = "Host: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

fn with_token(token: &str) -> ListenerOptions {
    let token = CapabilityToken::Sha256(sha256(token.as_bytes()));
    let authenticator = Authenticator::new(AuthOptions::CapabilityToken(token)).unwrap();
    ListenerOptions { authenticator: Some(Arc::new(authenticator)), ..Default::default() }
}

async fn listen(options: ListenerOptions) -> (Listener, SocketAddr) {
    let listener = Listener::bind(&"ws://127.0.0.1:0".parse().unwrap(), options).await.unwrap();
    let ListenUrl::WebSocket(address) = *listener.local_url() else { panic!("not TCP") };
    (listener, address)
}

/// Returns the head of the response to one request.
async fn ask(address: SocketAddr, target: &str, headers: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {target} HTTP/1.1\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

async fn status(address: SocketAddr, target: &str, headers: &str) -> u16 {
    ask(address, target, headers).await.split(' ').nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn every_token_source_works_and_only_health_needs_no_token() {
    let (_listener, address) = listen(with_token("sesame")).await;
    for headers in [
        "Authorization: Bearer sesame\r\n",
        "authorization: bearer sesame\r\n",
        "Sec-WebSocket-Protocol: exec-server.v1, bearer.sesame\r\n",
    ] {
        assert_eq!(status(address, "/", &format!("{UPGRADE}{headers}")).await, 101, "{headers}");
    }
    assert_eq!(status(address, "/any?token=sesame", UPGRADE).await, 101);
    let host = "Host: localhost\r\n";
    assert_eq!(status(address, "/", &format!("{host}Authorization: Bearer sesame\r\n")).await, 426);
    for target in ["/healthz", "/readyz"] {
        assert_eq!(status(address, target, host).await, 200);
    }
    for target in ["/", "/elsewhere", "/?token=", "/?token=Sesame"] {
        assert_eq!(status(address, target, UPGRADE).await, 401, "{target}");
    }
    let refused = ask(address, "/", UPGRADE).await.to_lowercase();
    assert!(refused.contains("www-authenticate: bearer"), "{refused}");
    // The origin of a page is judged before its token.
    let origin = format!("{UPGRADE}Origin: https://evil.example\r\n");
    assert_eq!(status(address, "/?token=sesame", &origin).await, 403);
    let two = format!("{UPGRADE}Authorization: Bearer sesame\r\n");
    assert_eq!(status(address, "/?token=other", &two).await, 401);
}

#[tokio::test]
async fn the_subprotocol_is_selected_and_the_token_is_never_returned() {
    let (_listener, address) = listen(with_token("sesame")).await;
    let offered = format!("{UPGRADE}Sec-WebSocket-Protocol: bearer.sesame, exec-server.v1\r\n");
    let response = ask(address, "/", &offered).await.to_lowercase();
    assert!(response.contains("sec-websocket-protocol: exec-server.v1\r\n"), "{response}");
    assert!(!response.contains("sesame"), "{response}");
}

#[tokio::test]
async fn a_connection_carries_the_subject_of_its_token() {
    let (mut listener, address) = listen(with_token("sesame")).await;
    let url = format!("ws://{address}");
    let options = DialOptions { bearer_token: Some("sesame".into()), ..Default::default() };
    let (_client, server) = tokio::join!(dial(&url, &options), listener.accept());
    assert_eq!(server.principal.subject, Subject::Token(sha256(b"sesame")));
    let wrong = DialOptions { bearer_token: Some("open".into()), ..Default::default() };
    let error = dial(&url, &wrong).await.unwrap_err();
    assert!(matches!(error, DialError::Refused { .. }) && error.is_permanent());
    assert!(error.to_string().contains("--token-file"), "{error}");

    let directory = tempfile::tempdir().unwrap();
    let secret_file = directory.path().join("secret");
    std::fs::write(&secret_file, new_token()).unwrap();
    let secret = SigningSecret::read(&secret_file).unwrap();
    let rules = TokenRules::default();
    let signed = Authenticator::new(AuthOptions::SignedBearerToken { secret_file, rules }).unwrap();
    let options = ListenerOptions { authenticator: Some(Arc::new(signed)), ..Default::default() };
    let (mut listener, address) = listen(options).await;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let claims: Claims = serde_json::from_value(serde_json::json!({
        "sub": "alice", "exp": now + 60, "role": "admin",
    }))
    .unwrap();
    let options = DialOptions { bearer_token: Some(secret.sign(&claims)), ..Default::default() };
    let url = format!("ws://{address}");
    let (_client, server) = tokio::join!(dial(&url, &options), listener.accept());
    assert_eq!(server.principal.subject, Subject::Named("alice".into()));
    assert_eq!(server.principal.role, Role::Admin);
}

#[tokio::test]
async fn failures_are_delayed_and_a_valid_token_is_not() {
    let (mut listener, address) = listen(with_token("sesame")).await;
    // Enough failures to delay the last refusals by several seconds.
    let request = format!("GET /?token=guess HTTP/1.1\r\n{UPGRADE}\r\n");
    let mut attempts = Vec::new();
    for _ in 0..50 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        attempts.push(stream);
    }
    for answered in &mut attempts[..5] {
        assert_eq!(answered.read_u8().await.unwrap(), b'H');
    }
    let mut delayed = attempts.pop().unwrap();
    let options = DialOptions { bearer_token: Some("sesame".into()), ..Default::default() };
    let url = format!("ws://{address}");
    // Sent later, but accepted first.
    let dialled = async { tokio::join!(dial(&url, &options), listener.accept()) };
    tokio::select! {
        biased;
        _ = delayed.read_u8() => panic!("a refusal beyond the free ones was not delayed"),
        (client, _) = dialled => drop(client.unwrap()),
    }
    assert_eq!(delayed.read_u8().await.unwrap(), b'H');
}

#[tokio::test]
async fn connections_are_counted_for_each_subject() {
    let limits = SubjectLimits::new(2, 1);
    let options = ListenerOptions { limits, ..with_token("sesame") };
    let (mut listener, address) = listen(options).await;
    let options = DialOptions { bearer_token: Some("sesame".into()), ..Default::default() };
    let url = format!("ws://{address}");
    let (client, server) = tokio::join!(dial(&url, &options), listener.accept());
    let error = dial(&url, &options).await.unwrap_err();
    assert!(matches!(&error, DialError::Refused { status, .. } if *status == 429), "{error}");
    assert!(!error.is_permanent());
    drop((client, server));
    let (client, _server) = tokio::join!(dial(&url, &options), listener.accept());
    client.unwrap();

    let full = SubjectLimits::new(0, 1);
    let (_listener, address) = listen(ListenerOptions { limits: full, ..Default::default() }).await;
    let error = dial(&format!("ws://{address}"), &DialOptions::default()).await.unwrap_err();
    assert!(matches!(&error, DialError::Refused { status, .. } if *status == 503), "{error}");
}

#[tokio::test]
async fn beyond_loopback_a_listener_needs_credentials_and_tls() {
    let bind =
        async |options| Listener::bind(&"ws://0.0.0.0:0".parse().unwrap(), options).await.map(drop);
    let error = bind(ListenerOptions::default()).await.unwrap_err();
    assert!(matches!(error, BindError::NeedsAuthentication { .. }));
    for flag in ["--ws-auth", "--ws-token-file"] {
        assert!(error.to_string().contains(flag), "{error}");
    }
    let error = bind(with_token("sesame")).await.unwrap_err();
    assert!(
        matches!(error, BindError::NeedsTls { .. }) && error.to_string().contains("--insecure")
    );
    bind(ListenerOptions { insecure: true, ..with_token("sesame") }).await.unwrap();
    let insecure = ListenerOptions { insecure: true, ..Default::default() };
    assert!(matches!(bind(insecure).await.unwrap_err(), BindError::NeedsAuthentication { .. }));
}

#[tokio::test]
async fn a_handshake_that_takes_too_long_is_dropped() {
    let handshake_timeout = Duration::from_millis(50);
    let (_listener, address) =
        listen(ListenerOptions { handshake_timeout, ..Default::default() }).await;
    let mut silent = TcpStream::connect(address).await.unwrap();
    assert_eq!(silent.read(&mut [0]).await.unwrap(), 0);
}
