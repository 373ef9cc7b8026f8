//! The choice of mechanisms, and refusals.

use super::*;
use crate::sandbox::kernel::seccomp::{self, AttributeChanges, Neighbours, Sockets};
use crate::sandbox::plan::{NetworkNamespace, Tier};
use crate::sandbox::policy::Grant;
use crate::sandbox::report::mechanism::Mechanism;

#[test]
fn the_tier_follows_from_policy_and_host() {
    let bubblewrap = || Tier::Bubblewrap("/usr/bin/bwrap".into());
    let table = [
        ("read only", read_only(), everything(), Tier::Direct),
        ("read only, no namespaces", read_only(), without_isolation(), Tier::Direct),
        ("read only, ABI 6", read_only(), with_abi(6, without_isolation()), Tier::Direct),
        ("read only, ABI 5", read_only(), with_abi(5, everything()), Tier::Namespaces),
        ("read only, ABI 3", read_only(), with_abi(3, everything()), Tier::Namespaces),
        ("read only, ABI 1", read_only(), with_abi(1, everything()), Tier::Namespaces),
        (
            "read only, ABI 5, bubblewrap",
            read_only(),
            with_abi(5, without_namespaces()),
            bubblewrap(),
        ),
        ("workspace", workspace(), everything(), Tier::Namespaces),
        ("workspace, ABI 1", workspace(), with_abi(1, everything()), Tier::Namespaces),
        ("workspace, bubblewrap", workspace(), without_namespaces(), bubblewrap()),
        ("one file", one_writable_file(), everything(), Tier::Namespaces),
        ("one file, bubblewrap", one_writable_file(), without_namespaces(), bubblewrap()),
        ("one file, neither", one_writable_file(), without_isolation(), Tier::Direct),
        ("minimal", minimal(), everything(), Tier::Namespaces),
        ("minimal, old /proc", minimal(), with_old_proc(), Tier::Direct),
        ("minimal, neither", minimal(), without_isolation(), Tier::Direct),
        ("all files", all_files(), without_isolation(), Tier::Direct),
        ("all files, ABI 5", all_files(), with_abi(5, everything()), Tier::Namespaces),
        ("all files, ABI 0", all_files(), with_abi(0, everything()), Tier::Namespaces),
        (
            "all files, ABI 0, bubblewrap",
            all_files(),
            with_abi(0, without_namespaces()),
            bubblewrap(),
        ),
    ];
    for (case, policy, has, tier) in table {
        let plan = plan(&policy, &has).unwrap_or_else(|error| panic!("{case}: {error}"));
        assert_eq!(plan.tier, tier, "{case}");
        let without_mounts = tier == Tier::Direct || !policy.restricts_files();
        assert_eq!(plan.mounts.is_empty(), without_mounts, "{case}");
    }
}

#[test]
fn refusals_name_the_missing_mechanism_and_its_remedy() {
    let no_isolation = "this requires user namespaces (not usable on this host) or bubblewrap (not usable on this host); to get it: \
         `apt-get install bubblewrap`, or let this user create user namespaces; `exec-server doctor` shows the obstacle";
    assert_eq!(
        refusal(&workspace(), &without_isolation()),
        format!(
            "the policy protects /home/ann/app/.agents inside a granted directory; {no_isolation}"
        )
    );
    let no_scopes = |abi| {
        format!(
            "every sandbox must confine signals, which this kernel's Landlock (ABI {abi}) cannot do; {no_isolation}"
        )
    };
    for abi in [1, 3, 5] {
        assert_eq!(refusal(&read_only(), &with_abi(abi, without_isolation())), no_scopes(abi));
        assert_eq!(refusal(&all_files(), &with_abi(abi, without_isolation())), no_scopes(abi));
    }
    assert_eq!(
        refusal(&all_files(), &with_abi(0, without_isolation())),
        format!("every sandbox must confine signals, even without Landlock; {no_isolation}")
    );
    let no_landlock = "the policy restricts files; this requires Landlock (not usable on this host); to get it: Linux 5.13 or later (6.12 to confine signals as well) with \
         `landlock` listed in /sys/kernel/security/lsm (boot parameter `lsm=landlock,...`); in a container, a seccomp profile \
         that allows landlock_create_ruleset (Docker 23 or later)";
    for policy in [read_only(), workspace()] {
        assert_eq!(refusal(&policy, &with_abi(0, everything())), no_landlock);
    }
    let no_seccomp = "every sandbox denies dangerous system calls; this requires seccomp (not usable on this host); to get it: a kernel with \
         CONFIG_SECCOMP_FILTER; in a container, a seccomp profile that allows the call seccomp";
    let unfiltered = Capabilities { seccomp: false, ..everything() };
    for policy in [read_only(), workspace(), Policy::unrestricted(Network::Restricted)] {
        assert_eq!(refusal(&policy, &unfiltered), no_seccomp);
    }
    assert_eq!(refusal(&read_only(), &Capabilities::default()), no_seccomp);
}

