//! Managed networking: builds the gate of a process from the fields of its start and the rules of
//! the operator and the token.
//!
//! The rules of all parties apply, and the strictest decides. Even a start without network rules is
//! managed if the operator or the client's token has rules about hosts.

mod client;
mod variables;

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use exec_server_host::network::gate::{
    GateListeners, GateSettings, SearchDomains, SystemResolver, UpstreamProxies,
};
use exec_server_host::network::policy::{
    Access, Decision, Host, HostPattern, MAX_DIRECT_PORTS, Mode, NetworkPolicy, Protocol, Route,
    Rules, Unnamed,
};
use exec_server_host::process::PlannedGate;
use exec_server_host::sandbox::{
    GateRequest, GateSockets, HTTP_PROXY_PORT, NetworkNamespace, Plan, SOCKS5_PORT, SandboxError,
};
use exec_server_protocol::{
    DomainPermission, ErrorKind, HostRules, NetworkEnforcement, NetworkMode, NetworkProxy,
    NetworkProxySettings, NetworkRules, RpcError, StartParams,
};

pub(crate) use client::NetworkClient;
#[cfg(test)]
pub(super) use client::NoClient;
use client::ProcessGateClient;

const DNS_PORT: u16 = 53;

/// How long a client may take to respond, unless its start says otherwise.
const DEFAULT_ASK_TIMEOUT: Duration = Duration::from_secs(60);
/// Added to the client's timeout. A client that waits for a person may respond only when that
/// timeout ends, so its response arrives slightly later.
const ASK_GRACE: Duration = Duration::from_secs(5);
/// The longest `processId` for which the client can be asked.
const MAX_ASKED_ID_BYTES: usize = 256;

/// The network of a start, parsed but not set up.
#[derive(Debug, Clone)]
pub(super) struct RequestedNetwork {
    policy: NetworkPolicy,
    pub(super) gate: GateRequest,
    /// The start itself requests a managed network, whatever its sandbox says about the network.
    pub(super) is_requested: bool,
    ask_timeout: Option<Duration>,
    allow_upstream_proxy: bool,
    loopback_ports: Vec<u16>,
    hide_refused: bool,
}

impl RequestedNetwork {
    /// Returns `None` for a start whose network is not managed.
    pub(super) fn read(
        params: &StartParams,
        ceilings: &[Arc<HostRules>],
    ) -> Result<Option<Self>, RpcError> {
        let proxy = params.network_proxy.as_deref().filter(|network| network.proxy.enabled);
        let (managed, rules) = (params.managed_network.as_ref(), params.network.as_deref());
        let is_requested = proxy.is_some() || managed.is_some() || rules.is_some();
        if !is_requested && params.enforce_managed_network == Some(true) {
            let message =
                "enforceManagedNetwork needs managedNetwork, network or an enabled networkProxy";
            return Err(
                RpcError::invalid_request(message).with_kind(ErrorKind::ManagedNetworkUnavailable)
            );
        }
        if !is_requested && ceilings.is_empty() {
            return Ok(None);
        }
        let mut layers = Vec::new();
        if let Some(proxy) = proxy {
            layers.push(rules_of_proxy(proxy)?);
        }
        if let Some(rules) = rules {
            layers.push(rules_of_start(rules)?);
        }
        if is_requested && layers.is_empty() {
            layers.push(nothing());
        }
        let ceiling_layers = ceilings.iter().map(|ceiling| rules_of_ceiling(ceiling, is_requested));
        let ceiling_layers = ceiling_layers.collect::<Result<Vec<_>, _>>()?;
        let loopback_ports = managed.map(|managed| managed.loopback_ports.clone());
        let loopback_ports = loopback_ports.unwrap_or_default();
        check_loopback_ports(&loopback_ports, &ceiling_layers)?;
        layers.extend(ceiling_layers);
        let policy = NetworkPolicy::new(layers);
        policy.check().map_err(|error| bad_rules(&error))?;
        let ask_timeout = ask_timeout(proxy, rules);
        if ask_timeout.is_some() && params.process_id.len() > MAX_ASKED_ID_BYTES {
            let message = format!(
                "processId of {} bytes exceeds the limit of {MAX_ASKED_ID_BYTES} for a process \
                 whose client decides about hosts",
                params.process_id.len()
            );
            return Err(RpcError::invalid_params(message));
        }
        let settings = proxy.map(|network| &network.proxy);
        let has_hosts = rules.is_some() || proxy.is_some() || managed.is_none();
        let require = rules.and_then(|rules| rules.require);
        let gate = GateRequest {
            sockets: gate_sockets(&policy, &loopback_ports, settings, has_hosts)?,
            // A program behind a Unix socket could reach hosts that the ceilings refuse.
            unix_sockets: ceilings.is_empty()
                && settings.is_some_and(|proxy| proxy.dangerously_allow_all_unix_sockets),
            require_transparent: require == Some(NetworkEnforcement::Transparent),
        };
        Ok(Some(Self {
            gate,
            policy,
            is_requested,
            ask_timeout,
            allow_upstream_proxy: settings.is_none_or(|proxy| proxy.allow_upstream_proxy),
            loopback_ports,
            hide_refused: rules.is_some_and(|rules| rules.hide),
        }))
    }

