//! The gate of a managed process, from its plan to the sockets that came with the start.

use std::ffi::OsString;
use std::io;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::network::gate::{Gate, GateListeners, GateSettings};
use crate::sandbox::{GateSockets, NetworkNamespace, Plan};

/// How a program is confined, once that is known.
#[derive(Debug)]
pub struct Confinement {
    pub plan: Arc<Plan>,
    /// Of a program with a managed network.
    pub gate: Option<PlannedGate>,
}

/// A gate that waits for its process.
#[derive(Debug)]
pub struct PlannedGate {
    pub settings: GateSettings,
    /// Sockets outside of the process's network namespace, where it has none of its own.
    pub listeners: GateListeners,
    /// Tells programs where the proxies are. A variable that the client has set is kept.
    pub variables: Vec<(OsString, OsString)>,
}

impl PlannedGate {
    /// `sockets` came with the start, in the order of the plan.
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
        return Err(io::Error::other(format!("{arrived} of {expected} sockets of a gate arrived")));
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
