//! Nodes, NATS servers and environments on this machine, with real binaries, in their own network
//! namespace if the machine supports it.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use exec_server_test_support::{NatsServers, NatsVersion, skipped};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use super::load_balancer::LoadBalancer;
use super::mesh;
use super::namespace::{Namespace, inside};
use crate::support::relay::wait_until_online;
use crate::support::{Outcome, PROGRAM, Running, command, eventually, run_command};

pub(super) const NODES: usize = 3;
pub(super) const ENVIRONMENTS: [&str; 2] = ["first", "second"];

/// How frames pass from a client at one node to an environment at another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Routing {
    /// Clients dial the node of the environment.
    Direct,
    OverNats,
}

pub(super) struct Site {
    /// The number of this site in this process.
    number: usize,
    routing: Routing,
    environments: Vec<Running>,
    nodes: Vec<Node>,
    balancer: LoadBalancer,
    pub(super) nats: NatsServers,
    namespace: Option<Namespace>,
    directory: TempDir,
}

struct Node {
    address: SocketAddr,
    running: Running,
}

impl Site {
    /// Starts a cluster. Returns the reason if this machine cannot.
    pub(super) fn start(routing: Routing) -> Result<Self, String> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let namespace = Namespace::new();
        if let Err(why) = &namespace {
            skipped(format_args!("partitions of a cluster: {why}"));
        }
        let namespace = namespace.ok();
        let name = namespace.as_ref().map(Namespace::name);
        let nats = NatsServers::start_in(name, NatsVersion::Current, 3)?;
        let balancer = LoadBalancer::start(namespace.as_ref());
        let directory = tempfile::tempdir().unwrap();
        let (environments, nodes) = (Vec::new(), Vec::new());
        let mut site =
            Self { number, routing, environments, nodes, balancer, nats, namespace, directory };
        for role in ["environment", "harness"] {
            let token = site.create_token(role);
            std::fs::write(site.path(role), token).unwrap();
        }
        for number in 0..NODES {
            let address = site.node_address(number);
            let running = site.start_node(number);
            site.balancer.add(address);
            site.nodes.push(Node { address, running });
        }
        site.wait_until_whole();
        for id in ENVIRONMENTS {
            let environment = site.start_environment(id);
            site.environments.push(environment);
        }
        site.write_environments_file();
        Ok(site)
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(super) fn routing(&self) -> Routing {
        self.routing
    }

    pub(super) fn has_partitions(&self) -> bool {
        self.namespace.is_some()
    }

    pub(super) fn signal_node(&self, number: usize, signal: Signal) {
        self.nodes[number].running.signal(signal);
    }

    /// Cuts a node off from NATS and from everything that connects to it.
    pub(super) fn isolate_node(&self, number: usize) {
        let (own, nats) = (self.node_address(number).ip(), nats_address(number));
        self.drop_packets(&format!(
            "ip saddr {own}\nip daddr {own}\nip saddr {nats}\nip daddr {nats}"
        ));
    }

    /// Cuts a NATS server off from nodes and from the other servers.
    pub(super) fn isolate_nats(&self, number: usize) {
        let [port, routes] = self.nats.ports(number);
        self.drop_packets(&format!(
            "tcp sport {{ {port}, {routes} }}\ntcp dport {{ {port}, {routes} }}"
        ));
    }

    pub(super) fn end_partition(&self) {
        self.namespace.as_ref().unwrap().heal();
    }

    fn drop_packets(&self, matches: &str) {
        self.namespace.as_ref().unwrap().drop_packets(matches).unwrap();
    }

    /// Waits for the end of a node that was signalled, and starts a new one.
    pub(super) fn restart_node(&mut self, number: usize) {
        let running = &self.nodes[number].running;
        eventually("the node has ended", || running.has_ended());
        self.nodes[number].running = self.start_node(number);
    }

    /// Waits until the load balancer has all nodes, the NATS servers can reach each other, and each
    /// of them serves the state of the cluster. Before that, the cluster is still recovering from
    /// the previous fault.
    pub(super) fn wait_until_whole(&self) {
        eventually("all nodes are ready", || self.balancer.ready() == self.nodes.len());
        let servers: Vec<SocketAddr> = (0..NODES)
            .map(|number| (Ipv4Addr::LOCALHOST, self.nats.ports(number)[0]).into())
            .collect();
        eventually("messages pass between the NATS servers", || {
            inside(self.namespace.as_ref(), || mesh::is_connected(&servers))
        });
        for url in self.nats.urls_at("127.0.0.1") {
            eventually("a NATS server has the state of the cluster", || {
                let status = self.program(&["rendezvous", "status", "--json", "--cluster", &url]);
                run_command(status).code == Some(0)
            });
        }
    }

