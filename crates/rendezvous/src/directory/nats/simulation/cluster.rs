//! The cluster: its clock, its events and its invariants.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use super::super::LEASE_AGE;
use super::agenda::Agenda;
use super::environment::Environment;
use super::failures::Failure;
use super::measurements::{Measurements, Report};
use super::memory_store::MemoryStore;
use super::node::{Node, NodeState};
use crate::directory::{DirectoryError, Lease, SecretHash};

const HEALTH_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How often the sockets are checked, in seconds.
const CHECK_SOCKETS_EVERY: u64 = 5;
/// Time before the first failure, which begins right after a health check, so that the load
/// balancer notices it as late as possible.
const WARM_UP: Duration = HEALTH_CHECK_INTERVAL.saturating_mul(20).saturating_add(JUST_AFTER);
const JUST_AFTER: Duration = Duration::from_millis(1);
/// A cluster has settled once no environment was disconnected, no failure was to come and no node
/// hung for this time: no lease can still expire.
const SETTLED_AFTER: Duration = LEASE_AGE.saturating_add(Duration::from_secs(15));
/// A cluster that has not settled within this time never will.
const LONGEST_RUN: Duration = Duration::from_secs(4 * 3600);

#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) environments: usize,
    pub(crate) nodes: usize,
    pub(crate) zones: usize,
    /// Maximum rate of registrations at one node.
    pub(crate) registrations_per_second: u32,
    pub(crate) seed: u64,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Event {
    /// The pause before a dial has ended. Events of an earlier attempt are ignored.
    Dial {
        environment: usize,
        attempt: u64,
    },
    DialArrives {
        environment: usize,
        attempt: u64,
    },
    DialAnswered {
        environment: usize,
        attempt: u64,
        socket: Option<u64>,
    },
    Register {
        environment: usize,
        attempt: u64,
    },
    CallArrives {
        environment: usize,
        attempt: u64,
        node: usize,
        sent: Duration,
    },
    /// A call has its turn at the node, or the directory has responded to it.
    CallProgresses {
        call: u64,
    },
    CallAnswered {
        environment: usize,
        attempt: u64,
        registered: Option<Registered>,
    },
    TimedOut {
        environment: usize,
        attempt: u64,
    },
    /// The environment notices that its socket is gone.
    SocketEnds {
        environment: usize,
        socket: u64,
    },
    Renew {
        node: usize,
    },
    CheckHealth,
    /// A leaving node closes the socket of one more environment.
    CloseNext {
        node: usize,
        pause: Duration,
    },
    Start {
        node: usize,
    },
    Fail(Failure),
}

/// The URL that an environment dials.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Registered {
    pub(crate) node: usize,
    pub(crate) ticket: SecretHash,
}

/// A registration at a node, queued or in progress.
pub(crate) struct Call {
    pub(crate) environment: usize,
    pub(crate) attempt: u64,
    /// When its caller gives up; set while the call is queued. A call whose turn comes later than
    /// that is dropped.
    pub(crate) waits_until: Option<Duration>,
    pub(crate) registered: Registered,
    pub(crate) lease: Pin<Box<dyn Future<Output = Result<Lease, DirectoryError>> + Send>>,
}

pub(crate) struct Cluster {
    pub(crate) settings: Settings,
    pub(crate) agenda: Agenda<Event>,
    pub(crate) rng: SmallRng,
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) environments: Vec<Environment>,
    pub(crate) calls: BTreeMap<u64, Call>,
    /// The next number for a socket, ticket or call.
    pub(crate) next_number: u64,
    /// The node of a rolling restart that has not returned yet.
    pub(crate) restarting: Option<usize>,
    pub(crate) failures_to_come: usize,
    pub(crate) measurements: Measurements,
    whole_since: Option<Duration>,
}

impl Cluster {
    /// Creates a cluster in which every environment has been connected for a long time.
    pub(crate) fn new(settings: Settings) -> Self {
        let store = Arc::new(MemoryStore::default());
        let nodes = (0..settings.nodes).map(|number| Node::new(number, settings.zones, &store));
        let mut cluster = Self {
            settings,
            agenda: Agenda::new(),
            rng: SmallRng::seed_from_u64(settings.seed),
            nodes: nodes.collect(),
            store,
            environments: (0..settings.environments).map(Environment::new).collect(),
            calls: BTreeMap::new(),
            next_number: 0,
            restarting: None,
            failures_to_come: 0,
            measurements: Measurements::default(),
            whole_since: None,
        };
        for environment in 0..settings.environments {
            cluster.connect_at_once(environment);
        }
        for node in 0..settings.nodes {
            cluster.start_renewals(node);
        }
        cluster.agenda.add(HEALTH_CHECK_INTERVAL, Event::CheckHealth);
        cluster
    }