    /// Plans the gate. For a process without a gated network namespace, opens the proxies on
    /// loopback and lets the plan allow their ports.
    pub(super) fn plan_gate(
        &self,
        plan: &mut Plan,
        process_id: &str,
        client: Arc<dyn NetworkClient>,
    ) -> Result<PlannedGate, SandboxError> {
        let failed = |source| SandboxError::Gate { source };
        let proxies = match plan.network_namespace {
            NetworkNamespace::Gated(_) => self.proxies_inside(),
            NetworkNamespace::Inherited | NetworkNamespace::Empty => {
                // Landlock does not check addresses, so these ports would be open on every host.
                if !self.loopback_ports.is_empty() {
                    return Err(SandboxError::LoopbackPorts);
                }
                let proxies = self.proxies_on_loopback().map_err(failed)?;
                if let Some(landlock) = &mut plan.landlock {
                    let ports = [proxies.http_port, proxies.socks5_port];
                    landlock.connect_ports = Some(ports.into_iter().flatten().collect());
                }
                proxies
            }
        };
        let upstream = if self.allow_upstream_proxy {
            let upstream = UpstreamProxies::from_variables(|name| std::env::var_os(name));
            Some(upstream.map_err(|error| failed(io::Error::other(error)))?)
        } else {
            None
        };
        let client = ProcessGateClient::new(
            process_id.to_owned(),
            client,
            self.ask_timeout,
            self.is_requested,
        );
        Ok(PlannedGate {
            settings: GateSettings {
                policy: self.policy.clone(),
                client: Arc::new(client),
                resolver: Arc::new(SystemResolver),
                upstream,
                loopback_ports: self.loopback_ports.clone(),
                hide_refused: self.hide_refused,
                search_domains: SearchDomains::of_machine(),
            },
            listeners: proxies.listeners,
            variables: variables::proxy_variables(proxies.http_port, proxies.socks5_port),
        })
    }

    /// Returns proxies in the network namespace of the process, where their ports are fixed.
    fn proxies_inside(&self) -> Proxies {
        let GateSockets { http_proxy, socks5, .. } = self.gate.sockets;
        Proxies {
            listeners: GateListeners::default(),
            http_port: http_proxy.then_some(HTTP_PROXY_PORT),
            socks5_port: socks5.then_some(SOCKS5_PORT),
        }
    }

    fn proxies_on_loopback(&self) -> io::Result<Proxies> {
        let bind = |is_wanted: bool| {
            if !is_wanted {
                return Ok((None, None));
            }
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            listener.set_nonblocking(true)?;
            let port = listener.local_addr()?.port();
            io::Result::Ok((Some(listener), Some(port)))
        };
        let GateSockets { http_proxy, socks5, .. } = self.gate.sockets;
        let ((http_proxy, http_port), (socks5, socks5_port)) = (bind(http_proxy)?, bind(socks5)?);
        let listeners =
            GateListeners { http_proxy, socks5, are_shared: true, ..GateListeners::default() };
        Ok(Proxies { listeners, http_port, socks5_port })
    }
}

/// The proxies of a gate, and the ports on which programs reach them.
struct Proxies {
    /// Listeners outside the process's network namespace.
    listeners: GateListeners,
    http_port: Option<u16>,
    socks5_port: Option<u16>,
}

fn gate_sockets(
    policy: &NetworkPolicy,
    loopback_ports: &[u16],
    settings: Option<&NetworkProxySettings>,
    has_hosts: bool,
) -> Result<GateSockets, RpcError> {
    let socks5 = has_hosts && settings.is_none_or(|proxy| proxy.enable_socks5);
    let mut direct_ports = policy.direct_ports();
    direct_ports.extend(loopback_ports);
    if has_hosts {
        direct_ports.remove(&DNS_PORT);
        direct_ports.remove(&HTTP_PROXY_PORT);
    }
    if socks5 {
        direct_ports.remove(&SOCKS5_PORT);
    }
    if direct_ports.len() > MAX_DIRECT_PORTS {
        let message = format!(
            "network: {} directly reachable ports exceed the limit of {MAX_DIRECT_PORTS}; name \
             fewer in loopbackPorts and in host patterns",
            direct_ports.len()
        );
        return Err(RpcError::invalid_params(message).with_kind(ErrorKind::BadNetworkRules));
    }
    Ok(GateSockets {
        dns: has_hosts,
        direct_ports: direct_ports.into_iter().collect(),
        http_proxy: has_hosts,
        socks5,
        socks5_udp: socks5 && settings.is_some_and(|proxy| proxy.enable_socks5_udp),
    })
}

