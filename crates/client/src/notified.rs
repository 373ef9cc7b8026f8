//! Finds the recipient of a notification.

use exec_server_protocol::{NetworkPolicyDecisionNotification, Notification, ServerNotification};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::calls::ProcessKey;
use crate::mirror::MirrorEvent;

pub(crate) struct ProcessNotification {
    pub(crate) key: ProcessKey,
    pub(crate) seq: u64,
    pub(crate) event: MirrorEvent,
    pub(crate) dropped_bytes: u64,
}

pub(crate) enum RoutedNotification {
    Process(ProcessNotification),
    Lease {
        id: String,
        notification: ServerNotification,
    },
    Network(NetworkPolicyDecisionNotification),
    /// An event of a process that was started with `command/exec`, which this client never calls.
    Legacy,
}

impl From<ServerNotification> for RoutedNotification {
    fn from(notification: ServerNotification) -> Self {
        let event = read_event(&notification);
        let (observed_session, process_id) = match notification {
            ServerNotification::ProcessOutput(params) => (params.session_id, params.process_id),
            ServerNotification::ProcessExited(params) => (params.session_id, params.process_id),
            ServerNotification::ProcessClosed(params) => (params.session_id, params.process_id),
            ServerNotification::FsChanged(ref params) => {
                return Self::Lease { id: params.watch_id.clone(), notification };
            }
            ServerNotification::FsSearchResults(ref params) => {
                return Self::Lease { id: params.search_id.clone(), notification };
            }
            ServerNotification::HttpBodyDelta(ref params) => {
                return Self::Lease { id: params.request_id.clone(), notification };
            }
            ServerNotification::NetworkPolicyDecision(params) => return Self::Network(params),
            ServerNotification::CommandExecOutputDelta(_)
            | ServerNotification::CommandExecExited(_) => return Self::Legacy,
        };
        let key = ProcessKey { observed_session, process_id };
        match event {
            Some((seq, event, dropped_bytes)) => {
                Self::Process(ProcessNotification { key, seq, event, dropped_bytes })
            }
            None => Self::Legacy,
        }
    }
}

/// Returns the number and content of a process event, and the size of the gap before it.
pub(crate) fn read_event(notification: &ServerNotification) -> Option<(u64, MirrorEvent, u64)> {
    Some(match notification {
        ServerNotification::ProcessOutput(params) => {
            let (stream, chunk) = (params.stream, params.chunk.clone().into_bytes());
            (params.seq, MirrorEvent::Output { stream, chunk }, params.dropped_bytes)
        }
        ServerNotification::ProcessExited(params) => {
            let event = MirrorEvent::Exited {
                exit_code: params.exit_code,
                sandbox_denied: params.sandbox_denied,
                denied: params.denied.clone(),
                details: params.exit.clone().map(Box::new),
            };
            (params.seq, event, params.dropped_bytes)
        }
        ServerNotification::ProcessClosed(params) => {
            (params.seq, MirrorEvent::Closed, params.dropped_bytes)
        }
        _ => return None,
    })
}

/// Returns the process that a notification names, if that much can be read.
pub(crate) fn read_key(notification: &Notification<'_>) -> Option<ProcessKey> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct ProcessName {
        process_id: String,
        session_id: Option<String>,
    }
    let ProcessName { process_id, session_id } = read(notification)?;
    Some(ProcessKey { observed_session: session_id, process_id })
}

/// Returns the lease that a notification names, if that much can be read.
pub(crate) fn read_lease_id(notification: &Notification<'_>) -> Option<String> {
    #[derive(Deserialize)]
    struct LeaseName {
        #[serde(alias = "watchId", alias = "searchId", alias = "requestId")]
        id: String,
    }
    read::<LeaseName>(notification).map(|name| name.id)
}

fn read<T: DeserializeOwned>(notification: &Notification<'_>) -> Option<T> {
    serde_json::from_str(notification.params.map_or("{}", RawValue::get)).ok()
}
