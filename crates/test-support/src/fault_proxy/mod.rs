//! A TCP proxy that simulates a faulty network between clients and one server, on command.
//!
//! It parses WebSocket only to find the ends of frames, so that it can cut within a frame or before
//! a certain message.

mod connection;
mod direction;
mod frames;
mod plan;

pub use plan::PlannedCut;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use plan::CutPlan;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// The way in which both sides lose a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// FIN, without a close frame.
    Fin,
    Rst,
    /// FIN after part of a frame, in each direction with pending data.
    MidFrame,
    MidFrameRst,
}

impl Cut {
    pub const ALL: [Self; 4] = [Self::Fin, Self::Rst, Self::MidFrame, Self::MidFrameRst];
}

/// A proxy on its own loopback port. Dropping it ends all of its connections and frees the port.
///
/// ```no_run
/// # async fn example(server: std::net::SocketAddr) {
/// use exec_server_test_support::{Cut, FaultProxy};
///
/// let proxy = FaultProxy::start(server).await;
/// // A client connects to proxy.url() and works.
/// proxy.wait_for_connections(1).await;
/// proxy.cut(Cut::MidFrame).await;
/// proxy.wait_for_connections(2).await;
/// # }
/// ```
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    conditions: watch::Sender<Conditions>,
    generation: Generation,
    plan: Arc<CutPlan>,
    counts: watch::Receiver<Counts>,
    acceptor: JoinHandle<()>,
}

/// Tells the connections accepted since the last cut about the next cut.
type Generation = Arc<Mutex<watch::Sender<Option<Cut>>>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Conditions {
    to_server: Traffic,
    to_client: Traffic,
    admission: Admission,
    delay: Duration,
    /// Maximum number of bytes that each direction of each connection moves.
    limit: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    ToServer,
    ToClient,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Traffic {
    #[default]
    Flows,
    Held,
}

impl Conditions {
    fn flows(&self, way: Way) -> bool {
        let traffic = match way {
            Way::ToServer => self.to_server,
            Way::ToClient => self.to_client,
        };
        traffic == Traffic::Flows
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Admission {
    #[default]
    Open,
    Refused,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    connections: usize,
    refusals: usize,
}

impl FaultProxy {
    /// Listens on 127.0.0.1 and connects each client to `upstream`.
    ///
    /// # Panics
    /// If loopback has no free port.
    pub async fn start(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let conditions = watch::Sender::new(Conditions::default());
        let generation = Generation::new(Mutex::new(watch::Sender::new(None)));
        let plan = Arc::new(CutPlan::default());
        let (counter, counts) = watch::channel(Counts::default());
        let acceptor = Acceptor {
            listener,
            upstream,
            conditions: conditions.subscribe(),
            generation: Arc::clone(&generation),
            plan: Arc::clone(&plan),
            counter,
        };
        let acceptor = tokio::spawn(acceptor.run());
        Self { address, conditions, generation, plan, counts, acceptor }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self) -> String {
        format!("ws://{}", self.address)
    }

    /// Ends every connection accepted so far, and returns when they have ended. Data that the proxy
    /// still holds is lost, except the part of a frame that [`Cut::MidFrame`] or
    /// [`Cut::MidFrameRst`] forwards. Later connections are not affected.
    pub async fn cut(&self, how: Cut) {
        let cut_off = {
            let mut generation = self.generation.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *generation, watch::Sender::new(None))
        };
        cut_off.send_replace(Some(how));
        // A connection drops its receiver once it has sent FIN or RST on its sockets.
        cut_off.closed().await;
    }

    /// Cuts a connection when it is about to carry a certain message, once for each of `cuts`.
    /// Replaces all pending cuts.
    pub fn plan_cuts(&self, cuts: impl IntoIterator<Item = PlannedCut>) {
        self.plan.replace(cuts);
    }

    pub fn planned_cuts_done(&self) -> usize {
        *self.plan.done().borrow()
    }

    pub async fn wait_for_planned_cuts(&self, count: usize) {
        let reached = |done: &usize| *done >= count;
        self.plan.done().wait_for(reached).await.expect("the plan lives as long as the proxy");
    }

    /// Keeps all sockets open and forwards nothing, not even FIN. New connections are accepted, and
    /// reach the server after [`resume`](Self::resume).
    pub fn black_hole(&self) {
        self.hold(Way::ToServer);
        self.hold(Way::ToClient);
    }

    /// Like [`black_hole`](Self::black_hole), in one direction. New connections reach the server
    /// only after [`resume`](Self::resume), whichever direction is held.
    pub fn hold(&self, way: Way) {
        self.conditions.send_modify(|conditions| match way {
            Way::ToServer => conditions.to_server = Traffic::Held,
            Way::ToClient => conditions.to_client = Traffic::Held,
        });
    }

    /// Resets new connections as soon as they are accepted. Existing ones continue.
    pub fn refuse(&self) {
        self.conditions.send_modify(|conditions| conditions.admission = Admission::Refused);
    }

    /// Forwards everything that arrives from now on, including FIN, after this delay and in order.
    pub fn delay(&self, delay: Duration) {
        self.conditions.send_modify(|conditions| conditions.delay = delay);
    }

    /// Lets each direction of each connection move this many bytes in total, then holds it. So a
    /// test knows how far its client can have got, however fast the machine is.
    pub fn hold_after(&self, bytes: u64) {
        self.conditions.send_modify(|conditions| conditions.limit = Some(bytes));
    }

    /// Ends [`black_hole`](Self::black_hole), [`hold`](Self::hold),
    /// [`hold_after`](Self::hold_after), [`refuse`](Self::refuse) and [`delay`](Self::delay).
    pub fn resume(&self) {
        self.conditions.send_replace(Conditions::default());
    }

    /// The number of connections accepted so far, without refused ones.
    pub fn connections(&self) -> usize {
        self.counts.borrow().connections
    }

    pub async fn wait_for_connections(&self, count: usize) {
        self.wait_for(|counts| counts.connections >= count).await;
    }

    pub fn refusals(&self) -> usize {
        self.counts.borrow().refusals
    }

    pub async fn wait_for_refusals(&self, count: usize) {
        self.wait_for(|counts| counts.refusals >= count).await;
    }

    async fn wait_for(&self, reached: impl Fn(&Counts) -> bool) {
        let mut counts = self.counts.clone();
        counts.wait_for(reached).await.expect("the acceptor runs as long as the proxy");
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.acceptor.abort();
    }
}

struct Acceptor {
    listener: TcpListener,
    upstream: SocketAddr,
    conditions: watch::Receiver<Conditions>,
    generation: Generation,
    plan: Arc<CutPlan>,
    counter: watch::Sender<Counts>,
}

impl Acceptor {
    async fn run(self) {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = self.listener.accept() => {
                    let (client, _) = accepted.expect("a test has descriptors to spare");
                    self.receive(client, &mut connections);
                }
                Some(_) = connections.join_next(), if !connections.is_empty() => {}
            }
        }
    }

    fn receive(&self, client: TcpStream, connections: &mut JoinSet<()>) {
        if self.conditions.borrow().admission == Admission::Refused {
            connection::reset(client);
            self.counter.send_modify(|counts| counts.refusals += 1);
            return;
        }
        let cut = self.generation.lock().unwrap_or_else(PoisonError::into_inner).subscribe();
        let (conditions, plan) = (self.conditions.clone(), Arc::clone(&self.plan));
        connections.spawn(connection::run(client, self.upstream, conditions, plan, cut));
        // Counted last: a test that has seen the count can cut the connection.
        self.counter.send_modify(|counts| counts.connections += 1);
    }
}