/// Checks the loopback ports of a start. They need no host rule of the start, but the rules of the
/// operator and the token must allow them.
fn check_loopback_ports(ports: &[u16], ceilings: &[Rules]) -> Result<(), RpcError> {
    if ports.contains(&0) {
        let message = "managedNetwork: a loopback port must be at least 1";
        return Err(RpcError::invalid_params(message).with_kind(ErrorKind::BadNetworkRules));
    }
    if ceilings.is_empty() {
        return Ok(());
    }
    let policy = NetworkPolicy::new(ceilings.to_vec());
    let host = Host::Address(Ipv4Addr::LOCALHOST.into());
    let (protocol, route, method) = (Protocol::Socks5Tcp, Route::Direct, None);
    let is_refused = |port: &&u16| {
        let access = Access { host: &host, port: **port, protocol, route, method };
        policy.decide(&access) != Decision::Allow
    };
    match ports.iter().find(is_refused) {
        None => Ok(()),
        Some(port) => {
            let message = format!(
                "managedNetwork: 127.0.0.1:{port} is not allowed; the host rules of the operator \
                 ([network]) and of the token, if they have any, must allow it"
            );
            Err(RpcError::invalid_request(message).with_kind(ErrorKind::SandboxDenied))
        }
    }
}

/// Returns `None` if the client must not be asked.
fn ask_timeout(proxy: Option<&NetworkProxy>, rules: Option<&NetworkRules>) -> Option<Duration> {
    let of_proxy = proxy.and_then(|proxy| proxy.policy_decision_timeout_ms);
    let of_rules = rules.filter(|rules| rules.ask);
    let timeout = match (of_proxy, of_rules) {
        (Some(timeout), _) => Duration::from_millis(timeout.get()),
        (None, Some(rules)) => rules
            .ask_timeout_ms
            .map_or(DEFAULT_ASK_TIMEOUT, |timeout| Duration::from_millis(timeout.get())),
        (None, None) => return None,
    };
    Some(timeout.saturating_add(ASK_GRACE))
}

fn nothing() -> Rules {
    let (unnamed, mode) = (Unnamed::Deny, Mode::Full);
    Rules { allow: vec![], deny: vec![], unnamed, mode, allow_private: false }
}

fn rules_of_proxy(network: &NetworkProxy) -> Result<Rules, RpcError> {
    let proxy = &network.proxy;
    let named = |wanted: DomainPermission| {
        let domains = proxy.domains.iter().flatten();
        domains.filter(move |(_, permission)| **permission == wanted).map(|(pattern, _)| pattern)
    };
    Ok(Rules {
        allow: patterns(named(DomainPermission::Allow))?,
        deny: patterns(named(DomainPermission::Deny))?,
        unnamed: unnamed(network.policy_decision_timeout_ms.is_some()),
        mode: match proxy.mode {
            NetworkMode::Full => Mode::Full,
            NetworkMode::Limited => Mode::Limited,
        },
        allow_private: proxy.allow_local_binding,
    })
}

fn rules_of_start(rules: &NetworkRules) -> Result<Rules, RpcError> {
    let (allow, deny) = (patterns(&rules.allow)?, patterns(&rules.deny)?);
    Ok(Rules { allow, deny, unnamed: unnamed(rules.ask), ..nothing() })
}

/// Converts the rules of a ceiling. If they only deny, all other hosts are allowed; empty rules
/// allow nothing. If the ceiling has `ask` and the start has rules, the rules of the start decide
/// about the hosts that the ceiling does not name.
fn rules_of_ceiling(rules: &HostRules, is_requested: bool) -> Result<Rules, RpcError> {
    let (allow, deny) = (patterns(&rules.allow)?, patterns(&rules.deny)?);
    let only_denies = allow.is_empty() && !deny.is_empty() && !rules.ask;
    let leaves_rest = only_denies || (rules.ask && is_requested);
    let unnamed = if leaves_rest { Unnamed::Allow } else { unnamed(rules.ask) };
    Ok(Rules { allow, deny, unnamed, allow_private: leaves_rest, ..nothing() })
}

fn unnamed(may_ask: bool) -> Unnamed {
    if may_ask { Unnamed::Ask } else { Unnamed::Deny }
}

fn patterns<'a>(texts: impl IntoIterator<Item = &'a String>) -> Result<Vec<HostPattern>, RpcError> {
    let parsed = texts.into_iter().map(|text| text.parse::<HostPattern>());
    parsed.collect::<Result<_, _>>().map_err(|error| bad_rules(&error))
}

fn bad_rules(error: &dyn std::error::Error) -> RpcError {
    RpcError::invalid_params(format!("network: {error}")).with_kind(ErrorKind::BadNetworkRules)
}

#[cfg(test)]
mod tests;
