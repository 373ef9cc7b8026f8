//! Nodes that are killed, hang, are drained, or lose NATS: streams continue, and no data is lost or
//! repeated.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::thread;
use std::time::{Duration, Instant};

use exec_server_test_support::skipped;
use rustix::process::Signal;

use super::site::{ENVIRONMENTS, NODES, Routing, Site};
use crate::support::Choices;
use crate::support::eventually;
use crate::support::numbered_lines::{Echoing, Printing, numbered_lines_until};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    /// `kill -9` of a node.
    Kill,
    /// A node is stopped by its operator.
    Drain,
    /// A node is stopped by SIGSTOP until all clients have continued.
    Hang,
    /// `kill -9` of a NATS server.
    KillNats,
    /// All NATS servers are down for a while.
    NatsAway,
    /// A node can neither send nor receive packets.
    IsolateNode,
    /// A NATS server can neither send nor receive packets.
    IsolateNats,
}

const FAULTS: [Fault; 5] =
    [Fault::Kill, Fault::Drain, Fault::KillNats, Fault::NatsAway, Fault::Hang];
const PARTITIONS: [Fault; 2] = [Fault::IsolateNode, Fault::IsolateNats];
/// Nodes notice within 10 s that a NATS server is silent, so an outage must last longer.
const NATS_OUTAGE: Duration = Duration::from_secs(12);
/// Lines that were in flight when the fault began arrive within this time.
const IN_FLIGHT: Duration = Duration::from_secs(1);

impl Fault {
    /// Returns the longest outage that `docs/cluster.md` allows for clients.
    fn longest_outage(self, routing: Routing) -> Duration {
        let seconds = match (self, routing) {
            (Self::Hang | Self::IsolateNode, _) => 45,
            // Nodes send frames to the isolated server until they notice its silence.
            (Self::IsolateNats, Routing::OverNats) => 45,
            // Frames lost with a server are retransmitted after one, three and seven seconds.
            (Self::KillNats | Self::NatsAway, Routing::OverNats) => 10,
            _ => 2,
        };
        Duration::from_secs(seconds)
    }
}

/// The number of rounds, and whether a long outage fails the test.
#[derive(Debug, Clone, Copy)]
enum Rounds {
    /// Each fault once. Other tests run at the same time, so outages are not checked.
    Each,
    Soak(u32),
}

#[test]
fn faults_of_nodes_and_nats_lose_and_repeat_no_data() {
    run(Routing::Direct, Rounds::Each);
}

#[test]
fn faults_lose_and_repeat_no_data_with_routing_over_nats() {
    run(Routing::OverNats, Rounds::Each);
}

#[test]
#[ignore = "soak: 100 rounds, run by `just soak-counts`"]
fn soak_faults_of_nodes_and_nats_lose_and_repeat_no_data() {
    run(Routing::Direct, Rounds::Soak(100));
}

#[test]
#[ignore = "soak: 100 rounds, run by `just soak-counts`"]
fn soak_faults_lose_and_repeat_no_data_with_routing_over_nats() {
    run(Routing::OverNats, Rounds::Soak(100));
}

fn run(routing: Routing, rounds: Rounds) {
    let mut site = match Site::start(routing) {
        Ok(site) => site,
        Err(why) => return skipped(format_args!("a cluster on NATS: {why}")),
    };
    let stop = site.path("stop");
    let script = numbered_lines_until(&stop);
    let mut clients = Clients::default();
    for environment in ENVIRONMENTS {
        let printing = site.client(environment, &["sh", "-c", &script]);
        clients.printing.push(Printing::start(printing));
        clients.echoing.push(Echoing::start(site.client(environment, &["cat"])));
    }
    // Waits until all clients have their streams: a failed first connection would not be retried.
    Progress::begin(&clients).follow(Duration::ZERO);
    let mut faults = match site.has_partitions() {
        true => [&PARTITIONS[..], &FAULTS].concat(),
        false => FAULTS.to_vec(),
    };
    if let Ok(chosen) = std::env::var("SOAK_FAULTS") {
        let possible = faults.clone();
        faults.retain(|fault| chosen.split(',').any(|name| name == format!("{fault:?}")));
        assert!(!faults.is_empty(), "SOAK_FAULTS={chosen} names none of the possible {possible:?}");
    }
    let count = match rounds {
        Rounds::Each => faults.len(),
        Rounds::Soak(count) => count as usize,
    };
    let mut choices = Choices::new(count as u64);
    let mut longest = BTreeMap::new();
    for round in 0..count {
        // First each fault once, then random ones.
        let fault = match faults.get(round) {
            Some(fault) => *fault,
            None => faults[choices.below(faults.len() as u64) as usize],
        };
        // With routing over NATS, all nodes have the same URL, so the busy one is unknown.
        let node = match (routing, fault) {
            (Routing::Direct, Fault::Kill | Fault::Drain | Fault::Hang | Fault::IsolateNode) => {
                site.busy_node()
            }
            _ => choices.below(NODES as u64) as usize,
        };
        let outage = inflict(fault, node, &mut site, &clients);
        let _ = writeln!(std::io::stdout(), "round {round}: {fault:?} of {node}: {outage:?}");
        if matches!(rounds, Rounds::Soak(_)) {
            assert!(outage <= fault.longest_outage(routing), "{fault:?}: {outage:?}");
        }
        let longest = longest.entry(fault).or_insert(outage);
        *longest = outage.max(*longest);
        site.wait_until_whole();
    }
    let _ = writeln!(std::io::stdout(), "longest outage of any client: {longest:?}");
    std::fs::write(&stop, "").unwrap();
    clients.finish();
}

