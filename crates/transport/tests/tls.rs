//! TLS between real sockets: server trust, client identity, and changes while running.

#![expect(clippy::unwrap_used, reason = "a step that fails fails its test")]

use std::path::Path;
use std::sync::Arc;

use exec_server_protocol::Subject;
use exec_server_test_support::{Issued, TestAuthority, Validity};
use exec_server_transport::{
    AuthOptions, Authenticator, BindError, CapabilityToken, ClientIdentity, Connection, DialError,
    DialOptions, Fingerprint, ListenUrl, Listener, ListenerOptions, NotWebSocket, Received,
    ServerTrust, TlsError, TlsFiles, TlsOptions, TlsServer, dial, sha256,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const NAMES: [&str; 2] = ["localhost", "127.0.0.1"];

fn server(issued: &Issued, client_ca: Option<&Path>) -> Arc<TlsServer> {
    let Issued { certificate, key } = issued.clone();
    let client_ca = client_ca.map(Path::to_owned);
    Arc::new(TlsServer::load(TlsFiles { certificate, key, client_ca }).unwrap())
}

async fn listen(tls: Arc<TlsServer>) -> (Listener, String) {
    listen_with(ListenerOptions { tls: Some(tls), ..Default::default() }).await
}

async fn listen_with(options: ListenerOptions) -> (Listener, String) {
    let listener = Listener::bind(&"wss://127.0.0.1:0".parse().unwrap(), options).await.unwrap();
    let ListenUrl::SecureWebSocket(address) = *listener.local_url() else { panic!("no TLS") };
    (listener, format!("wss://{address}"))
}

fn trusting(trust: ServerTrust) -> DialOptions {
    DialOptions { tls: TlsOptions { trust, identity: None }, ..Default::default() }
}

async fn talk(client: &mut Connection, server: &mut Connection) {
    let large = vec![b'x'; 3 << 20];
    client.outgoing.push(&large);
    let (sent, received) = tokio::join!(client.outgoing.flush(), server.incoming.recv());
    sent.unwrap();
    assert!(matches!(received, Some(Received::Message(message)) if message == large));
    server.outgoing.push(&large);
    let (sent, received) = tokio::join!(server.outgoing.flush(), client.incoming.recv());
    sent.unwrap();
    assert!(matches!(received, Some(Received::Message(message)) if message == large));
}

async fn refusal(url: &str, trust: ServerTrust) -> DialError {
    let error = dial(url, &trusting(trust)).await.unwrap_err();
    assert!(error.is_permanent(), "{error}");
    error
}

#[tokio::test]
async fn a_server_is_trusted_by_authority_or_fingerprint() {
    let directory = tempfile::tempdir().unwrap();
    let authority = TestAuthority::new();
    let ca = authority.write(directory.path());
    let tls = server(&authority.issue(directory.path(), &NAMES, Validity::Now), None);
    let fingerprint = tls.fingerprint();
    let (mut listener, url) = listen(tls).await;
    let by_name = url.replace("127.0.0.1", "localhost");
    for (url, trust) in [
        (&url, ServerTrust::Authorities(ca.clone())),
        (&by_name, ServerTrust::Authorities(ca)),
        (&url, ServerTrust::Fingerprint(fingerprint)),
    ] {
        let options = trusting(trust);
        let (client, mut server) = tokio::join!(dial(url, &options), listener.accept());
        talk(&mut client.unwrap(), &mut server).await;
    }
}

#[tokio::test]
async fn a_server_that_cannot_prove_itself_is_refused_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let authority = TestAuthority::new();
    let ca = ServerTrust::Authorities(authority.write(directory.path()));
    let elsewhere = tempfile::tempdir().unwrap();
    let other_ca = ServerTrust::Authorities(TestAuthority::new().write(elsewhere.path()));
    let issue = |names: &[&str], validity| {
        server(&authority.issue(directory.path(), names, validity), None)
    };
    let other_fingerprint = ServerTrust::Fingerprint(Fingerprint::of(b"another"));
    for (tls, trust, reason) in [
        (issue(&NAMES, Validity::Now), other_ca, "no trusted authority"),
        (issue(&NAMES, Validity::Now), ServerTrust::SystemRoots, "no trusted authority"),
        (issue(&["box.example"], Validity::Now), ca.clone(), "for another name"),
        (issue(&NAMES, Validity::Expired), ca, "has expired"),
        (issue(&NAMES, Validity::Now), other_fingerprint, "the expected fingerprint"),
    ] {
        let (_listener, url) = listen(tls).await;
        let error = refusal(&url, trust).await;
        // On a system without authorities, the dial already fails for lack of them.
        let is_without_roots = matches!(&error, DialError::Tls { reason, .. } if matches!(**reason, TlsError::NoSystemRoots));
        assert!(error.to_string().contains(reason) || is_without_roots, "{reason}: {error}");
    }
}

