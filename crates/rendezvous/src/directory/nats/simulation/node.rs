//! A node: handles calls at a limited rate, admits sockets, and renews leases, in the same steps as
//! `Registry`, `Router` and `Handler` of the service.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rand::RngExt as _;

use super::super::leases::{Leases, Presence};
use super::cluster::{Call, Cluster, Event, Registered};
use super::environment::TIMEOUT;
use super::memory_store::{MemoryStore, at_once};
use crate::config::RendezvousConfig;
use crate::credential::CredentialId;
use crate::directory::{DirectoryError, Lease, Registration, SecretHash, replace_registration};
use crate::environment_id::EnvironmentId;
use crate::public_key::PublicKey;

pub(crate) struct Node {
    /// Also its name in leases.
    pub(crate) url: String,
    pub(crate) zone: usize,
    pub(crate) state: NodeState,
    /// As last seen by the load balancer.
    pub(crate) is_seen_ready: bool,
    pub(crate) leases: Arc<Leases<Arc<MemoryStore>>>,
    pub(crate) online: BTreeMap<usize, Socket>,
    /// When the queue of calls becomes empty.
    pub(crate) idle_from: Duration,
    /// Calls that were due to begin or continue while the node hung.
    pub(crate) stalled: Vec<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeState {
    Ready,
    /// Moves its environments to other nodes and accepts no new ones.
    Leaving,
    /// The process has ended; its host refuses connections.
    Stopped,
    /// The host has no power.
    Lost,
    /// The kernel accepts connections, and the process does nothing.
    Hung,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Socket {
    pub(crate) number: u64,
    pub(crate) generation: u64,
}

impl Node {
    pub(crate) fn new(number: usize, zones: usize, store: &Arc<MemoryStore>) -> Self {
        Self {
            url: format!("wss://node-{number}.example"),
            zone: number % zones,
            state: NodeState::Ready,
            is_seen_ready: true,
            leases: Arc::new(Leases::new(Arc::clone(store))),
            online: BTreeMap::new(),
            idle_from: Duration::ZERO,
            stalled: Vec::new(),
        }
    }

    pub(crate) fn replace_registration(
        &self,
        id: &EnvironmentId,
        ticket: SecretHash,
    ) -> impl Future<Output = Result<Lease, DirectoryError>> + use<> {
        let (leases, id) = (Arc::clone(&self.leases), id.clone());
        let registration = registration(self.url.clone(), ticket);
        async move {
            let lookup = || leases.lookup(&id);
            let register = |expected| leases.register(&id, registration.clone(), expected);
            replace_registration(lookup, register).await
        }
    }

    pub(crate) fn lookup(&self, id: &EnvironmentId) -> Option<Lease> {
        at_once(self.leases.lookup(id)).expect("the store answers")
    }

    pub(crate) fn claim(&self, id: &EnvironmentId, generation: u64) -> Result<(), DirectoryError> {
        at_once(self.leases.set_presence(id, generation, Presence::Claim { node: &self.url }))
    }

    pub(crate) fn renew(&self, id: &EnvironmentId, generation: u64) -> Result<(), DirectoryError> {
        at_once(self.leases.set_presence(id, generation, Presence::Renew { node: &self.url }))
    }

    pub(crate) fn release(&self, id: &EnvironmentId, generation: u64) {
        at_once(self.leases.release(id, generation, &self.url)).expect("the store answers");
    }
}

impl Cluster {
    /// Queues a call, unless its caller will have given up before its turn. A node that is not
    /// ready refuses the call, or does not respond.
    pub(crate) fn accept_call(
        &mut self,
        environment: usize,
        attempt: u64,
        node: usize,
        sent: Duration,
    ) {
        match self.nodes[node].state {
            NodeState::Ready => {}
            NodeState::Leaving | NodeState::Stopped => {
                let delay = self.network_delay();
                let refused = Event::CallAnswered { environment, attempt, registered: None };
                return self.agenda.add(delay, refused);
            }
            NodeState::Lost | NodeState::Hung => return,
        }
        let now = self.agenda.now();
        let begins = self.nodes[node].idle_from.max(now);
        if begins >= sent + TIMEOUT {
            return;
        }
        let service_time = Duration::from_secs(1) / self.settings.registrations_per_second;
        self.nodes[node].idle_from = begins + service_time;
        let mut call = self.new_call(environment, attempt, node);
        call.waits_until = Some(sent + TIMEOUT);
        let number = self.new_number();
        self.calls.insert(number, call);
        self.agenda.add(begins - now, Event::CallProgresses { call: number });
    }

    /// Advances a call. A call in progress continues even if its caller has given up.
    pub(crate) fn progress_call(&mut self, number: u64) {
        let Some(call) = self.calls.get_mut(&number) else { return };
        let Call { environment, attempt, registered, .. } = *call;
        let node = registered.node;
        match self.nodes[node].state {
            NodeState::Ready | NodeState::Leaving => {}
            NodeState::Hung => return self.nodes[node].stalled.push(number),
            NodeState::Stopped | NodeState::Lost => return drop(self.calls.remove(&number)),
        }
        if call.waits_until.take().is_some_and(|until| self.agenda.now() >= until) {
            return drop(self.calls.remove(&number));
        }
        let Poll::Ready(lease) = call.lease.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        else {
            let delay = self.directory_delay();
            return self.agenda.add(delay, Event::CallProgresses { call: number });
        };
        self.calls.remove(&number);
        if let Ok(lease) = &lease {
            self.measurements.count_registration(node, self.agenda.now());
            self.close_older_than(node, environment, lease.generation);
        }
        let delay = self.network_delay();
        let registered = lease.is_ok().then_some(registered);
        self.agenda.add(delay, Event::CallAnswered { environment, attempt, registered });
    }

    pub(crate) fn register_at_once(&mut self, environment: usize, node: usize) -> Registered {
        let Call { registered, lease, .. } = self.new_call(environment, 0, node);
        at_once(lease).expect("no other node registers this environment");
        registered
    }

    fn new_call(&mut self, environment: usize, attempt: u64, node: usize) -> Call {
        let mut ticket = SecretHash::default();
        ticket[..8].copy_from_slice(&self.new_number().to_be_bytes());
        let id = &self.environments[environment].id;
        let lease = Box::pin(self.nodes[node].replace_registration(id, ticket));
        let registered = Registered { node, ticket };
        Call { environment, attempt, waits_until: None, registered, lease }
    }

    /// Handles the dial of an environment to the node of its registration.
    pub(crate) fn admit(&mut self, environment: usize, attempt: u64) {
        let it = &self.environments[environment];
        let registered = it.registered();
        let socket = match self.nodes[registered.node].state {
            NodeState::Ready => self.attach(environment, registered),
            NodeState::Leaving | NodeState::Stopped => None,
            NodeState::Lost if it.is_told_of_lost_hosts => None,
            NodeState::Lost | NodeState::Hung => return,
        };
        let delay = self.directory_delay() + self.network_delay();
        self.agenda.add(delay, Event::DialAnswered { environment, attempt, socket });
    }

    /// Opens a socket if the ticket is the one of the current registration, and no newer one has
    /// its socket here.
    pub(crate) fn attach(&mut self, environment: usize, registered: Registered) -> Option<u64> {
        let Registered { node, ticket } = registered;
        let number = self.new_number();
        let id = &self.environments[environment].id;
        let it = &mut self.nodes[node];
        let lease = it.lookup(id).filter(|lease| lease.registration.ticket == ticket)?;
        let generation = lease.generation;
        if it.online.get(&environment).is_some_and(|other| other.generation > generation) {
            return None;
        }
        it.online.insert(environment, Socket { number, generation });
        it.claim(id, generation).expect("the lease was read at this moment");
        Some(number)
    }

    /// Handles the end of a socket when the node notices it. The end of a socket that was replaced
    /// changes nothing.
    pub(crate) fn detach(&mut self, node: usize, environment: usize, socket: u64) {
        let it = &mut self.nodes[node];
        let Some(online) = it.online.get(&environment).filter(|it| it.number == socket) else {
            return;
        };
        let id = &self.environments[environment].id;
        it.release(id, online.generation);
        it.online.remove(&environment);
    }

    pub(crate) fn close(&mut self, node: usize, environment: usize) {
        let Some(socket) = self.nodes[node].online.get(&environment).copied() else { return };
        self.detach(node, environment, socket.number);
        if self.environments[environment].uses(socket.number) {
            self.begin_outage(environment);
        }
        let delay = self.network_delay();
        self.agenda.add(delay, Event::SocketEnds { environment, socket: socket.number });
    }

    fn close_older_than(&mut self, node: usize, environment: usize, generation: u64) {
        let socket = self.nodes[node].online.get(&environment);
        if socket.is_some_and(|socket| socket.generation < generation) {
            self.close(node, environment);
        }
    }

    pub(crate) fn start_renewals(&mut self, node: usize) {
        let phase = self.rng.random_range(0.0..1.0);
        self.agenda.add(renew_interval().mul_f64(phase), Event::Renew { node });
    }

    /// Renews the leases of a node. Unlike in the service, a leaving node does not renew: it has
    /// closed its sockets long before their leases expire.
    pub(crate) fn renew_all(&mut self, node: usize) {
        self.agenda.add(renew_interval(), Event::Renew { node });
        if self.nodes[node].state == NodeState::Ready {
            self.renew_now(node);
        }
    }

    /// Renews all leases at the same time. The service needs a round trip for each.
    pub(crate) fn renew_now(&mut self, node: usize) {
        let it = &self.nodes[node];
        let renewals = it.online.iter().map(|(environment, socket)| {
            let id = &self.environments[*environment].id;
            (*environment, it.renew(id, socket.generation))
        });
        let is_replaced = |(_, renewed): &_| matches!(renewed, Err(DirectoryError::Conflict));
        let replaced: Vec<(usize, Result<(), DirectoryError>)> =
            renewals.filter(is_replaced).collect();
        for (environment, _) in replaced {
            self.close(node, environment);
        }
    }
}

fn renew_interval() -> Duration {
    RendezvousConfig::new(([127, 0, 0, 1], 0).into()).renew_interval
}

fn registration(node_url: String, ticket: SecretHash) -> Registration {
    Registration {
        registration_id: String::new(),
        public_key: PublicKey {
            suite: String::new(),
            x25519_public_key: String::new(),
            mlkem768_public_key: String::new(),
        },
        node_url,
        credential: CredentialId::from("environments"),
        ticket,
    }
}
