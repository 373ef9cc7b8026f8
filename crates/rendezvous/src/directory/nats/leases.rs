//! The leases of a cluster. A lease is changed by compare-and-set on the revision of its key.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use serde::{Deserialize, Serialize};

use super::super::{DirectoryError, Lease, Registration};
use super::bucket::{Bucket, Entry, key};
use crate::environment_id::EnvironmentId;

/// Maximum number of attempts at a change that conflicts with others.
const ATTEMPTS: usize = 4;

#[derive(Debug)]
pub(super) struct Leases<S> {
    store: S,
    /// The last claim or renewal that this node wrote for each environment. With it, a renewal
    /// takes one round trip, and a lease that has expired, such as while no server was reachable,
    /// can be written again.
    held: Mutex<HashMap<EnvironmentId, Held>>,
}

pub(super) trait LeaseStore {
    async fn read(&self, environment: &EnvironmentId)
    -> Result<Entry<StoredLease>, DirectoryError>;

    /// Writes a lease if `expected` is still its revision, or fails with
    /// [`DirectoryError::Conflict`]. Returns the new revision.
    async fn compare_and_set(
        &self,
        environment: &EnvironmentId,
        lease: &StoredLease,
        expected: u64,
    ) -> Result<u64, DirectoryError>;
}

#[derive(Debug, Clone)]
struct Held {
    generation: u64,
    registration: Registration,
    node: Option<String>,
    revision: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct StoredLease {
    /// `None` in the revision that the registration wrote: its number is the generation.
    generation: Option<u64>,
    registration: Registration,
    node: Option<String>,
}

/// A change of the node that holds the socket of an environment.
#[derive(Debug, Clone, Copy)]
pub(super) enum Presence<'a> {
    Claim { node: &'a str },
    Renew { node: &'a str },
    Release { node: &'a str },
}

impl Presence<'_> {
    /// Returns whether the change is permitted while `current` holds the socket.
    fn may_follow(self, current: Option<&str>) -> bool {
        match self {
            Self::Claim { .. } => true,
            Self::Renew { node } | Self::Release { node } => {
                current.is_none_or(|current| current == node)
            }
        }
    }

    fn node_after(self) -> Option<String> {
        match self {
            Self::Claim { node } | Self::Renew { node } => Some(node.to_owned()),
            Self::Release { .. } => None,
        }
    }
}

impl<S: LeaseStore> Leases<S> {
    pub(super) fn new(store: S) -> Self {
        Self { store, held: Mutex::default() }
    }

    pub(super) async fn register(
        &self,
        environment: &EnvironmentId,
        registration: Registration,
        expected: Option<u64>,
    ) -> Result<Lease, DirectoryError> {
        let Entry { value, revision } = self.store.read(environment).await?;
        if value.map(|lease| lease.generation.unwrap_or(revision)) != expected {
            return Err(DirectoryError::Conflict);
        }
        let lease = StoredLease { generation: None, registration, node: None };
        let generation = self.store.compare_and_set(environment, &lease, revision).await?;
        Ok(Lease { generation, registration: lease.registration, node: None })
    }

    pub(super) async fn release(
        &self,
        environment: &EnvironmentId,
        generation: u64,
        node: &str,
    ) -> Result<(), DirectoryError> {
        let presence = Presence::Release { node };
        let released = self.set_presence(environment, generation, presence).await;
        self.forget_held(environment, generation);
        match released {
            Err(DirectoryError::Conflict) => Ok(()),
            released => released,
        }
    }

    pub(super) async fn lookup(
        &self,
        environment: &EnvironmentId,
    ) -> Result<Option<Lease>, DirectoryError> {
        let Entry { value, revision } = self.store.read(environment).await?;
        Ok(value.map(|lease| Lease {
            generation: lease.generation.unwrap_or(revision),
            registration: lease.registration,
            node: lease.node,
        }))
    }

    /// Changes the node of a lease. Fails with [`DirectoryError::Conflict`] if another registration
    /// is current, if another node holds the socket and `presence` is no claim, or if other changes
    /// win all [`ATTEMPTS`]. An expired lease is written again if it is in `held`; otherwise that
    /// is a conflict, too.
    pub(super) async fn set_presence(
        &self,
        environment: &EnvironmentId,
        generation: u64,
        presence: Presence<'_>,
    ) -> Result<(), DirectoryError> {
        let written = self.held().get(environment).cloned();
        let written = written.filter(|held| held.generation == generation);
        let can_write = |held: &Held| presence.may_follow(held.node.as_deref());
        let mut next = written.clone().filter(can_write);
        for _ in 0..ATTEMPTS {
            let held = match next.take() {
                Some(held) => held,
                None => self.read_held(environment, generation, presence, written.as_ref()).await?,
            };
            let Held { ref registration, revision, .. } = held;
            let lease = StoredLease {
                generation: Some(generation),
                registration: registration.clone(),
                node: presence.node_after(),
            };
            match self.store.compare_and_set(environment, &lease, revision).await {
                Err(DirectoryError::Conflict) => {}
                Err(error) => return Err(error),
                Ok(revision) => {
                    let node = presence.node_after();
                    self.held().insert(environment.clone(), Held { revision, node, ..held });
                    return Ok(());
                }
            }
        }
        Err(DirectoryError::Conflict)
    }

    /// Returns the lease to change: the stored one or, if that has expired, `written`, the one that
    /// this node wrote last. If an older registration is stored, this node's lease has expired, and
    /// the holder of the older lease has written that one again. If neither can be changed, forgets
    /// the lease and fails with [`DirectoryError::Conflict`].
    async fn read_held(
        &self,
        environment: &EnvironmentId,
        generation: u64,
        presence: Presence<'_>,
        written: Option<&Held>,
    ) -> Result<Held, DirectoryError> {
        let Entry { value, revision } = self.store.read(environment).await?;
        let found = match value {
            Some(lease)
                if lease.generation.unwrap_or(revision) == generation
                    && presence.may_follow(lease.node.as_deref()) =>
            {
                let StoredLease { registration, node, .. } = lease;
                Some(Held { generation, registration, node, revision })
            }
            Some(lease) if lease.generation.unwrap_or(revision) >= generation => None,
            Some(_) | None => written.map(|held| Held { revision, ..held.clone() }),
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

impl LeaseStore for Bucket {
    async fn read(
        &self,
        environment: &EnvironmentId,
    ) -> Result<Entry<StoredLease>, DirectoryError> {
        self.get(&key(environment.as_str())).await
    }

    async fn compare_and_set(
        &self,
        environment: &EnvironmentId,
        lease: &StoredLease,
        expected: u64,
    ) -> Result<u64, DirectoryError> {
        self.update(&key(environment.as_str()), lease, expected).await
    }
}
