//! From a notification to the process or the lease that it belongs to.

use exec_server_protocol::{Notification, ServerNotification};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::calls::ProcessKey;
use crate::mirror::MirrorEvent;

/// An event of a process.
pub(crate) struct ProcessNotification {
    pub(crate) key: ProcessKey,
    pub(crate) seq: u64,
    pub(crate) event: MirrorEvent,
    pub(crate) dropped_bytes: u64,
}

/// A notification and its recipient.
pub(crate) enum Notified {
    Process(ProcessNotification),
    Lease {
        id: String,
        notification: ServerNotification,
    },
    /// Of a v0 process, which this client never starts.
    Legacy,
}

impl From<ServerNotification> for Notified {
    fn from(notification: ServerNotification) -> Self {
        match notification {
            ServerNotification::ProcessOutput(params) => Self::Process(ProcessNotification {
                key: key(params.session_id, params.process_id),
                seq: params.seq,
                event: MirrorEvent::Output { stream: params.stream, chunk: params.chunk.0 },
                dropped_bytes: params.dropped_bytes,
            }),
            ServerNotification::ProcessExited(params) => Self::Process(ProcessNotification {
                key: key(params.session_id, params.process_id),
                seq: params.seq,
                event: MirrorEvent::Exited {
                    exit_code: params.exit_code,
                    sandbox_denied: params.sandbox_denied,
                    denied: params.denied,
                    details: params.exit,
                },
                dropped_bytes: params.dropped_bytes,
            }),
            ServerNotification::ProcessClosed(params) => Self::Process(ProcessNotification {
                key: key(params.session_id, params.process_id),
                seq: params.seq,
                event: MirrorEvent::Closed,
                dropped_bytes: params.dropped_bytes,
            }),
            ServerNotification::FsChanged(ref params) => {
                Self::Lease { id: params.watch_id.clone(), notification }
            }
            ServerNotification::FsSearchResults(ref params) => {
                Self::Lease { id: params.search_id.clone(), notification }
            }
            ServerNotification::HttpBodyDelta(ref params) => {
                Self::Lease { id: params.request_id.clone(), notification }
            }
            ServerNotification::CommandExecOutputDelta(_)
            | ServerNotification::CommandExecExited(_) => Self::Legacy,
        }
    }
}

/// The process that a notification names, if that much of it can be read.
pub(crate) fn read_key(notification: &Notification<'_>) -> Option<ProcessKey> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct ProcessName {
        process_id: String,
        session_id: Option<String>,
    }
    let ProcessName { process_id, session_id } = read(notification)?;
    Some(key(session_id, process_id))
}

/// The lease that a notification names, if that much of it can be read.
pub(crate) fn read_lease_id(notification: &Notification<'_>) -> Option<String> {
    #[derive(Deserialize)]
    struct LeaseName {
        #[serde(alias = "watchId", alias = "searchId", alias = "requestId")]
        id: String,
    }
    read::<LeaseName>(notification).map(|name| name.id)
}

fn key(observed_session: Option<String>, process_id: String) -> ProcessKey {
    ProcessKey { observed_session, process_id }
}

fn read<T: DeserializeOwned>(notification: &Notification<'_>) -> Option<T> {
    serde_json::from_str(notification.params.map_or("{}", RawValue::get)).ok()
}
