//! A connection of the product's client code, through a relay or directly to a server. Both do all
//! of their work on the calling thread, and only while it sends or receives, so that they differ in
//! nothing but the relay.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use exec_server_relay::harness::{Harness, RegistryProvider};
use exec_server_relay::noise::{Identity, OsRng, PublicKey};
use exec_server_relay::registry::{ConnectResponse, RegistryClient};
use exec_server_transport::{Connection, DialOptions, Received, TlsOptions, dial};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{sleep, timeout};

const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// A newly started environment connects within this time.
const ONLINE_TIMEOUT: Duration = Duration::from_secs(10);
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(crate) struct ProductSocket {
    /// Declared before the runtime, so that it is dropped first.
    connection: Connection,
    message: Bytes,
    runtime: Runtime,
}

impl ProductSocket {
    pub(super) fn dial(url: &str) -> anyhow::Result<Self> {
        let runtime = runtime()?;
        let dialled = runtime.block_on(dial(url, &DialOptions::default()));
        let connection = dialled.with_context(|| format!("cannot connect to {url}"))?;
        Ok(Self { connection, message: Bytes::new(), runtime })
    }

    /// Connects through a relay, after waiting for the environment to connect.
    pub(super) fn through_relay(registry: RegistryClient) -> anyhow::Result<Self> {
        let runtime = runtime()?;
        let connection = runtime.block_on(async {
            let identity = Identity::generate(&mut OsRng);
            connect_when_online(&registry, identity.public_key()).await?;
            let provider = Arc::new(RegistryProvider::new(registry));
            let harness = Arc::new(Harness::new(provider, TlsOptions::default()));
            harness.connect().await.context("cannot open a stream through the relay")
        })?;
        Ok(Self { connection, message: Bytes::new(), runtime })
    }

    /// Sends a message. Through a relay, the transmission may complete only while the next message
    /// is received.
    pub(crate) fn send(&mut self, message: &[u8]) -> anyhow::Result<()> {
        self.connection.outgoing.push(message);
        Ok(self.runtime.block_on(self.connection.outgoing.flush())?)
    }

    pub(crate) fn receive_message(&mut self) -> anyhow::Result<&[u8]> {
        let Connection { incoming, outgoing, .. } = &mut self.connection;
        let receiving = async {
            loop {
                tokio::select! {
                    received = incoming.recv() => return message(received),
                    // A pong is due: the server sends pings to learn how far this end has read.
                    () = outgoing.control_pending() => outgoing.flush().await?,
                }
            }
        };
        let receiving = async { timeout(READ_TIMEOUT, receiving).await };
        self.message = self.runtime.block_on(receiving).with_context(|| {
            format!("the server sent nothing for {}s", READ_TIMEOUT.as_secs())
        })??;
        Ok(&self.message)
    }
}

pub(super) fn runtime() -> anyhow::Result<Runtime> {
    Builder::new_current_thread().enable_all().build().context("cannot start a runtime")
}

pub(super) fn message(received: Option<Received>) -> anyhow::Result<Bytes> {
    match received {
        Some(Received::Message(message)) => Ok(message),
        Some(Received::Malformed(error)) => Err(error.into()),
        None => anyhow::bail!("the server or the rendezvous closed the connection"),
    }
}

/// Retries `connect` at the registry until the environment is connected.
pub(super) async fn connect_when_online(
    registry: &RegistryClient,
    harness: &PublicKey,
) -> anyhow::Result<ConnectResponse<PublicKey>> {
    let connecting = async {
        loop {
            match registry.connect(harness).await {
                Err(error) if error.is_temporary() => sleep(RETRY_INTERVAL).await,
                outcome => return outcome,
            }
        }
    };
    let outcome = timeout(ONLINE_TIMEOUT, connecting).await;
    Ok(outcome.with_context(|| {
        let limit = ONLINE_TIMEOUT.as_secs();
        format!("cannot connect to the environment through the rendezvous within {limit}s")
    })??)
}
