//! UDP through SOCKS5. All associations of a process share one socket inside the namespace; each
//! has its own sockets outside.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::address::Address;
use super::datagram;
use crate::network::gate::state::GateState;
use crate::network::policy::{Access, Host, Protocol, Route};

const MAX_ASSOCIATIONS: usize = 64;
/// Per association. Further datagrams are dropped, as on any network.
const MAX_WAITING: usize = 64;
/// Per association. Datagrams to further destinations are dropped.
const MAX_DESTINATIONS: usize = 256;
/// Per association. While this many destinations are undecided, datagrams to new ones are dropped.
const MAX_UNDECIDED: usize = 16;
const MAX_DATAGRAM: usize = 64 << 10;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

#[derive(Debug)]
pub(in super::super) struct Associations {
    inside: UdpSocket,
    port: u16,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    next_id: u64,
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    id: u64,
    sender: ClientAddress,
    datagrams: mpsc::Sender<Vec<u8>>,
}

/// The address that the client of an association sends from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientAddress {
    /// The client is the next socket from which the process sends and that has no association yet.
    Unknown,
    Port(u16),
    Known(SocketAddr),
}

impl Associations {
    pub(in super::super) fn open(socket: std::net::UdpSocket) -> io::Result<Self> {
        let port = socket.local_addr()?.port();
        Ok(Self { inside: UdpSocket::from_std(socket)?, port, table: Mutex::default() })
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Registers a new association, unless there are too many. It ends when dropped.
    pub(super) fn register(associations: &Arc<Self>, port: u16) -> Option<Association> {
        let mut table = associations.lock();
        if table.entries.len() >= MAX_ASSOCIATIONS {
            return None;
        }
        let (sender, datagrams) = mpsc::channel(MAX_WAITING);
        let id = table.next_id;
        table.next_id += 1;
        let address = if port == 0 { ClientAddress::Unknown } else { ClientAddress::Port(port) };
        table.entries.push(Entry { id, sender: address, datagrams: sender });
        drop(table);
        Some(Association { id, associations: Arc::clone(associations), datagrams })
    }

    /// Dispatches the datagrams of the process to their associations. Never returns.
    pub(in super::super) async fn receive(&self) {
        loop {
            let (datagram, sender) = receive_from(&self.inside).await;
            self.lock().dispatch(sender, datagram);
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.lock().entries.len()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Table> {
        self.table.lock().expect("no code panics while it holds the table")
    }
}

impl Table {
    fn dispatch(&mut self, sender: SocketAddr, datagram: Vec<u8>) {
        let wanted = [
            ClientAddress::Known(sender),
            ClientAddress::Port(sender.port()),
            ClientAddress::Unknown,
        ];
        let found = wanted
            .iter()
            .find_map(|wanted| self.entries.iter().position(|entry| entry.sender == *wanted));
        if let Some(index) = found {
            let entry = &mut self.entries[index];
            entry.sender = ClientAddress::Known(sender);
            entry.datagrams.try_send(datagram).ok();
        }
    }

    fn client_of(&self, id: u64) -> Option<SocketAddr> {
        let entry = self.entries.iter().find(|entry| entry.id == id)?;
        match entry.sender {
            ClientAddress::Known(address) => Some(address),
            ClientAddress::Unknown | ClientAddress::Port(_) => None,
        }
    }
}

/// One association, which lives as long as its TCP connection.
#[derive(Debug)]
pub(super) struct Association {
    id: u64,
    associations: Arc<Associations>,
    datagrams: mpsc::Receiver<Vec<u8>>,
}

impl Drop for Association {
    fn drop(&mut self) {
        self.associations.lock().entries.retain(|entry| entry.id != self.id);
    }
}

impl Association {
    pub(super) async fn relay(mut self, state: Arc<GateState>, peer: SocketAddr) {
        let mut outside = OutsideSockets::default();
        let mut destinations = Destinations::default();
        loop {
            tokio::select! {
                Some(datagram) = self.datagrams.recv() => {
                    let Some((address, payload)) = datagram::parse(&datagram) else { continue };
                    match destinations.known.get(&address) {
                        Some(Some(to)) => outside.send(&state, *to, payload).await,
                        Some(None) => {}
                        None => destinations.decide(&state, peer, address, payload),
                    }
                }
                Some(Ok(decided)) = destinations.undecided.join_next() => {
                    if let Some(to) = decided.to {
                        outside.send(&state, to, &decided.payload).await;
                    }
                    destinations.remember(decided);
                }
                (payload, from) = outside.receive() => {
                    self.send_back(&state, &destinations, from, &payload).await;
                }
            }
        }
    }

    /// Sends a reply to the client, if it comes from an allowed destination.
    async fn send_back(
        &self,
        state: &GateState,
        destinations: &Destinations,
        from: SocketAddr,
        payload: &[u8],
    ) {
        let Some(shown) = destinations.senders.get(&from) else { return };
        let client = self.associations.lock().client_of(self.id);
        let Some(client) = client else { return };
        state.traffic.count_down(payload.len());
        let datagram = datagram::wrap(*shown, payload);
        self.associations.inside.send_to(&datagram, client).await.ok();
    }
}

#[derive(Debug, Default)]
struct Destinations {
    /// `None`: the destination is undecided or refused, and further datagrams to it are dropped.
    known: HashMap<Address, Option<SocketAddr>>,
    /// The allowed destinations, each with the source address that its replies show to the client.
    senders: HashMap<SocketAddr, SocketAddr>,
    undecided: JoinSet<Decided>,
}

#[derive(Debug)]
struct Decided {
    address: Address,
    to: Option<SocketAddr>,
    payload: Vec<u8>,
}

impl Destinations {
    fn decide(
        &mut self,
        state: &Arc<GateState>,
        peer: SocketAddr,
        address: Address,
        payload: &[u8],
    ) {
        if self.known.len() >= MAX_DESTINATIONS || self.undecided.len() >= MAX_UNDECIDED {
            return;
        }
        self.known.insert(address.clone(), None);
        let (state, payload) = (Arc::clone(state), payload.to_vec());
        self.undecided.spawn(async move {
            let to = find_destination(&state, peer, &address).await;
            Decided { address, to, payload }
        });
    }

    fn remember(&mut self, decided: Decided) {
        if let Some(to) = decided.to {
            let shown = match decided.address.host {
                Host::Address(address) => SocketAddr::new(address, decided.address.port),
                Host::Name(_) => to,
            };
            self.senders.insert(to, shown);
        }
        self.known.insert(decided.address, decided.to);
    }
}

/// Returns the address to send to, if the destination is allowed.
async fn find_destination(
    state: &GateState,
    peer: SocketAddr,
    address: &Address,
) -> Option<SocketAddr> {
    let host = state.meant_host(address.host.clone())?;
    let access = Access {
        host: &host,
        port: address.port,
        protocol: Protocol::Socks5Udp,
        route: Route::Proxy,
        method: None,
    };
    let mut permission = state.judge.judge(&access, Some(peer)).await.ok()?;
    let addresses = state.dialer.addresses_of(&mut permission).await.ok()?;
    addresses.first().copied()
}

/// One socket per address family, opened at first use.
#[derive(Debug, Default)]
struct OutsideSockets {
    v4: Option<UdpSocket>,
    v6: Option<UdpSocket>,
}

impl OutsideSockets {
    async fn send(&mut self, state: &GateState, to: SocketAddr, payload: &[u8]) {
        let (socket, any) = match to {
            SocketAddr::V4(_) => (&mut self.v4, IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
            SocketAddr::V6(_) => (&mut self.v6, IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
        };
        if socket.is_none() {
            *socket = UdpSocket::bind((any, 0)).await.ok();
        }
        let Some(socket) = socket else { return };
        if socket.send_to(payload, to).await.is_ok() {
            state.traffic.count_up(payload.len());
        }
    }

    /// Receives the next datagram from outside. Waits forever if there is no socket yet.
    async fn receive(&self) -> (Vec<u8>, SocketAddr) {
        let receive = async |socket: &Option<UdpSocket>| match socket {
            Some(socket) => receive_from(socket).await,
            None => std::future::pending().await,
        };
        tokio::select! {
            received = receive(&self.v4) => received,
            received = receive(&self.v6) => received,
        }
    }
}

/// Receives the next datagram of a socket. Holds no buffer while it waits.
async fn receive_from(socket: &UdpSocket) -> (Vec<u8>, SocketAddr) {
    loop {
        // Fails only while the runtime shuts down.
        if socket.readable().await.is_err() {
            tokio::task::yield_now().await;
        }
        let received = BUFFER.with_borrow_mut(|buffer| {
            buffer.resize(MAX_DATAGRAM, 0);
            // An error such as ECONNREFUSED belongs to an earlier datagram: wait for the next one.
            let (bytes, sender) = socket.try_recv_from(buffer).ok()?;
            Some((buffer[..bytes].to_vec(), sender))
        });
        if let Some(received) = received {
            return received;
        }
    }
}
