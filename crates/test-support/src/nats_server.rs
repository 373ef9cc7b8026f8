//! NATS servers of a test's own, on ephemeral ports, with stores that go with them.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Which of the two servers that `scripts/test` provides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NatsVersion {
    /// The one of Debian, 2.9. Its replicas lose updates.
    Debian,
    /// The newest of PyPI.
    Current,
}

impl NatsVersion {
    /// `Err` says that there is none.
    fn program(self) -> Result<PathBuf, String> {
        let (variable, path) = match self {
            Self::Debian => ("NATS_SERVER_DEBIAN", "nats-debian/usr/sbin/nats-server"),
            Self::Current => ("NATS_SERVER", "venv/bin/nats-server"),
        };
        let program = match std::env::var_os(variable) {
            Some(program) => program.into(),
            None => {
                // target/PROFILE/deps/TEST
                let test = std::env::current_exe().unwrap();
                test.ancestors().nth(3).unwrap().join(path)
            }
        };
        match program.exists() {
            true => Ok(program),
            false => Err(format!("{} does not exist: run scripts/test once", program.display())),
        }
    }
}

/// One server, or several that keep each bucket together. All end when this is dropped.
#[derive(Debug)]
pub struct NatsServers {
    program: PathBuf,
    servers: Vec<NatsServer>,
    routes: String,
    _directory: TempDir,
}

#[derive(Debug)]
struct NatsServer {
    port: u16,
    route_port: u16,
    store: PathBuf,
    process: Child,
}

impl NatsServers {
    pub fn start(version: NatsVersion, count: usize) -> Result<Self, String> {
        let program = version.program()?;
        let directory = tempfile::tempdir().unwrap();
        let ports = free_ports(2 * count);
        let routes: Vec<_> =
            ports[count..].iter().map(|port| format!("nats://127.0.0.1:{port}")).collect();
        let routes = routes.join(",");
        let servers = (0..count).map(|number| {
            let store = directory.path().join(number.to_string());
            let (port, route_port) = (ports[number], ports[count + number]);
            let process =
                launch(&program, &store, port, (count > 1).then_some((route_port, &*routes)));
            NatsServer { port, route_port, store, process }
        });
        let servers: Vec<_> = servers.collect();
        for server in &servers {
            wait_until_it_listens(server.port);
        }
        Ok(Self { program, servers, routes, _directory: directory })
    }

    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        (0..self.servers.len()).map(|number| self.url(number)).collect()
    }

    #[must_use]
    pub fn url(&self, number: usize) -> String {
        format!("nats://127.0.0.1:{}", self.servers[number].port)
    }

    pub fn kill(&mut self, number: usize) {
        let process = &mut self.servers[number].process;
        process.kill().unwrap();
        process.wait().unwrap();
    }

    /// Starts one again that was killed, with the store that it had.
    pub fn restart(&mut self, number: usize) {
        let is_cluster = self.servers.len() > 1;
        let NatsServer { port, route_port, store, process } = &mut self.servers[number];
        let cluster = is_cluster.then_some((*route_port, &*self.routes));
        *process = launch(&self.program, store, *port, cluster);
        wait_until_it_listens(*port);
    }

    pub fn signal(&self, number: usize, signal: Signal) {
        let pid = Pid::from_child(&self.servers[number].process);
        kill_process(pid, signal).unwrap();
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

#[expect(clippy::disallowed_methods, reason = "a server for tests")]
fn launch(program: &Path, store: &Path, port: u16, cluster: Option<(u16, &str)>) -> Child {
    let mut command = Command::new(program);
    command.args([
        "--addr",
        "127.0.0.1",
        "--port",
        &port.to_string(),
        "--jetstream",
        "--store_dir",
    ]);
    command.arg(store);
    if let Some((route_port, routes)) = cluster {
        let own = format!("nats://127.0.0.1:{route_port}");
        command.args(["--server_name", &format!("server-{port}"), "--cluster_name", "test"]);
        command.args(["--cluster", &own, "--routes", routes]);
    }
    let output = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(store.with_extension("log"))
        .unwrap();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(output);
    command.spawn().unwrap()
}

/// Ports that were free just now. Each other server of this machine would have to be very quick.
fn free_ports(count: usize) -> Vec<u16> {
    let listeners: Vec<_> =
        (0..count).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()).collect();
    listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect()
}

#[expect(clippy::disallowed_methods, reason = "a server does not say when it listens")]
fn wait_until_it_listens(port: u16) {
    let deadline = Instant::now() + START_TIMEOUT;
    while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
        assert!(Instant::now() < deadline, "nats-server does not listen on port {port}");
        sleep(Duration::from_millis(10));
    }
}
