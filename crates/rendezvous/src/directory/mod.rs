//! The state that the nodes of a rendezvous share: registrations, credentials, and material that is
//! good for one use.
//!
//! [`Directory`] asks for little, so that a replicated key-value store can be behind it:
//! compare-and-set on one key, a take that one caller wins, and a feed of revocations. Frames never pass
//! through it.

mod nats;
mod redb_directory;
mod single_use;
mod store;

use std::fmt::Debug;
use std::time::SystemTime;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast;

use crate::credential::{Credential, CredentialId};
use crate::environment_id::EnvironmentId;
use crate::node_status::NodeStatus;
use crate::public_key::PublicKey;
pub(crate) use nats::connect_with;
pub use nats::{NatsDirectory, NatsOptions};
pub use redb_directory::RedbDirectory;

/// Attempts to replace a registration that others replace at the same time.
const REGISTER_ATTEMPTS: usize = 16;

/// The SHA-256 of a secret. Secrets themselves are not kept.
pub type SecretHash = [u8; 32];

#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// The registration was replaced since it was read.
    #[error("the registration was replaced")]
    Conflict,
    #[error("there is no room for more material that was not used")]
    Full,
    #[error("the store {path} is in use by another process")]
    InUse { path: String },
    #[error("cannot use the store")]
    Store(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// An environment as it registered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    pub registration_id: String,
    pub public_key: PublicKey,
    /// The node that the environment dials, as `ws://` or `wss://`.
    pub node_url: String,
    pub credential: CredentialId,
    /// Of the ticket in the environment's URL.
    pub ticket: SecretHash,
}

/// The registration of an environment, and the node that holds its socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Grows with every registration of the environment.
    pub generation: u64,
    pub registration: Registration,
    /// The node that holds the environment's socket; `None` if none does. A directory that several nodes
    /// share forgets it, or the whole lease, when it is not renewed for a while.
    #[serde(default)]
    pub node: Option<String>,
}

/// Lets one harness open one socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket {
    pub environment: EnvironmentId,
    pub registration_id: String,
    pub credential: CredentialId,
    pub expires: SystemTime,
}

/// Lets the owner of a key open streams at one registration, once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Authorization {
    pub environment: EnvironmentId,
    pub registration_id: String,
    pub harness_public_key: PublicKey,
    pub credential: CredentialId,
    pub expires: SystemTime,
}

/// A revocation, or notice that some were missed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Revocation {
    Revoked(CredentialId),
    /// The directory was not reachable for a while, so every credential has to be looked at again.
    Missed,
}

/// State that outlives a node, or that several share. `now` is an argument, so that one clock decides.
#[async_trait]
pub trait Directory: Debug + Send + Sync + 'static {
    /// Replaces the registration of an environment if its generation is still `expected` (`None`: there is
    /// none), or fails with [`DirectoryError::Conflict`]. Durable.
    async fn register(
        &self,
        environment: &EnvironmentId,
        registration: Registration,
        expected: Option<u64>,
    ) -> Result<Lease, DirectoryError>;

    /// Says that the environment has just connected to a node. The last node that claims it has it. Fails
    /// with [`DirectoryError::Conflict`] if the generation is another one.
    async fn claim(
        &self,
        environment: &EnvironmentId,
        generation: u64,
        node: &str,
    ) -> Result<(), DirectoryError>;

    /// Says that the environment is still connected to the node; repeated for as long as that is so. Fails
    /// with [`DirectoryError::Conflict`] if the generation is another one, or another node has it.
    async fn renew(
        &self,
        environment: &EnvironmentId,
        generation: u64,
        node: &str,
    ) -> Result<(), DirectoryError>;

    /// Says that the environment is not connected to the node any more. Nothing happens if the generation
    /// is another one, or another node has it.
    async fn release(
        &self,
        environment: &EnvironmentId,
        generation: u64,
        node: &str,
    ) -> Result<(), DirectoryError>;

    async fn lookup(&self, environment: &EnvironmentId) -> Result<Option<Lease>, DirectoryError>;

    async fn put_ticket(
        &self,
        hash: SecretHash,
        ticket: Ticket,
        now: SystemTime,
    ) -> Result<(), DirectoryError>;

    /// Of several callers one gets it.
    async fn take_ticket(
        &self,
        hash: SecretHash,
        now: SystemTime,
    ) -> Result<Option<Ticket>, DirectoryError>;

    async fn put_authorization(
        &self,
        hash: SecretHash,
        authorization: Authorization,
        now: SystemTime,
    ) -> Result<(), DirectoryError>;

    /// Of several callers one gets it.
    async fn take_authorization(
        &self,
        hash: SecretHash,
        now: SystemTime,
    ) -> Result<Option<Authorization>, DirectoryError>;

    /// Durable, as are revocations.
    async fn put_credential(&self, credential: Credential) -> Result<(), DirectoryError>;

    async fn token_by_hash(&self, hash: SecretHash) -> Result<Option<Credential>, DirectoryError>;

    async fn credential(&self, id: &CredentialId) -> Result<Option<Credential>, DirectoryError>;

    async fn list_credentials(&self) -> Result<Vec<Credential>, DirectoryError>;

    /// Whether there was one.
    async fn revoke_credential(&self, id: &CredentialId) -> Result<bool, DirectoryError>;

    /// Revocations from now on. A receiver that lags has missed some.
    fn watch_revocations(&self) -> broadcast::Receiver<Revocation>;

    /// Whether this assertion, with this expiry, was never seen before. Durable until it expires, so that
    /// a restart does not make a replay possible.
    async fn remember_assertion(
        &self,
        hash: SecretHash,
        expires: SystemTime,
        now: SystemTime,
    ) -> Result<bool, DirectoryError>;

    /// Signs agent identities and their tasks. Made when it is first asked for, and durable.
    async fn signing_secret(&self) -> Result<[u8; 32], DirectoryError>;

    /// The state of a node. Repeated while it lives, and forgotten when it is not.
    async fn put_node(&self, status: NodeStatus) -> Result<(), DirectoryError>;

    /// The nodes that live, in the order of their URLs.
    async fn nodes(&self) -> Result<Vec<NodeStatus>, DirectoryError>;

    /// Whether calls can be answered now, as far as is known without one.
    fn is_reachable(&self) -> bool;
}

impl dyn Directory {
    /// Replaces the registration of an environment, also if others replace it at the same time.
    pub async fn replace_registration(
        &self,
        environment: &EnvironmentId,
        registration: Registration,
    ) -> Result<Lease, DirectoryError> {
        let lookup = || self.lookup(environment);
        let register = |expected| self.register(environment, registration.clone(), expected);
        replace_registration(lookup, register).await
    }
}

/// The newest registration wins, so a caller that was outrun tries again.
async fn replace_registration<L, R>(
    lookup: impl Fn() -> L,
    register: impl Fn(Option<u64>) -> R,
) -> Result<Lease, DirectoryError>
where
    L: Future<Output = Result<Option<Lease>, DirectoryError>>,
    R: Future<Output = Result<Lease, DirectoryError>>,
{
    for _ in 1..REGISTER_ATTEMPTS {
        let expected = lookup().await?.map(|lease| lease.generation);
        match register(expected).await {
            Err(DirectoryError::Conflict) => {}
            outcome => return outcome,
        }
    }
    Err(DirectoryError::Conflict)
}
