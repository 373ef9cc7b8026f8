//! Properties of any policy over a few hosts and ports.

use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;

/// The hosts are so few that patterns often match them.
const HOSTS: [&str; 12] = [
    "x.test",
    "a.x.test",
    "b.a.x.test",
    "ax.test",
    "localhost",
    "app.localhost",
    "203.0.113.1",
    "10.0.0.1",
    "127.0.0.1",
    "::1",
    "64:ff9b::10.0.0.1",
    "2001:db8::1",
];
const PORTS: [u16; 5] = [1, 22, 80, 443, 8080];

fn a_host() -> impl Strategy<Value = Host> {
    select(&HOSTS[..]).prop_map(host)
}

fn a_pattern() -> impl Strategy<Value = HostPattern> {
    let prefix = select(&["", "*.", "**."][..]);
    (select(&HOSTS[..]), prefix, option::of(select(&PORTS[..]))).prop_map(|(text, prefix, port)| {
        let prefix = if matches!(host(text), Host::Name(_)) { prefix } else { "" };
        match port {
            Some(port) => format!("{prefix}{}", host(text).with_port(port)),
            None => format!("{prefix}{text}"),
        }
        .parse()
        .unwrap()
    })
}

fn a_layer() -> impl Strategy<Value = Rules> {
    let unnamed = select(&[Unnamed::Allow, Unnamed::Ask, Unnamed::Deny][..]);
    let mode = select(&[Mode::Full, Mode::Full, Mode::Limited][..]);
    (vec(a_pattern(), 0..5), vec(a_pattern(), 0..3), unnamed, mode, any::<bool>()).prop_map(
        |(allow, deny, unnamed, mode, allow_private)| Rules {
            allow,
            deny,
            unnamed,
            mode,
            allow_private,
        },
    )
}

/// The parts of an access other than its host.
type Request = (u16, Protocol, Route, Option<&'static str>);

fn a_request() -> impl Strategy<Value = Request> {
    use Protocol::{Http, HttpsConnect, Socks5Tcp, Socks5Udp};
    (
        select(&PORTS[..]),
        select(&[Http, Http, HttpsConnect, Socks5Tcp, Socks5Udp][..]),
        select(&[Route::Direct, Route::Proxy][..]),
        select(&[Some("GET"), Some("POST"), None][..]),
    )
}

fn access<'a>(host: &'a Host, (port, protocol, route, method): Request) -> Access<'a> {
    Access { host, port, protocol, route, method }
}

fn rank(decision: Decision) -> u8 {
    match decision {
        Decision::Allow => 0,
        Decision::Ask => 1,
        Decision::Deny(_) => 2,
    }
}

fn spellings(address: Ipv4Addr) -> Vec<String> {
    let [a, b, c, d] = address.octets();
    let mapped = address.to_ipv6_mapped();
    vec![
        address.to_string(),
        format!("{address}."),
        address.to_bits().to_string(),
        format!("{:#x}", address.to_bits()),
        format!("{a:#x}.{b:#X}.0{c:o}.{d}").replace("0X", "0x"),
        format!("{a}.{b}.{}", u16::from_be_bytes([c, d])),
        mapped.to_string(),
        format!("[{mapped}]"),
        format!("::FFFF:{:02x}{b:02X}:{c:02x}{d:02x}", a),
    ]
}