#[tokio::test]
async fn tls_mistakes_have_distinct_errors() {
    let plain =
        Listener::bind(&"ws://127.0.0.1:0".parse().unwrap(), ListenerOptions::default()).await;
    let plain = plain.unwrap();
    let url = plain.local_url().to_string().replace("ws://", "wss://");
    let trust = ServerTrust::Fingerprint(Fingerprint::of(b"any"));
    let error = refusal(&url, trust).await;
    let is_expected = matches!(&error, DialError::NotWebSocket { why: NotWebSocket::NotTls, .. });
    assert!(is_expected, "{error}");
    let missing = ServerTrust::Authorities("/nonexistent/ca.pem".into());
    assert!(matches!(refusal(&url, missing).await, DialError::Tls { .. }));

    let url = "wss://127.0.0.1:0".parse().unwrap();
    let error = Listener::bind(&url, ListenerOptions::default()).await.unwrap_err();
    assert!(matches!(error, BindError::NeedsCertificate { .. }), "{error}");

    let directory = tempfile::tempdir().unwrap();
    let authority = TestAuthority::new();
    let Issued { certificate, key } = authority.issue(directory.path(), &NAMES, Validity::Now);
    let load = |certificate: &Path, key: &Path| {
        let (certificate, key) = (certificate.to_owned(), key.to_owned());
        TlsServer::load(TlsFiles { certificate, key, client_ca: None }).unwrap_err()
    };
    assert!(matches!(load(&key, &key), TlsError::NoCertificate { .. }));
    assert!(matches!(load(&certificate, &certificate), TlsError::NoPrivateKey { .. }));
    assert!(matches!(load(Path::new("/nonexistent"), &key), TlsError::Unreadable { .. }));
    let other = tempfile::tempdir().unwrap();
    let foreign = authority.issue(other.path(), &NAMES, Validity::Now);
    let error = load(&certificate, &foreign.key);
    assert!(matches!(error, TlsError::Unusable { .. }));
    assert!(error.to_string().contains(&*foreign.key.to_string_lossy()), "{error}");
}

/// A ClientHello with TLS 1.1 as its highest version, as sent by old clients.
const OLD_HELLO: &[u8] = &[
    0x16, 0x03, 0x01, 0x00, 0x2d, // handshake record
    0x01, 0x00, 0x00, 0x29, // ClientHello
    0x03, 0x02, // TLS 1.1
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25,
    26, 27, 28, 29, 30, 31,   // random
    0x00, // no session
    0x00, 0x02, 0x00, 0x2f, // TLS_RSA_WITH_AES_128_CBC_SHA
    0x01, 0x00, // no compression
];

#[tokio::test]
async fn old_tls_versions_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let authority = TestAuthority::new();
    let tls = server(&authority.issue(directory.path(), &NAMES, Validity::Now), None);
    let (_listener, url) = listen(tls).await;
    let mut stream = TcpStream::connect(url.strip_prefix("wss://").unwrap()).await.unwrap();
    stream.write_all(OLD_HELLO).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    const ALERT: u8 = 0x15;
    const FATAL: u8 = 2;
    const HANDSHAKE_FAILURE: u8 = 40;
    const PROTOCOL_VERSION: u8 = 70;
    assert_eq!((answer[0], answer[5]), (ALERT, FATAL), "{answer:?}");
    assert!(matches!(answer[6], HANDSHAKE_FAILURE | PROTOCOL_VERSION), "{answer:?}");
    assert_eq!(answer.len(), 7, "nothing follows the alert");
}

