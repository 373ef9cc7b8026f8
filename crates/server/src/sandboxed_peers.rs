//! Sandboxed processes of this server that have network access, and so can reach its listener.
//!
//! A request from such a process would run outside its sandbox, so the server refuses its
//! connections, whatever credentials they carry. A process is registered before its program runs,
//! since it may connect immediately. A process that is gone may have left a connection with
//! requests in it, so for a while the server also refuses every peer that it cannot trace.
//!
//! A process with a managed network can reach the listener through its gate. Such a connection
//! comes from this server, which has no other reason to connect to itself.

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use exec_server_host::process::origin::{Lineage, Origin, PeerSocket, trace};
use exec_server_host::process::{NetworkedTree, ProcessLocation};
use exec_server_transport::Peer;

use crate::adapter::FilePool;

/// How long the server remembers processes that are gone: longer than a handshake takes, including
/// the wait until the connection is served.
const MEMORY: Duration = Duration::from_secs(30);

/// How long to wait for a start, which may hang on dead storage. After that, a peer that descends
/// from this server is refused.
const START_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct SandboxedPeers {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    sandboxed: Vec<ProcessLocation>,
    /// When `sandboxed` last contained a process with network access.
    last: Option<Instant>,
    /// When `sandboxed` last contained a process with a gate.
    last_gate: Option<Instant>,
}

impl SandboxedPeers {
    /// Must be called before the program of the process runs.
    pub(crate) fn register(&self, process: ProcessLocation) {
        let mut known = self.lock();
        known.look();
        known.sandboxed.push(process);
    }

    /// Returns whether a peer may be a sandboxed process. `None` is a peer that has hung up.
    pub(crate) async fn may_include(&self, peer: Option<Peer>, pool: &FilePool) -> bool {
        let (sandboxed, has_gates) = {
            let mut known = self.lock();
            known.look();
            let is_recent =
                |last: Option<Instant>| last.is_some_and(|last| last.elapsed() <= MEMORY);
            let has_gates = is_recent(known.last_gate);
            if !has_gates && !is_recent(known.last) {
                return false;
            }
            (known.sandboxed.clone(), has_gates)
        };
        let peer = match peer {
            None => return true,
            Some(Peer::Tcp { remote, local }) => PeerSocket::Tcp { own: remote, other: local },
            Some(Peer::Unix { socket }) => PeerSocket::Unix { socket },
        };
        match pool.compute(move || trace(peer)).await {
            Some(Origin::Elsewhere) => false,
            Some(Origin::Here(lineages)) => {
                let this_server = std::process::id();
                (has_gates && lineages.iter().any(|peer| peer.begins_with(this_server)))
                    || is_any_below(&lineages, &sandboxed).await
            }
            Some(Origin::Unknown) | None => true,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().expect("no code panics while it holds the sandboxed peers")
    }
}

impl Known {
    fn look(&mut self) {
        if self.sandboxed.iter().any(ProcessLocation::has_network) {
            self.last = Some(Instant::now());
        }
        if self.sandboxed.iter().any(ProcessLocation::has_gate) {
            self.last_gate = Some(Instant::now());
        }
        self.sandboxed.retain(|process| !process.is_gone());
    }
}

async fn is_any_below(lineages: &[Lineage], sandboxed: &[ProcessLocation]) -> bool {
    let includes = |pid| lineages.iter().any(|lineage| lineage.includes(pid));
    let is_below_this_server = includes(std::process::id());
    let mut starting = Vec::new();
    for process in sandboxed {
        match process.networked_tree() {
            NetworkedTree::No => {}
            NetworkedTree::KeptBy(keeper) if includes(keeper) => return true,
            NetworkedTree::KeptBy(_) => {}
            NetworkedTree::Orphaned if is_below_this_server => return true,
            NetworkedTree::Orphaned => {}
            NetworkedTree::Somewhere => return true,
            NetworkedTree::Starting => starting.push(process),
        }
    }
    // A peer that does not descend from this server belongs to none of its starts, so there is
    // nothing to wait for.
    if !is_below_this_server {
        return false;
    }
    for process in starting {
        let _ = tokio::time::timeout(START_TIMEOUT, process.decided()).await;
        match process.networked_tree() {
            NetworkedTree::No => {}
            NetworkedTree::KeptBy(keeper) if !includes(keeper) => {}
            NetworkedTree::KeptBy(_)
            | NetworkedTree::Starting
            | NetworkedTree::Orphaned
            | NetworkedTree::Somewhere => return true,
        }
    }
    false
}
