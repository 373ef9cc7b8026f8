//! The bucket of leases in memory: revisions, compare-and-set and expiry by age, as in JetStream.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::{DirectoryError, EnvironmentId, Registration};

/// `LEASE_AGE` of `NatsDirectory`.
pub(crate) const LEASE_AGE: Duration = Duration::from_secs(45);

/// Shared by the directories of all nodes.
#[derive(Debug, Default)]
pub(crate) struct Bucket {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    now: Duration,
    last_revision: u64,
    leases: HashMap<EnvironmentId, Entry>,
}

#[derive(Debug)]
struct Entry {
    written: Duration,
    revision: u64,
    lease: StoredLease,
}

#[derive(Debug, Clone)]
pub(crate) struct StoredLease {
    /// `None` in the first revision, which is the generation itself.
    pub(crate) generation: Option<u64>,
    pub(crate) registration: Arc<Registration>,
    pub(crate) is_online: bool,
}

impl Bucket {
    /// The clock of the servers. It only goes forward.
    pub(crate) fn set_now(&self, now: Duration) {
        self.lock().now = now;
    }

    /// The lease and the revision that a change has to name: 0 if there is none.
    pub(crate) fn get(&self, environment: &EnvironmentId) -> (Option<StoredLease>, u64) {
        match self.lock().current(environment) {
            Some(entry) => (Some(entry.lease.clone()), entry.revision),
            None => (None, 0),
        }
    }

    pub(crate) fn generation(&self, environment: &EnvironmentId) -> Option<u64> {
        let state = self.lock();
        state.current(environment).map(|entry| entry.lease.generation.unwrap_or(entry.revision))
    }

    /// Writes a lease if `expected` is still its revision. Returns the new revision.
    pub(crate) fn update(
        &self,
        environment: &EnvironmentId,
        lease: StoredLease,
        expected: u64,
    ) -> Result<u64, DirectoryError> {
        let mut state = self.lock();
        if state.current(environment).map_or(0, |entry| entry.revision) != expected {
            return Err(DirectoryError::Conflict);
        }
        state.last_revision += 1;
        let entry = Entry { written: state.now, revision: state.last_revision, lease };
        let revision = entry.revision;
        state.leases.insert(environment.clone(), entry);
        Ok(revision)
    }

    /// Leases that have not expired.
    pub(crate) fn len(&self) -> usize {
        let state = self.lock();
        state.leases.values().filter(|entry| state.is_current(entry)).count()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds the bucket")
    }
}

impl State {
    fn current(&self, environment: &EnvironmentId) -> Option<&Entry> {
        self.leases.get(environment).filter(|entry| self.is_current(entry))
    }

    fn is_current(&self, entry: &Entry) -> bool {
        self.now - entry.written < LEASE_AGE
    }
}
