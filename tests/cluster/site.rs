//! Nodes, NATS servers and environments on this machine, with real binaries.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::Command;

use exec_server_test_support::{NatsServers, NatsVersion};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use super::load_balancer::LoadBalancer;
use crate::support::relay::wait_until_online;
use crate::support::{Outcome, PROGRAM, Running, command, eventually, run_program};

pub(super) const NODES: usize = 3;
pub(super) const ENVIRONMENTS: [&str; 2] = ["first", "second"];

pub(super) struct Site {
    environments: Vec<Running>,
    nodes: Vec<Node>,
    balancer: LoadBalancer,
    pub(super) nats: NatsServers,
    directory: TempDir,
}

struct Node {
    address: SocketAddr,
    running: Running,
}

impl Site {
    /// `Err` says why there can be none here.
    pub(super) fn start() -> Result<Self, String> {
        let nats = NatsServers::start(NatsVersion::Current, 3)?;
        let directory = tempfile::tempdir().unwrap();
        let balancer = LoadBalancer::start();
        let mut site = Self { environments: vec![], nodes: vec![], balancer, nats, directory };
        for role in ["environment", "harness"] {
            let token = site.create_token(role);
            std::fs::write(site.path(role), token).unwrap();
        }
        for number in 0..NODES {
            let address = own_address(number);
            let running = site.start_node(address);
            site.balancer.add(address);
            site.nodes.push(Node { address, running });
        }
        site.wait_for_nodes();
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

    pub(super) fn signal_node(&self, number: usize, signal: Signal) {
        self.nodes[number].running.signal(signal);
    }

    /// Returns when the node has ended, which it was told to.
    pub(super) fn restart_node(&mut self, number: usize) {
        let Node { address, running } = &self.nodes[number];
        eventually("the node has ended", || running.has_ended());
        let running = self.start_node(*address);
        self.nodes[number].running = running;
    }

    /// Until the load balancer leads to all nodes.
    pub(super) fn wait_for_nodes(&self) {
        eventually("all nodes are ready", || self.balancer.ready() == self.nodes.len());
    }

    /// A node that holds an environment, as the nodes have told last.
    pub(super) fn busy_node(&self) -> usize {
        let [flag, servers] = self.cluster();
        let mut found = None;
        eventually("the nodes tell which has an environment", || {
            let told = run_program(&["rendezvous", "status", "--json", &flag, &servers]);
            let nodes = told.stdout.lines().map(|line| serde_json::from_str(line).unwrap());
            let busy = nodes.into_iter().find(|node: &Value| node["environments"] != 0);
            let url = busy.map(|node| node["url"].as_str().unwrap().to_owned());
            found =
                self.nodes.iter().position(|node| Some(format!("ws://{}", node.address)) == url);
            found.is_some()
        });
        found.unwrap()
    }

    /// A command that runs a program in an environment.
    pub(super) fn client(&self, environment: &str, program: &[&str]) -> Command {
        let mut command = command(PROGRAM);
        command.args(["run", "--on", environment, "--"]).args(program);
        command.env("EXEC_SERVER_ENVIRONMENTS", self.path("environments.toml"));
        command
    }

    fn cluster(&self) -> [String; 2] {
        ["--cluster".to_owned(), self.nats.urls().join(",")]
    }

    fn start_node(&self, address: SocketAddr) -> Running {
        let mut program = command(PROGRAM);
        program.args(["rendezvous", "--listen", &format!("http://{address}")]);
        program.args(self.cluster()).args(["--replicas", "3"]);
        program.args(["--public-url", &self.balancer.url()]);
        program.args(["--advertise", &format!("ws://{address}")]);
        let mut node = Running::start(program);
        let line = node.line();
        assert!(line.starts_with("http://"), "{line:?}: {}", node.finish().2);
        drop(node.collect_errors());
        node
    }

    fn start_environment(&self, id: &str) -> Running {
        let mut program = command(PROGRAM);
        program.args(["--remote", &self.balancer.url(), "--environment-id", id]);
        program.arg("--remote-token-file").arg(self.path("environment"));
        let mut environment = Running::start(program);
        wait_until_online(&mut environment);
        drop(environment.collect_errors());
        environment
    }

    fn create_token(&self, role: &str) -> String {
        let [flag, servers] = self.cluster();
        let [first, second] = ENVIRONMENTS;
        let mut created = Outcome::default();
        // Servers that have just been started need a moment to agree on a leader.
        eventually("the NATS servers keep a token", || {
            created = run_program(&[
                "token",
                "create",
                &flag,
                &servers,
                "--replicas",
                "3",
                "--role",
                role,
                "--environment",
                first,
                "--environment",
                second,
            ]);
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
}

/// On 127.0.0.1 a connection of another test may get the port between an end and a restart.
fn own_address(number: usize) -> SocketAddr {
    let [.., middle, low] = std::process::id().to_be_bytes();
    let address = format!("127.{}.{middle}.{low}:0", 32 + number);
    TcpListener::bind(address).unwrap().local_addr().unwrap()
}
