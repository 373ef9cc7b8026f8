//! Nodes that are killed, hang, are drained, or lose their NATS: streams go on, and nothing is lost or
//! comes twice.

use std::io::Write as _;
use std::time::{Duration, Instant};

use exec_server_test_support::skipped;
use rustix::process::Signal;

use super::site::{ENVIRONMENTS, NODES, Routing, Site};
use crate::support::Choices;
use crate::support::eventually;
use crate::support::numbered_lines::{Echoing, Printing, numbered_lines_until};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// `kill -9` of a node.
    Kill,
    /// A node ends as its operator asks.
    Drain,
    /// A node hangs, until its peers have left it.
    Hang,
    /// `kill -9` of a NATS server.
    KillNats,
    /// All NATS servers are away for a while.
    NatsAway,
    /// No packet reaches a node, or leaves it.
    IsolateNode,
    /// The same of a NATS server.
    IsolateNats,
}

const FAULTS: [Fault; 5] =
    [Fault::Kill, Fault::Drain, Fault::KillNats, Fault::NatsAway, Fault::Hang];
const PARTITIONS: [Fault; 2] = [Fault::IsolateNode, Fault::IsolateNats];
/// Without NATS there are no frames, and a node that hangs is no different.
const FAULTS_OVER_NATS: [Fault; 3] = [Fault::Kill, Fault::Drain, Fault::KillNats];

#[test]
fn faults_of_nodes_and_nats_lose_and_double_nothing() {
    run(Routing::Direct, 7);
}

#[test]
fn faults_lose_and_double_nothing_where_frames_pass_between_nodes() {
    run(Routing::OverNats, 3);
}

#[test]
#[ignore = "soak: 100 rounds, run by `just soak`"]
fn soak_faults_of_nodes_and_nats_lose_and_double_nothing() {
    run(Routing::Direct, 100);
}

#[test]
#[ignore = "soak: 100 rounds, run by `just soak`"]
fn soak_faults_lose_and_double_nothing_where_frames_pass_between_nodes() {
    run(Routing::OverNats, 100);
}

/// Each fault at least once, if there are so many rounds.
fn run(routing: Routing, rounds: u32) {
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
    // All have their streams; a first contact may fail for good.
    clients.wait_for_progress();
    let mut choices = Choices::new(u64::from(rounds));
    let faults = match routing {
        Routing::Direct if site.has_partitions() => [&PARTITIONS[..], &FAULTS].concat(),
        Routing::Direct => FAULTS.to_vec(),
        Routing::OverNats => FAULTS_OVER_NATS.to_vec(),
    };
    let mut longest = vec![Duration::ZERO; faults.len()];
    for round in 0..rounds {
        // Each of them first, and then any.
        let kind = match usize::try_from(round).unwrap() {
            round if round < faults.len() => round,
            _ => usize::try_from(choices.below(faults.len() as u64)).unwrap(),
        };
        // Over NATS all nodes are at the same URL, so that which is busy cannot be told.
        let node = match (routing, faults[kind]) {
            (Routing::Direct, Fault::Kill | Fault::Drain | Fault::Hang | Fault::IsolateNode) => {
                site.busy_node()
            }
            _ => usize::try_from(choices.below(NODES as u64)).unwrap(),
        };
        let outage = inflict(faults[kind], node, &mut site, &clients);
        longest[kind] = longest[kind].max(outage);
        site.wait_for_nodes();
    }
    // For people who read the output; machines are too different to assert it.
    let outages: Vec<_> = faults.iter().zip(longest).collect();
    let _ = writeln!(std::io::stdout(), "the longest time until all clients went on: {outages:?}");
    std::fs::write(&stop, "").unwrap();
    clients.finish();
}

/// Returns when the fault is mended and all clients go on: how long the longest of them was held up.
fn inflict(fault: Fault, node: usize, site: &mut Site, clients: &Clients) -> Duration {
    let began = Instant::now();
    match fault {
        Fault::Kill => site.signal_node(node, Signal::KILL),
        Fault::Drain => site.signal_node(node, Signal::TERM),
        Fault::Hang => site.signal_node(node, Signal::STOP),
        Fault::KillNats => site.nats.kill(node),
        Fault::NatsAway => (0..NODES).for_each(|number| site.nats.kill(number)),
        Fault::IsolateNode => site.isolate_node(node),
        Fault::IsolateNats => site.isolate_nats(node),
    }
    clients.wait_for_progress();
    let outage = began.elapsed();
    match fault {
        Fault::Kill | Fault::Drain => site.restart_node(node),
        Fault::Hang => site.signal_node(node, Signal::CONT),
        Fault::KillNats => site.nats.restart(&[node]),
        Fault::NatsAway => site.nats.restart(&[0, 1, 2]),
        Fault::IsolateNode | Fault::IsolateNats => site.end_partition(),
    }
    clients.wait_for_progress();
    outage
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

    /// Waits until all of them have seen more than now.
    fn wait_for_progress(&self) {
        let before = self.seen();
        eventually("all clients go on", || {
            self.seen().iter().zip(&before).all(|(now, before)| *now > before + 10)
        });
    }

    fn finish(self) {
        self.echoing.into_iter().for_each(Echoing::finish);
        self.printing.into_iter().for_each(Printing::finish);
    }
}