#[tokio::test]
async fn a_client_certificate_identifies_the_client() {
    let directory = tempfile::tempdir().unwrap();
    let authority = TestAuthority::new();
    let ca = authority.write(directory.path());
    let tls = server(&authority.issue(directory.path(), &NAMES, Validity::Now), Some(&ca));
    let (mut listener, url) = listen(Arc::clone(&tls)).await;
    let identity_of = |name: &str, authority: &TestAuthority, validity| {
        let own = directory.path().join(name.replace("://", "-").replace('/', "-"));
        std::fs::create_dir(&own).unwrap();
        let Issued { certificate, key } = authority.issue(&own, &[name], validity);
        let tls = TlsOptions {
            trust: ServerTrust::Authorities(ca.clone()),
            identity: Some(ClientIdentity { certificate, key }),
        };
        DialOptions { tls, ..Default::default() }
    };
    for (name, subject) in
        [("dev.example", "dev.example"), ("spiffe://example/agent", "spiffe://example/agent")]
    {
        let options = identity_of(name, &authority, Validity::Now);
        let (client, mut server) = tokio::join!(dial(&url, &options), listener.accept());
        assert_eq!(server.principal.subject, Subject::Certificate(subject.into()));
        talk(&mut client.unwrap(), &mut server).await;
    }
    // A client with no certificate, one of another authority, or an expired one is refused.
    let error = dial(&url, &trusting(ServerTrust::Authorities(ca.clone()))).await.unwrap_err();
    assert!(matches!(&error, DialError::Refused { status, .. } if *status == 401), "{error}");
    let foreign = identity_of("foreign.example", &TestAuthority::new(), Validity::Now);
    assert!(dial(&url, &foreign).await.is_err());
    let expired = identity_of("expired.example", &authority, Validity::Expired);
    assert!(dial(&url, &expired).await.is_err());

    // With token authentication, both are required, and the token determines the identity.
    let token = CapabilityToken::Sha256(sha256(b"sesame"));
    let authenticator = Authenticator::new(AuthOptions::CapabilityToken(token)).unwrap();
    let options = ListenerOptions {
        tls: Some(tls),
        authenticator: Some(Arc::new(authenticator)),
        ..Default::default()
    };
    let (mut listener, url) = listen_with(options).await;
    let with_token =
        |options: DialOptions| DialOptions { bearer_token: Some("sesame".into()), ..options };
    let both = with_token(identity_of("both.example", &authority, Validity::Now));
    let (_client, server) = tokio::join!(dial(&url, &both), listener.accept());
    assert_eq!(server.principal.subject, Subject::Token(sha256(b"sesame")));
    for half in [
        identity_of("half.example", &authority, Validity::Now),
        with_token(trusting(ServerTrust::Authorities(ca))),
    ] {
        let error = dial(&url, &half).await.unwrap_err();
        assert!(matches!(&error, DialError::Refused { status, .. } if *status == 401), "{error}");
    }
}

#[tokio::test]
async fn a_new_certificate_is_used_without_dropping_connections() {
    let directory = tempfile::tempdir().unwrap();
    let authority = TestAuthority::new();
    let tls = server(&authority.issue(directory.path(), &NAMES, Validity::Now), None);
    let (mut listener, url) = listen(Arc::clone(&tls)).await;
    let mut open = Vec::new();
    let mut fingerprints = Vec::new();
    for _ in 0..5 {
        let fingerprint = tls.fingerprint();
        assert!(!fingerprints.contains(&fingerprint) && !tls.has_changed());
        fingerprints.push(fingerprint);
        let options = trusting(ServerTrust::Fingerprint(fingerprint));
        let (client, server) = tokio::join!(dial(&url, &options), listener.accept());
        open.push((client.unwrap(), server));
        for (client, server) in &mut open {
            talk(client, server).await;
        }
        let _ = authority.issue(directory.path(), &NAMES, Validity::Now);
        assert!(tls.has_changed());
        tls.reload().unwrap();
    }
    // An unfinished change: the certificate file is still empty, so the old certificate stays.
    let before = tls.fingerprint();
    std::fs::write(directory.path().join("certificate.pem"), "").unwrap();
    assert!(tls.has_changed() && tls.reload().is_err());
    assert_eq!(tls.fingerprint(), before);
    let options = trusting(ServerTrust::Fingerprint(before));
    let (client, _server) = tokio::join!(dial(&url, &options), listener.accept());
    client.unwrap();
}
