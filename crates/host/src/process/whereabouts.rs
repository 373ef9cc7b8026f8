//! Sandboxed processes as those see them who have to keep their connections away.

use std::sync::{Arc, OnceLock, Weak};

use super::control::{Control, Shared};
use crate::sandbox::Network;

/// Where a process can be found while it lives, for those who do not hold it.
#[derive(Debug, Clone)]
pub struct Whereabouts {
    shared: Weak<Shared>,
    network: Arc<OnceLock<Network>>,
}

/// Who keeps a sandboxed tree that has a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guest {
    /// It has no network, or is gone.
    No,
    /// Its program may run already.
    Starting,
    KeptBy(u32),
    /// It runs, and its keeper could not say who it is.
    Somewhere,
}

impl Whereabouts {
    pub(super) fn of(shared: &Arc<Shared>) -> Self {
        Self { shared: Arc::downgrade(shared), network: Arc::clone(&shared.network) }
    }

    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.shared.upgrade().is_none_or(|shared| *shared.gone.borrow())
    }

    /// True from before its program runs, and for ever.
    #[must_use]
    pub fn has_network(&self) -> bool {
        self.network.get() == Some(&Network::Enabled)
    }

    #[must_use]
    pub fn guest(&self) -> Guest {
        let Some(shared) = self.shared.upgrade() else { return Guest::No };
        if !self.has_network() {
            return Guest::No;
        }
        match &*shared.control() {
            Control::Starting { .. } => Guest::Starting,
            Control::Running { tree, .. } => tree.keeper().map_or(Guest::Somewhere, Guest::KeptBy),
            Control::Over => Guest::No,
        }
    }

    /// Waits until its program runs, or will not.
    pub async fn decided(&self) {
        let Some(shared) = self.shared.upgrade() else { return };
        let mut decided = shared.decided.subscribe();
        // The sender lives in `shared`, so this cannot fail while we wait.
        let _ = decided.wait_for(|decided| *decided).await;
    }
}
