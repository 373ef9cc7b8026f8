//! The gate of a process with a managed network, from its plan to its sockets.

use std::ffi::OsString;
use std::io;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::network::gate::{Gate, GateListeners, GateSettings};
use crate::sandbox::{GateSockets, NetworkNamespace, Plan};

#[derive(Debug)]
pub struct Confinement {
    pub plan: Arc<Plan>,
    /// Set for a program with a managed network.
    pub gate: Option<PlannedGate>,
}

/// A gate that is not open yet.
#[derive(Debug)]
pub struct PlannedGate {
    pub settings: GateSettings,
    /// Listeners on the machine's loopback, for a process without its own network namespace.
    pub listeners: GateListeners,
    /// Environment variables that name the proxies. Variables set by the client take precedence.
    pub variables: Vec<(OsString, OsString)>,
}

impl PlannedGate {
    /// `sockets` arrived with the report of the start, in the order of the plan.
    pub(super) fn open(self, plan: &Plan, sockets: Vec<OwnedFd>) -> io::Result<Gate> {
        let listeners = match &plan.network_namespace {
            NetworkNamespace::Gated(layout) => listeners_of(layout, sockets)?,
            NetworkNamespace::Inherited | NetworkNamespace::Empty => self.listeners,
        };
        Gate::open(listeners, self.settings)
    }
}

/// Invariant: takes sockets in the order of [`GateSockets::list`].
fn listeners_of(layout: &GateSockets, sockets: Vec<OwnedFd>) -> io::Result<GateListeners> {
    let (arrived, expected) = (sockets.len(), layout.list().len());
    if arrived != expected {
        return Err(io::Error::other(format!("received {arrived} of {expected} gate sockets")));
    }
    let mut sockets = sockets.into_iter();
    let mut next = |is_wanted: bool| if is_wanted { sockets.next() } else { None };
    let dns_udp = next(layout.dns).map(UdpSocket::from);
    let dns_tcp = next(layout.dns).map(TcpListener::from);
    let direct = layout.direct_ports.iter().filter_map(|_| next(true)).map(TcpListener::from);
    let direct = direct.collect();
    let http_proxy = next(layout.http_proxy).map(TcpListener::from);
    let socks5 = next(layout.socks5).map(TcpListener::from);
    let socks5_udp = next(layout.socks5_udp).map(UdpSocket::from);
    let are_shared = false;
    Ok(GateListeners { dns_udp, dns_tcp, direct, http_proxy, socks5, socks5_udp, are_shared })
}
