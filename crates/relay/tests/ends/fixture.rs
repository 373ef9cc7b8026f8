//! An environment that echoes, a rendezvous and a registry.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use exec_server_relay::environment::{Environment, RemoteEnvironmentConfig, Serve};
use exec_server_relay::harness::{
    Harness, NoiseRendezvousConnectBundle, NoiseRendezvousConnectProvider, Providing,
};
use exec_server_relay::noise::PublicKey;
use exec_server_relay::registry::{BearerToken, ConnectResponse};
use exec_server_transport::{Connection, Received, TlsOptions};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::registry::{ENVIRONMENT, Registry};
use crate::rendezvous::Rendezvous;

pub(crate) struct Fixture {
    pub(crate) rendezvous: Rendezvous,
    pub(crate) registry: Registry,
    pub(crate) served: watch::Receiver<u32>,
    violations: Arc<AtomicU32>,
    environment: JoinHandle<()>,
}

impl Fixture {
    /// Starts everything, and waits until the environment has connected to the rendezvous.
    pub(crate) async fn start() -> Self {
        Self::start_refused(0).await
    }

    /// Starts with a rendezvous that first refuses the environment this many times.
    pub(crate) async fn start_refused(refusals: u32) -> Self {
        let rendezvous = Rendezvous::start().await;
        let registry =
            Registry::start(rendezvous.environment_url.clone(), rendezvous.harness_url.clone())
                .await;
        registry.state.lock().unwrap().refusals = refusals;
        let (count, served) = watch::channel(0);
        let count = Arc::new(count);
        let violations: Arc<AtomicU32> = Arc::default();
        let counter = Arc::clone(&violations);
        let serve: Serve = Arc::new(move |connection| {
            count.send_modify(|count| *count += 1);
            Box::pin(echo(connection, Arc::clone(&counter)))
        });
        let credentials = Arc::new(BearerToken::Value("secret".into()));
        let config = RemoteEnvironmentConfig::new(&registry.url, ENVIRONMENT, credentials);
        let environment = Environment::new(config, serve).await.unwrap();
        let environment = tokio::spawn(async move {
            environment.run_until(std::future::pending()).await.unwrap();
        });
        let mut fixture = Self { rendezvous, registry, served, violations, environment };
        fixture.rendezvous.environments.wait_for(|count| *count == 1).await.unwrap();
        fixture
    }

    /// Returns how many numbers reached the environment out of order.
    pub(crate) fn violations(&self) -> u32 {
        self.violations.load(Ordering::Relaxed)
    }

    pub(crate) fn harness(&self) -> Arc<Harness> {
        let provider = Arc::new(Provider(self.registry.clone()));
        Arc::new(Harness::new(provider, TlsOptions::default()))
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.environment.abort();
    }
}

/// Sends each message back. Messages of four bytes are numbers, and must arrive in order.
async fn echo(connection: Connection, violations: Arc<AtomicU32>) {
    let Connection { mut incoming, mut outgoing, principal, .. } = connection;
    assert_eq!(principal.subject.to_string(), "relay:alice");
    let mut expected = 0;
    while let Some(Received::Message(message)) = incoming.recv().await {
        if let Ok(number) = <[u8; 4]>::try_from(&message[..]) {
            if u32::from_be_bytes(number) != expected {
                violations.fetch_add(1, Ordering::Relaxed);
            }
            expected += 1;
        }
        outgoing.push(&message);
        if outgoing.flush().await.is_err() {
            return;
        }
    }
}

struct Provider(Registry);

impl std::fmt::Debug for Provider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Provider")
    }
}

impl NoiseRendezvousConnectProvider for Provider {
    fn connect_bundle<'a>(&'a self, _: &'a PublicKey) -> Providing<'a> {
        let ConnectResponse {
            environment_id,
            url,
            executor_registration_id,
            executor_public_key,
            harness_key_authorization,
            ..
        } = self.0.connect();
        Box::pin(std::future::ready(Ok(NoiseRendezvousConnectBundle {
            websocket_url: url,
            environment_id,
            executor_registration_id,
            executor_public_key,
            harness_key_authorization,
        })))
    }
}

pub(crate) async fn send(connection: &mut Connection, message: &[u8]) {
    connection.outgoing.push(message);
    connection.outgoing.flush().await.unwrap();
}

pub(crate) async fn receive(connection: &mut Connection) -> Option<Bytes> {
    match connection.incoming.recv().await {
        Some(Received::Message(message)) => Some(message),
        Some(Received::Malformed(_)) => panic!("received a malformed message"),
        None => None,
    }
}