/// Causes a fault, repairs it and waits until all clients continue. Returns the longest stall of a
/// client.
fn inflict(fault: Fault, node: usize, site: &mut Site, clients: &Clients) -> Duration {
    let mut progress = Progress::begin(clients);
    match fault {
        Fault::Kill => site.signal_node(node, Signal::KILL),
        Fault::Drain => site.signal_node(node, Signal::TERM),
        Fault::Hang => site.signal_node(node, Signal::STOP),
        Fault::KillNats => site.nats.kill(node),
        Fault::NatsAway => (0..NODES).for_each(|number| site.nats.kill(number)),
        Fault::IsolateNode => site.isolate_node(node),
        Fault::IsolateNats => site.isolate_nats(node),
    }
    match (fault, site.routing()) {
        // No frame passes; clients continue afterwards.
        #[expect(clippy::disallowed_methods, reason = "there is no event to wait for")]
        (Fault::NatsAway, Routing::OverNats) => thread::sleep(NATS_OUTAGE),
        (Fault::NatsAway | Fault::IsolateNats, _) => progress.follow(NATS_OUTAGE),
        _ => progress.follow(IN_FLIGHT),
    }
    match fault {
        Fault::Kill | Fault::Drain => site.restart_node(node),
        Fault::Hang => site.signal_node(node, Signal::CONT),
        Fault::KillNats => site.nats.restart(&[node]),
        Fault::NatsAway => site.nats.restart(&[0, 1, 2]),
        Fault::IsolateNode | Fault::IsolateNats => site.end_partition(),
    }
    if (fault, site.routing()) == (Fault::NatsAway, Routing::OverNats) {
        progress = Progress::begin(clients);
    }
    progress.follow(Duration::ZERO);
    progress.longest_stall
}

#[derive(Default)]
struct Clients {
    printing: Vec<Printing>,
    echoing: Vec<Echoing>,
}

impl Clients {
    fn seen(&self) -> Vec<u64> {
        let printing = self.printing.iter().map(Printing::seen);
        printing.chain(self.echoing.iter().map(Echoing::seen)).collect()
    }

    fn finish(self) {
        self.echoing.into_iter().for_each(Echoing::finish);
        self.printing.into_iter().for_each(Printing::finish);
    }
}

struct Progress<'a> {
    clients: &'a Clients,
    seen: Vec<(u64, Instant)>,
    longest_stall: Duration,
}

impl<'a> Progress<'a> {
    fn begin(clients: &'a Clients) -> Self {
        let now = Instant::now();
        let seen = clients.seen().into_iter().map(|count| (count, now)).collect();
        Self { clients, seen, longest_stall: Duration::ZERO }
    }

    /// Observes the clients for this time, and then until all have made progress.
    fn follow(&mut self, time: Duration) {
        let until = Instant::now() + time;
        eventually("the time has passed", || {
            self.update();
            Instant::now() >= until
        });
        let before: Vec<_> = self.seen.iter().map(|(count, _)| *count).collect();
        eventually("all clients continue", || {
            self.update();
            let mut progress = self.seen.iter().zip(&before);
            progress.all(|((count, _), before)| *count > before + 10)
        });
    }

    fn update(&mut self) {
        let now = Instant::now();
        for ((count, changed), seen) in self.seen.iter_mut().zip(self.clients.seen()) {
            match seen > *count {
                true => (*count, *changed) = (seen, now),
                false => self.longest_stall = self.longest_stall.max(now - *changed),
            }
        }
    }
}
