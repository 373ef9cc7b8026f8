//! From a notification to an event of a process.

use exec_server_protocol::{
    ClosedNotification, ExitedNotification, Notification, OutputNotification,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::calls::ProcessKey;
use crate::mirror::MirrorEvent;
use crate::{Violation, catch_up};

/// An event as it was notified.
pub(crate) struct Notified {
    pub(crate) key: ProcessKey,
    pub(crate) seq: u64,
    pub(crate) event: MirrorEvent,
    pub(crate) dropped_bytes: u64,
}

/// As much of a notification as is needed to say whose it is.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ProcessName {
    process_id: String,
    session_id: Option<String>,
}

pub(crate) fn read_event(notification: &Notification<'_>) -> Result<Option<Notified>, Violation> {
    let notified = match &*notification.method {
        "process/output" => {
            let params: OutputNotification = read(notification)?;
            Notified {
                key: key(params.session_id, params.process_id),
                seq: params.seq,
                event: MirrorEvent::Output { stream: params.stream, chunk: params.chunk.0 },
                dropped_bytes: params.dropped_bytes,
            }
        }
        "process/exited" => {
            let params: ExitedNotification = read(notification)?;
            Notified {
                key: key(params.session_id, params.process_id),
                seq: params.seq,
                event: MirrorEvent::Exited {
                    exit_code: params.exit_code,
                    sandbox_denied: params.sandbox_denied,
                    denied: params.denied,
                    details: params.exit,
                },
                dropped_bytes: params.dropped_bytes,
            }
        }
        "process/closed" => {
            let params: ClosedNotification = read(notification)?;
            Notified {
                key: key(params.session_id, params.process_id),
                seq: params.seq,
                event: MirrorEvent::Closed,
                dropped_bytes: params.dropped_bytes,
            }
        }
        _ => return Ok(None),
    };
    if notified.seq == 0 || notified.seq >= catch_up::MAX_SEQ {
        return Err(Violation::Numbers { process_id: notified.key.process_id });
    }
    Ok(Some(notified))
}

fn key(observed_session: Option<String>, process_id: String) -> ProcessKey {
    ProcessKey { observed_session, process_id }
}

pub(crate) fn read<T: DeserializeOwned>(notification: &Notification<'_>) -> Result<T, Violation> {
    let text = notification.params.map_or("{}", RawValue::get);
    serde_json::from_str(text).map_err(|source| Violation::Notification {
        method: notification.method.clone().into_owned(),
        source,
    })
}

/// Whose event it is, if as much can be read.
pub(crate) fn read_key(notification: &Notification<'_>) -> Option<ProcessKey> {
    let ProcessName { process_id, session_id } = read(notification).ok()?;
    Some(key(session_id, process_id))
}
