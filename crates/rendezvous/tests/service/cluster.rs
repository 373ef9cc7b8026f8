//! Nodes that exchange frames over NATS. Each has its own URL here, so that a test can choose the
//! node that a socket reaches.

use std::sync::Arc;
use std::time::Duration;

use exec_server_relay::frame::StreamId;
use exec_server_rendezvous::{
    Bus, CredentialKind, Directory, NatsDirectory, NatsOptions, Role, Routing, TunnelTimes,
};
use exec_server_test_support::{NatsServers, NatsVersion, skipped};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::support::{LIMIT, Peer, Service, bearer, data, key};

/// For tests that wait until silence is noticed.
pub(crate) const SHORT: TunnelTimes = TunnelTimes {
    heartbeat_interval: Duration::from_millis(100),
    silence_limit: Duration::from_millis(500),
    request_timeout: Duration::from_millis(500),
};

pub(crate) struct Node {
    pub(crate) service: Service,
    pub(crate) directory: Arc<dyn Directory>,
    _scratch: tempfile::TempDir,
}

pub(crate) struct Cluster {
    pub(crate) nats: NatsServers,
    pub(crate) nodes: Vec<Node>,
}

impl Cluster {
    /// `None` if there is no NATS server here.
    pub(crate) async fn start(nodes: usize, times: TunnelTimes) -> Option<Self> {
        let nats = match NatsServers::start(NatsVersion::Current, 1) {
            Ok(nats) => nats,
            Err(why) => {
                skipped(format_args!("frames over NATS: {why}"));
                return None;
            }
        };
        let mut cluster = Self { nats, nodes: Vec::new() };
        for _ in 0..nodes {
            cluster.add_node(times).await;
        }
        Some(cluster)
    }

    async fn add_node(&mut self, times: TunnelTimes) {
        let options = NatsOptions::new(self.nats.urls());
        let directory: Arc<dyn Directory> =
            Arc::new(NatsDirectory::connect(&options).await.unwrap());
        let bus = Bus::connect(&options, times).await.unwrap();
        let scratch = tempfile::tempdir().unwrap();
        let service =
            Service::start_on(Arc::clone(&directory), scratch.path(), "127.0.0.1:0", |config| {
                config.routing = Routing::Bus(Arc::new(bus));
                config.quotas.queued_bytes_per_socket = 1 << 20;
            });
        let service = service.await;
        self.nodes.push(Node { service, directory, _scratch: scratch });
    }

    pub(crate) fn service(&self, node: usize) -> &Service {
        &self.nodes[node].service
    }

    /// Creates a token that all nodes know, and returns its id, too.
    pub(crate) async fn token(&self, role: Role) -> (String, String) {
        let (id, token) = self.service(0).create(CredentialKind::Token, role, "box").await;
        for node in &self.nodes {
            wait_for("the token", async || node.directory.credential(&(*id).into()).await.unwrap())
                .await;
        }
        (id, token)
    }

    pub(crate) async fn register(&self, node: usize) -> Value {
        let (_, token) = self.token(Role::Environment).await;
        self.service(node).register("box", &token).await
    }

    /// Dials this node with the URL of a registration at any node, as through a load balancer.
    pub(crate) async fn attach(&self, node: usize, registered: &Value) -> Peer {
        let before = self.node_of_environment().await;
        let url = registered["url"].as_str().unwrap();
        let query = url.split_once("/relay").unwrap().1;
        let url = format!("ws://{}/relay{query}", self.service(node).address);
        let peer = Peer::dial(&url.into()).await;
        self.service(node).wait_online("box").await;
        wait_for("a claim", async || {
            self.node_of_environment().await.filter(|node| Some(node) != before.as_ref())
        })
        .await;
        peer
    }

    async fn node_of_environment(&self) -> Option<String> {
        let lease = self.nodes[0].directory.lookup(&"box".parse().unwrap()).await.ok()??;
        lease.node
    }

    /// Returns the environment at one node, and a token for harnesses.
    pub(crate) async fn environment(&self, node: usize) -> (Peer, String) {
        let registered = self.register(node).await;
        (self.attach(node, &registered).await, self.token(Role::Harness).await.1)
    }

    /// Returns a harness at a node, whose first frame the environment has received. A harness that
    /// is closed connects again.
    pub(crate) async fn harness(
        &self,
        node: usize,
        token: &str,
        environment: &mut Peer,
    ) -> (Peer, StreamId) {
        let service = self.service(node);
        wait_for("a harness", async || {
            let body = json!({"harness_public_key": key("h")});
            let (status, answer) = service.call("box", "connect", &bearer(token), &body).await;
            if status != 200 {
                return None;
            }
            let mut harness = Peer::try_dial(&answer["url"]).await.ok()?;
            let stream = StreamId::random();
            harness.0.outgoing.push(&data(stream, b"hello"));
            harness.0.outgoing.flush().await.ok()?;
            tokio::select! {
                () = arrives(environment, stream) => Some((harness, stream)),
                _ = harness.0.incoming.recv() => None,
            }
        })
        .await
    }

    pub(crate) async fn stop(self) {
        for Node { service, .. } in self.nodes {
            service.stop().await;
        }
    }
}

pub(crate) async fn wait_for<T>(name: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let asking = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LIMIT, asking).await.unwrap_or_else(|_| panic!("no sign of {name} within {LIMIT:?}"))
}

pub(crate) async fn arrives(peer: &mut Peer, stream: StreamId) {
    while peer.next().await.expect("the socket is open").stream_id != stream {}
}
