//! NATS servers that require TLS, a password or signed credentials.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use base64_simd::URL_SAFE_NO_PAD;
use exec_server_relay::with_sources;
use exec_server_rendezvous::{
    Bus, BusError, Directory, DirectoryError, NatsDirectory, NatsOptions, TunnelTimes,
};
use exec_server_test_support::{NatsServers, NatsVersion, TestAuthority, Validity, skipped};
use nkeys::KeyPair;
use serde_json::{Value, json};

const USER: &str = "rendezvous";
const PASSWORD: &str = "open/sesame@noon";
const PASSWORD_IN_URL: &str = "open%2Fsesame%40noon";
const WRONG_PASSWORD: &str = "open-barley";

#[tokio::test]
async fn a_node_connects_with_tls_and_a_password() {
    let Some(site) = TlsSite::start() else { return };
    for url in [site.url("tls", PASSWORD_IN_URL), site.url("nats", PASSWORD_IN_URL)] {
        works(&site.options(url, Some(&site.authority))).await;
    }
}

#[tokio::test]
async fn only_servers_of_a_trusted_authority_get_the_password() {
    let Some(site) = TlsSite::start() else { return };
    let other = TestAuthority::new().write(site.other.path());
    for authority in [Some(&*other), None] {
        for scheme in ["tls", "nats"] {
            let options = site.options(site.url(scheme, PASSWORD_IN_URL), authority);
            refused(&options, "invalid peer certificate").await;
        }
    }
}

#[tokio::test]
async fn a_wrong_password_is_refused() {
    let Some(site) = TlsSite::start() else { return };
    let url = site.url("tls", WRONG_PASSWORD);
    refused(&site.options(url, Some(&site.authority)), "authorization violation").await;
}

#[tokio::test]
async fn a_node_without_a_password_is_refused() {
    let Some(site) = TlsSite::start() else { return };
    let url = format!("tls://{}", site.address);
    refused(&site.options(url, Some(&site.authority)), "authorization violation").await;
}

#[tokio::test]
async fn tls_is_not_dropped_for_a_server_without_it() {
    let Some(servers) = start("") else { return };
    let scratch = tempfile::tempdir().unwrap();
    let authority = TestAuthority::new().write(scratch.path());
    let address = address_of(&servers);
    let with_scheme = NatsOptions::new(vec![format!("tls://{USER}:{PASSWORD_IN_URL}@{address}")]);
    let with_authority = NatsOptions {
        tls_ca: Some(authority),
        ..NatsOptions::new(vec![format!("nats://{USER}:{PASSWORD_IN_URL}@{address}")])
    };
    for options in [with_scheme, with_authority] {
        refused(&options, "InvalidContentType").await;
    }
}

#[tokio::test]
async fn an_invalid_url_is_shown_without_its_password() {
    for url in ["nats://USER:PASSWORD@host:99999", "http://USER:PASSWORD@host"] {
        let url = url.replace("USER", USER).replace("PASSWORD", PASSWORD_IN_URL);
        refused(&NatsOptions::new(vec![url]), "is not the URL of a NATS server").await;
    }
}

#[tokio::test]
async fn a_node_connects_with_a_credentials_file() {
    let operator = Operator::new();
    let Some(site) = OperatorSite::start(&operator) else { return };
    works(&site.options(&operator.credentials())).await;
}

#[tokio::test]
async fn credentials_of_another_operator_are_refused() {
    let Some(site) = OperatorSite::start(&Operator::new()) else { return };
    refused(&site.options(&Operator::new().credentials()), "authorization violation").await;
}

#[tokio::test]
async fn credentials_without_the_seed_of_their_user_are_refused() {
    let operator = Operator::new();
    let Some(site) = OperatorSite::start(&operator) else { return };
    let credentials = credentials_file(&operator.user_token(), &KeyPair::new_user());
    refused(&site.options(&credentials), "authorization violation").await;
}

#[tokio::test]
async fn a_node_without_credentials_is_refused() {
    let Some(site) = OperatorSite::start(&Operator::new()) else { return };
    refused(&NatsOptions::new(site.servers.urls()), "authorization violation").await;
}

#[tokio::test]
async fn an_error_names_an_unreadable_credentials_file() {
    let scratch = tempfile::tempdir().unwrap();
    let empty = scratch.path().join("empty.creds");
    std::fs::write(&empty, "").unwrap();
    for path in [empty, scratch.path().join("missing.creds")] {
        let expected = format!("cannot read the NATS credentials in {}", path.display());
        let servers = vec!["nats://127.0.0.1:1".to_owned()];
        let options = NatsOptions { credentials: Some(path), ..NatsOptions::new(servers) };
        refused(&options, &expected).await;
    }
}

#[tokio::test]
async fn an_error_names_an_unreadable_file_of_authorities() {
    let Some(site) = TlsSite::start() else { return };
    let missing = site.other.path().join("missing.pem");
    let expected = format!("; trusting {}): ", missing.display());
    refused(&site.options(site.url("tls", PASSWORD_IN_URL), Some(&missing)), &expected).await;
}

/// A server with TLS that knows one user.
struct TlsSite {
    _servers: NatsServers,
    address: String,
    authority: PathBuf,
    _own: tempfile::TempDir,
    /// The files of another authority.
    other: tempfile::TempDir,
}

