//! Chooses the kind of plan that a policy gets on a host.

use std::path::Path;

use super::{GateRequest, NetworkNamespace, Plan, PlanError, Tier};
use crate::sandbox::macos::seatbelt;
use crate::sandbox::policy::{Names, Policy};
use crate::sandbox::report::capabilities::Capabilities;

/// The facts about a start, other than the policy, that a plan depends on.
#[derive(Debug, Clone, Copy, Default)]
pub struct StartFacts<'a> {
    /// The working directory of the process, which must stay accessible.
    pub cwd: Option<&'a Path>,
    pub gate: Option<&'a GateRequest>,
}

impl Plan {
    /// Creates a plan without start facts, from the current state of the file system.
    pub fn new(policy: &Policy, has: &Capabilities, names: &impl Names) -> Result<Self, PlanError> {
        Self::for_start(StartFacts::default(), policy, has, names)
    }

    pub fn for_start(
        start: StartFacts<'_>,
        policy: &Policy,
        has: &Capabilities,
        names: &impl Names,
    ) -> Result<Self, PlanError> {
        if has.seatbelt {
            return Ok(Self::for_seatbelt(policy));
        }
        #[cfg(target_os = "linux")]
        {
            super::linux::plan(start, policy, has, names)
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = (names, start);
            Err(PlanError::UnsupportedSystem { system: std::env::consts::OS })
        }
    }

    fn for_seatbelt(policy: &Policy) -> Self {
        Self {
            tier: Tier::Seatbelt(seatbelt::profile(policy)),
            mounts: vec![],
            landlock: None,
            seccomp: vec![],
            network: policy.network(),
            network_namespace: NetworkNamespace::Inherited,
            fresh_proc: false,
            own_terminals: false,
        }
    }
}
