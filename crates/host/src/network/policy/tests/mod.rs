//! Decisions of whole policies.

mod properties;

use super::*;

fn host(text: &str) -> Host {
    text.parse().unwrap()
}

fn patterns(texts: &[&str]) -> Vec<HostPattern> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn rules(allow: &[&str], deny: &[&str]) -> Rules {
    Rules {
        allow: patterns(allow),
        deny: patterns(deny),
        unnamed: Unnamed::Deny,
        mode: Mode::Full,
        allow_private: false,
    }
}

fn get(host: &Host, port: u16, route: Route) -> Access<'_> {
    Access { host, port, protocol: Protocol::Http, route, method: Some("GET") }
}

fn connect(host: &Host, port: u16, route: Route) -> Access<'_> {
    Access { host, port, protocol: Protocol::HttpsConnect, route, method: None }
}

fn direct(layers: &[Rules], name: &str, port: u16) -> Decision {
    let policy = NetworkPolicy::new(layers.to_vec());
    policy.decide(&connect(&host(name), port, Route::Direct))
}

const NOT_ALLOWED: Decision = Decision::Deny(DenyReason::NotAllowed);
const DENIED: Decision = Decision::Deny(DenyReason::Denied);
const PRIVATE: Decision = Decision::Deny(DenyReason::PrivateAddress);
const METHOD: Decision = Decision::Deny(DenyReason::Method);

#[test]
fn without_layers_nothing_is_allowed() {
    let policy = NetworkPolicy::new(Vec::new());
    let example = host("example.org");
    assert_eq!(policy.decide(&get(&example, 80, Route::Proxy)), NOT_ALLOWED);
    assert!(!policy.may_reach(&example));
    assert!(policy.direct_ports().is_empty());
    let address = "203.0.113.1".parse().unwrap();
    assert_eq!(policy.check_resolved(address, 80), Err(DenyReason::NotAllowed));
}

#[test]
fn deny_wins_over_allow() {
    let layer = [rules(&["**.example.org"], &["*.a.example.org", "b.example.org:443"])];
    assert_eq!(direct(&layer, "example.org", 443), Decision::Allow);
    assert_eq!(direct(&layer, "a.example.org", 443), Decision::Allow);
    assert_eq!(direct(&layer, "x.a.example.org", 80), DENIED);
    assert_eq!(direct(&layer, "x.a.example.org", 9), DENIED);
    assert_eq!(direct(&layer, "b.example.org", 443), DENIED);
    assert_eq!(direct(&layer, "b.example.org", 80), Decision::Allow);
    assert_eq!(direct(&layer, "example.com", 443), NOT_ALLOWED);
}

#[test]
fn only_hosts_without_a_rule_cause_a_question() {
    let layer = [Rules { unnamed: Unnamed::Ask, ..rules(&["example.org:22"], &["*.bad.test"]) }];
    assert_eq!(direct(&layer, "example.com", 443), Decision::Ask);
    assert_eq!(direct(&layer, "example.org", 22), Decision::Allow);
    assert_eq!(direct(&layer, "example.org", 443), NOT_ALLOWED);
    assert_eq!(direct(&layer, "a.bad.test", 443), DENIED);
    assert_eq!(direct(&layer, "203.0.113.9", 443), Decision::Ask);
    assert_eq!(direct(&layer, "10.0.0.1", 443), PRIVATE);
}

#[test]
fn a_layer_that_only_denies_allows_every_other_port() {
    let operator = Rules { unnamed: Unnamed::Allow, ..rules(&[], &["bad.test", "example.org:25"]) };
    assert_eq!(direct(std::slice::from_ref(&operator), "example.org", 22), Decision::Allow);
    assert_eq!(direct(std::slice::from_ref(&operator), "example.org", 25), DENIED);
    let layers = [rules(&["example.org:22", "bad.test"], &[]), operator];
    assert_eq!(direct(&layers, "example.org", 22), Decision::Allow);
    assert_eq!(direct(&layers, "example.org", 443), NOT_ALLOWED);
    assert_eq!(direct(&layers, "bad.test", 443), DENIED);
}

