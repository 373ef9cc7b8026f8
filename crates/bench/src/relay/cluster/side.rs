//! The nodes of a rendezvous, and plain sockets as their environments and clients.

use std::env;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use exec_server_relay::frame::StreamId;
use exec_server_relay::noise::{Identity, OsRng};
use exec_server_relay::registry::{BearerToken, RegistryClient};
use exec_server_transport::{Connection, TlsOptions};
use tempfile::TempDir;
use tokio::task::JoinSet;

use super::super::rendezvous::create_token;
use super::super::router::{exchange_within, frame, open};
use super::super::stream::connect_when_online;
use crate::footprint::settled_bytes;
use crate::program::{KilledOnDrop, command};
use crate::server::{listen, this_program};

const NODES: usize = 3;
/// The number of environments that share a token. A token may make 1,000 calls at once, and 100 per
/// second after that.
const ENVIRONMENTS_OF_TOKEN: usize = 250;
const REGISTERED_AT_ONCE: usize = 32;
const PAYLOAD: usize = 60 << 10;
/// Frames in flight on a stream. A node buffers at most 32 MiB for all sockets of one token.
const WINDOW: usize = 1;
const NATS_TIMEOUT: Duration = Duration::from_secs(10);
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

pub(super) struct Nats {
    url: String,
    _process: KilledOnDrop,
    _store: TempDir,
}

impl Nats {
    /// Returns `None` if nats-server is not installed.
    pub(super) fn start() -> anyhow::Result<Option<Self>> {
        let Some(program) = find_program() else { return Ok(None) };
        let store = tempfile::tempdir().context("cannot create a temporary directory")?;
        let port = free_port()?;
        let mut server = command(&program);
        server.args(["--addr", "127.0.0.1", "--port", &port.to_string(), "--jetstream"]);
        server.arg("--store_dir").arg(store.path());
        let process = server.spawn();
        let process = process.with_context(|| format!("cannot start {}", program.display()))?;
        let process = KilledOnDrop(process);
        let deadline = Instant::now() + NATS_TIMEOUT;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            ensure!(
                Instant::now() < deadline,
                "nats-server did not listen on port {port} within {}s",
                NATS_TIMEOUT.as_secs()
            );
            #[expect(
                clippy::disallowed_methods,
                reason = "nats-server does not report when it listens"
            )]
            thread::sleep(RETRY_INTERVAL);
        }
        let url = format!("nats://127.0.0.1:{port}");
        Ok(Some(Self { url, _process: process, _store: store }))
    }
}

/// Nodes that share their state, or a single node with its own.
pub(super) struct Side {
    nodes: Vec<Node>,
    /// For each group of environments: a registry client with the token of the environments, and
    /// one with the token of their clients.
    tokens: Vec<[RegistryClient; 2]>,
    names: Vec<String>,
    environments: Vec<Connection>,
    streams: Vec<Stream>,
    _nats: Option<Nats>,
    _data: TempDir,
}

/// A stream from an environment to a client, over plain sockets.
struct Stream {
    harness: Connection,
    environment: Connection,
    data: Bytes,
}

struct Node {
    process: KilledOnDrop,
    url: String,
    /// The node's resident memory before environments registered.
    idle_bytes: u64,
}

impl Side {
    pub(super) fn cluster(nats: Nats, environments: usize) -> anyhow::Result<Self> {
        let data = tempfile::tempdir().context("cannot create a temporary directory")?;
        let store = vec!["--cluster".to_owned(), nats.url.clone()];
        let nodes = (0..NODES).map(|_| {
            let address = format!("127.0.0.1:{}", free_port()?);
            let advertise = ["--advertise".to_owned(), format!("ws://{address}")];
            Node::start(&address, store.iter().chain(&advertise))
        });
        let nodes = nodes.collect::<anyhow::Result<_>>()?;
        Self::new(nodes, &store, environments, Some(nats), data)
    }

    pub(super) fn single(environments: usize) -> anyhow::Result<Self> {
        let data = tempfile::tempdir().context("cannot create a temporary directory")?;
        let path = data
            .path()
            .to_str()
            .with_context(|| format!("{:?} is not UTF-8; change TMPDIR", data.path()))?;
        let store = vec!["--data".to_owned(), path.to_owned()];
        let nodes = vec![Node::start("127.0.0.1:0", &store)?];
        Self::new(nodes, &store, environments, None, data)
    }

    fn new(
        nodes: Vec<Node>,
        store: &[String],
        environments: usize,
        nats: Option<Nats>,
        data: TempDir,
    ) -> anyhow::Result<Self> {
        let names: Vec<_> = (0..environments).map(|number| format!("e{number}")).collect();
        let tokens = names.chunks(ENVIRONMENTS_OF_TOKEN).map(|names| {
            let client = |role| {
                let token = Arc::new(BearerToken::Value(create_token(store, role, names)?));
                let tls = TlsOptions::default();
                anyhow::Ok(RegistryClient::new(&nodes[0].url, &names[0], token, &tls)?)
            };
            Ok([client("environment")?, client("harness")?])
        });
        let tokens = tokens.collect::<anyhow::Result<_>>()?;
        let (environments, streams) = (Vec::new(), Vec::new());
        Ok(Self { nodes, tokens, names, environments, streams, _nats: nats, _data: data })
    }

