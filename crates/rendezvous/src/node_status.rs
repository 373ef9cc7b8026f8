use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

/// The state of one node, as it told the directory last. None of it is secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Each start of a node has another one.
    pub id: String,
    /// Where peers find the node. If frames pass between nodes, all have the same.
    pub url: String,
    pub version: String,
    /// Seconds since 1970.
    pub started: u64,
    /// How frames get from one node to another: `direct` or `over NATS`.
    pub routing: String,
    /// Environments whose sockets it holds.
    pub environments: usize,
    pub streams: usize,
    /// Frames that it has passed on, and their bytes.
    pub frames: u64,
    pub bytes: u64,
    /// Whether it sends its environments to other nodes.
    pub is_leaving: bool,
}

impl NodeStatus {
    #[must_use]
    pub fn uptime(&self, now: SystemTime) -> Duration {
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        Duration::from_secs(now.saturating_sub(self.started))
    }
}