#[test]
fn mechanisms_that_are_turned_off_are_not_reported_missing() {
    let off = |turned_off: &[Mechanism], has: Capabilities| Capabilities {
        turned_off: turned_off.to_vec(),
        ..has
    };
    let no_landlock = off(&[Mechanism::Landlock], with_abi(0, everything()));
    assert_eq!(
        refusal(&read_only(), &no_landlock),
        "the policy restricts files; this requires Landlock (turned off by EXEC_SERVER_SANDBOX_WITHOUT)"
    );
    let neither = [Mechanism::UserNamespace, Mechanism::Bubblewrap];
    assert_eq!(
        refusal(&workspace(), &off(&neither, without_isolation())),
        "the policy protects /home/ann/app/.agents inside a granted directory; this requires user namespaces (turned off by \
         EXEC_SERVER_SANDBOX_WITHOUT) or bubblewrap (turned off by EXEC_SERVER_SANDBOX_WITHOUT)"
    );
    let one = refusal(&workspace(), &off(&neither[..1], without_isolation()));
    assert!(one.contains("bubblewrap (not usable on this host); to get it"), "{one}");
}

#[test]
fn the_reported_enforcement_matches_the_plan() {
    let enforcement = plan(&workspace(), &everything()).unwrap().enforcement();
    assert_eq!(enforcement.landlock, Some(7));
    assert!(enforcement.seccomp && enforcement.pid_namespace && enforcement.network_namespace);
    assert!(!enforcement.bubblewrap && !enforcement.seatbelt);

    let enforcement = plan(&read_only(), &with_abi(6, without_isolation())).unwrap().enforcement();
    assert_eq!(enforcement.landlock, Some(6));
    assert!(enforcement.seccomp && !enforcement.pid_namespace && !enforcement.network_namespace);

    let enforcement = plan(&workspace(), &without_namespaces()).unwrap().enforcement();
    assert!(enforcement.bubblewrap && enforcement.pid_namespace && !enforcement.network_namespace);

    let enforcement = plan(&all_files(), &with_abi(5, everything())).unwrap().enforcement();
    assert_eq!((enforcement.landlock, enforcement.seccomp), (Some(5), true));
    assert!(enforcement.pid_namespace && enforcement.network_namespace);
    let enforcement = plan(&all_files(), &with_abi(0, everything())).unwrap().enforcement();
    assert_eq!((enforcement.landlock, enforcement.pid_namespace), (None, true));
}

#[test]
fn an_enabled_network_gets_no_network_namespace() {
    let online = policy_of(&names(), Network::Enabled, &[READ_ALL, WORKSPACE]);
    let plan = plan(&online, &everything()).unwrap();
    assert_eq!(plan.network_namespace, NetworkNamespace::Inherited);
    let expected = seccomp::program(
        Sockets::InternetAndUnix,
        AttributeChanges::Changeable,
        Neighbours::Absent,
    );
    assert_eq!(plan.seccomp, expected);
}

#[test]
fn attributes_are_frozen_if_nothing_else_protects_them() {
    let filter = |policy: &Policy, has: &Capabilities| plan(policy, has).unwrap().seccomp;
    let program = |attributes, neighbours| seccomp::program(Sockets::Pairs, attributes, neighbours);
    let frozen = program(AttributeChanges::Frozen, Neighbours::InReach);
    let changeable = program(AttributeChanges::Changeable, Neighbours::InReach);
    let isolated = program(AttributeChanges::Changeable, Neighbours::Absent);
    assert_eq!(filter(&read_only(), &everything()), frozen);
    assert_eq!(filter(&workspace(), &everything()), isolated);
    assert_eq!(filter(&workspace(), &without_namespaces()), isolated);
    assert_eq!(filter(&one_writable_file(), &without_isolation()), changeable);
    assert_eq!(filter(&Policy::unrestricted(Network::Restricted), &everything()), changeable);
}

#[test]
fn signals_are_confined_even_if_files_are_not_restricted() {
    let rules = |abi| plan(&all_files(), &with_abi(abi, everything())).unwrap().landlock;
    assert_eq!(
        rules(7),
        Some(LandlockRules { abi: 7, grants: None, listed: vec![], connect_ports: None })
    );
    // Without scopes, a PID namespace confines signals. The Landlock domain still prevents tracing
    // of visible processes outside.
    let grants = Some(vec![Grant { path: "/".into(), access: Access::Write }]);
    assert_eq!(
        rules(5),
        Some(LandlockRules { abi: 5, grants, listed: vec![], connect_ports: None })
    );
    assert_eq!(rules(0), None);
}

#[test]
fn seatbelt_replaces_all_other_mechanisms() {
    let macos = Capabilities { seatbelt: true, ..Capabilities::default() };
    let plan = plan(&workspace(), &macos).unwrap();
    assert!(matches!(&plan.tier, Tier::Seatbelt(profile) if profile.contains("(deny default)")));
    assert!(plan.enforcement().seatbelt && !plan.enforcement().seccomp);
    assert!(plan.landlock.is_none() && plan.mounts.is_empty());
}
