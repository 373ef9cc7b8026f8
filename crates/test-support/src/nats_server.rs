//! Private NATS servers for a test, on ephemeral ports, with their stores.

use std::fs::OpenOptions;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tempfile::TempDir;

const START_TIMEOUT: Duration = Duration::from_secs(30);

/// The two versions of nats-server that `scripts/test` provides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NatsVersion {
    /// The version in Debian, 2.9. Its replicas lose updates.
    Debian,
    /// Version 2.15.1 or later, from PyPI.
    Current,
}

impl NatsVersion {
    /// Returns `Err` with the reason if the program is missing.
    fn program(self) -> Result<PathBuf, String> {
        let (variable, path) = match self {
            Self::Debian => ("NATS_SERVER_DEBIAN", "nats-debian/usr/sbin/nats-server"),
            Self::Current => ("NATS_SERVER", "venv/bin/nats-server"),
        };
        let (program, remedy) = match std::env::var_os(variable) {
            Some(program) => (PathBuf::from(program), format!("correct {variable}")),
            None => {
                // target/PROFILE/deps/TEST
                let test = std::env::current_exe().unwrap();
                let program = test.ancestors().nth(3).unwrap().join(path);
                (program, format!("run scripts/test once, or set {variable}"))
            }
        };
        match program.exists() {
            true => Ok(program),
            false => Err(format!("{} does not exist: {remedy}", program.display())),
        }
    }
}

/// One server, or several that replicate each bucket. All end when this is dropped.
#[derive(Debug)]
pub struct NatsServers {
    launcher: Launcher,
    servers: Vec<NatsServer>,
    _directory: TempDir,
}

#[derive(Debug)]
struct Launcher {
    program: PathBuf,
    /// A namespace of `ip netns`. There, the servers listen on all addresses.
    namespace: Option<String>,
    /// The routes of all servers, if there are several.
    routes: Option<String>,
    config: String,
}

#[derive(Debug)]
struct NatsServer {
    port: u16,
    route_port: u16,
    store: PathBuf,
    process: Child,
}

impl NatsServers {
    /// Starts servers on loopback.
    pub fn start(version: NatsVersion, count: usize) -> Result<Self, String> {
        Self::start_in(None, version, count)
    }

    /// Starts servers in a network namespace of `ip netns`.
    pub fn start_in(
        namespace: Option<&str>,
        version: NatsVersion,
        count: usize,
    ) -> Result<Self, String> {
        Self::launch(namespace, version, count, "")
    }

    /// Starts one server on loopback, with additional lines in its configuration file.
    pub fn start_with_config(version: NatsVersion, config: &str) -> Result<Self, String> {
        Self::launch(None, version, 1, config)
    }

    fn launch(
        namespace: Option<&str>,
        version: NatsVersion,
        count: usize,
        config: &str,
    ) -> Result<Self, String> {
        let ports = free_ports(2 * count);
        let routes = ports[count..]
            .iter()
            .map(|port| format!("nats://127.0.0.1:{port}"))
            .collect::<Vec<_>>();
        let launcher = Launcher {
            program: version.program()?,
            namespace: namespace.map(str::to_owned),
            routes: (count > 1).then(|| routes.join(",")),
            // As in examples/cluster: routes cut by a partition are soon re-established.
            config: format!("ping_interval: \"2s\"\nping_max: 2\n{config}"),
        };
        let directory = tempfile::tempdir().unwrap();
        let servers = (0..count).map(|number| {
            let store = directory.path().join(number.to_string());
            let (port, route_port) = (ports[number], ports[count + number]);
            let process = launcher.launch(&store, port, route_port);
            NatsServer { port, route_port, store, process }
        });
        let servers: Vec<_> = servers.collect();
        servers.iter().for_each(|server| wait_until_ready(&server.store, 1));
        Ok(Self { launcher, servers, _directory: directory })
    }

    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.urls_at("127.0.0.1")
    }

    /// Returns the URLs of the servers at another address.
    #[must_use]
    pub fn urls_at(&self, address: &str) -> Vec<String> {
        self.servers.iter().map(|server| format!("nats://{address}:{}", server.port)).collect()
    }

    /// Returns the ports of a server: one for clients, and one for the other servers.
    #[must_use]
    pub fn ports(&self, number: usize) -> [u16; 2] {
        let NatsServer { port, route_port, .. } = self.servers[number];
        [port, route_port]
    }

    pub fn kill(&mut self, number: usize) {
        let process = &mut self.servers[number].process;
        process.kill().unwrap();
        process.wait().unwrap();
    }

    /// Restarts killed servers with their existing stores.
    pub fn restart(&mut self, numbers: &[usize]) {
        let mut starts = Vec::new();
        for number in numbers {
            let NatsServer { port, route_port, store, process } = &mut self.servers[*number];
            starts.push((store.clone(), times_ready(store) + 1));
            *process = self.launcher.launch(store, *port, *route_port);
        }
        // Wait only after all have started: one server of several does not become ready alone.
        starts.iter().for_each(|(store, times)| wait_until_ready(store, *times));
    }
}

impl Drop for NatsServers {
    fn drop(&mut self) {
        for server in &mut self.servers {
            server.process.kill().ok();
            server.process.wait().ok();
        }
    }
}

impl Launcher {
    #[expect(clippy::disallowed_methods, reason = "a server for tests")]
    fn launch(&self, store: &Path, port: u16, route_port: u16) -> Child {
        let mut command = match &self.namespace {
            None => Command::new(&self.program),
            Some(namespace) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", namespace]).arg(&self.program);
                command
            }
        };
        let address = if self.namespace.is_some() { "0.0.0.0" } else { "127.0.0.1" };
        command.args(["--addr", address, "--port", &port.to_string(), "--jetstream"]);
        let config = store.with_extension("conf");
        std::fs::write(&config, &self.config).unwrap();
        command.arg("--config").arg(config).arg("--store_dir").arg(store);
        if let Some(routes) = &self.routes {
            let own = format!("nats://{address}:{route_port}");
            command.args(["--server_name", &format!("server-{port}"), "--cluster_name", "test"]);
            // With `--no_advertise`, clients use only the addresses that they were given.
            command.args(["--cluster", &own, "--routes", routes, "--no_advertise"]);
        }
        let log = OpenOptions::new().create(true).append(true).open(log_of(store)).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        command.spawn().unwrap()
    }
}

/// Returns ports that were free a moment ago. Another program is unlikely to take one before the
/// server does.
fn free_ports(count: usize) -> Vec<u16> {
    let listeners: Vec<_> =
        (0..count).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()).collect();
    listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect()
}

fn log_of(store: &Path) -> PathBuf {
    store.with_extension("log")
}

fn times_ready(store: &Path) -> usize {
    std::fs::read_to_string(log_of(store)).unwrap_or_default().matches("Server is ready").count()
}

#[expect(clippy::disallowed_methods, reason = "a growing log sends no event")]
fn wait_until_ready(store: &Path, times: usize) {
    let deadline = Instant::now() + START_TIMEOUT;
    while times_ready(store) < times {
        assert!(
            Instant::now() < deadline,
            "nats-server is not ready after {START_TIMEOUT:?}; its log:\n{}",
            std::fs::read_to_string(log_of(store)).unwrap_or_default()
        );
        sleep(Duration::from_millis(10));
    }
}