proptest! {
    #[test]
    fn every_spelling_of_an_address_gets_the_same_decision(
        address in prop_oneof![
            any::<Ipv4Addr>(),
            Just(Ipv4Addr::new(10, 0, 0, 1)),
            Just(Ipv4Addr::new(203, 0, 113, 1)),
        ],
        layer in a_layer(),
        request in a_request(),
    ) {
        let plain = host(&address.to_string());
        for text in spellings(address) {
            let other = host(&text);
            prop_assert_eq!(&other, &plain, "{}", text);
            prop_assert_eq!(
                layer.decide(&access(&other, request)),
                layer.decide(&access(&plain, request))
            );
        }
        // The same holds for a host that was not parsed from text.
        let mapped = Host::Address(IpAddr::V6(address.to_ipv6_mapped()));
        prop_assert_eq!(
            layer.decide(&access(&mapped, request)),
            layer.decide(&access(&plain, request))
        );
    }

    #[test]
    fn case_and_a_trailing_dot_do_not_matter(
        text in "[a-zA-Z][a-zA-Z0-9_]{0,8}(\\.[a-zA-Z][a-zA-Z0-9_]{0,8}){0,3}",
    ) {
        let lower = text.to_ascii_lowercase();
        prop_assert_eq!(host(&text), Host::Name(lower.clone()));
        prop_assert_eq!(host(&format!("{text}.")), Host::Name(lower.clone()));
        for prefix in ["", "*.", "**."] {
            let other: HostPattern = format!("{prefix}{text}.:443").parse().unwrap();
            let plain: HostPattern = format!("{prefix}{lower}:443").parse().unwrap();
            prop_assert_eq!(other, plain);
        }
    }

    #[test]
    fn deny_beats_allow(
        mut layer in a_layer(),
        pattern in a_pattern(),
        host in a_host(),
        request in a_request(),
    ) {
        layer.allow.push(pattern.clone());
        layer.deny.push(pattern.clone());
        if pattern.names(&host) && pattern.port().is_none_or(|port| port == request.0) {
            let decision = layer.decide(&access(&host, request));
            prop_assert_eq!(decision, Decision::Deny(DenyReason::Denied));
        }
    }

    #[test]
    fn another_layer_never_allows_more(
        layers in vec(a_layer(), 1..4),
        added in a_layer(),
        at in any::<prop::sample::Index>(),
        host in a_host(),
        address in a_host(),
        request in a_request(),
    ) {
        let before = NetworkPolicy::new(layers.clone());
        let mut layers = layers;
        layers.insert(at.index(layers.len() + 1), added);
        let after = NetworkPolicy::new(layers);
        let access = access(&host, request);
        prop_assert!(rank(after.decide(&access)) >= rank(before.decide(&access)));
        prop_assert!(!after.may_reach(&host) || before.may_reach(&host));
        if let Host::Address(address) = address {
            let (before, after) = (
                before.check_resolved(address, request.0),
                after.check_resolved(address, request.0),
            );
            prop_assert!(after.is_err() || before.is_ok());
        }
    }

    #[test]
    fn one_star_matches_subdomains_and_two_the_domain_too(host in a_host(), name in a_host()) {
        if let Host::Name(domain) = &name {
            let subdomains: HostPattern = format!("*.{domain}").parse().unwrap();
            let both: HostPattern = format!("**.{domain}").parse().unwrap();
            prop_assert!(!subdomains.names(&name));
            prop_assert_eq!(both.names(&host), subdomains.names(&host) || host == name);
            let below = Host::Name(format!("y.{domain}"));
            prop_assert!(subdomains.names(&below));
        }
    }

    #[test]
    fn a_printed_pattern_parses_to_itself(pattern in a_pattern(), address in any::<Ipv6Addr>()) {
        prop_assert_eq!(pattern.to_string().parse(), Ok(pattern));
        for text in [address.to_string(), format!("[{address}]:443")] {
            let pattern: HostPattern = text.parse().unwrap();
            prop_assert_eq!(pattern.to_string().parse(), Ok(pattern));
        }
    }

    #[test]
    fn a_private_address_is_allowed_only_by_its_literal(
        layers in vec(a_layer(), 1..4),
        address in prop_oneof![
            any::<IpAddr>(),
            select(&HOSTS[6..]).prop_map(|text| text.parse().unwrap()),
        ],
        request in a_request(),
    ) {
        let target = Host::from(address);
        let permitted = layers.iter().all(|layer| {
            layer.allow_private || layer.allow.iter().any(|own| own.names(&target))
        });
        let decision = NetworkPolicy::new(layers).decide(&access(&target, request));
        if is_private(address) && !permitted {
            prop_assert!(matches!(decision, Decision::Deny(_)));
        }
    }

    #[test]
    fn an_allowed_access_is_reachable_and_its_port_has_a_listener(
        layers in vec(a_layer(), 1..4),
        host in a_host(),
        request in a_request(),
    ) {
        let by_pattern = layers.iter().any(|layer| layer.allow.iter().any(|own| own.names(&host)));
        let policy = NetworkPolicy::new(layers);
        let (port, protocol, route, _) = request;
        let allowed = !matches!(policy.decide(&access(&host, request)), Decision::Deny(_));
        prop_assert!(!allowed || policy.may_reach(&host));
        // In limited mode, 443 has a listener only if a pattern names it.
        if allowed && by_pattern && route == Route::Direct && protocol != Protocol::Http {
            prop_assert!(policy.direct_ports().contains(&port));
        }
    }

    #[test]
    fn any_text_parses_or_fails_and_a_printed_host_parses_to_itself(text in any::<String>()) {
        let _ = text.parse::<HostPattern>();
        if let Ok(host) = text.parse::<Host>() {
            prop_assert_eq!(host.to_string().parse(), Ok(host));
        }
    }

    #[test]
    fn text_like_a_host_parses_or_fails(
        text in "(\\*{1,2}\\.)?[\\[xn0-9a-f:.\\-ü。_*%]{0,20}(\\]|:[0-9]{0,6})?",
    ) {
        if let Ok(pattern) = text.parse::<HostPattern>() {
            prop_assert_eq!(pattern.to_string().parse(), Ok(pattern));
        }
        if let Ok(host) = text.parse::<Host>() {
            prop_assert_eq!(host.to_string().parse(), Ok(host));
        }
    }
}
