//! Which kind of plan a policy gets on a host.

use std::path::Path;

use super::{Plan, PlanError, Tier};
use crate::sandbox::macos::seatbelt;
use crate::sandbox::policy::{Names, Policy};
use crate::sandbox::report::capabilities::Capabilities;

impl Plan {
    /// Looks at the names that the policy protects, as they are now.
    pub fn new(policy: &Policy, has: &Capabilities, names: &impl Names) -> Result<Self, PlanError> {
        Self::starting_in(None, policy, has, names)
    }

    /// The same for a process that starts in this directory, which it must not lose.
    pub fn starting_in(
        cwd: Option<&Path>,
        policy: &Policy,
        has: &Capabilities,
        names: &impl Names,
    ) -> Result<Self, PlanError> {
        if has.seatbelt {
            return Ok(Self::for_seatbelt(policy));
        }
        #[cfg(target_os = "linux")]
        {
            super::linux::plan(cwd, policy, has, names)
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = (names, cwd);
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
            new_network_namespace: false,
            fresh_proc: false,
            own_terminals: false,
        }
    }
}
