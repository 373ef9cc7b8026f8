//! The state of a running server, for its operator (extension).

use serde::{Deserialize, Serialize};

use crate::LimitsTier;

/// The server as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ServerStatus {
    pub version: String,
    pub uptime_ms: u64,
    /// The URLs that the server listens on. Empty without listeners, for example on stdio.
    pub listeners: Vec<String>,
    pub sessions: SessionCounts,
    pub processes: ProcessCounts,
    pub limits: LimitsStatus,
    /// The most recent refusals, oldest first.
    pub refusals: Vec<RecentRefusal>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SessionCounts {
    pub attached: usize,
    pub detached: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProcessCounts {
    pub running: usize,
    /// Finished processes that can still be read.
    pub finished: usize,
}

/// How process limits are enforced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LimitsStatus {
    pub tier: LimitsTier,
    /// The reason why the kernel does not limit whole process trees. Absent if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub obstacle: Option<String>,
}

/// A refused client or request. Refusals that differ only in time and port share one entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RecentRefusal {
    /// Time of the last refusal, in milliseconds since 1970.
    pub at_ms: u64,
    pub count: u64,
    pub what: RefusedThing,
    /// For a connection, the reason as named in the metrics; for a request, the kind of its error.
    pub reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum RefusedThing {
    Connection,
    Request,
}

impl RefusedThing {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::Request => "request",
        }
    }
}
