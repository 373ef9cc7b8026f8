//! An environment as in `exec_server_relay::environment`: after a loss it dials its URL once, and
//! registers if that fails.

use std::time::Duration;

use exec_server_relay::backoff::Backoff;
use rand::RngExt as _;

use super::cluster::{Cluster, Event, Registered};
use crate::environment_id::EnvironmentId;

/// `DIAL_TIMEOUT` and `CALL_TIMEOUT` of the relay.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(6);
/// The number of one-way delays until a request arrives: those of TCP, TLS and the request itself.
const WAYS_TO_REQUEST: u32 = 5;
/// The age of the initial sockets: longer than any series of failures.
const EARLIER: Duration = Duration::from_secs(3600);

pub(crate) struct Environment {
    pub(crate) id: EnvironmentId,
    /// Whether a router tells this environment that a host has no power. Otherwise packets to the
    /// host vanish.
    pub(crate) is_told_of_lost_hosts: bool,
    registered: Option<Registered>,
    backoff: Backoff,
    state: State,
    /// Incremented with each dial and call.
    attempt: u64,
    lost_at: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Connected { socket: u64, lived_before: Duration, since: Duration },
    Pausing,
    Dialling,
    Registering,
}

impl Environment {
    pub(crate) fn new(number: usize) -> Self {
        Self {
            id: format!("environment-{number}").parse().expect("the id is valid"),
            is_told_of_lost_hosts: number.is_multiple_of(2),
            registered: None,
            backoff: Backoff::default(),
            state: State::Pausing,
            attempt: 0,
            lost_at: None,
        }
    }

    pub(crate) fn is_connected(&self) -> bool {
        matches!(self.state, State::Connected { .. })
    }

    pub(crate) fn uses(&self, socket: u64) -> bool {
        matches!(self.state, State::Connected { socket: current, .. } if current == socket)
    }

    pub(crate) fn registered(&self) -> Registered {
        self.registered.expect("an environment dials after it has registered")
    }

    fn is_at(&self, attempt: u64, state: State) -> bool {
        self.attempt == attempt && self.state == state
    }
}

impl Cluster {
    /// Connects an environment when the simulation begins.
    pub(crate) fn connect_at_once(&mut self, environment: usize) {
        let node = self.rng.random_range(0..self.nodes.len());
        let registered = self.register_at_once(environment, node);
        self.environments[environment].registered = Some(registered);
        let socket = self.attach(environment, registered).expect("the ticket is current");
        let since = self.agenda.now();
        let state = State::Connected { socket, lived_before: EARLIER, since };
        self.environments[environment].state = state;
    }

    pub(crate) fn dial(&mut self, environment: usize, attempt: u64) {
        if !self.environments[environment].is_at(attempt, State::Pausing) {
            return;
        }
        let attempt = self.begin(environment, State::Dialling);
        let delay = self.network_delay() * WAYS_TO_REQUEST;
        self.agenda.add(delay, Event::DialArrives { environment, attempt });
    }

    pub(crate) fn finish_dial(&mut self, environment: usize, attempt: u64, socket: Option<u64>) {
        let is_awaited = self.environments[environment].is_at(attempt, State::Dialling);
        let now = self.agenda.now();
        match (is_awaited, socket) {
            (true, Some(socket)) => {
                let it = &mut self.environments[environment];
                it.state = State::Connected { socket, lived_before: Duration::ZERO, since: now };
                if let Some(lost_at) = it.lost_at.take() {
                    self.measurements.count_return(lost_at, now);
                }
                if !self.has_socket(environment, socket) {
                    // The node closed the socket while the response was on its way.
                    self.lose_socket(environment, socket);
                }
            }
            (true, None) => self.pause_and_register(environment),
            (false, Some(socket)) => {
                let Registered { node, .. } = self.environments[environment].registered();
                self.detach(node, environment, socket);
            }
            (false, None) => {}
        }
    }

    /// Sends a registration. The load balancer selects among the nodes that were ready at the last
    /// check.
    pub(crate) fn register(&mut self, environment: usize, attempt: u64) {
        if !self.environments[environment].is_at(attempt, State::Pausing) {
            return;
        }
        let attempt = self.begin(environment, State::Registering);
        let sent = self.agenda.now();
        self.measurements.count_call(sent);
        let ready = self.nodes.iter().enumerate().filter(|(_, node)| node.is_seen_ready);
        let ready: Vec<_> = ready.map(|(number, _)| number).collect();
        let delay = self.network_delay();
        if ready.is_empty() {
            let refused = Event::CallAnswered { environment, attempt, registered: None };
            return self.agenda.add(delay * (WAYS_TO_REQUEST + 1), refused);
        }
        let node = ready[self.rng.random_range(0..ready.len())];
        let arrives = Event::CallArrives { environment, attempt, node, sent };
        self.agenda.add(delay * WAYS_TO_REQUEST, arrives);
    }

    pub(crate) fn finish_call(
        &mut self,
        environment: usize,
        attempt: u64,
        registered: Option<Registered>,
    ) {
        if !self.environments[environment].is_at(attempt, State::Registering) {
            return;
        }
        match registered {
            None => {
                self.measurements.count_failed_call();
                self.pause_and_register(environment);
            }
            Some(registered) => {
                let it = &mut self.environments[environment];
                it.registered = Some(registered);
                it.state = State::Pausing;
                let attempt = it.attempt;
                self.dial(environment, attempt);
            }
        }
    }

    pub(crate) fn time_out(&mut self, environment: usize, attempt: u64) {
        let it = &self.environments[environment];
        if it.is_at(attempt, State::Registering) {
            self.measurements.count_failed_call();
            self.pause_and_register(environment);
        } else if it.is_at(attempt, State::Dialling) {
            self.pause_and_register(environment);
        }
    }

    /// Records that an outage begins, unless it has begun already. The environment may notice it
    /// later.
    pub(crate) fn begin_outage(&mut self, environment: usize) {
        let it = &mut self.environments[environment];
        if it.lost_at.is_none() {
            it.lost_at = Some(self.agenda.now());
            self.measurements.count_loss();
        }
    }

    pub(crate) fn lose_socket(&mut self, environment: usize, socket: u64) {
        let now = self.agenda.now();
        let random = self.rng.random();
        let it = &mut self.environments[environment];
        let State::Connected { socket: current, lived_before, since } = it.state else { return };
        if current != socket {
            return;
        }
        let pause = it.backoff.after_loss(lived_before + (now - since), false, random);
        it.state = State::Pausing;
        let dial = Event::Dial { environment, attempt: it.attempt };
        self.begin_outage(environment);
        self.agenda.add(pause, dial);
    }

    fn has_socket(&self, environment: usize, socket: u64) -> bool {
        let Registered { node, .. } = self.environments[environment].registered();
        let online = self.nodes[node].online.get(&environment);
        online.is_some_and(|online| online.number == socket)
    }

    fn pause_and_register(&mut self, environment: usize) {
        let random = self.rng.random();
        let it = &mut self.environments[environment];
        let pause = it.backoff.after_failure(random);
        it.state = State::Pausing;
        let register = Event::Register { environment, attempt: it.attempt };
        self.agenda.add(pause, register);
    }

    fn begin(&mut self, environment: usize, state: State) -> u64 {
        let it = &mut self.environments[environment];
        it.attempt += 1;
        it.state = state;
        let attempt = it.attempt;
        self.agenda.add(TIMEOUT, Event::TimedOut { environment, attempt });
        attempt
    }
}
