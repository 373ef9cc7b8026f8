//! Chooses, among the mechanisms of a Linux host, those that enforce a policy.

use std::path::Path;

use super::decide::StartFacts;
use super::error::Requirement;
use super::network::NetworkPlan;
use super::{LandlockRules, Mount, Plan, PlanError, Tier, devices, globs, mounts};
use crate::sandbox::kernel::landlock::SCOPES_SINCE;
use crate::sandbox::kernel::seccomp::{self, AttributeChanges, Neighbours};
use crate::sandbox::policy::{Access, Grant, Names, Policy};
use crate::sandbox::report::capabilities::Capabilities;
use crate::sandbox::report::mechanism::Mechanism;
use crate::sandbox::setup::bubblewrap;

pub(super) fn plan(
    start: StartFacts<'_>,
    policy: &Policy,
    has: &Capabilities,
    names: &impl Names,
) -> Result<Plan, PlanError> {
    if !has.seccomp {
        return Err(PlanError::missing(Requirement::SystemCalls, Mechanism::Seccomp, has));
    }
    let network = NetworkPlan::new(policy.network(), start.gate, has)?;
    if !policy.restricts_files() {
        return for_all_files(&network, has);
    }
    if has.landlock_abi == 0 {
        return Err(PlanError::missing(Requirement::Files, Mechanism::Landlock, has));
    }
    for_restricted_files(start.cwd, policy, &network, has, names)
}

fn for_restricted_files(
    cwd: Option<&Path>,
    policy: &Policy,
    network: &NetworkPlan,
    has: &Capabilities,
    names: &impl Names,
) -> Result<Plan, PlanError> {
    let grants = effective_grants(policy);
    let changes_files = grants.iter().any(changes_files);
    let covers = mounts::covers(policy, names)?;
    let hidden = globs::existing_matches(policy, names)?;
    let need = if let Some(first) = covers.first().or(hidden.first()) {
        Some(Requirement::CarveOut { path: first.path.clone() })
    } else if has.landlock_abi < SCOPES_SINCE {
        Some(Requirement::Signals { abi: has.landlock_abi })
    } else {
        None
    };
    let tier = match (need, isolation(has)) {
        (Some(need), None) => return Err(PlanError::no_isolation(need, has)),
        (Some(_), Some(isolation)) => isolation,
        // A process with writable files must be allowed to change modes, owners, times and extended
        // attributes. Landlock does not restrict such changes, so only read-only mounts protect all
        // other files. A gate needs a network namespace.
        (None, Some(isolation)) if changes_files || network.gate.is_some() => isolation,
        (None, Some(isolation)) if has.fresh_proc && grants_only_own_proc(policy) => isolation,
        (None, _) => Tier::Direct,
    };
    let isolated = tier != Tier::Direct;
    let hidden = match tier {
        // Bubblewrap would follow a symlink and mount on its target.
        Tier::Bubblewrap(_) => globs::targets_of_links(hidden, cwd, policy, names)?,
        _ => hidden,
    };
    let mounts =
        if isolated { mounts::lay_out(policy, &grants, covers, hidden, names)? } else { vec![] };
    if matches!(tier, Tier::Bubblewrap(_)) {
        bubblewrap::check(&mounts)?;
    }
    let attributes = if isolated || changes_files {
        AttributeChanges::Changeable
    } else {
        AttributeChanges::Frozen
    };
    let own_terminals = tier == Tier::Namespaces && devices::can_have_terminals(policy, names)?;
    let (mut grants, listed) = devices::narrow(policy, grants, names)?;
    grants.extend(mounts.iter().filter_map(|mount| match mount {
        Mount::Fresh(path) => Some(Grant { path: path.clone(), access: Access::Write }),
        Mount::Cover(_) | Mount::Regrant(_) => None,
    }));
    let connect_ports = network.connect_ports();
    let landlock =
        LandlockRules { abi: has.landlock_abi, grants: Some(grants), listed, connect_ports };
    Ok(Plan {
        tier,
        mounts,
        landlock: Some(landlock),
        seccomp: seccomp::program(network.sockets, attributes, neighbours(isolated)).to_vec(),
        network: network.network,
        network_namespace: network.namespace(isolated, has),
        fresh_proc: isolated && has.fresh_proc,
        own_terminals,
    })
}

/// Creates a plan without file restrictions. A program that may change every file can escape
/// anyway, so the plan only restricts the network and protects against mistakes. Outside processes
/// still stay out of reach: that promise does not depend on the file policy.
fn for_all_files(network: &NetworkPlan, has: &Capabilities) -> Result<Plan, PlanError> {
    let abi = has.landlock_abi;
    let (tier, grants) = if abi >= SCOPES_SINCE && network.gate.is_none() {
        (Tier::Direct, None)
    } else {
        let need = Requirement::Signals { abi };
        let tier = isolation(has).ok_or_else(|| PlanError::no_isolation(need, has))?;
        // A Landlock domain that grants all files still prevents tracing of other processes, even
        // if their `/proc` entries are visible.
        (tier, Some(vec![Grant { path: "/".into(), access: Access::Write }]))
    };
    let isolated = tier != Tier::Direct;
    let connect_ports = network.connect_ports();
    let landlock = LandlockRules { abi, grants, listed: vec![], connect_ports };
    let attributes = AttributeChanges::Changeable;
    Ok(Plan {
        tier,
        mounts: vec![],
        landlock: (abi > 0).then_some(landlock),
        seccomp: seccomp::program(network.sockets, attributes, neighbours(isolated)).to_vec(),
        network: network.network,
        network_namespace: network.namespace(isolated, has),
        fresh_proc: isolated && has.fresh_proc,
        own_terminals: false,
    })
}

/// Whether the policy grants `/proc` but not `/`, as `minimal` does. The program then needs `/proc`
/// only for information about itself. Rules about paths cannot express that; a private `/proc`
/// shows no other processes.
fn grants_only_own_proc(policy: &Policy) -> bool {
    policy.access(Path::new("/proc")) >= Access::Read
        && policy.access(Path::new("/")) == Access::Deny
}

pub(super) fn isolation(has: &Capabilities) -> Option<Tier> {
    if has.user_namespace {
        Some(Tier::Namespaces)
    } else {
        has.bubblewrap.clone().map(Tier::Bubblewrap)
    }
}

fn neighbours(isolated: bool) -> Neighbours {
    if isolated { Neighbours::Absent } else { Neighbours::InReach }
}

/// Drops grants whose path a glob denies: Landlock rules ignore globs and would grant these paths.
fn effective_grants(policy: &Policy) -> Vec<Grant> {
    let mut grants = policy.grants();
    grants.retain(|grant| policy.access(&grant.path) >= grant.access);
    grants
}

fn changes_files(grant: &Grant) -> bool {
    grant.access == Access::Write && !devices::is_essential(&grant.path)
}