#[test]
fn limited_mode_permits_only_safe_methods_of_plain_http() {
    let layer = Rules { mode: Mode::Limited, ..rules(&["example.org"], &["bad.test"]) };
    let example = host("example.org");
    for method in ["GET", "HEAD", "OPTIONS"] {
        let access = Access { method: Some(method), ..get(&example, 80, Route::Direct) };
        assert_eq!(layer.decide(&access), Decision::Allow, "{method}");
    }
    for method in [Some("POST"), Some("get"), Some("CONNECT"), Some(""), None] {
        let access = Access { method, ..get(&example, 80, Route::Proxy) };
        assert_eq!(layer.decide(&access), METHOD, "{method:?}");
    }
    for protocol in [Protocol::HttpsConnect, Protocol::Socks5Tcp, Protocol::Socks5Udp] {
        let access = Access { protocol, ..get(&example, 80, Route::Proxy) };
        assert_eq!(layer.decide(&access), METHOD, "{protocol:?}");
    }
    assert_eq!(layer.decide(&connect(&host("bad.test"), 443, Route::Proxy)), DENIED);
    assert_eq!(layer.decide(&get(&host("example.com"), 80, Route::Proxy)), NOT_ALLOWED);
}

#[test]
fn private_hosts_need_their_literal_or_permission() {
    let named = [rules(&["10.0.0.1:8080", "169.254.169.254", "**.localhost"], &[])];
    assert_eq!(direct(&named, "10.0.0.1", 8080), Decision::Allow);
    assert_eq!(direct(&named, "10.0.0.1", 80), PRIVATE);
    assert_eq!(direct(&named, "64:ff9b::10.0.0.1", 8080), PRIVATE);
    assert_eq!(direct(&named, "0xa9fea9fe", 80), Decision::Allow);
    assert_eq!(direct(&named, "localhost", 80), PRIVATE);
    assert_eq!(direct(&[rules(&["localhost:3000"], &[])], "LOCALHOST.", 3000), Decision::Allow);

    let permitted = [Rules { allow_private: true, ..named[0].clone() }];
    assert_eq!(direct(&permitted, "10.0.0.1", 80), NOT_ALLOWED);
    assert_eq!(direct(&permitted, "10.0.0.2", 80), NOT_ALLOWED);
    assert_eq!(direct(&permitted, "app.localhost", 80), Decision::Allow);
}

#[test]
fn the_reason_is_the_first_denial_or_the_rule_that_denies_the_host() {
    let limited = Rules { mode: Mode::Limited, ..rules(&["example.org"], &[]) };
    let denying = rules(&[], &["example.org"]);
    let closed = rules(&[], &[]);
    let asking = Rules { unnamed: Unnamed::Ask, ..rules(&[], &[]) };
    let open = Rules { unnamed: Unnamed::Allow, ..rules(&[], &[]) };
    let decide = |layers: &[&Rules]| {
        let layers: Vec<Rules> = layers.iter().copied().cloned().collect();
        direct(&layers, "example.org", 443)
    };
    assert_eq!(decide(&[&limited, &denying]), METHOD);
    assert_eq!(decide(&[&denying, &limited]), DENIED);
    assert_eq!(decide(&[&closed, &denying]), DENIED);
    assert_eq!(decide(&[&closed, &limited]), NOT_ALLOWED);
    assert_eq!(decide(&[&closed, &limited, &denying]), DENIED);
    assert_eq!(decide(&[&open, &asking]), Decision::Ask);
    assert_eq!(decide(&[&asking, &closed]), NOT_ALLOWED);
    assert_eq!(decide(&[&open, &open]), Decision::Allow);
}

