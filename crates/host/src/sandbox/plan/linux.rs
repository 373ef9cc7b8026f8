//! Which mechanisms of Linux a policy takes on a host that has some of them.

use std::path::Path;

use super::error::Requirement;
use super::{LandlockRules, Mount, Plan, PlanError, Tier, devices, globs, mounts};
use crate::sandbox::kernel::landlock::SCOPES_SINCE;
use crate::sandbox::kernel::seccomp::{self, AttributeChanges, Neighbours};
use crate::sandbox::policy::{Access, Grant, Names, Network, Policy};
use crate::sandbox::report::capabilities::Capabilities;
use crate::sandbox::report::mechanism::Mechanism;
use crate::sandbox::setup::bubblewrap;

pub(super) fn plan(
    cwd: Option<&Path>,
    policy: &Policy,
    has: &Capabilities,
    names: &impl Names,
) -> Result<Plan, PlanError> {
    if !has.seccomp {
        return Err(PlanError::missing(Requirement::SystemCalls, Mechanism::Seccomp, has));
    }
    if !policy.restricts_files() {
        return for_all_files(policy.network(), has);
    }
    if has.landlock_abi == 0 {
        return Err(PlanError::missing(Requirement::Files, Mechanism::Landlock, has));
    }
    for_restricted_files(cwd, policy, has, names)
}

fn for_restricted_files(
    cwd: Option<&Path>,
    policy: &Policy,
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
        // Landlock does not know modes, owners, times and extended attributes. They have to be changed where files are written,
        // and only a read-only mount keeps that from everything else.
        (None, Some(isolation)) if changes_files => isolation,
        (None, Some(isolation)) if has.fresh_proc && grants_only_own_proc(policy) => isolation,
        (None, _) => Tier::Direct,
    };
    let isolated = tier != Tier::Direct;
    let hidden = match tier {
        // It follows symlinks to where it mounts.
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
    let without_network = policy.network() == Network::Restricted;
    Ok(Plan {
        tier,
        mounts,
        landlock: Some(LandlockRules { abi: has.landlock_abi, grants: Some(grants), listed }),
        seccomp: seccomp::program(policy.network(), attributes, neighbours(isolated)).to_vec(),
        network: policy.network(),
        new_network_namespace: isolated && without_network && has.network_namespace,
        fresh_proc: isolated && has.fresh_proc,
        own_terminals,
    })
}

/// Whoever may change every file could get out anyway, so this is about the network, and about honest programs. Processes outside are
/// out of reach all the same: what is promised of every sandbox does not depend on its files.
fn for_all_files(network: Network, has: &Capabilities) -> Result<Plan, PlanError> {
    let abi = has.landlock_abi;
    let (tier, grants) = if abi >= SCOPES_SINCE {
        (Tier::Direct, None)
    } else {
        let need = Requirement::Signals { abi };
        let tier = isolation(has).ok_or_else(|| PlanError::no_isolation(need, has))?;
        // A domain that denies nothing still keeps others from being traced, also where their `/proc` can be seen.
        (tier, Some(vec![Grant { path: "/".into(), access: Access::Write }]))
    };
    let isolated = tier != Tier::Direct;
    let without_network = network == Network::Restricted;
    Ok(Plan {
        tier,
        mounts: vec![],
        landlock: (abi > 0).then_some(LandlockRules { abi, grants, listed: vec![] }),
        seccomp: seccomp::program(network, AttributeChanges::Changeable, neighbours(isolated))
            .to_vec(),
        network,
        new_network_namespace: isolated && without_network && has.network_namespace,
        fresh_proc: isolated && has.fresh_proc,
        own_terminals: false,
    })
}

/// Whoever has `/proc` without everything else, as `minimal` grants it, needs it for what it says of himself. Rules are about
/// paths and cannot say that; a `/proc` of the sandbox's own shows nobody else.
fn grants_only_own_proc(policy: &Policy) -> bool {
    policy.access(Path::new("/proc")) >= Access::Read
        && policy.access(Path::new("/")) == Access::Deny
}

fn isolation(has: &Capabilities) -> Option<Tier> {
    if has.user_namespace {
        Some(Tier::Namespaces)
    } else {
        has.bubblewrap.clone().map(Tier::Bubblewrap)
    }
}

fn neighbours(isolated: bool) -> Neighbours {
    if isolated { Neighbours::Absent } else { Neighbours::InReach }
}

/// Rules do not know of denied globs, and Landlock would grant what they say.
fn effective_grants(policy: &Policy) -> Vec<Grant> {
    let mut grants = policy.grants();
    grants.retain(|grant| policy.access(&grant.path) >= grant.access);
    grants
}

fn changes_files(grant: &Grant) -> bool {
    grant.access == Access::Write && !devices::is_essential(&grant.path)
}
