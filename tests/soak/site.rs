//! A server with every feature enabled, a rendezvous, and the links to both.

use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;

use exec_server_test_support::{FaultProxy, Issued, TestAuthority, Validity};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::audit::AuditLog;
use super::place::{Disk, Place};
use crate::otlp::Collector;
use crate::support::relay::ENVIRONMENT_ID;
use crate::support::rendezvous::create_token;
use crate::support::tokens::Issuer;
use crate::support::{Client, HISTORY_VARIABLE, PROGRAM, Running, Server, eventually};

/// The server, over TLS.
pub(super) const DIRECT: &str = "direct";
/// The server, through the rendezvous.
pub(super) const RELAYED: &str = ENVIRONMENT_ID;
const NAMES: [&str; 2] = ["localhost", "127.0.0.1"];

pub(super) struct Site {
    /// Between clients and the listener of the server.
    pub(super) direct_link: FaultProxy,
    /// Between both ends and the rendezvous.
    pub(super) relay_link: FaultProxy,
    pub(super) server: Server,
    rendezvous: Running,
    rendezvous_address: SocketAddr,
    authority: TestAuthority,
    pub(super) issuer: Issuer,
    /// The URL of the `wss://` listener.
    pub(super) listener: String,
    audit_log: AuditLog,
    rotations: u64,
    collector: Collector,
    pub(super) place: Place,
}

impl Site {
    pub(super) fn start() -> Self {
        let place = Place::new();
        let (rendezvous, rendezvous_address) = start_rendezvous(&place, "127.0.0.1:0", None);
        let relay_link = link(&place, rendezvous_address);
        // The rendezvous must advertise the URL of the link, so it starts again.
        drop(rendezvous);
        let listen = rendezvous_address.to_string();
        let public = format!("http://{}", relay_link.address());
        let (rendezvous, _) = start_rendezvous(&place, &listen, Some(&public));
        for role in ["environment", "harness"] {
            std::fs::write(place.path(role), create_token(&place.path("data"), role)).unwrap();
        }
        let (issuer, authority) = (Issuer::new(), TestAuthority::new());
        let collector = Collector::through(|program| place.command(program), &["--count"]);
        let mut server = start_server(&place, &issuer, &authority, &public, &collector.url);
        let listener = server.next_line();
        let address = listener.strip_prefix("wss://").unwrap().parse().unwrap();
        let direct_link = link(&place, address);
        let audit_log = AuditLog::default();
        let site = Self {
            direct_link,
            relay_link,
            server,
            rendezvous,
            rendezvous_address,
            authority,
            issuer,
            listener,
            audit_log,
            rotations: 0,
            collector,
            place,
        };
        site.write_environments_file();
        eventually("the server is online", || {
            site.rendezvous_metrics().of("exec_server_relay_environments") == 1.0
        });
        site
    }