    /// Runs until the cluster has settled. The times of `failures` are relative to the first one.
    pub(crate) fn run(mut self, failures: &[(Duration, Failure)]) -> Report {
        self.failures_to_come = failures.len();
        for (after, failure) in failures {
            self.agenda.add(WARM_UP + *after, Event::Fail(*failure));
        }
        while !self.has_settled() {
            let event = self.agenda.next().expect("health checks never end");
            assert!(self.agenda.now() < LONGEST_RUN, "the cluster does not settle");
            self.store.set_now(self.agenda.now());
            self.handle(event);
        }
        self.check_sockets();
        assert!(self.environments.iter().all(Environment::is_connected));
        let online: usize = self.nodes.iter().map(|node| node.online.len()).sum();
        assert_eq!(online, self.settings.environments, "sockets");
        assert_eq!(self.store.len(), self.settings.environments, "leases");
        let running = self.nodes.iter().filter(|node| node.state == NodeState::Ready);
        self.measurements.report(WARM_UP, running.map(|node| node.online.len()))
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Dial { environment, attempt } => self.dial(environment, attempt),
            Event::DialArrives { environment, attempt } => self.admit(environment, attempt),
            Event::DialAnswered { environment, attempt, socket } => {
                self.finish_dial(environment, attempt, socket);
            }
            Event::Register { environment, attempt } => self.register(environment, attempt),
            Event::CallArrives { environment, attempt, node, sent } => {
                self.accept_call(environment, attempt, node, sent);
            }
            Event::CallProgresses { call } => self.progress_call(call),
            Event::CallAnswered { environment, attempt, registered } => {
                self.finish_call(environment, attempt, registered);
            }
            Event::TimedOut { environment, attempt } => self.time_out(environment, attempt),
            Event::SocketEnds { environment, socket } => self.lose_socket(environment, socket),
            Event::Renew { node } => self.renew_all(node),
            Event::CheckHealth => self.check_health(),
            Event::CloseNext { node, pause } => self.close_next(node, pause),
            Event::Start { node } => self.start(node),
            Event::Fail(failure) => {
                self.failures_to_come -= 1;
                self.fail(failure);
            }
        }
    }

    /// Lets the load balancer check all nodes, continues a rolling restart, and now and then checks
    /// the sockets.
    fn check_health(&mut self) {
        self.agenda.add(HEALTH_CHECK_INTERVAL, Event::CheckHealth);
        for node in &mut self.nodes {
            node.is_seen_ready = node.state == NodeState::Ready;
        }
        self.restart_next();
        if self.agenda.now().as_secs().is_multiple_of(CHECK_SOCKETS_EVERY) {
            self.check_sockets();
        }
        let is_hung = self.nodes.iter().any(|node| node.state == NodeState::Hung);
        let is_whole = !self.measurements.is_any_away()
            && self.failures_to_come == 0
            && self.restarting.is_none()
            && !is_hung;
        let since = self.whole_since.take().unwrap_or(self.agenda.now());
        self.whole_since = is_whole.then_some(since);
    }

    fn has_settled(&self) -> bool {
        self.whole_since.is_some_and(|since| self.agenda.now() - since >= SETTLED_AFTER)
    }

    /// Invariant: at most one node holds the current generation of an environment, and its lease
    /// names that node.
    fn check_sockets(&self) {
        let mut holders = vec![None; self.settings.environments];
        for (number, node) in self.nodes.iter().enumerate() {
            for (environment, socket) in &node.online {
                let id = &self.environments[*environment].id;
                let lease = node.lookup(id);
                if let Some(lease) = lease.filter(|lease| lease.generation == socket.generation) {
                    let other = holders[*environment].replace(number);
                    assert_eq!(other, None, "{id} is at node {number}, too");
                    assert_eq!(lease.node.as_ref(), Some(&node.url), "{id} is at another node");
                }
            }
        }
    }

    pub(crate) fn new_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// Returns the delay of one way through the network.
    pub(crate) fn network_delay(&mut self) -> Duration {
        Duration::from_micros(self.rng.random_range(1_000..=20_000))
    }

    /// Returns the delay of one round trip to the leader of the directory.
    pub(crate) fn directory_delay(&mut self) -> Duration {
        Duration::from_micros(self.rng.random_range(1_000..=5_000))
    }
}
