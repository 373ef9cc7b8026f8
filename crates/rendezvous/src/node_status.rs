use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

/// The state of one node, as last reported to the directory. None of it is secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// New at each start of a node.
    pub id: String,
    /// The URL at which peers reach the node. The same for all nodes if frames pass between them.
    pub url: String,
    pub version: String,
    /// Seconds since 1970.
    pub started: u64,
    /// How frames pass between nodes: `direct` or `over NATS`.
    pub routing: String,
    /// Environments whose sockets are at this node.
    pub environments: usize,
    pub streams: usize,
    /// Frames that the node has forwarded, and their bytes.
    pub frames: u64,
    pub bytes: u64,
    /// Whether the node is sending its environments to other nodes.
    pub is_leaving: bool,
}

impl NodeStatus {
    #[must_use]
    pub fn uptime(&self, now: SystemTime) -> Duration {
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        Duration::from_secs(now.saturating_sub(self.started))
    }
}