    /// Returns a command in the network of the server. Its environments.toml lists the server as
    /// [`DIRECT`] and [`RELAYED`].
    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.place.command(PROGRAM);
        command
            .args(arguments)
            .env("EXEC_SERVER_ENVIRONMENTS", self.place.path("environments.toml"));
        command
    }

    /// Connects a client over the Unix socket. Its session ends with its connection.
    pub(super) fn client(&self) -> Client {
        self.client_with(json!({}))
    }

    /// Like `client`, with more params of `initialize`.
    pub(super) fn client_with(&self, mut params: Value) -> Client {
        params["detachedTtlMs"] = 0.into();
        self.server.client_with(&params)
    }

    pub(super) fn token_file(&self, role: &str) -> PathBuf {
        self.issuer.token_file(role, &json!({ "sub": "soak", "role": role }))
    }

    pub(super) fn server_metrics(&self) -> Metrics {
        let path = self.server.url().strip_prefix("unix://").unwrap();
        let mut socket = UnixStream::connect(path).unwrap();
        get_metrics(&mut socket, "").unwrap()
    }

    pub(super) fn rendezvous_metrics(&self) -> Metrics {
        let (address, data) = (self.rendezvous_address, self.place.path("data"));
        let token_file = self.place.path("operator");
        if !token_file.exists() {
            std::fs::write(&token_file, create_operator_token(&data)).unwrap();
        }
        let token = std::fs::read_to_string(token_file).unwrap();
        let headers = format!("authorization: Bearer {}\r\n", token.trim());
        let mut metrics = None;
        // The test may exceed the rate limit of the token.
        eventually("the rendezvous shows its metrics", || {
            let headers = headers.clone();
            metrics = self.in_network(move || {
                get_metrics(&mut TcpStream::connect(address).unwrap(), &headers)
            });
            metrics.is_some()
        });
        metrics.unwrap()
    }

    /// Returns how many spans and metrics the collector has received.
    fn exported(&self) -> [u64; 2] {
        let address = self.collector.url.strip_prefix("http://").unwrap().to_owned();
        let counts =
            self.in_network(move || get(&mut TcpStream::connect(address).unwrap(), "/", ""));
        let counts: Value = serde_json::from_str(&counts.unwrap()).unwrap();
        ["spans", "metrics"].map(|name| counts[name].as_u64().unwrap())
    }

    fn in_network<T: Send + 'static>(&self, ask: impl FnOnce() -> T + Send + 'static) -> T {
        let runtime = self.place.runtime();
        runtime.block_on(runtime.spawn_blocking(ask)).unwrap()
    }

    pub(super) fn rendezvous_pid(&self) -> u32 {
        self.rendezvous.pid()
    }

    /// Kills the rendezvous and starts it with the same data at the same address.
    pub(super) fn restart_rendezvous(&mut self) {
        self.rendezvous.signal(Signal::KILL);
        eventually("the rendezvous has ended", || self.rendezvous.has_ended());
        let listen = self.rendezvous_address.to_string();
        let public = format!("http://{}", self.relay_link.address());
        (self.rendezvous, _) = start_rendezvous(&self.place, &listen, Some(&public));
    }

    /// Writes another certificate of the same authority, which the server loads on SIGHUP.
    pub(super) fn renew_certificate(&self) {
        let home = self.place.path("home");
        let Issued { certificate, key } = self.authority.issue(&home, &NAMES, Validity::Now);
        self.place.give_away(&certificate);
        self.place.give_away(&key);
    }

    /// Renames the audit log and has the server open a new one.
    pub(super) fn rotate_audit_log(&mut self) {
        let log = self.place.seen_on_disk(Disk::Log, "audit");
        self.rotations += 1;
        let old = self.place.seen_on_disk(Disk::Log, &format!("audit.{}", self.rotations));
        std::fs::rename(&log, &old).unwrap();
        self.server.signal(Signal::HUP);
        eventually("the server has opened a new audit log", || log.exists());
        self.audit_log.rotate(old);
    }

    /// Checks the audit log. The server is at rest, so all processes have ended.
    pub(super) fn check_audit_log(&mut self) {
        self.rotate_audit_log();
        self.audit_log.take_rotated();
        let metrics = self.server_metrics();
        self.audit_log.check(metrics.sum("exec_server_process_exits_total"), &metrics);
    }

    /// Checks that metrics and traces still reach the collector.
    pub(super) fn check_exports(&self) {
        let before = self.exported();
        drop(self.client());
        eventually("exports continue", || {
            self.exported().iter().zip(&before).all(|(now, before)| now > before)
        });
        let metrics = self.server_metrics();
        let [spans, metrics_received] = self.exported();
        super::say(&format!(
            "exports: {spans} spans, {metrics_received} metrics, {} spans dropped",
            metrics.of("exec_server_trace_spans_dropped_total")
        ));
    }

    /// Checks that no denied request has reached the hosts.
    pub(super) fn check_contacts(&mut self) {
        for contact in self.place.contacts() {
            let is_allowed = contact.0 == "dns" || contact.0 == "93.184.216.34:80";
            assert!(is_allowed && !contact.1.contains("other.test"), "a leak: {contact:?}");
        }
    }

    pub(super) fn stop(mut self) {
        self.server.signal(Signal::TERM);
        assert_eq!(self.server.wait().code(), Some(0));
        self.rendezvous.signal(Signal::TERM);
        assert_eq!(self.rendezvous.finish().0.code(), Some(0));
    }

    fn write_environments_file(&self) {
        let _ = self.token_file("owner");
        let text = format!(
            "[[environments]]\nid = {DIRECT:?}\nurl = \"wss://{}\"\ntoken_file = {:?}\n\
             tls_ca = {:?}\n\
             [[environments]]\nid = {RELAYED:?}\nremote = \"http://{}\"\n\
             environment_id = {ENVIRONMENT_ID:?}\ntoken_file = \"harness\"\n",
            self.direct_link.address(),
            self.token_file("owner"),
            self.authority.write(self.place.path("").as_path()),
            self.relay_link.address(),
        );
        std::fs::write(self.place.path("environments.toml"), text).unwrap();
    }
}

