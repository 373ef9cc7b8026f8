//! The directory of one simulated node, with the lease logic of `NatsDirectory` over a [`Bucket`] in
//! memory. It has leases only: the simulation has neither harnesses nor credentials.
//!
//! Each round trip to the bucket is one `Pending`, so the caller decides what happens meanwhile.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::SystemTime;

use crate::{
    Authorization, Credential, CredentialId, Directory, DirectoryError, EnvironmentId, Lease,
    NodeStatus, Registration, Revocation, SecretHash, Ticket,
};
use async_trait::async_trait;
use tokio::sync::broadcast;

use super::bucket::{Bucket, StoredLease};

/// `ATTEMPTS` of `NatsDirectory`.
const ATTEMPTS: usize = 4;
const LEASES_ONLY: &str = "the simulation uses leases only";

#[derive(Debug)]
pub(crate) struct NodeDirectory {
    bucket: Arc<Bucket>,
    /// The leases that this node has written last.
    held: Mutex<HashMap<EnvironmentId, Held>>,
}

#[derive(Debug, Clone)]
struct Held {
    generation: u64,
    registration: Arc<Registration>,
    revision: u64,
}

/// Runs a call of the directory to its end without letting virtual time pass.
pub(crate) fn at_once<T>(call: impl Future<Output = T>) -> T {
    let mut call = pin!(call);
    loop {
        if let Poll::Ready(value) = call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return value;
        }
    }
}

/// Says that an environment is connected. The only place where the simulation renews.
pub(crate) fn renew(
    directory: &dyn Directory,
    environment: &EnvironmentId,
    generation: u64,
) -> Result<(), DirectoryError> {
    at_once(directory.renew(environment, generation, ""))
}

impl NodeDirectory {
    pub(crate) fn new(bucket: Arc<Bucket>) -> Self {
        Self { bucket, held: Mutex::default() }
    }

    async fn set_presence(
        &self,
        environment: &EnvironmentId,
        generation: u64,
        is_online: bool,
    ) -> Result<(), DirectoryError> {
        let written = self.held().get(environment).cloned();
        let written = written.filter(|held| held.generation == generation);
        let mut next = written.clone();
        for _ in 0..ATTEMPTS {
            let held = match next.take() {
                Some(held) => held,
                None => self.read_held(environment, generation, written.as_ref()).await?,
            };
            let registration = Arc::clone(&held.registration);
            let lease = StoredLease { generation: Some(generation), registration, is_online };
            round_trip().await;
            if let Ok(revision) = self.bucket.update(environment, lease, held.revision) {
                self.held().insert(environment.clone(), Held { revision, ..held });
                return Ok(());
            }
        }
        Err(DirectoryError::Conflict)
    }

    async fn read_held(
        &self,
        environment: &EnvironmentId,
        generation: u64,
        written: Option<&Held>,
    ) -> Result<Held, DirectoryError> {
        round_trip().await;
        let (lease, revision) = self.bucket.get(environment);
        let found = match lease {
            Some(lease) if lease.generation.unwrap_or(revision) == generation => {
                Some(Held { generation, registration: lease.registration, revision })
            }
            Some(_) => None,
            None => written.map(|held| Held { revision, ..held.clone() }),
        };
        found.ok_or_else(|| {
            self.forget_held(environment, generation);
            DirectoryError::Conflict
        })
    }

    fn forget_held(&self, environment: &EnvironmentId, generation: u64) {
        let mut held = self.held();
        if held.get(environment).is_some_and(|held| held.generation == generation) {
            held.remove(environment);
        }
    }

    fn held(&self) -> MutexGuard<'_, HashMap<EnvironmentId, Held>> {
        self.held.lock().expect("no code panics while it holds the map")
    }
}

#[async_trait]
impl Directory for NodeDirectory {
    async fn register(
        &self,
        environment: &EnvironmentId,
        registration: Registration,
        expected: Option<u64>,
    ) -> Result<Lease, DirectoryError> {
        round_trip().await;
        let (before, revision) = self.bucket.get(environment);
        if before.map(|lease| lease.generation.unwrap_or(revision)) != expected {
            return Err(DirectoryError::Conflict);
        }
        let lease = StoredLease {
            generation: None,
            registration: Arc::new(registration),
            is_online: false,
        };
        round_trip().await;
        let generation = self.bucket.update(environment, lease.clone(), revision)?;
        Ok(read_lease(&lease, generation))
    }