    /// Registers all environments, rotating over the nodes, and opens their sockets. Returns
    /// the registrations per second.
    pub(super) async fn register_all(&mut self) -> anyhow::Result<f64> {
        for node in &mut self.nodes {
            node.idle_bytes = settled_bytes(node.process.0.id())?;
        }
        let identity = Arc::new(Identity::generate(&mut OsRng));
        let mut urls = vec![String::new(); self.names.len()];
        let mut calls = JoinSet::new();
        let began = Instant::now();
        for number in 0..self.names.len() {
            if calls.len() == REGISTERED_AT_ONCE {
                take_url(&mut urls, calls.join_next().await)?;
            }
            let (registry, identity) = (self.registry(number, number, 0)?, Arc::clone(&identity));
            calls.spawn(async move {
                let registered = registry.register(identity.public_key()).await?;
                anyhow::Ok((number, registered.url))
            });
        }
        while let Some(registered) = calls.join_next().await {
            take_url(&mut urls, Some(registered))?;
        }
        let rate = self.names.len() as f64 / began.elapsed().as_secs_f64();
        for url in urls {
            self.environments.push(open(&url).await?);
        }
        Ok(rate)
    }

    /// Returns the average memory of one environment in its node.
    pub(super) fn idle_environment(&self) -> anyhow::Result<f64> {
        let mut growth = 0;
        for node in &self.nodes {
            growth += settled_bytes(node.process.0.id())?.saturating_sub(node.idle_bytes);
        }
        Ok(growth as f64 / self.names.len() as f64)
    }

    /// Times one client's `connect` call. `number` selects the environment and the node.
    pub(super) async fn time_connect(&self, number: usize) -> anyhow::Result<Duration> {
        let environment = number % self.names.len();
        let registry = self.registry(environment, number / 2, 1)?;
        let identity = Identity::generate(&mut OsRng);
        let began = Instant::now();
        registry.connect(identity.public_key()).await?;
        Ok(began.elapsed())
    }

    /// Opens a stream from a client to each of the first `count` environments.
    pub(super) async fn open_streams(&mut self, count: usize) -> anyhow::Result<()> {
        let mut harnesses = Vec::new();
        for number in 0..count {
            let registry = self.registry(number, number, 1)?;
            let identity = Identity::generate(&mut OsRng);
            let bundle = connect_when_online(&registry, identity.public_key()).await?;
            harnesses.push(open(&bundle.url).await?);
        }
        for (mut harness, mut environment) in
            harnesses.into_iter().zip(self.environments.drain(..count))
        {
            let id = StreamId::random();
            exchange_within(1, &mut harness, &mut environment, &frame(id, 1), 1).await?;
            self.streams.push(Stream { harness, environment, data: frame(id, PAYLOAD) });
        }
        Ok(())
    }

    /// Sends this many bytes from environments to their clients, over all streams at once.
    pub(super) async fn route(&mut self, bytes: u64) -> anyhow::Result<()> {
        let count = usize::try_from(bytes)?.div_ceil(PAYLOAD * self.streams.len());
        let mut exchanges = JoinSet::new();
        for mut stream in self.streams.drain(..) {
            exchanges.spawn(async move {
                let Stream { harness, environment, data } = &mut stream;
                exchange_within(WINDOW, environment, harness, data, count).await?;
                anyhow::Ok(stream)
            });
        }
        while let Some(ended) = exchanges.join_next().await {
            self.streams.push(ended??);
        }
        Ok(())
    }

    /// Returns a registry client of this node, for an environment (`role` 0) or its clients (1).
    fn registry(
        &self,
        environment: usize,
        node: usize,
        role: usize,
    ) -> anyhow::Result<RegistryClient> {
        let client = &self.tokens[environment / ENVIRONMENTS_OF_TOKEN][role];
        let node = &self.nodes[node % self.nodes.len()];
        Ok(client.at(&node.url, &self.names[environment])?)
    }
}

impl Node {
    fn start<'a>(
        address: &str,
        store: impl IntoIterator<Item = &'a String>,
    ) -> anyhow::Result<Self> {
        let mut command = this_program()?;
        command.args(["rendezvous", "--listen", &format!("http://{address}")]).args(store);
        let (process, address) = listen(command, "http://")?;
        Ok(Self { process, url: format!("http://{address}"), idle_bytes: 0 })
    }
}

fn take_url(
    urls: &mut [String],
    registered: Option<Result<anyhow::Result<(usize, String)>, tokio::task::JoinError>>,
) -> anyhow::Result<()> {
    if let Some(registered) = registered {
        let (number, url) = registered??;
        urls[number] = url;
    }
    Ok(())
}

fn find_program() -> Option<PathBuf> {
    if let Some(program) = env::var_os("NATS_SERVER") {
        return Some(program.into());
    }
    let path = env::var_os("PATH")?;
    let candidates = env::split_paths(&path).map(|directory| directory.join("nats-server"));
    candidates.into_iter().find(|program| Path::is_file(program))
}

fn free_port() -> anyhow::Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen on loopback")?;
    Ok(listener.local_addr()?.port())
}