pub(super) struct Metrics(String);

impl Metrics {
    pub(super) fn of(&self, name: &str) -> f64 {
        crate::monitoring::value(&self.0, name)
    }

    /// Returns the sum of a metric over all labels.
    pub(super) fn sum(&self, name: &str) -> f64 {
        let lines = self.0.lines().filter_map(|line| line.strip_prefix(name)?.split_once("} "));
        lines.map(|(_, value)| value.parse::<f64>().unwrap()).sum()
    }
}

fn get_metrics(
    socket: &mut (impl std::io::Read + std::io::Write),
    headers: &str,
) -> Option<Metrics> {
    get(socket, "/metrics", headers).map(Metrics)
}

/// Sends a GET request. Returns `None` if it exceeds the rate limit.
fn get(
    socket: &mut (impl std::io::Read + std::io::Write),
    path: &str,
    headers: &str,
) -> Option<String> {
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
    write!(socket, "{request}{headers}\r\n").unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let is_answered = !head.starts_with("HTTP/1.1 429");
    assert!(!is_answered || head.starts_with("HTTP/1.1 200"), "{head}");
    is_answered.then(|| body.to_owned())
}

fn link(place: &Place, upstream: SocketAddr) -> FaultProxy {
    let runtime = place.runtime();
    runtime.block_on(runtime.spawn(FaultProxy::start(upstream))).unwrap()
}

fn start_rendezvous(place: &Place, listen: &str, public: Option<&str>) -> (Running, SocketAddr) {
    let mut program = place.command(PROGRAM);
    program.args(["rendezvous", "--metrics", "--listen", &format!("http://{listen}"), "--data"]);
    program.arg(place.path("data"));
    if let Some(public) = public {
        program.args(["--public-url", public]);
    }
    let mut rendezvous = Running::start(program);
    let url = rendezvous.line();
    drop(rendezvous.collect_errors());
    (rendezvous, url.trim().strip_prefix("http://").expect("it prints its URL").parse().unwrap())
}

fn start_server(
    place: &Place,
    issuer: &Issuer,
    authority: &TestAuthority,
    rendezvous: &str,
    collector: &str,
) -> Server {
    let home = place.path("home");
    let Issued { certificate, key } = authority.issue(&home, &NAMES, Validity::Now);
    let secret = issuer.secret_file();
    for path in [&*certificate, &key, &secret, secret.parent().unwrap(), &place.path("environment")]
    {
        place.give_away(path);
    }
    let option = |name: &str, path: PathBuf| format!("--{name}={}", path.display());
    let paths = [
        option("tls-cert", certificate),
        option("tls-key", key),
        option("ws-shared-secret-file", secret),
        option("remote-token-file", place.path("environment")),
        option("audit-log", place.on_disk(Disk::Log, "audit")),
    ];
    let socket = format!("unix://{}", home.join("server.sock").display());
    let text = |path: PathBuf| path.to_str().unwrap().to_owned();
    place
        .server()
        .arguments(&["--listen", &socket, "--listen", "wss://127.0.0.1:0"])
        .arguments(&paths.each_ref().map(String::as_str))
        .arguments(&["--ws-auth", "signed-bearer-token", "--metrics"])
        .arguments(&["--audit-commands", "--audit-required"])
        .arguments(&["--remote", rendezvous, "--environment-id", ENVIRONMENT_ID])
        .arguments(&["--limits-default-pids", "256", "--limits-max-memory", "1G"])
        .variable("TMPDIR", &text(place.on_disk(Disk::Spill, "")))
        .variable("OTEL_EXPORTER_OTLP_ENDPOINT", collector)
        .variable("OTEL_BSP_SCHEDULE_DELAY", "200")
        .variable("OTEL_METRIC_EXPORT_INTERVAL", "1000")
        // A proxy of the machine could not reach the collector.
        .variable("NO_PROXY", "127.0.0.1")
        .variable("HOME", &text(home.clone()))
        .variable(HISTORY_VARIABLE, &text(home.join("history")))
        .start()
}

fn create_operator_token(data: &std::path::Path) -> String {
    let data = data.to_str().unwrap();
    let created =
        crate::support::run_program(&["token", "create", "--data", data, "--role", "operator"]);
    assert_eq!(created.code, Some(0), "{}", created.stderr);
    created.stdout
}