#[test]
fn a_resolved_address_is_checked_by_every_layer() {
    let client = rules(&["example.org", "10.0.0.1", "localhost:3000"], &["203.0.113.7:443"]);
    let check = |layers: &[&Rules], address: &str, port| {
        let layers = layers.iter().copied().cloned().collect();
        NetworkPolicy::new(layers).check_resolved(address.parse().unwrap(), port)
    };
    assert_eq!(check(&[&client], "203.0.113.8", 443), Ok(()));
    assert_eq!(check(&[&client], "203.0.113.7", 80), Ok(()));
    assert_eq!(check(&[&client], "203.0.113.7", 443), Err(DenyReason::Denied));
    assert_eq!(check(&[&client], "::ffff:203.0.113.7", 443), Err(DenyReason::Denied));
    assert_eq!(check(&[&client], "10.0.0.1", 5432), Ok(()));
    assert_eq!(check(&[&client], "::ffff:10.0.0.1", 5432), Ok(()));
    assert_eq!(check(&[&client], "10.0.0.2", 5432), Err(DenyReason::PrivateAddress));
    assert_eq!(check(&[&client], "127.0.0.1", 3000), Ok(()));
    assert_eq!(check(&[&client], "::1", 3000), Ok(()));
    assert_eq!(check(&[&client], "127.0.0.2", 3000), Err(DenyReason::PrivateAddress));
    assert_eq!(check(&[&client], "127.0.0.1", 80), Err(DenyReason::PrivateAddress));
    let operator = Rules { unnamed: Unnamed::Allow, ..rules(&[], &[]) };
    let denied = Err(DenyReason::PrivateAddress);
    assert_eq!(check(&[&client, &operator], "10.0.0.1", 80), denied);
    let trusting = Rules { allow_private: true, ..operator };
    assert_eq!(check(&[&client, &trusting], "10.0.0.1", 80), Ok(()));
}

#[test]
fn a_name_is_reachable_if_any_port_is() {
    let reach = |layers: &[Rules], name| NetworkPolicy::new(layers.to_vec()).may_reach(&host(name));
    let client =
        rules(&["example.org:22", "*.example.com"], &["b.example.com", "c.example.com:80"]);
    assert!(reach(std::slice::from_ref(&client), "example.org"));
    assert!(!reach(std::slice::from_ref(&client), "www.example.org"));
    assert!(!reach(std::slice::from_ref(&client), "b.example.com"));
    assert!(reach(std::slice::from_ref(&client), "c.example.com"));
    let other_port = rules(&["example.org:443", "a.example.com:9"], &[]);
    assert!(!reach(&[client.clone(), other_port.clone()], "example.org"));
    assert!(reach(&[client.clone(), other_port], "a.example.com"));
    let asking = Rules { unnamed: Unnamed::Ask, ..client };
    assert!(reach(&[asking], "www.example.org"));
    let limited = Rules { mode: Mode::Limited, ..rules(&["example.org"], &["example.org:80"]) };
    assert!(reach(&[limited], "example.org"));
    let covered = rules(&["example.org:80", "example.org:1"], &["example.org:80", "example.org:1"]);
    assert!(!reach(&[covered], "example.org"));
}

#[test]
fn direct_ports_are_those_that_can_be_allowed() {
    let ports = |layers: &[&Rules]| {
        let layers = layers.iter().copied().cloned().collect();
        NetworkPolicy::new(layers).direct_ports().into_iter().collect::<Vec<u16>>()
    };
    let ssh = rules(&["example.org:22"], &["example.org:9"]);
    let web = rules(&["example.org", "example.com:8080"], &[]);
    let asking = Rules { unnamed: Unnamed::Ask, ..rules(&[], &[]) };
    let open = Rules { unnamed: Unnamed::Allow, ..rules(&[], &[]) };
    assert!(ports(&[&rules(&[], &["bad.test"])]).is_empty());
    assert_eq!(ports(&[&ssh]), [22]);
    assert_eq!(ports(&[&web]), [80, 443, 8080]);
    assert_eq!(ports(&[&asking]), [80, 443]);
    assert_eq!(ports(&[&ssh, &open]), [22]);
    assert_eq!(ports(&[&asking, &open]), [80, 443]);
    assert!(ports(&[&ssh, &web]).is_empty());
    let limited = Rules { mode: Mode::Limited, ..web.clone() };
    assert_eq!(ports(&[&limited]), [80, 8080]);
    assert_eq!(ports(&[&limited, &rules(&["example.org:443"], &[])]), [443]);
}

#[test]
fn too_many_direct_ports_are_an_error() {
    let with_ports = |count: u16| {
        let allow = (1..=count).map(|port| host("example.org").with_port(port).parse().unwrap());
        NetworkPolicy::new(vec![Rules { allow: allow.collect(), ..rules(&[], &[]) }])
    };
    assert_eq!(with_ports(64).check(), Ok(()));
    assert_eq!(with_ports(65).check(), Err(PolicyError::TooManyPorts { count: 65 }));
}
