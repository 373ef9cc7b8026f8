//! The audit log of a rendezvous: calls, sockets and refusals. No record holds a token, a ticket or
//! a frame.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Instant, SystemTime};

use exec_server_telemetry::{AuditLog, RefusalLine, RefusalLines, Timestamp};
use serde::Serialize;

use crate::credential::CredentialId;
use crate::environment_id::EnvironmentId;
use crate::error_response::Refusal;
use crate::router::{RelayEnd, SocketGrant};

#[derive(Debug)]
pub(crate) struct Audit {
    log: Arc<AuditLog>,
    refusals: Mutex<RefusalLines>,
}

#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "lowercase")]
enum Event {
    Call,
    Socket,
    Refused,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Record<'a> {
    time: Timestamp,
    event: Event,
    outcome: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    credential: Option<&'a CredentialId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    environment: Option<&'a EnvironmentId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    end: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
}

impl Record<'_> {
    fn new(event: Event, outcome: &str) -> Record<'_> {
        Record {
            time: Timestamp(SystemTime::now()),
            event,
            outcome,
            method: None,
            credential: None,
            environment: None,
            end: None,
            address: None,
            count: None,
        }
    }
}

/// An open socket. Dropping this records the socket as closed.
pub(crate) struct OpenSocket<'a> {
    audit: &'a Audit,
    environment: EnvironmentId,
    credential: CredentialId,
    end: &'static str,
}

impl Audit {
    pub(crate) fn new(log: Arc<AuditLog>) -> Self {
        Self { log, refusals: Mutex::default() }
    }

    /// Records a call of an authenticated peer.
    pub(crate) fn call<T>(
        &self,
        method: &str,
        credential: &CredentialId,
        environment: Option<&EnvironmentId>,
        address: Option<SocketAddr>,
        result: &Result<T, Refusal>,
    ) {
        let outcome = result.as_ref().map_or_else(|refusal| refusal.code, |_| "ok");
        self.log.write(&Record {
            method: Some(method),
            credential: Some(credential),
            environment,
            address,
            ..Record::new(Event::Call, outcome)
        });
    }

    pub(crate) fn socket_opened(&self, grant: &SocketGrant) -> OpenSocket<'_> {
        let end = match grant.end {
            RelayEnd::Environment { .. } => "environment",
            RelayEnd::Harness => "harness",
        };
        let (environment, credential) = (grant.environment.clone(), grant.credential.clone());
        let socket = OpenSocket { audit: self, environment, credential, end };
        socket.record("opened");
        socket
    }

    /// Records a refusal that [`Audit::call`] has not recorded. Of many refusals within a second,
    /// the last ones are only counted.
    pub(crate) fn refused(&self, refusal: &Refusal, address: Option<SocketAddr>) {
        let line = self.refusals().next(Instant::now());
        match line {
            RefusalLine::LeaveOut => return,
            RefusalLine::WriteWithSummary { left_out } => self.summarize_refusals(left_out),
            RefusalLine::Write => {}
        }
        self.log.write(&Record { address, ..Record::new(Event::Refused, refusal.code) });
    }

    fn summarize_refusals(&self, left_out: u64) {
        let count = Some(left_out);
        self.log.write(&Record { count, ..Record::new(Event::Refused, "refused") });
    }

    /// Writes the last records of a service that is shutting down.
    pub(crate) fn flush(&self) {
        let left_out = self.refusals().take_left_out();
        if left_out > 0 {
            self.summarize_refusals(left_out);
        }
        self.log.flush();
    }

    fn refusals(&self) -> MutexGuard<'_, RefusalLines> {
        self.refusals.lock().expect("no code panics while it holds the refusals")
    }
}

impl OpenSocket<'_> {
    fn record(&self, outcome: &str) {
        self.audit.log.write(&Record {
            credential: Some(&self.credential),
            environment: Some(&self.environment),
            end: Some(self.end),
            ..Record::new(Event::Socket, outcome)
        });
    }
}

impl Drop for OpenSocket<'_> {
    fn drop(&mut self) {
        self.record("closed");
    }
}
