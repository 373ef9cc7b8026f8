//! Start, shutdown, restart, and the operator's view.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use exec_server_relay::frame::StreamId;
use exec_server_rendezvous::{
    BindRendezvousError, CredentialKind, Directory, NewCredential, RedbDirectory, Rendezvous,
    RendezvousConfig, Role,
};
use exec_server_transport::{
    CloseCode, DialError, DialOptions, SelfSigned, ServerTrust, TlsFiles, TlsOptions, TlsServer,
    dial, self_signed,
};
use hyper::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::support::{LIMIT, Peer, Service, bearer, key, raw_socket};

#[tokio::test]
async fn a_restart_keeps_tokens_and_the_tickets_of_environments() {
    let scratch = tempfile::tempdir().unwrap();
    let service = Service::start_in(scratch.path(), "127.0.0.1:0", |_| ()).await;
    let address = service.address.to_string();
    let (mut environment, registered) = service.environment("box").await;
    let token = service.token(Role::Harness, "box").await;
    let mut harness = service.harness("box", &token).await;
    let stream = StreamId::random();
    harness.send(stream, b"before").await;
    environment.payload().await;
    service.stop().await;
    environment.closed().await;
    harness.closed().await;

    let service = Service::start_in(scratch.path(), &address, |_| ()).await;
    let mut environment = Peer::dial(&registered["url"]).await;
    service.wait_online("box").await;
    let mut harness = service.harness("box", &token).await;
    harness.send(stream, b"after").await;
    assert_eq!(environment.payload().await, (stream, "after".into()));
    environment.send(stream, b"back").await;
    assert_eq!(harness.payload().await.1, "back");
    service.stop().await;
}

#[tokio::test]
async fn sockets_get_a_close_frame_for_the_restart() {
    let service = Service::start().await;
    let (_environment, registered) = service.environment("box").await;
    // A raw client, to see the bytes of the close frame.
    let mut raw = raw_socket(service.address, registered["url"].as_str().unwrap()).await;
    service.wait_online("box").await;
    let (_, received) = tokio::join!(service.stop(), async {
        let mut received = Vec::new();
        raw.read_to_end(&mut received).await.unwrap();
        received
    });
    let code = u16::from(CloseCode::Restart).to_be_bytes();
    let close = [&[0x88, 17][..], &code, b"service restart"].concat();
    assert!(received.windows(close.len()).any(|bytes| bytes == close), "{received:?}");
}

#[tokio::test]
async fn health_checks_and_the_status_page_respond() {
    let service = Service::start().await;
    let _environment = service.environment("box").await;
    for path in ["/healthz", "/readyz"] {
        assert_eq!(service.request(Method::GET, path, &[], String::new()).await.0, 200);
    }
    let (status, headers, page) = service.request(Method::GET, "/", &[], String::new()).await;
    assert_eq!(status, 200);
    let policy = "default-src 'none'; style-src 'unsafe-inline'";
    assert_eq!(headers["content-security-policy"], policy);
    assert!(page.contains("<td>box</td><td>online</td>"), "{page}");
    assert!(!page.contains("ticket") && !page.contains("<script"));
    // DNS rebinding: a page of another site reaches the port under its own name.
    let rebound = service.request(Method::GET, "/", &[("host", "evil.example")], String::new());
    assert_eq!(rebound.await.0, 403);
    service.stop().await;
}

#[tokio::test]
async fn metrics_are_for_operators_and_name_no_environment() {
    let closed = Service::start().await;
    assert_eq!(closed.request(Method::GET, "/metrics", &[], String::new()).await.0, 404);
    closed.stop().await;
    let service = Service::start_with(|config| {
        config.metrics = true;
        config.public_url = Some("https://relay.example".into());
    })
    .await;
    let get = async |token: &str| {
        let headers = [("authorization", &*bearer(token))];
        let (status, _, text) =
            service.request(Method::GET, "/metrics", &headers, String::new()).await;
        (status, text)
    };
    assert_eq!(get("wrong").await.0, 401);
    let harness = service.token(Role::Harness, "hostile-name").await;
    let (status, text) = get(&harness).await;
    assert_eq!(status, 401);
    assert!(text.contains("role operator"), "{text}");
    let new = NewCredential {
        kind: CredentialKind::Token,
        role: Role::Operator,
        environments: BTreeSet::new(),
        lifetime: None,
        name: None,
    };
    let (_, operator) = service.create_new(new).await;
    let environment = service.token(Role::Environment, "hostile-name").await;
    service.register("hostile-name", &environment).await;
    let (status, text) = get(&operator).await;
    assert_eq!(status, 200);
    for line in ["exec_server_relay_environments 0", "exec_server_relay_directory_up 1"] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    assert!(!text.contains("hostile-name"), "{text}");
    service.stop().await;
}

