//! How this machine enforces host rules.

use exec_server_host::sandbox::{
    Access, Capabilities, DeclaredFiles, DeclaredPolicy, Entry, EntryPath, GateRequest, HostNames,
    Network, NetworkEnforcement, Plan, Policy, PolicyContext, StartFacts,
};
use serde::Serialize;

/// How strictly host rules can be enforced, from the strongest tier to none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum NetworkTier {
    Transparent,
    Proxy,
    None,
}

#[derive(Debug, Serialize)]
pub(super) struct NetworkReport {
    pub(super) tier: NetworkTier,
    pub(super) summary: &'static str,
}

impl NetworkReport {
    pub(super) fn new(tier: NetworkTier) -> Self {
        Self { tier, summary: tier.summary() }
    }
}

impl NetworkTier {
    pub(super) fn of(capabilities: &Capabilities) -> Self {
        let root = Entry { path: EntryPath::Root, access: Access::Read, skip_missing: false };
        let files = DeclaredFiles::Restricted { entries: vec![root], glob_scan_max_depth: None };
        let declared = DeclaredPolicy { files, network: Network::Managed };
        let Ok(policy) = Policy::resolve(&declared, &PolicyContext::default(), &HostNames) else {
            return Self::None;
        };
        let gate = GateRequest::default();
        let facts = StartFacts { gate: Some(&gate), ..StartFacts::default() };
        let plan = Plan::for_start(facts, &policy, capabilities, &HostNames);
        match plan.map(|plan| plan.enforcement().network) {
            Ok(NetworkEnforcement::Transparent) => Self::Transparent,
            Ok(NetworkEnforcement::ProxyOnly) => Self::Proxy,
            Ok(NetworkEnforcement::None | NetworkEnforcement::NoNetwork) | Err(_) => Self::None,
        }
    }

    const fn summary(self) -> &'static str {
        match self {
            Self::Transparent => {
                "Rules about hosts (--allow-host) are enforced for every program here, whether it \
                 uses a proxy or not."
            }
            Self::Proxy => {
                "Rules about hosts (--allow-host) are enforced by proxies here: programs that do \
                 not use them have no network, and --require-transparent is refused."
            }
            Self::None => {
                "Rules about hosts (--allow-host) cannot be enforced here: commands with such rules \
                 are refused."
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn the_tier_follows_from_the_capabilities() {
        let complete = Capabilities {
            landlock_abi: 6,
            seccomp: true,
            user_namespace: true,
            network_namespace: true,
            managed_network: true,
            ..Capabilities::default()
        };
        assert_eq!(NetworkTier::of(&complete), NetworkTier::Transparent);
        let forbidden =
            Capabilities { user_namespace: false, managed_network: false, ..complete.clone() };
        assert_eq!(NetworkTier::of(&forbidden), NetworkTier::Proxy);
        let old = Capabilities { landlock_abi: 3, ..forbidden };
        assert_eq!(NetworkTier::of(&old), NetworkTier::None);
        let without_filter = Capabilities { seccomp: false, ..complete };
        assert_eq!(NetworkTier::of(&without_filter), NetworkTier::None);
    }
}
