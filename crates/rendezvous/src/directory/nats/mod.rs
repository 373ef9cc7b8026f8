//! The directory of a cluster: NATS JetStream buckets, which all nodes share.
//!
//! A lease is changed by compare-and-set on the revision of its key. Revisions only grow, so the
//! revision at which a registration is written is its generation. Everything but credentials and
//! the signing secret expires by age in the servers: a node that dies needs no cleanup, and leases
//! do not depend on the clocks of nodes.

mod bucket;
mod connection;
mod credentials;
mod leases;
#[cfg(test)]
mod simulation;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use async_nats::Client;
use async_nats::connection::State;
use async_trait::async_trait;
use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::sync::{broadcast, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use self::bucket::{Bucket, Entry, key};
use self::credentials::Credentials;
use self::leases::{Leases, Presence};
use super::store::failed;
use super::{
    Authorization, Directory, DirectoryError, Lease, Registration, Revocation, SecretHash, Ticket,
};
use crate::credential::{Credential, CredentialId};
use crate::environment_id::EnvironmentId;
use crate::node_status::NodeStatus;
pub use connection::NatsOptions;
pub(crate) use connection::connect_with;

/// A lease expires after this time without renewal.
const LEASE_AGE: Duration = Duration::from_secs(45);
/// Tickets and authorizations last no longer than this, even with a longer `ticket_lifetime`.
const SINGLE_USE_AGE: Duration = Duration::from_secs(60);
/// How long a used assertion is remembered: longer than it would be accepted.
const ASSERTION_AGE: Duration = Duration::from_secs(180);
/// The status of a node expires after this time. By default, a node reports it three times in this
/// period.
const NODE_AGE: Duration = Duration::from_secs(30);
/// Time limit for reading all credentials while connecting.
const CREDENTIALS_TIMEOUT: Duration = Duration::from_secs(10);
const SIGNING_SECRET: &str = "secret.signing";

#[derive(Debug, thiserror::Error)]
#[error(
    "cannot read the credentials of the cluster within {}s; check that this NATS account may \
     create consumers",
    CREDENTIALS_TIMEOUT.as_secs()
)]
struct CredentialsTimeout;

#[derive(Debug)]
pub struct NatsDirectory {
    client: Client,
    leases: Leases<Bucket>,
    tickets: Bucket,
    authorizations: Bucket,
    assertions: Bucket,
    nodes: Bucket,
    /// Whether the last status of this node was stored. Servers without a majority accept
    /// connections, but store nothing.
    is_answering: AtomicBool,
    credentials: Arc<Credentials>,
    signing_secret: [u8; 32],
    _watch: JoinSet<()>,
}

impl NatsDirectory {
    /// Connects, creates missing buckets, and reads the credentials.
    pub async fn connect(options: &NatsOptions) -> Result<Self, DirectoryError> {
        // Boxed, so that callers do not have to hold a future of this size.
        Box::pin(Self::open(options)).await
    }

    async fn open(options: &NatsOptions) -> Result<Self, DirectoryError> {
        let (client, context) = connection::connect(options).await?;
        let open = async |name, age| Bucket::open(&context, name, age, options.replicas).await;
        let durable = open("exec-server-credentials", None).await?;
        connection::check_replicas(&client, durable.replicas())?;
        let signing_secret = shared_secret(&durable).await?;
        let credentials = Credentials::new(durable);
        let (is_current, mut current) = watch::channel(false);
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(&credentials).follow(is_current));
        timeout(CREDENTIALS_TIMEOUT, current.wait_for(|is_current| *is_current))
            .await
            .map_err(|_| failed(CredentialsTimeout))?
            .map_err(failed)?;
        Ok(Self {
            leases: Leases::new(open("exec-server-leases", Some(LEASE_AGE)).await?),
            tickets: open("exec-server-tickets", Some(SINGLE_USE_AGE)).await?,
            authorizations: open("exec-server-authorizations", Some(SINGLE_USE_AGE)).await?,
            assertions: open("exec-server-assertions", Some(ASSERTION_AGE)).await?,
            nodes: open("exec-server-nodes", Some(NODE_AGE)).await?,
            is_answering: AtomicBool::new(true),
            client,
            credentials,
            signing_secret,
            _watch: tasks,
        })
    }
}

#[async_trait]
impl Directory for NatsDirectory {
    async fn register(
        &self,
        environment: &EnvironmentId,
        registration: Registration,
        expected: Option<u64>,
    ) -> Result<Lease, DirectoryError> {
        self.leases.register(environment, registration, expected).await
    }

    async fn claim(
        &self,
        environment: &EnvironmentId,
        generation: u64,
        node: &str,
    ) -> Result<(), DirectoryError> {
        self.leases.set_presence(environment, generation, Presence::Claim { node }).await
    }