#[tokio::test]
async fn a_public_status_page_needs_a_token_and_shows_its_environments() {
    let service = Service::start_with(|config| {
        config.public_url = Some("https://relay.example".into());
    })
    .await;
    assert_eq!(service.url, "https://relay.example");
    let (status, headers, page) = service.request(Method::GET, "/", &[], String::new()).await;
    assert_eq!(status, 401);
    assert!(headers["www-authenticate"].to_str().unwrap().starts_with("Basic"));
    assert!(!page.contains("box"));
    let token = service.token(Role::Harness, "box").await;
    let password = base64_simd::STANDARD.encode_to_string(format!("x:{token}"));
    for authorization in [format!("Bearer {token}"), format!("Basic {password}")] {
        let headers = [("authorization", &*authorization)];
        let (status, _, _) = service.request(Method::GET, "/", &headers, String::new()).await;
        assert_eq!(status, 200);
    }
    let environment = service.token(Role::Environment, "other").await;
    let registered = service.register("other", &environment).await["url"].to_string();
    let local = format!("ws://{}", service.address);
    let url = registered.trim_matches('"').replace("wss://relay.example", &local);
    let _environment = Peer::dial(&url.into()).await;
    let new = NewCredential {
        kind: CredentialKind::Token,
        role: Role::Operator,
        environments: BTreeSet::new(),
        lifetime: None,
        name: None,
    };
    let (_, operator) = service.create_new(new).await;
    let page = async |token: &str| {
        let headers = [("authorization", &*bearer(token))];
        service.request(Method::GET, "/", &headers, String::new()).await.2
    };
    let sees_all = async {
        while !page(&operator).await.contains("<td>other</td><td>online</td>") {
            tokio::task::yield_now().await;
        }
    };
    timeout(LIMIT, sees_all).await.expect("an operator sees all environments");
    assert!(page(&operator).await.contains("Frames routed"));
    let seen = page(&token).await;
    assert!(!seen.contains("other") && !seen.contains("Frames routed"), "{seen}");
    let body = json!({"harness_public_key": key("h")});
    assert_eq!(service.call("other", "connect", &bearer(&operator), &body).await.0, 403);
    service.stop().await;
}

#[tokio::test]
async fn the_store_is_private_and_holds_no_token() {
    let service = Service::start().await;
    let (_, token) = service.create(CredentialKind::Token, Role::Harness, "box").await;
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    let made = service.data.join("made");
    drop(RedbDirectory::open(&made).unwrap());
    assert_eq!(mode(&made), 0o700, "a directory that did not exist");
    let store = service.data.join("rendezvous.redb");
    assert_eq!(mode(&store), 0o600);
    assert_eq!(mode(&service.data.join("admin.sock")), 0o600);
    let scratch = service.stop().await.unwrap();
    assert!(!scratch.path().join("admin.sock").exists());
    let bytes = std::fs::read(&store).unwrap();
    let secret = token.as_bytes();
    assert!(!bytes.windows(secret.len()).any(|window| window == secret));
}

#[tokio::test]
async fn plain_http_beyond_loopback_is_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = Arc::new(RedbDirectory::open(scratch.path()).unwrap());
    let config = RendezvousConfig::new("0.0.0.0:0".parse().unwrap());
    let refused = Rendezvous::bind(config.clone(), directory.clone()).await;
    assert!(matches!(refused, Err(BindRendezvousError::NeedsTls { .. })));
    let insecure = RendezvousConfig { insecure: true, ..config };
    let unreachable = Rendezvous::bind(insecure.clone(), directory.clone()).await;
    assert!(matches!(unreachable, Err(BindRendezvousError::NeedsPublicUrl { .. })));
    let public_url = Some("https://relay.example".to_owned());
    let allowed =
        Rendezvous::bind(RendezvousConfig { public_url, ..insecure }, directory.clone()).await;
    assert!(allowed.is_ok());
    let public_url = Some("http://relay.example".to_owned());
    let local = RendezvousConfig::new("127.0.0.1:0".parse().unwrap());
    let refused = Rendezvous::bind(RendezvousConfig { public_url, ..local }, directory).await;
    assert!(matches!(refused, Err(BindRendezvousError::PlainPublicUrl { .. })));
}