    async fn claim(
        &self,
        environment: &EnvironmentId,
        generation: u64,
        node: &str,
    ) -> Result<(), DirectoryError> {
        self.renew(environment, generation, node).await
    }

    /// Environments dial the node where they have registered, so the generation says which it is.
    async fn renew(
        &self,
        environment: &EnvironmentId,
        generation: u64,
        _node: &str,
    ) -> Result<(), DirectoryError> {
        self.set_presence(environment, generation, true).await
    }

    async fn release(
        &self,
        environment: &EnvironmentId,
        generation: u64,
        _node: &str,
    ) -> Result<(), DirectoryError> {
        let released = self.set_presence(environment, generation, false).await;
        self.forget_held(environment, generation);
        match released {
            Err(DirectoryError::Conflict) => Ok(()),
            released => released,
        }
    }

    async fn lookup(&self, environment: &EnvironmentId) -> Result<Option<Lease>, DirectoryError> {
        round_trip().await;
        let (lease, revision) = self.bucket.get(environment);
        Ok(lease.map(|lease| read_lease(&lease, revision)))
    }

    async fn put_ticket(
        &self,
        _: SecretHash,
        _: Ticket,
        _: SystemTime,
    ) -> Result<(), DirectoryError> {
        unreachable!("{LEASES_ONLY}")
    }

    async fn take_ticket(
        &self,
        _: SecretHash,
        _: SystemTime,
    ) -> Result<Option<Ticket>, DirectoryError> {
        unreachable!("{LEASES_ONLY}")
    }

    async fn put_authorization(
        &self,
        _: SecretHash,
        _: Authorization,
        _: SystemTime,
    ) -> Result<(), DirectoryError> {
        unreachable!("{LEASES_ONLY}")
    }

    async fn take_authorization(
        &self,
        _: SecretHash,
        _: SystemTime,
    ) -> Result<Option<Authorization>, DirectoryError> {
        unreachable!("{LEASES_ONLY}")
    }

    async fn put_credential(&self, _: Credential) -> Result<(), DirectoryError> {
        unreachable!("{LEASES_ONLY}")
    }

    async fn token_by_hash(&self, _: SecretHash) -> Result<Option<Credential>, DirectoryError> {
        unreachable!("{LEASES_ONLY}")
    }

    async fn credential(&self, _: &CredentialId) -> Result<Option<Credential>, DirectoryError> {
        unreachable!("{LEASES_ONLY}")
    }

    async fn list_credentials(&self) -> Result<Vec<Credential>, DirectoryError> {
        unreachable!("{LEASES_ONLY}")
    }

    async fn revoke_credential(&self, _: &CredentialId) -> Result<bool, DirectoryError> {
        unreachable!("{LEASES_ONLY}")
    }

    fn watch_revocations(&self) -> broadcast::Receiver<Revocation> {
        unreachable!("{LEASES_ONLY}")
    }

    async fn remember_assertion(
        &self,
        _: SecretHash,
        _: SystemTime,
        _: SystemTime,
    ) -> Result<bool, DirectoryError> {
        unreachable!("{LEASES_ONLY}")
    }

    async fn signing_secret(&self) -> Result<[u8; 32], DirectoryError> {
        unreachable!("{LEASES_ONLY}")
    }

    async fn put_node(&self, _: NodeStatus) -> Result<(), DirectoryError> {
        unreachable!("{LEASES_ONLY}")
    }

    async fn nodes(&self) -> Result<Vec<NodeStatus>, DirectoryError> {
        unreachable!("{LEASES_ONLY}")
    }

    fn is_reachable(&self) -> bool {
        true
    }
}

fn read_lease(lease: &StoredLease, revision: u64) -> Lease {
    Lease {
        generation: lease.generation.unwrap_or(revision),
        registration: Registration::clone(&lease.registration),
        node: lease.is_online.then(String::new),
    }
}

/// Pending once.
async fn round_trip() {
    let mut was_sent = false;
    poll_fn(|_| match std::mem::replace(&mut was_sent, true) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await;
}
