//! Network listeners of the test itself, which an unconfined process could reach.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

pub(super) struct Neighbours {
    tcp: [TcpListener; 2],
    udp6: UdpSocket,
    name_server: NameServer,
}

/// Replies to every datagram like a DNS server that knows no names.
struct NameServer {
    address: SocketAddr,
    datagrams: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Neighbours {
    pub(super) fn new() -> Self {
        let tcp = ["127.0.0.1:0", "[::1]:0"].map(|address| TcpListener::bind(address).unwrap());
        for listener in &tcp {
            listener.set_nonblocking(true).unwrap();
        }
        let udp6 = UdpSocket::bind("[::1]:0").unwrap();
        udp6.set_nonblocking(true).unwrap();
        Self { tcp, udp6, name_server: NameServer::start() }
    }

    /// Returns environment variables for an attempt.
    pub(super) fn variables(&self) -> [(&'static str, String); 4] {
        let port = |address: SocketAddr| address.port().to_string();
        [
            ("TCP4_PORT", port(self.tcp[0].local_addr().unwrap())),
            ("TCP6_PORT", port(self.tcp[1].local_addr().unwrap())),
            ("UDP4_PORT", port(self.name_server.address)),
            ("UDP6_PORT", port(self.udp6.local_addr().unwrap())),
        ]
    }

    /// Counts the connections and datagrams received since the last call.
    pub(super) fn visits(&self) -> usize {
        let mut visits = self.name_server.datagrams.swap(0, Ordering::Relaxed);
        for listener in &self.tcp {
            while is_something(listener.accept()) {
                visits += 1;
            }
        }
        while is_something(self.udp6.recv_from(&mut [0; 16])) {
            visits += 1;
        }
        visits
    }
}

fn is_something<T>(result: std::io::Result<T>) -> bool {
    match result {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
            false
        }
    }
}

impl NameServer {
    fn start() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let datagrams = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&datagrams);
        let thread = std::thread::spawn(move || {
            let mut query = [0; 512];
            loop {
                let (len, sender) = socket.recv_from(&mut query).unwrap();
                if len == 0 {
                    return;
                }
                counted.fetch_add(1, Ordering::Relaxed);
                // Turn the message into a response with the code for "no such name".
                query[2] |= 0x80;
                query[3] = 3;
                // A sender that does not wait for a response may have exited by now.
                let _ = socket.send_to(&query[..len], sender);
            }
        });
        Self { address, datagrams, thread: Some(thread) }
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        let farewell = UdpSocket::bind("127.0.0.1:0").unwrap();
        farewell.send_to(&[], self.address).unwrap();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
