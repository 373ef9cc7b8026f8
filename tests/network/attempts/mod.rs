//! Attempts to bypass a network policy. Each is a small program that succeeds without a policy.
//! Under its policy, it reaches only servers that the policy allows.

mod addresses;
mod kernel;
mod names;
mod proxy;
mod requests;
mod socks;

use serde_json::{Value, json};

pub(super) use addresses::ADDRESSES;
pub(super) use kernel::KERNEL;
pub(super) use names::NAMES;
pub(super) use proxy::PROXY;
pub(super) use requests::REQUESTS;
pub(super) use socks::SOCKS;

#[derive(Debug, Clone, Copy)]
pub(super) struct Attempt {
    pub(super) name: &'static str,
    /// Python code that follows `prelude.py`, or a shell script if it starts with `#!`.
    pub(super) code: &'static str,
    pub(super) policy: Policy,
    pub(super) proof: Proof,
    /// Servers that the policy allows the attempt to reach. All others must receive nothing.
    pub(super) may_reach: &'static [&'static str],
    /// Whether only namespaces stop the attempt. Without namespaces (`enforcement` reports that),
    /// Landlock restricts ports but not addresses, and root without a file sandbox may write every
    /// file, including those of the kernel.
    pub(super) needs_namespaces: bool,
}

/// How a run without a policy proves that the attempt works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Proof {
    /// A server recorded the contact, and the program received its response.
    Answer,
    /// A server recorded the contact, whatever the program received.
    Contact,
    /// The program reports that it succeeded.
    Word,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Policy {
    /// `allowed.test`
    Allowed,
    /// Mostly names whose addresses must not be reached, such as private ones.
    Misleading,
    /// The subdomains of `allowed.test`
    Subdomains,
    /// `allowed.test` with its subdomains, `mixed.test` and an address, except one subdomain, one
    /// port and two addresses.
    Denied,
    /// One port of `allowed.test`
    OnePort,
    /// `allowed.test` with safe methods.
    Limited,
    /// `allowed.test`, with datagrams over SOCKS5.
    Datagrams,
    Nothing,
    /// Only one port on loopback, as for a client that runs its own proxy there.
    LoopbackPort,
}

impl Policy {
    /// Returns the fields of a start request.
    pub(super) fn fields(self) -> Value {
        let rules =
            |allow: &[&str], deny: &[&str]| json!({"network": {"allow": allow, "deny": deny}});
        let proxy = |mode: &str, udp: bool| {
            json!({"networkProxy": {"proxy": {
                "enabled": true, "enableSocks5": true, "enableSocks5Udp": udp, "mode": mode,
                "domains": {"allowed.test": "allow"},
            }}})
        };
        match self {
            Self::Allowed => rules(&["allowed.test"], &[]),
            Self::Misleading => rules(
                &[
                    "internal.test",
                    "internal6.test",
                    "metadata.test",
                    "loopback.test",
                    "mixed.test",
                    "mapped.test",
                    "nat64.test",
                    "zero.test",
                    "rebind.test",
                    "**.allowed.test",
                    "**.localhost",
                ],
                &[],
            ),
            Self::Subdomains => rules(&["*.allowed.test"], &[]),
            Self::Denied => rules(
                &["**.allowed.test", "mixed.test", "93.184.216.35"],
                &["sub.allowed.test", "10.0.0.5", "93.184.216.35", "93.184.216.34:8080"],
            ),
            Self::OnePort => rules(&["allowed.test:8080"], &[]),
            Self::Limited => proxy("limited", false),
            Self::Datagrams => proxy("full", true),
            Self::Nothing => rules(&[], &[]),
            Self::LoopbackPort => json!({
                "enforceManagedNetwork": true,
                "managedNetwork": {"loopbackPorts": [8000], "allowLocalBinding": false},
            }),
        }
    }
}

const fn attempt(name: &'static str, code: &'static str) -> Attempt {
    let (policy, proof) = (Policy::Allowed, Proof::Answer);
    Attempt { name, code, policy, proof, may_reach: &[], needs_namespaces: false }
}

impl Attempt {
    const fn under(self, policy: Policy) -> Self {
        Self { policy, ..self }
    }

    const fn held_by_namespaces_only(self) -> Self {
        Self { needs_namespaces: true, ..self }
    }

    const fn proved_by(self, proof: Proof) -> Self {
        Self { proof, ..self }
    }

    const fn may_reach(self, may_reach: &'static [&'static str]) -> Self {
        Self { may_reach, ..self }
    }
}
