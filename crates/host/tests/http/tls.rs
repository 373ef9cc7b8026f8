//! https, with authorities from variables such as `SSL_CERT_FILE`.

use std::io::Write;

use exec_server_host::http::{HttpClient, HttpError, Redirects, Request, TlsProblem};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tempfile::NamedTempFile;

use crate::server::{TestServer, answer};
use crate::{client, client_with, failure, get, header, text};

pub(crate) struct Identity {
    config: ServerConfig,
    /// The certificate that a client must trust.
    authority: NamedTempFile,
}

impl Identity {
    pub(crate) fn new(name: &str, protocols: &[&[u8]]) -> Self {
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed([name.to_owned()]).unwrap();
        let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
        let provider = rustls::crypto::ring::default_provider();
        let mut config = ServerConfig::builder_with_provider(provider.into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)
            .unwrap();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        let mut authority = NamedTempFile::new().unwrap();
        authority.write_all(cert.pem().as_bytes()).unwrap();
        Self { config, authority }
    }

    pub(crate) fn trusting_client(&self) -> HttpClient {
        client_with(&[self.trust()])
    }

    /// Returns the variable that makes a client trust the identity.
    pub(crate) fn trust(&self) -> (&str, &str) {
        ("SSL_CERT_FILE", self.authority.path().to_str().unwrap())
    }

    /// Starts a server that responds with the HTTP version of the request.
    pub(crate) async fn serve(&self) -> TestServer {
        TestServer::start_tls(self.config.clone(), |request| async move {
            answer(200, &[], &format!("{:?}", request.version()))
        })
        .await
    }
}

pub(crate) fn url(server: &TestServer, path: &str) -> String {
    format!("https://localhost:{}{path}", server.address.port())
}

#[tokio::test]
async fn the_newest_common_version_is_used() {
    for (protocols, expected) in
        [(&[b"h2".as_slice(), b"http/1.1"][..], "HTTP/2.0"), (&[b"http/1.1"], "HTTP/1.1")]
    {
        let identity = Identity::new("localhost", protocols);
        let server = identity.serve().await;
        let response = identity.trusting_client().send(get(url(&server, "/"))).await.unwrap();
        assert_eq!(text(response).await, expected);
    }
}

/// The requests share one HTTP/2 connection and its flow-control window.
#[tokio::test]
async fn unread_responses_do_not_block_others() {
    let identity = Identity::new("localhost", &[b"h2"]);
    let large = "x".repeat(8 << 20);
    let server = TestServer::start_tls(identity.config.clone(), move |request| {
        let body = if request.uri().path() == "/large" { large.as_str() } else { "small" };
        let response = answer(200, &[], body);
        async { response }
    })
    .await;
    let client = identity.trusting_client();
    let mut unread = Vec::new();
    for _ in 0..16 {
        unread.push(client.send(get(url(&server, "/large"))).await.unwrap());
        let response = client.send(get(url(&server, "/small"))).await.unwrap();
        assert_eq!(text(response).await, "small");
    }
}

#[tokio::test]
async fn authorities_may_come_from_several_directories() {
    let identity = Identity::new("localhost", &[]);
    let server = identity.serve().await;
    let (empty, directory) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // The file name that OpenSSL's tools give to a certificate in such a directory.
    std::fs::copy(identity.authority.path(), directory.path().join("0123abcd.0")).unwrap();
    let directories = format!("{}:{}", empty.path().display(), directory.path().display());
    let client = client_with(&[("SSL_CERT_DIR", &directories)]);
    assert_eq!(client.send(get(url(&server, "/"))).await.unwrap().status, 200);
}

#[tokio::test]
async fn codex_ca_certificate_takes_precedence_over_ssl_cert_file() {
    let (identity, other) = (Identity::new("localhost", &[]), Identity::new("localhost", &[]));
    let server = identity.serve().await;
    let (own, others) = (identity.trust().1, other.trust().1);
    for (codex, customary, is_trusted) in
        [(own, others, true), (others, own, false), ("", own, true), (own, "", true)]
    {
        let client = client_with(&[("CODEX_CA_CERTIFICATE", codex), ("SSL_CERT_FILE", customary)]);
        let sent = client.send(get(url(&server, "/"))).await;
        assert_eq!(sent.is_ok(), is_trusted, "{codex:?} {customary:?}");
    }
}

#[tokio::test]
async fn an_unknown_authority_is_not_trusted() {
    let server = Identity::new("localhost", &[]).serve().await;
    let other = Identity::new("localhost", &[]);
    for client in [other.trusting_client(), client(), client_with(&[("SSL_CERT_FILE", "/none")])] {
        let error = failure(&client, get(url(&server, "/s3cret"))).await;
        let HttpError::Tls { problem } = error else { panic!("{error:?}") };
        let is_expected =
            matches!(problem, TlsProblem::UnknownAuthority | TlsProblem::InvalidCertificate { .. });
        assert!(is_expected, "{problem}");
    }
}

#[tokio::test]
async fn a_certificate_for_another_name_is_not_trusted() {
    let identity = Identity::new("s3cret.example", &[]);
    let server = identity.serve().await;
    let error = failure(&identity.trusting_client(), get(url(&server, "/s3cret"))).await;
    assert!(matches!(error, HttpError::Tls { problem: TlsProblem::OtherName }), "{error:?}");
}

#[tokio::test]
async fn a_server_without_tls_is_a_distinct_error() {
    let server = TestServer::start(|_| async { answer(200, &[], "") }).await;
    let error = failure(&client(), get(url(&server, "/s3cret"))).await;
    assert!(matches!(error, HttpError::Tls { problem: TlsProblem::NotTls }), "{error:?}");
}

#[tokio::test]
async fn a_key_is_not_redirected_to_a_server_without_tls() {
    let plain = TestServer::start(|_| async { answer(200, &[], "plain") }).await;
    let location = plain.url("/");
    let identity = Identity::new("localhost", &[]);
    let server = TestServer::start_tls(identity.config.clone(), move |_| {
        let moved = answer(302, &[("location", &location)], "moved");
        async { moved }
    })
    .await;
    let client = identity.trusting_client();
    let with_key = Request { headers: vec![header("x-key", "K")], ..get(url(&server, "/")) };
    assert_eq!(text(client.send(with_key).await.unwrap()).await, "moved");
    let without = Request { redirects: Redirects::Follow, ..get(url(&server, "/")) };
    assert_eq!(text(client.send(without).await.unwrap()).await, "plain");
}
