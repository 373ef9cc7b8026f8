//! The gate between one managed process and the network.
//!
//! Listeners that were bound for the process, in its network namespace or on the machine's
//! loopback, are served here, in the server. Each kind of listener finds the intended host;
//! `decisions` judges it, `dial` connects to it and `pump` copies the bytes. This module knows
//! nothing about namespaces or JSON-RPC.

mod accept;
mod client;
mod decisions;
mod dial;
mod direct;
mod dns;
mod http_proxy;
mod names;
mod pump;
mod questions;
mod refused_hosts;
mod socks5;
mod state;
#[cfg(test)]
mod test_support;
mod upstream;

pub use client::{
    Answer, DecisionRecord, DecisionScope, DecisionSource, GateClient, Question, Verdict,
};
pub use dial::{Resolver, SystemResolver};
pub use dns::SearchDomains;
pub(crate) use names::{PROHIBITED_V4, PROHIBITED_V6};
pub use refused_hosts::RefusedHost;
pub use upstream::{UpstreamError, UpstreamProxies};

use std::io;
use std::net::{TcpListener, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use self::accept::accept_all;
use self::socks5::udp::Associations;
use self::state::GateState;
use super::policy::NetworkPolicy;
use crate::process::origin::{PeerUser, user_of_tcp_peer};

const MAX_CONNECTIONS: usize = 1_024;

/// How long connections may outlive their process.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Sockets bound in the network namespace of the process, or on the machine's loopback if
/// `are_shared`. All are non-blocking.
#[derive(Debug, Default)]
pub struct GateListeners {
    pub dns_udp: Option<UdpSocket>,
    pub dns_tcp: Option<TcpListener>,
    /// Wildcard sockets, one for each port of direct connections. The local address of an accepted
    /// connection is the address that the program dialled.
    pub direct: Vec<TcpListener>,
    pub http_proxy: Option<TcpListener>,
    pub socks5: Option<TcpListener>,
    /// Receives the datagrams of SOCKS5 clients. Without it, UDP ASSOCIATE is refused.
    pub socks5_udp: Option<UdpSocket>,
    /// Whether other users of the machine can connect too, because the process shares the network
    /// of the machine.
    pub are_shared: bool,
}

#[derive(Debug)]
pub struct GateSettings {
    pub policy: NetworkPolicy,
    pub client: Arc<dyn GateClient>,
    pub resolver: Arc<dyn Resolver>,
    /// The proxies of the server's environment, if the process may use them.
    pub upstream: Option<UpstreamProxies>,
    /// Ports on the server's own loopback. Direct connections to them are not judged.
    pub loopback_ports: Vec<u16>,
    /// If set, DNS reports that a refused name does not exist. Otherwise it returns an unreachable
    /// address.
    pub hide_refused: bool,
    /// Domains that resolvers append to names. DNS reports that such a name does not exist if an
    /// `allow` pattern names the part before the domain, or if that part has a dot and no `allow`
    /// pattern names the whole name.
    pub search_domains: SearchDomains,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GateSummary {
    pub bytes_up: u64,
    pub bytes_down: u64,
    /// The first refused hosts, at most 64, each once per port.
    pub refused: Vec<RefusedHost>,
    /// Whether further hosts were refused.
    pub refused_more: bool,
}

/// Serves the listeners of one process. Dropping it closes all listeners and connections.
#[derive(Debug)]
pub struct Gate {
    state: Arc<GateState>,
    /// One task for each listener, which owns the tasks of its connections.
    listeners: JoinSet<()>,
    _datagrams: JoinSet<()>,
    closing: watch::Sender<bool>,
}

impl Gate {
    /// Requires a Tokio runtime.
    pub fn open(listeners: GateListeners, settings: GateSettings) -> io::Result<Self> {
        let state = Arc::new(GateState::new(settings));
        let closing = watch::Sender::new(false);
        let mut tasks = Listeners {
            state: Arc::clone(&state),
            slots: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            are_shared: listeners.are_shared,
            closing: closing.subscribe(),
            tasks: JoinSet::new(),
            datagrams: JoinSet::new(),
        };
        for listener in listeners.direct {
            tasks.accept(listener, direct::serve)?;
        }
        if let Some(listener) = listeners.http_proxy {
            tasks.accept(listener, http_proxy::serve_proxy)?;
        }
        if let Some(socket) = listeners.dns_udp {
            tasks.datagrams.spawn(dns::serve_udp(socket, Arc::clone(&state))?);
        }
        if let Some(listener) = listeners.dns_tcp {
            let slots = Arc::new(Semaphore::new(dns::MAX_TCP_CONNECTIONS));
            tasks.accept_within(listener, slots, dns::serve_tcp)?;
        }
        tasks.serve_socks5(listeners.socks5, listeners.socks5_udp)?;
        let Listeners { tasks, datagrams, .. } = tasks;
        Ok(Self { state, listeners: tasks, _datagrams: datagrams, closing })
    }

    /// Waits until the remaining connections of an ended process have closed, so that the program's
    /// last data is delivered. After [`DRAIN_TIMEOUT`] they are cut.
    pub async fn drain(mut self) {
        self.closing.send_replace(true);
        let drained = async { while self.listeners.join_next().await.is_some() {} };
        let _ = timeout(DRAIN_TIMEOUT, drained).await;
    }

    #[must_use]
    pub fn summary(&self) -> GateSummary {
        let refused = self.state.judge.refused_hosts();
        GateSummary {
            bytes_up: self.state.traffic.bytes_up(),
            bytes_down: self.state.traffic.bytes_down(),
            refused: refused.hosts().to_vec(),
            refused_more: refused.more(),
        }
    }
}

/// The listeners of a gate while it is being opened.
struct Listeners {
    state: Arc<GateState>,
    slots: Arc<Semaphore>,
    are_shared: bool,
    closing: watch::Receiver<bool>,
    tasks: JoinSet<()>,
    datagrams: JoinSet<()>,
}

impl Listeners {
    fn accept<F>(
        &mut self,
        listener: TcpListener,
        serve: impl Fn(Arc<GateState>, tokio::net::TcpStream) -> F + Send + 'static,
    ) -> io::Result<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.accept_within(listener, Arc::clone(&self.slots), serve)
    }

    fn accept_within<F>(
        &mut self,
        listener: TcpListener,
        slots: Arc<Semaphore>,
        serve: impl Fn(Arc<GateState>, tokio::net::TcpStream) -> F + Send + 'static,
    ) -> io::Result<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let state = Arc::clone(&self.state);
        let serve = move |stream| serve(Arc::clone(&state), stream);
        let are_shared = self.are_shared;
        let is_welcome = move |stream: &tokio::net::TcpStream| !are_shared || is_own_user(stream);
        let closing = self.closing.clone();
        self.tasks.spawn(accept_all(listener, slots, closing, is_welcome, serve));
        Ok(())
    }

    fn serve_socks5(
        &mut self,
        listener: Option<TcpListener>,
        udp: Option<UdpSocket>,
    ) -> io::Result<()> {
        let Some(listener) = listener else { return Ok(()) };
        let associations = match udp {
            Some(socket) => Some(Arc::new(Associations::open(socket)?)),
            None => None,
        };
        if let Some(associations) = associations.clone() {
            self.datagrams.spawn(async move { associations.receive().await });
        }
        self.accept(listener, move |state, stream| {
            socks5::serve(state, associations.clone(), stream)
        })
    }
}

/// Whether the program at the other end belongs to this user or to root.
fn is_own_user(stream: &tokio::net::TcpStream) -> bool {
    let ends = stream.peer_addr().and_then(|peer| Ok((peer, stream.local_addr()?)));
    match ends.map(|(peer, local)| user_of_tcp_peer(peer, local)) {
        Ok(PeerUser::Trusted) => true,
        Ok(PeerUser::Other(_) | PeerUser::Unknown) | Err(_) => false,
    }
}

#[cfg(test)]
mod tests;
