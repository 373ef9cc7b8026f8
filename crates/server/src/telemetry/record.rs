//! One line of the audit log.

use exec_server_protocol::LimitName;
use exec_server_telemetry::Timestamp;
use serde::Serialize;

use super::now;
use crate::connection::ClientConnection;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Event {
    Connection,
    Session,
    Start,
    Exit,
    File,
    Network,
    /// A request that was not allowed, or exceeded a limit.
    Refused,
    /// A request is about to change something; its outcome follows.
    Begun,
    /// The outcome of a request after [`Self::Begun`], if no other kind fits.
    Request,
}

/// Empty members are omitted.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Record {
    pub(super) time: Timestamp,
    pub(super) event: Event,
    pub(super) outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) subject: Option<String>,
    /// The owner of the session, if that is another subject.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) owner: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) address: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) connection: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) session: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) method: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) process: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) signal: Option<i32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) limits_hit: Vec<LimitName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) host: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) port: Option<u16>,
    /// The number of events that the record stands for, if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) count: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) command: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) paths: Vec<String>,
}

impl Record {
    pub(super) fn new(event: Event) -> Self {
        Self {
            time: now(),
            event,
            outcome: "",
            subject: None,
            owner: None,
            address: None,
            connection: None,
            session: None,
            method: None,
            process: None,
            exit_code: None,
            signal: None,
            limits_hit: Vec::new(),
            host: None,
            port: None,
            count: None,
            command: Vec::new(),
            paths: Vec::new(),
        }
    }

    pub(super) fn of(event: Event, connection: &ClientConnection) -> Self {
        Self {
            subject: Some(connection.principal().subject.to_string()),
            address: connection.address().map(|address| address.to_string()),
            connection: Some(connection.id().0),
            ..Self::new(event)
        }
    }
}
