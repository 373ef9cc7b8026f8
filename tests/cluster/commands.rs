//! The operator's commands for a cluster, with one NATS server.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;

use exec_server_test_support::{NatsServers, NatsVersion, skipped};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Outcome, PROGRAM, Running, command, eventually, run_command};

#[test]
fn tokens_of_a_cluster_can_be_managed_with_and_without_running_nodes() {
    let Some(cluster) = Cluster::start() else { return };
    let before = cluster.create("create", "environment");
    let node = Node::start(&cluster);
    let while_running = cluster.create("create", "environment");
    let agent = cluster.create("create-agent", "harness");
    assert_eq!(agent.split('.').count(), 3, "a JSON Web Token");
    for token in [&before, &while_running] {
        eventually("the node knows the token", || node.accepts(token));
    }
    let listed = cluster.list_tokens();
    assert_eq!(listed.len(), 3);
    let text = Value::from(listed.clone()).to_string();
    for secret in [&before, &while_running, &agent] {
        assert!(!text.contains(secret), "{text}");
    }

    for token in listed.iter().filter(|token| token["kind"] == "token") {
        let id = token["id"].as_str().unwrap();
        let Outcome { code, stderr, .. } = cluster.run(&["token", "revoke", id]);
        assert_eq!(code, Some(0), "{stderr}");
        let again = cluster.run(&["token", "revoke", id]);
        assert_eq!(again.code, Some(1));
        assert!(again.stderr.contains("token list"), "{}", again.stderr);
    }
    for token in [&before, &while_running] {
        eventually("the node refuses the token", || !node.accepts(token));
    }
    node.stop();
    let kept = cluster.list_tokens();
    assert_eq!(kept.iter().map(|kept| &kept["kind"]).collect::<Vec<_>>(), ["agent"]);
}

#[test]
fn the_operator_sees_the_nodes_of_a_cluster() {
    let Some(cluster) = Cluster::start() else { return };
    let none = cluster.run(&["rendezvous", "status", "--json"]);
    assert_eq!((none.code, &*none.stdout), (Some(1), ""));
    assert!(none.stderr.contains("no rendezvous is running in the cluster"), "{}", none.stderr);

    let nodes = [Node::start(&cluster), Node::start(&cluster)];
    let mut urls = nodes.each_ref().map(|node| node.url.replace("http", "ws"));
    urls.sort_unstable();
    let mut listed = Vec::new();
    eventually("both nodes have reported", || {
        let Outcome { stdout, .. } = cluster.run(&["rendezvous", "status", "--json"]);
        listed = values(&stdout);
        listed.len() == nodes.len()
    });
    listed.sort_by_key(|node| node["url"].as_str().map(str::to_owned));
    for (node, url) in listed.iter().zip(&urls) {
        assert_eq!((&node["url"], &node["routing"]), (&json!(url), &json!("over NATS")));
        assert_eq!((&node["environments"], &node["is_leaving"]), (&json!(0), &json!(false)));
    }
    for node in &nodes {
        let page = node.page();
        assert!(page.starts_with("HTTP/1.1 200 "), "{page}");
        assert!(page.contains("<td>Frames between nodes</td><td>over NATS</td>"), "{page}");
        for url in &urls {
            assert!(page.contains(&format!("<td>{url}</td><td>up</td>")), "{url}: {page}");
        }
    }
    nodes.into_iter().for_each(Node::stop);
}

#[test]
fn doctor_reports_how_nodes_exchange_frames() {
    let Some(cluster) = Cluster::start() else { return };
    let routing = json!({"name": "routing", "works": false, "detail": "unknown, because no node has reported"});
    assert!(cluster.doctor().contains(&routing));

    let node = Node::start(&cluster);
    eventually("the node has reported", || cluster.run(&["rendezvous", "status"]).code == Some(0));
    let checks = cluster.doctor();
    for (name, detail) in
        [("NATS", "the state of the cluster is readable"), ("nodes", "1"), ("routing", "over NATS")]
    {
        let expected = json!({"name": name, "works": true, "detail": detail});
        assert!(checks.contains(&expected), "{expected} is not in {checks:?}");
    }
    node.stop();
}

struct Cluster {
    nats: NatsServers,
}

impl Cluster {
    /// Returns `None` if this machine has no NATS server.
    fn start() -> Option<Self> {
        match NatsServers::start(NatsVersion::Current, 1) {
            Ok(nats) => Some(Self { nats }),
            Err(why) => {
                skipped(format_args!("commands for a cluster: {why}"));
                None
            }
        }
    }

    fn run(&self, arguments: &[&str]) -> Outcome {
        run_command(self.program(arguments))
    }

    fn program(&self, arguments: &[&str]) -> Command {
        let mut program = command(PROGRAM);
        program.args(arguments).args(["--cluster", &self.nats.urls().join(",")]);
        program
    }

    /// Creates a credential for the environment `box`.
    fn create(&self, create: &str, role: &str) -> String {
        let created = self.run(&["token", create, "--role", role, "--environment", "box"]);
        assert_eq!((created.code, &*created.stderr), (Some(0), ""));
        created.stdout.trim_end().to_owned()
    }

    fn list_tokens(&self) -> Vec<Value> {
        let Outcome { code, stdout, stderr } = self.run(&["token", "list", "--json"]);
        assert_eq!(code, Some(0), "{stderr}");
        values(&stdout)
    }

    /// Returns the checks of the cluster. Ignores the exit code, which covers the whole machine.
    fn doctor(&self) -> Vec<Value> {
        let Outcome { stdout, stderr, .. } = self.run(&["doctor", "--json"]);
        let report: Value = serde_json::from_str(&stdout).expect(&stderr);
        report["cluster"].as_array().unwrap().clone()
    }
}

struct Node {
    running: Running,
    url: String,
}

impl Node {
    fn start(cluster: &Cluster) -> Self {
        let listen = ["rendezvous", "--listen", "http://127.0.0.1:0"];
        let mut running = Running::start(cluster.program(&listen));
        let url = running.line().trim_end().to_owned();
        assert!(url.starts_with("http://127.0.0.1:"), "{:?}", running.finish());
        Self { running, url }
    }

    fn page(&self) -> String {
        self.exchange("GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    }

    fn accepts(&self, token: &str) -> bool {
        let key = json!({"suite": "s", "x25519_public_key": "x", "mlkem768_public_key": "m"});
        let body = json!({"security_profile": "noise_hybrid_ik_v1", "executor_public_key": key});
        let body = body.to_string();
        let response = self.exchange(&format!(
            "POST /cloud/environment/box/register HTTP/1.1\r\nhost: localhost\r\n\
             authorization: Bearer {token}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n\
             {body}",
            body.len()
        ));
        match response.split(' ').nth(1) {
            Some("200") => true,
            Some("401") => false,
            _ => panic!("{response}"),
        }
    }

    /// Sends a request and returns the response with its head.
    fn exchange(&self, request: &str) -> String {
        let mut socket = TcpStream::connect(self.url.strip_prefix("http://").unwrap()).unwrap();
        socket.write_all(request.as_bytes()).unwrap();
        let mut response = String::new();
        socket.read_to_string(&mut response).unwrap();
        response
    }

    fn stop(self) {
        self.running.signal(Signal::TERM);
        let (status, _, log) = self.running.finish();
        assert_eq!(status.code(), Some(0), "{log}");
    }
}

fn values(lines: &str) -> Vec<Value> {
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
