//! The state that the nodes of a rendezvous share: registrations, credentials, single-use tickets
//! and authorizations, used assertions, the signing secret, and the status of each node.
//!
//! [`Directory`] needs little, so that a replicated key-value store can implement it:
//! compare-and-set on one key, a take that only one caller wins, and notices of revocations. Frames
//! never pass through it.

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

/// Limits the attempts to replace a registration while others replace it.
const REGISTER_ATTEMPTS: usize = 16;

/// The SHA-256 of a token, ticket, authorization or assertion. Only the hash is stored.
pub type SecretHash = [u8; 32];

#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// Another registration is current, or another node has the environment. For
    /// [`Directory::register`]: the registration has changed since it was read.
    #[error("another registration or another node has the environment")]
    Conflict,
    #[error("too many unused tickets or authorizations")]
    Full,
    #[error("the store {path} is in use by another process; stop that process")]
    InUse { path: String },
    #[error("cannot use the store")]
    Store(#[source] Box<dyn std::error::Error + Send + Sync>),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    pub registration_id: String,
    pub public_key: PublicKey,
    /// The URL of the node that the environment dials, as `ws://` or `wss://`.
    pub node_url: String,
    pub credential: CredentialId,
    /// The hash of the ticket in the environment's URL.
    pub ticket: SecretHash,
}

/// The registration of an environment, and the node that holds its socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Grows with every registration of the environment.
    pub generation: u64,
    pub registration: Registration,
    /// The id of the node that holds the environment's socket; `None` if none does. A directory
    /// shared by several nodes drops this value, or the whole lease, if the lease is not renewed
    /// for a while.
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

/// Lets the owner of a key open one stream at one registration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Authorization {
    pub environment: EnvironmentId,
    pub registration_id: String,
    pub harness_public_key: PublicKey,
    pub credential: CredentialId,
    pub expires: SystemTime,
}

/// A revocation, or the notice that some may have been missed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Revocation {
    Revoked(CredentialId),
    /// Revocations may have been missed, so every credential must be checked again.
    Missed,
}

/// State that outlives a node, or that several nodes share. Calls get the time as `now`.
#[async_trait]
pub trait Directory: Debug + Send + Sync + 'static {
    /// Replaces the registration of an environment if its generation is still `expected` (`None`:
    /// there is none), or fails with [`DirectoryError::Conflict`]. Durable.
    async fn register(
        &self,
        environment: &EnvironmentId,
        registration: Registration,
        expected: Option<u64>,
    ) -> Result<Lease, DirectoryError>;

    /// Records that the environment has just connected to a node. The last node to claim it wins.
    /// Fails with [`DirectoryError::Conflict`] if this generation is not the current one.
    async fn claim(
        &self,
        environment: &EnvironmentId,
        generation: u64,
        node: &str,
    ) -> Result<(), DirectoryError>;

    /// Records that the environment is still connected to the node; called repeatedly. Fails with
    /// [`DirectoryError::Conflict`] if this generation is not the current one, or another node has
    /// the environment.
    async fn renew(
        &self,
        environment: &EnvironmentId,
        generation: u64,
        node: &str,
    ) -> Result<(), DirectoryError>;

    /// Records that the environment is no longer connected to the node. Does nothing if the
    /// generation differs, or another node has the environment.
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

    /// Only one of several callers gets the ticket.
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

    /// Only one of several callers gets the authorization.
    async fn take_authorization(
        &self,
        hash: SecretHash,
        now: SystemTime,
    ) -> Result<Option<Authorization>, DirectoryError>;

    /// Stores a credential. Durable, as are revocations.
    async fn put_credential(&self, credential: Credential) -> Result<(), DirectoryError>;

    async fn token_by_hash(&self, hash: SecretHash) -> Result<Option<Credential>, DirectoryError>;

    async fn credential(&self, id: &CredentialId) -> Result<Option<Credential>, DirectoryError>;

    async fn list_credentials(&self) -> Result<Vec<Credential>, DirectoryError>;

    /// Returns whether the credential existed.
    async fn revoke_credential(&self, id: &CredentialId) -> Result<bool, DirectoryError>;

    /// Subscribes to revocations from now on. A receiver that lags has missed some.
    fn watch_revocations(&self) -> broadcast::Receiver<Revocation>;

    /// Returns whether this assertion, with this expiry, is new. It is remembered durably until it
    /// expires, so that a restart does not allow a replay.
    async fn remember_assertion(
        &self,
        hash: SecretHash,
        expires: SystemTime,
        now: SystemTime,
    ) -> Result<bool, DirectoryError>;

    /// Returns the secret that signs agent identities and their tasks. It is created once, and is
    /// durable.
    async fn signing_secret(&self) -> Result<[u8; 32], DirectoryError>;

    /// Stores the status of a node. A live node repeats the call, since the status may expire.
    async fn put_node(&self, status: NodeStatus) -> Result<(), DirectoryError>;

    /// Returns the live nodes, ordered by URL.
    async fn nodes(&self) -> Result<Vec<NodeStatus>, DirectoryError>;

    /// Returns whether calls are expected to succeed now, without making one.
    fn is_reachable(&self) -> bool;
}

impl dyn Directory {
    /// Replaces the registration of an environment, even while others replace it.
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

/// Retries a conflict a limited number of times: the newest registration takes precedence.
async fn replace_registration<L, R>(
    lookup: impl Fn() -> L,
    register: impl Fn(Option<u64>) -> R,
) -> Result<Lease, DirectoryError>
where
    L: Future<Output = Result<Option<Lease>, DirectoryError>>,
    R: Future<Output = Result<Lease, DirectoryError>>,
{
    for _ in 0..REGISTER_ATTEMPTS {
        let expected = lookup().await?.map(|lease| lease.generation);
        match register(expected).await {
            Err(DirectoryError::Conflict) => {}
            outcome => return outcome,
        }
    }
    Err(DirectoryError::Conflict)
}