    async fn renew(
        &self,
        environment: &EnvironmentId,
        generation: u64,
        node: &str,
    ) -> Result<(), DirectoryError> {
        self.leases.set_presence(environment, generation, Presence::Renew { node }).await
    }

    async fn release(
        &self,
        environment: &EnvironmentId,
        generation: u64,
        node: &str,
    ) -> Result<(), DirectoryError> {
        self.leases.release(environment, generation, node).await
    }

    async fn lookup(&self, environment: &EnvironmentId) -> Result<Option<Lease>, DirectoryError> {
        self.leases.lookup(environment).await
    }

    async fn put_ticket(
        &self,
        hash: SecretHash,
        ticket: Ticket,
        _now: SystemTime,
    ) -> Result<(), DirectoryError> {
        self.tickets.put(&key(hash), &ticket).await.map(drop)
    }

    async fn take_ticket(
        &self,
        hash: SecretHash,
        now: SystemTime,
    ) -> Result<Option<Ticket>, DirectoryError> {
        let ticket: Option<Ticket> = self.tickets.take(&key(hash)).await?;
        Ok(ticket.filter(|ticket| ticket.expires > now))
    }

    async fn put_authorization(
        &self,
        hash: SecretHash,
        authorization: Authorization,
        _now: SystemTime,
    ) -> Result<(), DirectoryError> {
        self.authorizations.put(&key(hash), &authorization).await.map(drop)
    }

    async fn take_authorization(
        &self,
        hash: SecretHash,
        now: SystemTime,
    ) -> Result<Option<Authorization>, DirectoryError> {
        let authorization: Option<Authorization> = self.authorizations.take(&key(hash)).await?;
        Ok(authorization.filter(|authorization| authorization.expires > now))
    }

    async fn put_credential(&self, credential: Credential) -> Result<(), DirectoryError> {
        self.credentials.put(credential).await
    }

    async fn token_by_hash(&self, hash: SecretHash) -> Result<Option<Credential>, DirectoryError> {
        Ok(self.credentials.by_token(hash))
    }

    async fn credential(&self, id: &CredentialId) -> Result<Option<Credential>, DirectoryError> {
        Ok(self.credentials.by_id(id))
    }

    async fn list_credentials(&self) -> Result<Vec<Credential>, DirectoryError> {
        Ok(self.credentials.list())
    }

    async fn revoke_credential(&self, id: &CredentialId) -> Result<bool, DirectoryError> {
        self.credentials.revoke(id).await
    }

    fn watch_revocations(&self) -> broadcast::Receiver<Revocation> {
        self.credentials.watch_revocations()
    }

    async fn remember_assertion(
        &self,
        hash: SecretHash,
        expires: SystemTime,
        now: SystemTime,
    ) -> Result<bool, DirectoryError> {
        let key = key(hash);
        let Entry { value, revision } = self.assertions.get::<SystemTime>(&key).await?;
        if value.is_some_and(|expires| expires >= now) {
            return Ok(false);
        }
        match self.assertions.update(&key, &expires, revision).await {
            Ok(_) => Ok(true),
            Err(DirectoryError::Conflict) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn signing_secret(&self) -> Result<[u8; 32], DirectoryError> {
        Ok(self.signing_secret)
    }

    async fn put_node(&self, status: NodeStatus) -> Result<(), DirectoryError> {
        let put = self.nodes.put(&key(&status.id), &status).await.map(drop);
        self.is_answering.store(put.is_ok(), Ordering::Relaxed);
        put
    }

    async fn nodes(&self) -> Result<Vec<NodeStatus>, DirectoryError> {
        let mut nodes: Vec<NodeStatus> = self.nodes.values().await?;
        nodes.sort_unstable_by(|one, other| (&one.url, &one.id).cmp(&(&other.url, &other.id)));
        Ok(nodes)
    }

    fn is_reachable(&self) -> bool {
        self.client.connection_state() == State::Connected
            && self.is_answering.load(Ordering::Relaxed)
    }
}

/// Returns the signing secret of the cluster, and creates it if there is none.
async fn shared_secret(bucket: &Bucket) -> Result<[u8; 32], DirectoryError> {
    loop {
        let Entry { value, revision } = bucket.get(SIGNING_SECRET).await?;
        if let Some(secret) = value {
            return Ok(secret);
        }
        let mut secret = [0; 32];
        SystemRandom::new().fill(&mut secret).expect("the system has randomness");
        match bucket.update(SIGNING_SECRET, &secret, revision).await {
            Ok(_) => return Ok(secret),
            Err(DirectoryError::Conflict) => {}
            Err(error) => return Err(error),
        }
    }
}