impl TlsSite {
    /// `None` if there is no NATS server here.
    fn start() -> Option<Self> {
        let (own, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let authority = TestAuthority::new();
        let issued = authority.issue(own.path(), &["127.0.0.1"], Validity::Now);
        let servers = start(&format!(
            "tls {{ cert_file: {:?}, key_file: {:?} }}\n\
             authorization {{ users: [{{ user: {USER:?}, password: {PASSWORD:?} }}] }}\n",
            issued.certificate, issued.key
        ))?;
        let (address, authority) = (address_of(&servers), authority.write(own.path()));
        Some(Self { _servers: servers, address, authority, _own: own, other })
    }

    fn url(&self, scheme: &str, password: &str) -> String {
        format!("{scheme}://{USER}:{password}@{}", self.address)
    }

    fn options(&self, url: String, authority: Option<&Path>) -> NatsOptions {
        NatsOptions { tls_ca: authority.map(Path::to_owned), ..NatsOptions::new(vec![url]) }
    }
}

/// A server that knows the accounts of one operator.
struct OperatorSite {
    servers: NatsServers,
    scratch: tempfile::TempDir,
}

impl OperatorSite {
    /// `None` if there is no NATS server here.
    fn start(operator: &Operator) -> Option<Self> {
        let servers = start(&operator.server_config())?;
        Some(Self { servers, scratch: tempfile::tempdir().unwrap() })
    }

    fn options(&self, credentials: &str) -> NatsOptions {
        let path = self.scratch.path().join("node.creds");
        std::fs::write(&path, credentials).unwrap();
        NatsOptions { credentials: Some(path), ..NatsOptions::new(self.servers.urls()) }
    }
}

/// Signs accounts, one of which signs the user of a node.
struct Operator {
    key: KeyPair,
    system: KeyPair,
    account: KeyPair,
    user: KeyPair,
}

impl Operator {
    fn new() -> Self {
        let [system, account] = [(); 2].map(|()| KeyPair::new_account());
        Self { key: KeyPair::new_operator(), system, account, user: KeyPair::new_user() }
    }

    fn server_config(&self) -> String {
        let system = self.system.public_key();
        let operator = json!({"type": "operator", "version": 2, "system_account": system});
        let resolved = [&self.system, &self.account].map(|account| {
            let token = sign(&self.key, account, &self.account_claims(account));
            format!("{}: {token}\n", account.public_key())
        });
        format!(
            "operator: {}\nsystem_account: {system}\nresolver: MEMORY\nresolver_preload {{\n{}}}\n",
            sign(&self.key, &self.key, &operator),
            resolved.concat()
        )
    }

    fn account_claims(&self, account: &KeyPair) -> Value {
        // Limits that are not set are zero. The system account can have no streams.
        let storage = if account.public_key() == self.account.public_key() { -1 } else { 0 };
        let limits = json!({
            "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true,
            "conn": -1, "leaf": -1, "mem_storage": storage, "disk_storage": storage,
            "streams": storage, "consumer": storage,
        });
        json!({"type": "account", "version": 2, "limits": limits})
    }

    fn user_token(&self) -> String {
        let user = json!({"type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1});
        sign(&self.account, &self.user, &user)
    }

    fn credentials(&self) -> String {
        credentials_file(&self.user_token(), &self.user)
    }
}

/// Encodes a JSON Web Token as NATS defines it.
fn sign(issuer: &KeyPair, subject: &KeyPair, nats: &Value) -> String {
    let issued_at = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let claims = json!({
        "jti": subject.public_key(), "iat": issued_at, "iss": issuer.public_key(),
        "sub": subject.public_key(), "name": "test", "nats": nats,
    });
    let header = json!({"typ": "JWT", "alg": "ed25519-nkey"});
    let encode = |json: &Value| URL_SAFE_NO_PAD.encode_to_string(json.to_string());
    let signed = format!("{}.{}", encode(&header), encode(&claims));
    let signature = issuer.sign(signed.as_bytes()).unwrap();
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode_to_string(signature))
}

fn credentials_file(token: &str, user: &KeyPair) -> String {
    format!(
        "-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
        user.seed().unwrap()
    )
}

/// `None` if there is no NATS server here.
fn start(config: &str) -> Option<NatsServers> {
    let started = NatsServers::start_with_config(NatsVersion::Current, config);
    started.inspect_err(|why| skipped(format_args!("access to NATS: {why}"))).ok()
}

fn address_of(servers: &NatsServers) -> String {
    format!("127.0.0.1:{}", servers.ports(0)[0])
}

/// Opens both connections of a node, for its state and for frames.
async fn connect(
    options: &NatsOptions,
) -> (Result<NatsDirectory, DirectoryError>, Result<Bus, BusError>) {
    let directory = NatsDirectory::connect(options).await;
    (directory, Bus::connect(options, TunnelTimes::default()).await)
}

async fn works(options: &NatsOptions) {
    let (directory, bus) = connect(options).await;
    let (directory, bus) = (directory.unwrap(), bus.unwrap());
    assert!(directory.nodes().await.unwrap().is_empty());
    for text in [format!("{directory:?}"), format!("{bus:?}")] {
        has_no_password(&text);
    }
}

async fn refused(options: &NatsOptions, expected: &str) {
    let (directory, bus) = connect(options).await;
    let (directory, bus) = (directory.unwrap_err(), bus.unwrap_err());
    for shown in [with_sources(&directory), with_sources(&bus)] {
        assert!(shown.contains(expected), "{expected} is not in {shown}");
        has_no_password(&shown);
    }
    for text in [format!("{directory:?}"), format!("{bus:?}")] {
        has_no_password(&text);
    }
}

fn has_no_password(text: &str) {
    for password in [PASSWORD, PASSWORD_IN_URL, WRONG_PASSWORD] {
        assert!(!text.contains(password), "{text}");
    }
}
