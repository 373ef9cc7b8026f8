//! The most recent refusals of clients and requests, for `server/status`. An audit log also has the
//! older ones.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use exec_server_protocol::{Method, RecentRefusal, RefusedThing, Subject};
use exec_server_telemetry::short;
use exec_server_transport::Refusal;

use crate::connection::ClientConnection;

/// How many refusals are kept. Repeated identical refusals of one client share an entry.
const KEPT: usize = 32;

#[derive(Debug, Default)]
pub(super) struct RecentRefusals {
    /// Ordered by time, oldest first.
    kept: Mutex<VecDeque<Entry>>,
}

#[derive(Debug, Clone)]
struct Entry {
    reason: &'static str,
    what: RefusedThing,
    address: Option<SocketAddr>,
    subject: Option<Subject>,
    method: Option<Method>,
    at: SystemTime,
    count: u64,
}

impl RecentRefusals {
    pub(super) fn connection(&self, refusal: &Refusal, at: SystemTime) {
        self.add(Entry {
            reason: refusal.reason.label(),
            what: RefusedThing::Connection,
            address: refusal.address,
            subject: None,
            method: None,
            at,
            count: 1,
        });
    }

    pub(super) fn request(
        &self,
        reason: &'static str,
        method: Option<Method>,
        connection: &ClientConnection,
        at: SystemTime,
    ) {
        self.add(Entry {
            reason,
            what: RefusedThing::Request,
            address: connection.address(),
            subject: Some(connection.principal().subject.clone()),
            method,
            at,
            count: 1,
        });
    }

    pub(super) fn list(&self) -> Vec<RecentRefusal> {
        let kept = self.kept.lock().expect("no code panics while it holds the refusals");
        kept.iter().map(Entry::shown).collect()
    }

    fn add(&self, mut entry: Entry) {
        let mut kept = self.kept.lock().expect("no code panics while it holds the refusals");
        if let Some(index) = kept.iter().position(|other| other.is_like(&entry)) {
            let earlier = kept.remove(index).map_or(0, |earlier| earlier.count);
            entry.count = earlier.saturating_add(1);
        } else if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(entry);
    }
}

impl Entry {
    /// Compares addresses without ports: a client has a new port for each connection.
    fn is_like(&self, other: &Self) -> bool {
        let host = |entry: &Self| entry.address.map(|address| address.ip());
        (self.what, self.reason, self.method) == (other.what, other.reason, other.method)
            && host(self) == host(other)
            && self.subject == other.subject
    }

    fn shown(&self) -> RecentRefusal {
        let since = self.at.duration_since(UNIX_EPOCH).unwrap_or_default();
        RecentRefusal {
            at_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
            count: self.count,
            what: self.what,
            reason: self.reason.to_owned(),
            address: self.address.map(|address| address.to_string()),
            subject: self.subject.as_ref().map(|subject| short(&subject.to_string())),
            method: self.method.map(|method| method.name().to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use exec_server_transport::RefusalReason;

    use super::*;

    fn refuse(refusals: &RecentRefusals, address: &str, second: u64) {
        let address = Some(address.parse().unwrap());
        let refusal = Refusal { address, reason: RefusalReason::Credentials };
        refusals.connection(&refusal, UNIX_EPOCH + Duration::from_secs(second));
    }

    #[test]
    fn repeated_refusals_of_a_client_share_an_entry() {
        let refusals = RecentRefusals::default();
        for (second, address) in (1..).zip(["10.0.0.1:1", "10.0.0.2:1", "10.0.0.1:2"]) {
            refuse(&refusals, address, second);
        }
        let listed = refusals.list();
        let shown: Vec<_> =
            listed.iter().map(|one| (one.address.as_deref().unwrap(), one.count)).collect();
        assert_eq!(shown, [("10.0.0.2:1", 1), ("10.0.0.1:2", 2)]);
        assert_eq!(listed[1].at_ms, 3000);
    }

    #[test]
    fn the_oldest_refusals_are_dropped_first() {
        let refusals = RecentRefusals::default();
        for second in 0..100 {
            refuse(&refusals, &format!("10.0.0.{second}:1"), second);
        }
        let listed = refusals.list();
        assert_eq!(listed.len(), KEPT);
        assert_eq!((listed[0].at_ms, listed[KEPT - 1].at_ms), (68_000, 99_000));
    }
}
