//! An in-memory store of leases: revisions, compare-and-set and expiry by age, as in JetStream.
//!
//! Each round trip is one `Pending`, so the caller controls what happens in the meantime.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::super::LEASE_AGE;
use super::super::bucket::Entry;
use super::super::leases::{LeaseStore, StoredLease};
use crate::directory::DirectoryError;
use crate::environment_id::EnvironmentId;

/// Shared by all nodes.
#[derive(Debug, Default)]
pub(crate) struct MemoryStore {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    now: Duration,
    last_revision: u64,
    leases: HashMap<EnvironmentId, Written>,
}

#[derive(Debug)]
struct Written {
    at: Duration,
    revision: u64,
    lease: StoredLease,
}

impl MemoryStore {
    /// Sets the clock of the servers. It only moves forward.
    pub(crate) fn set_now(&self, now: Duration) {
        self.lock().now = now;
    }

    /// Counts the leases that have not expired.
    pub(crate) fn len(&self) -> usize {
        let state = self.lock();
        state.leases.values().filter(|written| state.is_current(written)).count()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds the leases")
    }
}

impl State {
    fn current(&self, environment: &EnvironmentId) -> Option<&Written> {
        self.leases.get(environment).filter(|written| self.is_current(written))
    }

    fn is_current(&self, written: &Written) -> bool {
        self.now - written.at < LEASE_AGE
    }
}

impl LeaseStore for Arc<MemoryStore> {
    async fn read(
        &self,
        environment: &EnvironmentId,
    ) -> Result<Entry<StoredLease>, DirectoryError> {
        round_trip().await;
        let state = self.lock();
        let current = state.current(environment);
        Ok(Entry {
            value: current.map(|written| written.lease.clone()),
            revision: current.map_or(0, |written| written.revision),
        })
    }

    async fn compare_and_set(
        &self,
        environment: &EnvironmentId,
        lease: &StoredLease,
        expected: u64,
    ) -> Result<u64, DirectoryError> {
        round_trip().await;
        let mut state = self.lock();
        if state.current(environment).map_or(0, |written| written.revision) != expected {
            return Err(DirectoryError::Conflict);
        }
        state.last_revision += 1;
        let (at, revision) = (state.now, state.last_revision);
        state.leases.insert(environment.clone(), Written { at, revision, lease: lease.clone() });
        Ok(revision)
    }
}

/// Simulates a round trip: pending once.
async fn round_trip() {
    let mut was_sent = false;
    poll_fn(|_| match std::mem::replace(&mut was_sent, true) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await;
}

/// Runs a call to completion without advancing virtual time.
pub(crate) fn at_once<T>(call: impl Future<Output = T>) -> T {
    let mut call = pin!(call);
    loop {
        if let Poll::Ready(value) = call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return value;
        }
    }
}
