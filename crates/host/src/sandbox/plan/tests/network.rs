//! Enforcement and refusal of managed networks.

use super::*;
use crate::sandbox::kernel::seccomp::{self, AttributeChanges, Neighbours, Sockets};
use crate::sandbox::plan::{GateRequest, GateSockets, NetworkNamespace, StartFacts, Tier};
use crate::sandbox::report::enforcement::NetworkEnforcement;

fn gate() -> GateRequest {
    let sockets = GateSockets { dns: true, direct_ports: vec![443], ..GateSockets::default() };
    GateRequest { sockets, ..GateRequest::default() }
}

fn managed(
    entries: &[(EntryPath, Access)],
    gate: &GateRequest,
    has: &Capabilities,
) -> Result<Plan, PlanError> {
    let policy = policy_of(&names(), Network::Managed, entries);
    Plan::for_start(StartFacts { cwd: None, gate: Some(gate) }, &policy, has, &names())
}

fn bubblewrap_with_routes() -> Capabilities {
    Capabilities { network_namespace: true, managed_network: true, ..without_namespaces() }
}

fn without_routes(has: Capabilities) -> Capabilities {
    Capabilities { managed_network: false, ..has }
}

#[test]
fn with_namespaces_the_gate_sees_every_connection() {
    for (has, is_bubblewrap) in [(everything(), false), (bubblewrap_with_routes(), true)] {
        for entries in [&[READ_ALL, WORKSPACE][..], &[READ_ALL]] {
            let plan = managed(entries, &gate(), &has).unwrap();
            assert_eq!(plan.network_namespace, NetworkNamespace::Gated(gate().sockets));
            assert_eq!(matches!(plan.tier, Tier::Bubblewrap(_)), is_bubblewrap);
            let enforcement = plan.enforcement();
            assert_eq!(enforcement.network, NetworkEnforcement::Transparent);
            assert!(enforcement.network_namespace);
        }
        let all_files = Policy::unrestricted(Network::Managed);
        let start = StartFacts { cwd: None, gate: Some(&gate()) };
        let plan = Plan::for_start(start, &all_files, &has, &names()).unwrap();
        assert_eq!(plan.enforcement().network, NetworkEnforcement::Transparent);
    }
}

#[test]
fn without_namespaces_programs_reach_only_the_proxies() {
    let has = without_routes(without_isolation());
    let plan = managed(&[READ_ALL], &gate(), &has).unwrap();
    assert_eq!(plan.network_namespace, NetworkNamespace::Inherited);
    assert_eq!(plan.enforcement().network, NetworkEnforcement::ProxyOnly);
    // No ports until the proxies are bound.
    assert_eq!(plan.landlock.unwrap().connect_ports, Some(vec![]));
    let filter = seccomp::program(Sockets::Tcp, AttributeChanges::Frozen, Neighbours::InReach);
    assert_eq!(plan.seccomp, filter);
}

#[test]
fn a_gate_that_cannot_be_enforced_is_refused() {
    let strict = GateRequest { require_transparent: true, ..gate() };
    let has = without_routes(without_isolation());
    let error = managed(&[READ_ALL], &strict, &has).unwrap_err().to_string();
    assert!(error.contains("every connection") && error.contains("a managed network"), "{error}");
    let has = without_routes(with_abi(3, everything()));
    let error = managed(&[READ_ALL, WORKSPACE], &gate(), &has).unwrap_err().to_string();
    assert!(error.contains("ABI 3") && error.contains("ports"), "{error}");
    let has = without_routes(with_abi(0, everything()));
    let error = managed(&[READ_ALL, WORKSPACE], &gate(), &has).unwrap_err().to_string();
    assert!(error.starts_with("without Landlock") && !error.contains("ABI"), "{error}");
}

#[test]
fn a_managed_network_without_a_gate_allows_nothing() {
    let policy = policy_of(&names(), Network::Managed, &[READ_ALL, WORKSPACE]);
    let plan = plan(&policy, &everything()).unwrap();
    assert_eq!(plan.network_namespace, NetworkNamespace::Empty);
    assert_eq!(plan.enforcement().network, NetworkEnforcement::NoNetwork);
}

#[test]
fn unix_sockets_are_only_available_on_request() {
    let open = GateRequest { unix_sockets: true, ..gate() };
    let plan = managed(&[READ_ALL, WORKSPACE], &open, &everything()).unwrap();
    let filter = |sockets| {
        seccomp::program(sockets, AttributeChanges::Changeable, Neighbours::Absent).to_vec()
    };
    assert_eq!(plan.seccomp, filter(Sockets::InternetAndUnix));
    let plan = managed(&[READ_ALL, WORKSPACE], &gate(), &everything()).unwrap();
    assert_eq!(plan.seccomp, filter(Sockets::Internet));
}

#[test]
fn a_gated_plan_survives_encoding_and_decoding() {
    let sockets = GateSockets {
        dns: true,
        direct_ports: vec![80, 443, u16::MAX],
        http_proxy: true,
        socks5: true,
        socks5_udp: true,
    };
    assert_eq!(sockets.list().len(), 8);
    let gate = GateRequest { sockets, ..GateRequest::default() };
    let plan = managed(&[READ_ALL, WORKSPACE], &gate, &everything()).unwrap();
    let bytes = plan.encode();
    assert_eq!(Plan::decode(&bytes), Some(plan));
    assert!((0..bytes.len()).all(|len| Plan::decode(&bytes[..len]).is_none()));
}
