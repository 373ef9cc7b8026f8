use exec_server_host::network::policy::{Access, Decision, DenyReason, Host, Protocol, Route};
use serde_json::{Value, json};

use super::*;

fn start(members: &Value) -> StartParams {
    let mut params = json!({"processId": "p", "argv": ["true"], "cwd": "file:///"});
    params.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
    serde_json::from_value(params).unwrap()
}

fn read(members: &Value, ceilings: &[HostRules]) -> Result<Option<RequestedNetwork>, RpcError> {
    let ceilings: Vec<_> = ceilings.iter().cloned().map(Arc::new).collect();
    RequestedNetwork::read(&start(members), &ceilings)
}

fn network(members: &Value, ceilings: &[HostRules]) -> RequestedNetwork {
    read(members, ceilings).unwrap().expect("a managed network")
}

fn hosts(allow: &[&str], deny: &[&str]) -> HostRules {
    let owned = |patterns: &[&str]| patterns.iter().map(ToString::to_string).collect();
    HostRules { allow: owned(allow), deny: owned(deny), ask: false }
}

fn decision(network: &RequestedNetwork, host: &str, port: u16) -> Decision {
    let host: Host = host.parse().unwrap();
    let (protocol, route) = (Protocol::HttpsConnect, Route::Direct);
    network.policy.decide(&Access { host: &host, port, protocol, route, method: None })
}

fn is_allowed(network: &RequestedNetwork, host: &str) -> bool {
    decision(network, host, 443) == Decision::Allow
}

#[test]
fn a_start_without_network_rules_is_not_managed() {
    for members in [
        json!({}),
        json!({"enforceManagedNetwork": false}),
        json!({"networkProxy": {"proxy": {"enabled": false}}}),
    ] {
        assert!(read(&members, &[]).unwrap().is_none());
    }
}

#[test]
fn enforcement_without_a_managed_network_is_refused() {
    for members in [
        json!({"enforceManagedNetwork": true}),
        json!({"enforceManagedNetwork": true, "networkProxy": {"proxy": {"enabled": false}}}),
    ] {
        let error = read(&members, &[]).unwrap_err();
        assert_eq!(error.kind(), Some(&ErrorKind::ManagedNetworkUnavailable), "{error:?}");
    }
}

#[test]
fn the_rules_of_all_parties_apply() {
    let asked = json!({"network": {"allow": ["a.test", "b.test", "c.test"]}});
    let operator = hosts(&["a.test", "b.test"], &[]);
    let token = hosts(&[], &["b.test"]);
    let network = network(&asked, &[operator, token]);
    assert!(is_allowed(&network, "a.test"));
    assert!(!is_allowed(&network, "b.test") && !is_allowed(&network, "c.test"));
}

#[test]
fn the_operators_rules_apply_to_starts_without_rules() {
    let network = network(&json!({}), &[hosts(&["a.test"], &[])]);
    assert!(!network.is_requested);
    assert!(is_allowed(&network, "a.test") && !is_allowed(&network, "b.test"));
    assert!(network.gate.sockets.dns && network.gate.sockets.http_proxy);
}

#[test]
fn a_ceiling_that_only_denies_allows_other_hosts_and_an_empty_one_allows_none() {
    let denies = network(&json!({}), &[hosts(&[], &["b.test"])]);
    assert!(is_allowed(&denies, "a.test") && !is_allowed(&denies, "b.test"));
    let nothing = network(&json!({}), &[hosts(&[], &[])]);
    assert!(!is_allowed(&nothing, "a.test"));
}

#[test]
fn a_managed_network_reaches_only_the_named_loopback_ports() {
    let network = network(
        &json!({"enforceManagedNetwork": true, "managedNetwork": {"loopbackPorts": [8080, 9090]}}),
        &[],
    );
    let sockets = &network.gate.sockets;
    assert_eq!(sockets.direct_ports, [8080, 9090]);
    assert!(!sockets.dns && !sockets.http_proxy && !sockets.socks5);
    assert_eq!(network.loopback_ports, [8080, 9090]);
    assert!(!is_allowed(&network, "a.test"));
    assert!(network.ask_timeout.is_none());
}

