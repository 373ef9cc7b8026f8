//! A load balancer: one address for all nodes that are ready.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::namespace::{Namespace, inside};

const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// A node that takes longer to respond is not ready.
const CHECK_TIMEOUT: Duration = Duration::from_millis(500);

pub(super) struct LoadBalancer {
    address: SocketAddr,
    nodes: Arc<Nodes>,
    /// Dropping this ends the checks. Connections end with the test.
    _checks: SyncSender<()>,
}

#[derive(Default)]
struct Nodes {
    all: Mutex<Vec<Arc<Node>>>,
    next: AtomicUsize,
}

struct Node {
    address: SocketAddr,
    is_ready: AtomicBool,
}

impl LoadBalancer {
    /// Starts in `namespace` or, without one, in the network namespace of the test.
    pub(super) fn start(namespace: Option<&Namespace>) -> Self {
        let nodes = Arc::<Nodes>::default();
        let (checks, ended) = sync_channel(0);
        let address = inside(namespace, || serve(&nodes, ended));
        Self { address, nodes, _checks: checks }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(super) fn add(&self, address: SocketAddr) {
        let node = Arc::new(Node { address, is_ready: AtomicBool::new(false) });
        self.nodes.all.lock().unwrap().push(node);
    }

    pub(super) fn ready(&self) -> usize {
        let nodes = self.nodes.all.lock().unwrap();
        nodes.iter().filter(|node| node.is_ready.load(Ordering::Relaxed)).count()
    }
}

/// Starts the checks and the listener. Returns the address.
fn serve(nodes: &Arc<Nodes>, ended: Receiver<()>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let checked = Arc::clone(nodes);
    thread::spawn(move || {
        while ended.recv_timeout(CHECK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            checked.check();
        }
    });
    let serving = Arc::clone(nodes);
    thread::spawn(move || {
        for client in listener.incoming() {
            let (client, nodes) = (client.unwrap(), Arc::clone(&serving));
            // Without a ready node, the connection is closed and the client retries.
            thread::spawn(move || nodes.pick().map(|node| connect(client, node)));
        }
    });
    address
}

impl Nodes {
    fn check(&self) {
        let nodes = self.all.lock().unwrap().clone();
        for node in nodes {
            let is_ready = is_ready(node.address).unwrap_or(false);
            node.is_ready.store(is_ready, Ordering::Relaxed);
        }
    }

    fn pick(&self) -> Option<SocketAddr> {
        let nodes = self.all.lock().unwrap();
        let ready: Vec<_> =
            nodes.iter().filter(|node| node.is_ready.load(Ordering::Relaxed)).collect();
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        ready.get(turn.checked_rem(ready.len())?).map(|node| node.address)
    }
}

fn is_ready(address: SocketAddr) -> io::Result<bool> {
    let mut node = TcpStream::connect_timeout(&address, CHECK_TIMEOUT)?;
    node.set_read_timeout(Some(CHECK_TIMEOUT))?;
    node.write_all(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
    let mut answer = [0; 12];
    node.read_exact(&mut answer)?;
    Ok(&answer == b"HTTP/1.1 200")
}

fn connect(client: TcpStream, node: SocketAddr) -> io::Result<()> {
    let node = TcpStream::connect(node)?;
    let (mut from_client, mut to_node) = (client.try_clone()?, node.try_clone()?);
    let up = thread::spawn(move || {
        io::copy(&mut from_client, &mut to_node).ok();
        to_node.shutdown(Shutdown::Write).ok();
    });
    let (mut from_node, mut to_client) = (node, client);
    io::copy(&mut from_node, &mut to_client).ok();
    to_client.shutdown(Shutdown::Both).ok();
    from_node.shutdown(Shutdown::Both).ok();
    up.join().unwrap();
    Ok(())
}
