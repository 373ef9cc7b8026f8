//! How the holders of leases wake the driver, without waiting for it.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard};

use tokio::sync::Notify;

use super::LeaseId;

/// The leases to check, each once, so that there are never more entries than leases.
#[derive(Debug, Default)]
pub(crate) struct LeaseWakeups {
    woken: Mutex<HashSet<LeaseId>>,
    notify: Notify,
}

impl LeaseWakeups {
    pub(crate) fn wake(&self, id: &LeaseId) {
        self.lock().insert(id.clone());
        self.notify.notify_one();
    }

    pub(crate) fn take_woken(&self) -> HashSet<LeaseId> {
        std::mem::take(&mut self.lock())
    }

    /// Cancel-safe.
    pub(crate) async fn woken(&self) {
        self.notify.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<LeaseId>> {
        self.woken.lock().expect("no code panics while it holds the wake-ups")
    }
}