#[test]
fn a_proxy_follows_its_settings() {
    let network = network(
        &json!({"networkProxy": {
            "proxy": {"enabled": true, "enableSocks5": true, "enableSocks5Udp": true,
                "dangerouslyAllowAllUnixSockets": true, "allowLocalBinding": true,
                "domains": {"a.test": "allow", "b.test": "deny", "c.test": "none"}},
            "policyDecisionTimeoutMs": 1000}}),
        &[],
    );
    let sockets = &network.gate.sockets;
    assert!(sockets.http_proxy && sockets.socks5 && sockets.socks5_udp && sockets.dns);
    assert!(network.gate.unix_sockets && !network.allow_upstream_proxy);
    assert_eq!(network.ask_timeout, Some(Duration::from_secs(1) + ASK_GRACE));
    assert!(is_allowed(&network, "a.test") && !is_allowed(&network, "b.test"));
    assert_eq!(decision(&network, "c.test", 443), Decision::Ask);
    assert_eq!(decision(&network, "10.0.0.1", 443), Decision::Ask);
}

#[test]
fn a_client_is_asked_only_for_processes_with_short_ids() {
    let long = "x".repeat(MAX_ASKED_ID_BYTES + 1);
    let error = read(&json!({"processId": long, "network": {"ask": true}}), &[]).unwrap_err();
    assert_eq!(error.code, -32602);
    assert!(read(&json!({"processId": long, "network": {}}), &[]).is_ok());
    let network = network(&json!({"network": {"ask": true}}), &[]);
    assert_eq!(network.ask_timeout, Some(DEFAULT_ASK_TIMEOUT + ASK_GRACE));
}

#[test]
fn loopback_ports_need_the_permission_of_the_ceilings() {
    let asked = json!({"managedNetwork": {"loopbackPorts": [5432]}});
    let error = read(&asked, &[hosts(&["a.test"], &[])]).unwrap_err();
    assert_eq!(error.kind(), Some(&ErrorKind::SandboxDenied));
    assert!(error.message.contains("127.0.0.1:5432"), "{}", error.message);
    assert!(read(&asked, &[hosts(&["127.0.0.1:5432"], &[])]).is_ok());
    assert!(read(&asked, &[hosts(&[], &["a.test"])]).is_ok());
    for ports in [vec![0], (1..100).collect()] {
        let asked = json!({"managedNetwork": {"loopbackPorts": ports}});
        let error = read(&asked, &[]).unwrap_err();
        assert_eq!(error.kind(), Some(&ErrorKind::BadNetworkRules));
    }
}

#[test]
fn unix_sockets_are_closed_where_hosts_are_restricted() {
    let asked = json!({"networkProxy": {"proxy": {"dangerouslyAllowAllUnixSockets": true}}});
    assert!(network(&asked, &[]).gate.unix_sockets);
    assert!(!network(&asked, &[hosts(&["a.test"], &[])]).gate.unix_sockets);
    let disabled = json!({"network": {}, "networkProxy": {"proxy": {
        "enabled": false, "dangerouslyAllowAllUnixSockets": true}}});
    let disabled = network(&disabled, &[]);
    assert!(!disabled.gate.unix_sockets && disabled.gate.sockets.socks5);
}

#[test]
fn a_start_decides_about_hosts_that_a_ceiling_with_ask_does_not_name() {
    let ask = HostRules { ask: true, ..hosts(&[], &["b.test"]) };
    let decided =
        network(&json!({"network": {"allow": ["a.test", "b.test"]}}), std::slice::from_ref(&ask));
    assert!(is_allowed(&decided, "a.test") && !is_allowed(&decided, "b.test"));
    assert_eq!(decision(&decided, "c.test", 443), Decision::Deny(DenyReason::NotAllowed));
    let silent = network(&json!({}), &[ask]);
    assert_eq!(decision(&silent, "a.test", 443), Decision::Ask);
}

#[test]
fn an_error_names_the_bad_rule() {
    for (members, named) in [
        (json!({"network": {"allow": ["*"]}}), "*"),
        (json!({"network": {"deny": ["https://a.test/"]}}), "https://a.test/"),
        (json!({"networkProxy": {"proxy": {"domains": {"a.*.test": "allow"}}}}), "a.*.test"),
    ] {
        let error = read(&members, &[]).unwrap_err();
        assert_eq!(error.kind(), Some(&ErrorKind::BadNetworkRules), "{error:?}");
        assert!(error.message.contains(named), "{}", error.message);
    }
    let many: Vec<_> = (1..100).map(|port| format!("a.test:{port}")).collect();
    let error = read(&json!({"network": {"allow": many}}), &[]).unwrap_err();
    assert!(error.message.contains("64"), "{}", error.message);
}