    /// Returns a node that holds an environment. Waits until the reports of all nodes are current.
    pub(super) fn busy_node(&self) -> usize {
        let mut found = None;
        eventually("the nodes report which of them has the environments", || {
            let mut status = self.program(&["rendezvous", "status", "--json"]);
            status.args(self.cluster("127.0.0.1"));
            let told = run_command(status).stdout;
            let nodes = told.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
            let mut nodes: Vec<_> = nodes.collect();
            // A killed node stays listed for a while, next to its replacement.
            nodes.sort_by_key(|node| node["started"].as_u64());
            let newest: BTreeMap<_, _> =
                nodes.iter().map(|node| (node["url"].as_str(), node)).collect();
            let count = |node: &Value| node["environments"].as_u64().unwrap();
            if newest.values().map(|node| count(node)).sum::<u64>() != ENVIRONMENTS.len() as u64 {
                return false;
            }
            let busy = newest.into_iter().find(|(_, node)| count(node) > 0);
            let url = busy.and_then(|(url, _)| url);
            let is_it = |node: &Node| Some(&*format!("ws://{}", node.address)) == url;
            found = self.nodes.iter().position(is_it);
            found.is_some()
        });
        found.unwrap()
    }

    /// Returns a command that runs a program in an environment.
    pub(super) fn client(&self, environment: &str, program: &[&str]) -> Command {
        let mut command = self.program(&["run", "--on", environment, "--"]);
        command.args(program).env("EXEC_SERVER_ENVIRONMENTS", self.path("environments.toml"));
        command
    }

    fn program(&self, arguments: &[&str]) -> Command {
        let mut command = match &self.namespace {
            Some(namespace) => namespace.command(PROGRAM),
            None => command(PROGRAM),
        };
        command.args(arguments);
        command
    }

    fn cluster(&self, address: &str) -> [String; 2] {
        ["--cluster".to_owned(), self.nats.urls_at(address).join(",")]
    }

    /// Starts a node, retrying as its systemd unit does: it exits while the NATS servers have no
    /// leader.
    fn start_node(&self, number: usize) -> Running {
        let mut node = None;
        eventually("the node runs", || {
            let mut starting = Running::start(self.node(number));
            match starting.line().starts_with("http://") {
                true => node = Some(starting),
                false => drop(starting.finish()),
            }
            node.is_some()
        });
        let mut node = node.expect("the node runs");
        drop(node.collect_errors());
        node
    }

    fn node(&self, number: usize) -> Command {
        let address = self.node_address(number);
        let listen = format!("http://{address}");
        let mut program = self.program(&["rendezvous", "--listen", &listen, "--replicas", "3"]);
        let nats = self.namespace.as_ref().map_or("127.0.0.1".to_owned(), |_| nats_address(number));
        program.args(self.cluster(&nats)).args(["--public-url", &self.balancer.url()]);
        if self.routing == Routing::Direct {
            program.args(["--advertise", &format!("ws://{address}")]);
        }
        program
    }

    fn start_environment(&self, id: &str) -> Running {
        let mut program = self.program(&["--remote", &self.balancer.url(), "--environment-id", id]);
        program.arg("--remote-token-file").arg(self.path("environment"));
        let mut environment = Running::start(program);
        wait_until_online(&mut environment);
        drop(environment.collect_errors());
        environment
    }

    fn create_token(&self, role: &str) -> String {
        let mut created = Outcome::default();
        // NATS servers that have just started need a moment to elect a leader.
        eventually("the NATS servers store a token", || {
            let mut create = self.program(&["token", "create", "--replicas", "3", "--role", role]);
            create.args(self.cluster("127.0.0.1"));
            create.args(ENVIRONMENTS.map(|id| format!("--environment={id}")));
            created = run_command(create);
            created.code == Some(0)
        });
        created.stdout
    }

    fn write_environments_file(&self) {
        let entries = ENVIRONMENTS.map(|id| {
            format!(
                "[[environments]]\nid = {id:?}\nremote = {:?}\nenvironment_id = {id:?}\n\
                 token_file = \"harness\"\n",
                self.balancer.url()
            )
        });
        std::fs::write(self.path("environments.toml"), entries.concat()).unwrap();
    }

    /// Returns an address that no other test uses: on 127.0.0.1, a connection of another test could
    /// get the port during a restart.
    fn node_address(&self, number: usize) -> SocketAddr {
        let [.., middle, low] = std::process::id().to_be_bytes();
        format!("127.{}.{middle}.{low}:7700", 64 + NODES * self.number + number).parse().unwrap()
    }
}

/// Returns the address at which only this node reaches NATS.
fn nats_address(number: usize) -> String {
    format!("127.40.{number}.1")
}
