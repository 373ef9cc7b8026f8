//! A directory that fails for a while, like one across a network.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use async_trait::async_trait;
use exec_server_relay::frame::StreamId;
use exec_server_rendezvous::{
    Authorization, Credential, CredentialId, CredentialKind, Directory, DirectoryError,
    EnvironmentId, Lease, NodeStatus, RedbDirectory, Registration, Revocation, Role, SecretHash,
    Ticket,
};
use hyper::Method;
use serde_json::json;
use tokio::sync::{Notify, broadcast};
use tokio::time::timeout;

use crate::cluster::wait_for;
use crate::support::{LIMIT, Service, bearer, key};

/// Forwards every call, or fails it. Its watchers get no revocation unless the test sends one.
#[derive(Debug)]
struct UnreliableDirectory {
    store: RedbDirectory,
    is_down: AtomicBool,
    /// Notified when the check of a credential failed.
    unchecked: Notify,
    revocations: broadcast::Sender<Revocation>,
}

impl UnreliableDirectory {
    fn open(data: &Path) -> Arc<Self> {
        Arc::new(Self {
            store: RedbDirectory::open(data).unwrap(),
            is_down: AtomicBool::new(false),
            unchecked: Notify::new(),
            revocations: broadcast::Sender::new(16),
        })
    }

    fn set_down(&self, is_down: bool) {
        self.is_down.store(is_down, Ordering::SeqCst);
    }

    fn reach(&self) -> Result<&RedbDirectory, DirectoryError> {
        if self.is_down.load(Ordering::SeqCst) {
            return Err(DirectoryError::Store("the network is down".into()));
        }
        Ok(&self.store)
    }

    async fn wait_for_failed_check(&self) {
        timeout(LIMIT, self.unchecked.notified()).await.expect("the service checks credentials");
    }
}

#[async_trait]
impl Directory for UnreliableDirectory {
    async fn register(
        &self,
        environment: &EnvironmentId,
        registration: Registration,
        expected: Option<u64>,
    ) -> Result<Lease, DirectoryError> {
        self.reach()?.register(environment, registration, expected).await
    }

    async fn claim(
        &self,
        environment: &EnvironmentId,
        generation: u64,
        node: &str,
    ) -> Result<(), DirectoryError> {
        self.reach()?.claim(environment, generation, node).await
    }

    async fn renew(
        &self,
        environment: &EnvironmentId,
        generation: u64,
        node: &str,
    ) -> Result<(), DirectoryError> {
        self.reach()?.renew(environment, generation, node).await
    }

    async fn release(
        &self,
        environment: &EnvironmentId,
        generation: u64,
        node: &str,
    ) -> Result<(), DirectoryError> {
        self.reach()?.release(environment, generation, node).await
    }

    async fn lookup(&self, environment: &EnvironmentId) -> Result<Option<Lease>, DirectoryError> {
        self.reach()?.lookup(environment).await
    }

    async fn put_ticket(
        &self,
        hash: SecretHash,
        ticket: Ticket,
        now: SystemTime,
    ) -> Result<(), DirectoryError> {
        self.reach()?.put_ticket(hash, ticket, now).await
    }

    async fn take_ticket(
        &self,
        hash: SecretHash,
        now: SystemTime,
    ) -> Result<Option<Ticket>, DirectoryError> {
        self.reach()?.take_ticket(hash, now).await
    }

    async fn put_authorization(
        &self,
        hash: SecretHash,
        authorization: Authorization,
        now: SystemTime,
    ) -> Result<(), DirectoryError> {
        self.reach()?.put_authorization(hash, authorization, now).await
    }

    async fn take_authorization(
        &self,
        hash: SecretHash,
        now: SystemTime,
    ) -> Result<Option<Authorization>, DirectoryError> {
        self.reach()?.take_authorization(hash, now).await
    }

    async fn put_credential(&self, credential: Credential) -> Result<(), DirectoryError> {
        self.reach()?.put_credential(credential).await
    }

    async fn token_by_hash(&self, hash: SecretHash) -> Result<Option<Credential>, DirectoryError> {
        self.reach()?.token_by_hash(hash).await
    }

    async fn credential(&self, id: &CredentialId) -> Result<Option<Credential>, DirectoryError> {
        let store = self.reach().inspect_err(|_| self.unchecked.notify_one())?;
        store.credential(id).await
    }

    async fn list_credentials(&self) -> Result<Vec<Credential>, DirectoryError> {
        self.reach()?.list_credentials().await
    }

