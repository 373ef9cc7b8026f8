//! The failures of nodes.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt as _;

use super::super::leases::Leases;
use super::cluster::{Cluster, Event};
use super::node::NodeState;

/// `CLUSTER_DRAIN_SPREAD` of the program.
const DRAIN_SPREAD: Duration = Duration::from_secs(10);
/// Time from the end of a process to the start of the next one.
const DOWN_TIME: Duration = Duration::from_secs(5);
/// `KEEP_ALIVE` of the relay.
const SILENCE_LIMIT: Duration = Duration::from_secs(15);
const PING_INTERVAL: Duration = Duration::from_secs(7);

#[derive(Debug, Clone, Copy)]
pub(crate) enum Failure {
    RollingRestart,
    /// All nodes of the zone lose power for good. A router reports that to half of the
    /// environments.
    ZoneLost {
        zone: usize,
    },
    Hang {
        node: usize,
    },
    /// A node that hung continues.
    Resume {
        node: usize,
    },
}

impl Cluster {
    pub(crate) fn fail(&mut self, failure: Failure) {
        match failure {
            Failure::RollingRestart => self.leave(0),
            Failure::ZoneLost { zone } => {
                for node in 0..self.nodes.len() {
                    if self.nodes[node].zone == zone {
                        self.lose_power(node);
                    }
                }
            }
            Failure::Hang { node } => {
                self.nodes[node].state = NodeState::Hung;
                for (environment, socket) in self.sockets_of(node) {
                    self.fall_silent(environment, socket);
                }
            }
            Failure::Resume { node } => self.resume(node),
        }
    }

    /// Moves the environments of a node to other nodes, one after another.
    fn leave(&mut self, node: usize) {
        self.restarting = Some(node);
        self.nodes[node].state = NodeState::Leaving;
        let count = u32::try_from(self.nodes[node].online.len())
            .expect("there are fewer than 2^32 environments");
        let pause = DRAIN_SPREAD.checked_div(count).unwrap_or_default();
        self.agenda.add(Duration::ZERO, Event::CloseNext { node, pause });
    }

    pub(crate) fn close_next(&mut self, node: usize, pause: Duration) {
        match self.nodes[node].online.first_key_value() {
            Some((&environment, _)) => {
                self.close(node, environment);
                self.agenda.add(pause, Event::CloseNext { node, pause });
            }
            None => {
                self.nodes[node].state = NodeState::Stopped;
                self.agenda.add(DOWN_TIME, Event::Start { node });
            }
        }
    }

    /// Starts a node. The new process knows nothing of the previous one.
    pub(crate) fn start(&mut self, node: usize) {
        let it = &mut self.nodes[node];
        it.state = NodeState::Ready;
        it.leases = Arc::new(Leases::new(Arc::clone(&self.store)));
    }

    /// Continues a rolling restart: a node leaves once the load balancer sees that the previous one
    /// is ready.
    pub(crate) fn restart_next(&mut self) {
        let Some(node) = self.restarting.filter(|node| self.nodes[*node].is_seen_ready) else {
            return;
        };
        self.restarting = None;
        if node + 1 < self.nodes.len() {
            self.leave(node + 1);
        }
    }

    fn lose_power(&mut self, node: usize) {
        let sockets = self.sockets_of(node);
        self.nodes[node].state = NodeState::Lost;
        self.nodes[node].online.clear();
        for (environment, socket) in sockets {
            match self.environments[environment].is_told_of_lost_hosts {
                true => {
                    self.begin_outage(environment);
                    let delay = self.network_delay();
                    self.agenda.add(delay, Event::SocketEnds { environment, socket });
                }
                false => self.fall_silent(environment, socket),
            }
        }
    }

    /// Ends a socket at the silence limit, counted from the response to the last ping.
    fn fall_silent(&mut self, environment: usize, socket: u64) {
        self.begin_outage(environment);
        let since_answer = PING_INTERVAL.mul_f64(self.rng.random());
        self.agenda.add(SILENCE_LIMIT - since_answer, Event::SocketEnds { environment, socket });
    }

    /// Resumes a hung node. Renewals are due at once; then the node notices which peers left.
    fn resume(&mut self, node: usize) {
        self.nodes[node].state = NodeState::Ready;
        for call in std::mem::take(&mut self.nodes[node].stalled) {
            self.agenda.add(Duration::ZERO, Event::CallProgresses { call });
        }
        self.renew_now(node);
        for (environment, socket) in self.sockets_of(node) {
            if !self.environments[environment].uses(socket) {
                self.detach(node, environment, socket);
            }
        }
    }

    fn sockets_of(&self, node: usize) -> Vec<(usize, u64)> {
        let online = self.nodes[node].online.iter();
        online.map(|(environment, socket)| (*environment, socket.number)).collect()
    }
}