#[tokio::test]
async fn sockets_are_served_over_tls() {
    let scratch = tempfile::tempdir().unwrap();
    let names = vec!["127.0.0.1".to_owned()];
    let SelfSigned { certificate, key } = self_signed(&scratch.path().join("tls"), names).unwrap();
    let files = TlsFiles { certificate, key, client_ca: None };
    let tls = Arc::new(TlsServer::load(files).unwrap());
    let fingerprint = tls.fingerprint();
    let service = Service::start_in(&scratch.path().join("data"), "127.0.0.1:0", |config| {
        config.tls = Some(tls);
    })
    .await;
    assert!(service.url.starts_with("https://127.0.0.1:"));
    // The ticket is wrong: the refusal shows that the request arrived over TLS.
    let url = service.url.replace("https", "wss") + "/relay/environment?id=box&ticket=wrong";
    let trust = ServerTrust::Fingerprint(fingerprint);
    let tls = TlsOptions { trust, ..TlsOptions::default() };
    let refused = dial(&url, &DialOptions { tls, ..DialOptions::default() }).await;
    assert!(matches!(refused, Err(DialError::Refused { status, .. }) if status.as_u16() == 401));
    service.stop().await;
}

#[tokio::test]
async fn a_draining_service_accepts_nothing_new() {
    let mut service = Service::start_with(|config| {
        config.keep_alive.close_timeout = LIMIT;
        config.drain_timeout = LIMIT;
    })
    .await;
    // The environment does not respond to the close frame, so the service waits for it.
    let (lingering, registered) = service.environment("box").await;
    let token = service.token(Role::Harness, "box").await;
    let stopped = service.begin_stop();
    let wait = async {
        while service.request(Method::GET, "/readyz", &[], String::new()).await.0 != 503 {
            tokio::task::yield_now().await;
        }
    };
    timeout(LIMIT, wait).await.unwrap();
    assert_eq!(service.request(Method::GET, "/healthz", &[], String::new()).await.0, 200);
    assert_eq!(Peer::refusal(&registered["url"]).await, 503);
    let body = json!({"harness_public_key": key("h")});
    assert_eq!(service.call("box", "connect", &bearer(&token), &body).await.0, 503);
    drop(lingering);
    timeout(LIMIT, stopped).await.expect("the service ends").unwrap();
}

#[tokio::test]
async fn nodes_with_one_directory_send_harnesses_to_the_node_of_the_environment() {
    let scratch = tempfile::tempdir().unwrap();
    let directory: Arc<dyn Directory> = Arc::new(RedbDirectory::open(scratch.path()).unwrap());
    let start = async |name: &str| {
        let data = scratch.path().join(name);
        std::fs::create_dir(&data).unwrap();
        Service::start_on(Arc::clone(&directory), &data, "127.0.0.1:0", |config| {
            config.renew_interval = Duration::from_millis(100);
        })
        .await
    };
    let (one, other) = (start("one").await, start("other").await);
    let (mut old, _) = one.environment("box").await;
    let token = one.token(Role::Harness, "box").await;
    let connected = other.connect("box", &token).await;
    let at_one = one.url.replace("http", "ws");
    assert!(connected["url"].as_str().unwrap().starts_with(&at_one));
    let mut harness = Peer::dial(&connected["url"]).await;
    let stream = StreamId::random();
    harness.send(stream, b"through one").await;
    assert_eq!(old.payload().await.1, "through one");

    // A registration at the other node takes over, and the first node notices.
    let (_new, _) = other.environment("box").await;
    old.closed().await;
    let connected = one.connect("box", &token).await;
    assert!(connected["url"].as_str().unwrap().starts_with(&other.url.replace("http", "ws")));
    one.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn an_incomplete_request_is_dropped() {
    let service = Service::start_with(|config| {
        config.handshake_timeout = Duration::from_millis(100);
    })
    .await;
    for beginning in ["", "POST /cloud/environment/box/register HTTP/1.1\r\nhost: localhost\r\n"] {
        let mut raw = tokio::net::TcpStream::connect(service.address).await.unwrap();
        raw.write_all(beginning.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        timeout(LIMIT, raw.read_to_end(&mut answer)).await.unwrap().unwrap();
        assert!(answer.is_empty());
    }
    service.stop().await;
}

#[tokio::test]
async fn a_credential_revoked_while_the_node_leaves_loses_its_sockets() {
    let mut service = Service::start_with(|config| config.drain_spread = 100 * LIMIT).await;
    let environment = async |name| {
        let (id, token) = service.create(CredentialKind::Token, Role::Environment, name).await;
        let peer = Peer::dial(&service.register(name, &token).await["url"]).await;
        service.wait_online(name).await;
        (id, peer)
    };
    let (mut one, mut other) = (environment("one").await, environment("other").await);
    let leaving = service.begin_stop();
    // One environment is moved at once, the other only much later.
    let (id, mut stays) = tokio::select! {
        () = one.1.closed() => other,
        () = other.1.closed() => one,
    };
    service.revoke(&id).await;
    stays.closed().await;
    leaving.abort();
}
