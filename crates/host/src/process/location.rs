//! Tells which keeper a sandboxed process descends from, so that the server can refuse connections
//! from its tree.

use std::sync::{Arc, OnceLock, Weak};

use super::orders::{Phase, Shared};
use crate::sandbox::Network;

/// Does not keep the process alive.
#[derive(Debug, Clone)]
pub struct ProcessLocation {
    shared: Weak<Shared>,
    network: Arc<OnceLock<Network>>,
}

/// Whether a sandboxed tree with network access exists, and which keeper it descends from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkedTree {
    /// The tree has no sandbox, has no network access, has no plan yet and so no process, or is
    /// gone.
    No,
    /// The program may already be running.
    Starting,
    KeptBy(u32),
    /// The keeper has ended. Surviving processes descend from this server, through its spawner.
    Orphaned,
    /// The program runs, but the pid of its keeper is unknown.
    Somewhere,
}

impl ProcessLocation {
    pub(super) fn of(shared: &Arc<Shared>) -> Self {
        Self { shared: Arc::downgrade(shared), network: Arc::clone(&shared.network) }
    }

    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.shared.upgrade().is_none_or(|shared| *shared.gone.borrow())
    }

    /// Whether the process has a sandbox that lets it use the network. Decided before the program
    /// runs, and kept after it ends.
    #[must_use]
    pub fn has_network(&self) -> bool {
        matches!(self.network.get(), Some(Network::Enabled | Network::Managed))
    }

    /// Whether the server connects to hosts on behalf of the process.
    #[must_use]
    pub fn has_gate(&self) -> bool {
        self.network.get() == Some(&Network::Managed)
    }

    #[must_use]
    pub fn networked_tree(&self) -> NetworkedTree {
        let Some(shared) = self.shared.upgrade() else { return NetworkedTree::No };
        if !self.has_network() {
            return NetworkedTree::No;
        }
        match &*shared.phase() {
            Phase::Starting { .. } => NetworkedTree::Starting,
            Phase::Running { tree, .. } => match tree.keeper() {
                Some(keeper) => NetworkedTree::KeptBy(keeper),
                None if tree.has_lost_keeper() => NetworkedTree::Orphaned,
                None => NetworkedTree::Somewhere,
            },
            Phase::Over => NetworkedTree::No,
        }
    }

    /// Waits until the program runs or its start has failed.
    pub async fn decided(&self) {
        let Some(shared) = self.shared.upgrade() else { return };
        let mut decided = shared.decided.subscribe();
        // The sender lives in `shared`, so this cannot fail while it is held.
        let _ = decided.wait_for(|decided| *decided).await;
    }
}