    async fn revoke_credential(&self, id: &CredentialId) -> Result<bool, DirectoryError> {
        self.reach()?.revoke_credential(id).await
    }

    fn watch_revocations(&self) -> broadcast::Receiver<Revocation> {
        self.revocations.subscribe()
    }

    async fn remember_assertion(
        &self,
        hash: SecretHash,
        expires: SystemTime,
        now: SystemTime,
    ) -> Result<bool, DirectoryError> {
        self.reach()?.remember_assertion(hash, expires, now).await
    }

    async fn signing_secret(&self) -> Result<[u8; 32], DirectoryError> {
        self.reach()?.signing_secret().await
    }

    async fn put_node(&self, status: NodeStatus) -> Result<(), DirectoryError> {
        self.reach()?.put_node(status).await
    }

    async fn nodes(&self) -> Result<Vec<NodeStatus>, DirectoryError> {
        self.reach()?.nodes().await
    }

    fn is_reachable(&self) -> bool {
        !self.is_down.load(Ordering::SeqCst)
    }
}

async fn start(data: &Path) -> (Arc<UnreliableDirectory>, Service) {
    let directory = UnreliableDirectory::open(data);
    let shared: Arc<dyn Directory> = Arc::clone(&directory) as _;
    (directory, Service::start_on(shared, data, "127.0.0.1:0", |_| ()).await)
}

#[tokio::test]
async fn streams_continue_without_a_directory_and_new_peers_connect_when_it_returns() {
    let scratch = tempfile::tempdir().unwrap();
    let (directory, service) = start(scratch.path()).await;
    let (mut environment, _) = service.environment("box").await;
    let token = service.token(Role::Harness, "box").await;
    let mut harness = service.harness("box", &token).await;
    let stream = StreamId::random();
    harness.send(stream, b"before").await;
    assert_eq!(environment.payload().await.1, "before");

    directory.set_down(true);
    let body = json!({"harness_public_key": key("h")});
    let (status, refusal) = service.call("box", "connect", &bearer(&token), &body).await;
    // Clients retry after this status.
    assert_eq!(status, 503, "{refusal}");
    environment.send(stream, b"during").await;
    assert_eq!(harness.payload().await.1, "during");

    directory.set_down(false);
    let mut second = service.harness("box", &token).await;
    let other = StreamId::random();
    second.send(other, b"after").await;
    assert_eq!(environment.payload().await, (other, "after".into()));
    service.stop().await;
}

async fn wait_for_readiness(service: &Service, expected: u16) {
    wait_for("the readiness", async || {
        let (status, ..) = service.request(Method::GET, "/readyz", &[], String::new()).await;
        (status == expected).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_node_without_its_directory_reports_it_and_when_to_retry() {
    let scratch = tempfile::tempdir().unwrap();
    let (directory, service) = start(scratch.path()).await;
    let token = service.token(Role::Harness, "box").await;
    wait_for_readiness(&service, 200).await;
    directory.set_down(true);
    wait_for_readiness(&service, 503).await;
    let path = "/cloud/environment/box/connect";
    let headers = [("authorization", &*bearer(&token))];
    let body = json!({"harness_public_key": key("h")}).to_string();
    let (status, headers, _) = service.request(Method::POST, path, &headers, body).await;
    assert_eq!((status, headers["retry-after"].to_str().unwrap()), (503, "1"));
    directory.set_down(false);
    wait_for_readiness(&service, 200).await;
    service.stop().await;
}

#[tokio::test]
async fn missed_revocations_are_found_once_the_directory_responds() {
    let scratch = tempfile::tempdir().unwrap();
    let (directory, service) = start(scratch.path()).await;
    let (mut environment, _) = service.environment("box").await;
    let (revoked, token) = service.create(CredentialKind::Token, Role::Harness, "box").await;
    let kept = service.token(Role::Harness, "box").await;
    let mut lost = service.harness("box", &token).await;
    let mut harness = service.harness("box", &kept).await;
    // Both are attached once the environment has received their frames.
    for peer in [&mut lost, &mut harness] {
        peer.send(StreamId::random(), b"hello").await;
        environment.payload().await;
    }
    // The watch does not report the revocation.
    service.revoke(&revoked).await;
    directory.set_down(true);
    directory.revocations.send(Revocation::Missed).unwrap();
    directory.wait_for_failed_check().await;
    directory.set_down(false);
    lost.closed().await;
    let stream = StreamId::random();
    harness.send(stream, b"still here").await;
    assert_eq!(environment.payload().await, (stream, "still here".into()));
    service.stop().await;
}
