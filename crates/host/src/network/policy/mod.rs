//! Policies for the hosts that a process may reach. Pure: this module resolves no names and asks no
//! questions.
//!
//! [`Host`] is the canonical spelling of a host, [`HostPattern`] matches hosts, [`Rules`] are the
//! rules of one party, and [`NetworkPolicy`] combines those of all parties: the strictest decision
//! wins.

mod address;
mod host;
mod pattern;
mod rules;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::net::IpAddr;

pub use address::is_private;
pub use host::{Host, HostError};
pub use pattern::{HostPattern, PatternError};
pub use rules::{Access, Decision, DenyReason, Mode, Protocol, Route, Rules, Unnamed};

use pattern::DEFAULT_PORTS;

/// Each port needs a listener for every managed process.
pub const MAX_DIRECT_PORTS: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkPolicy {
    layers: Vec<Rules>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    #[error(
        "the host patterns allow direct connections to {count} ports, more than the limit of \
         {MAX_DIRECT_PORTS}; name fewer ports, or reach other ports through the proxy with \
         patterns without a port"
    )]
    TooManyPorts { count: usize },
}

impl NetworkPolicy {
    /// Combines the layers. Without any layer, everything is denied.
    #[must_use]
    pub fn new(layers: Vec<Rules>) -> Self {
        Self { layers }
    }

    /// Whether an allow pattern names this host, on any port.
    #[must_use]
    pub fn names(&self, host: &Host) -> bool {
        self.layers.iter().flat_map(|layer| &layer.allow).any(|pattern| pattern.names(host))
    }

    /// Checks that the policy can be enforced. Call it before a process starts.
    pub fn check(&self) -> Result<(), PolicyError> {
        let count = self.direct_ports().len();
        if count > MAX_DIRECT_PORTS {
            return Err(PolicyError::TooManyPorts { count });
        }
        Ok(())
    }

    #[must_use]
    pub fn decide(&self, access: &Access<'_>) -> Decision {
        let decisions = self.layers.iter().map(|layer| layer.decide(access));
        decisions.reduce(stricter).unwrap_or(Decision::Deny(DenyReason::NotAllowed))
    }

    /// Checks that an address of an allowed name may be dialled.
    pub fn check_resolved(&self, address: IpAddr, port: u16) -> Result<(), DenyReason> {
        if self.layers.is_empty() {
            return Err(DenyReason::NotAllowed);
        }
        self.layers.iter().try_for_each(|layer| layer.check_resolved(address, port))
    }

    /// Whether some connection to this name could be allowed, perhaps after a question. Determines
    /// the answers of DNS.
    #[must_use]
    pub fn may_reach(&self, name: &Host) -> bool {
        // All ports that no rule names for this host are treated alike, so one of them represents
        // the rest. `denies` is also used for the patterns of `allow`: it matches at least as much
        // as `names`.
        let mut ports: BTreeSet<u16> = self
            .layers
            .iter()
            .flat_map(|layer| layer.allow.iter().chain(&layer.deny))
            .filter_map(|pattern| pattern.port().filter(|port| pattern.denies(name, *port)))
            .chain(DEFAULT_PORTS)
            .collect();
        ports.extend((1..=u16::MAX).find(|port| !ports.contains(port)));
        // A proxy reaches at least as much as a direct connection, and no mode refuses this GET.
        ports.into_iter().any(|port| {
            let access = Access {
                host: name,
                port,
                protocol: Protocol::Http,
                route: Route::Proxy,
                method: Some("GET"),
            };
            !matches!(self.decide(&access), Decision::Deny(_))
        })
    }

    /// Returns the ports on which direct connections can be allowed: those that `allow` patterns
    /// name, and 80 and 443. [`check`](Self::check) bounds their number.
    #[must_use]
    pub fn direct_ports(&self) -> BTreeSet<u16> {
        // In limited mode only plain HTTP works, which does not use 443 unless a pattern says so.
        let limited = self.layers.iter().any(|layer| layer.mode == Mode::Limited);
        let defaults = if limited { &DEFAULT_PORTS[..1] } else { &DEFAULT_PORTS[..] };
        let named = self.layers.iter().flat_map(|layer| &layer.allow).filter_map(HostPattern::port);
        let mut ports: BTreeSet<u16> = named.chain(defaults.iter().copied()).collect();
        ports.retain(|port| self.layers.iter().all(|layer| layer.may_allow_directly(*port)));
        if self.layers.is_empty() {
            ports.clear();
        }
        ports
    }
}

/// Returns the stricter decision of two layers. Of two denials the first gives the reason, except
/// that a rule which denies the host is more informative than the lack of a rule that allows it.
fn stricter(first: Decision, second: Decision) -> Decision {
    use Decision::{Allow, Ask, Deny};
    use DenyReason::{Denied, NotAllowed};
    match (first, second) {
        (Deny(NotAllowed), Deny(Denied)) => second,
        (Deny(_), _) => first,
        (_, Deny(_)) => second,
        (Ask, _) | (_, Ask) => Ask,
        (Allow, Allow) => Allow,
    }
}
