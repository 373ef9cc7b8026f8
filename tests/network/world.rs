//! A world with recording servers, in its own network and mount namespaces, and a server under test
//! inside it.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use exec_server_test_support::{NOBODY, TestAuthority, Validity};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::machine::is_root;
use crate::support::{
    Client, Running, Server, ServerBuilder, Start, Transcript, command, program, run_command,
};

/// Names whose lookup by the server itself is not a leak.
const OWN_LOOKUPS: [&str; 14] = [
    "allowed.test",
    "sub.allowed.test",
    "internal.test",
    "internal6.test",
    "metadata.test",
    "loopback.test",
    "mixed.test",
    "mapped.test",
    "nat64.test",
    "zero.test",
    "rebind.test",
    "six.test",
    "asked.test",
    "second.test",
];

/// A contacted test server, such as "dns" or "10.0.0.5:80", and the data that it received, or
/// "connected".
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
pub(crate) struct Contact(pub(crate) String, pub(crate) String);

pub(super) struct World {
    /// First, so that it is dropped before `servers`, whose namespaces it is in.
    server: Option<Server>,
    servers: Running,
    directory: TempDir,
    processes: usize,
    has_namespaces: bool,
}

impl World {
    /// Creates a world with a server. Returns the reason if this machine cannot have one.
    pub(super) fn new() -> Result<Self, String> {
        Self::build(&[], "")
    }

    pub(super) fn without_namespaces() -> Result<Self, String> {
        Self::build(&[], "namespaces,bubblewrap")
    }

    /// Creates a world whose server runs as an ordinary user.
    pub(super) fn of_nobody() -> Result<Self, String> {
        if !is_root() {
            return Err("only root can become another user".to_owned());
        }
        let (servers, directory) = start_servers()?;
        let home = directory.path().join("nobody");
        std::fs::create_dir(&home).unwrap();
        std::os::unix::fs::chown(&home, Some(NOBODY), Some(NOBODY)).unwrap();
        let socket = format!("unix://{}/server.sock", home.display());
        let enter = ["nsenter", "--target", &servers.pid().to_string(), "--net", "--mount"];
        let server = ServerBuilder::new()
            .through(&enter)
            .with_user(NOBODY, &home)
            .arguments(&["--listen", &socket, "--allow-other-users", "true"])
            .start();
        Ok(Self::around(server, servers, directory, true))
    }

    /// Creates a world whose server has these arguments and lacks the mechanisms in `without`.
    pub(super) fn build(arguments: &[&str], without: &str) -> Result<Self, String> {
        let (servers, directory) = start_servers()?;
        let socket = format!("unix://{}/server.sock", directory.path().display());
        let user: &[&str] = if is_root() { &[] } else { &["--user", "--preserve-credentials"] };
        let enter = ["nsenter", "--target", &servers.pid().to_string(), "--net", "--mount"];
        let server = ServerBuilder::new()
            .through(&enter)
            .through(user)
            .variable("EXEC_SERVER_SANDBOX_WITHOUT", without)
            .arguments(&["--listen", &socket])
            .arguments(arguments)
            .start();
        Ok(Self::around(server, servers, directory, without.is_empty()))
    }

    fn around(server: Server, servers: Running, directory: TempDir, has_namespaces: bool) -> Self {
        Self { server: Some(server), servers, directory, processes: 0, has_namespaces }
    }

    pub(super) fn server(&self) -> &Server {
        self.server.as_ref().expect("the server runs")
    }

    pub(super) fn server_mut(&mut self) -> &mut Server {
        self.server.as_mut().expect("the server runs")
    }

    pub(super) fn client(&self) -> Client {
        self.server().client()
    }

    pub(super) fn has_namespaces(&self) -> bool {
        self.has_namespaces
    }

    /// Whether an ordinary user runs the server.
    pub(super) fn is_of_nobody(&self) -> bool {
        self.path("nobody").exists()
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns the contacts since the last call, once all of them are recorded.
    pub(super) fn contacts(&mut self) -> Vec<Contact> {
        self.servers.say("take\n");
        serde_json::from_str(&self.servers.line()).unwrap()
    }

    /// Like [`Self::contacts`], without the server's own lookups of allowed hosts.
    pub(super) fn leaks(&mut self) -> Vec<Contact> {
        let is_own = |contact: &Contact| {
            let Contact(place, what) = contact;
            let name = what.strip_suffix(" A").or_else(|| what.strip_suffix(" AAAA"));
            place == "dns" && name.is_some_and(|name| OWN_LOOKUPS.contains(&name))
        };
        self.contacts().into_iter().filter(|contact| !is_own(contact)).collect()
    }

    /// Builds a start request in this world, with these additional fields.
    pub(super) fn start(&mut self, argv: &[&str], fields: &Value) -> Start {
        self.processes += 1;
        let mut start = program(&format!("process-{}", self.processes), argv)
            .variable("WORLD", self.directory.path().to_str().unwrap())
            .variable("HOME", self.directory.path().to_str().unwrap())
            .variable("TMPDIR", self.directory.path().to_str().unwrap())
            .variable("SERVER_SOCKET", self.server().url().trim_start_matches("unix://"));
        for (field, value) in fields.as_object().expect("fields are an object") {
            start = start.with(field, value.clone());
        }
        start
    }

    pub(super) fn run(&mut self, client: &mut Client, argv: &[&str], fields: &Value) -> Ending {
        let start = self.start(argv, fields);
        finish(client, &start)
    }
}

/// The exit code of a process, its output, and the decisions about its network.
#[derive(Debug)]
pub(super) struct Ending {
    pub(super) code: Option<i64>,
    pub(super) output: String,
    pub(super) decisions: Vec<Value>,
}

/// Starts a process and waits for its end.
pub(super) fn finish(client: &mut Client, start: &Start) -> Ending {
    client.start(start);
    let mut decisions = Vec::new();
    let mut events = crate::support::AckingInbox::new(start.id());
    while !crate::support::Inbox::transcript(&events).closed {
        let event = client.event_of(start.id());
        if event["method"] == "network/policyDecision" {
            decisions.push(event["params"].clone());
        } else {
            crate::support::Inbox::take(&mut events, &event);
        }
    }
    let Transcript { exit_code, stdout, stderr, .. } = events.into_transcript();
    let output = String::from_utf8_lossy(&[stdout, stderr].concat()).trim().to_owned();
    Ending { code: exit_code, output, decisions }
}

pub(super) fn allow(patterns: &[&str]) -> Value {
    json!({"network": {"allow": patterns, "require": "transparent"}})
}

pub(super) fn python() -> &'static str {
    let of_system = "/usr/bin/python3";
    if Path::new(of_system).exists() { of_system } else { "python3" }
}

/// Starts the servers. Also returns the directory that they serve.
pub(crate) fn start_servers() -> Result<(Running, TempDir), String> {
    let namespaces: &[&str] =
        if is_root() { &["--net", "--mount"] } else { &["-U", "-r", "--net", "--mount"] };
    let mut probe = command("unshare");
    let tools = "for tool in ip nsenter mount; do command -v $tool > /dev/null && continue
        echo \"$tool is missing (Debian: apt-get install iproute2 util-linux)\" >&2
        exit 1
        done";
    probe.args(namespaces).args(["sh", "-c", tools]);
    let probed = run_command(probe);
    if probed.code != Some(0) {
        return Err(format!("cannot create a test network: {}", probed.stderr.trim()));
    }
    let directory = tempfile::tempdir().unwrap();
    let own = directory.path();
    std::fs::set_permissions(own, PermissionsExt::from_mode(0o755)).unwrap();
    let authority = TestAuthority::new();
    let _ = authority.write(own);
    let names = ["allowed.test", "*.allowed.test", "other.test", "asked.test"];
    let _ = authority.issue(own, &names, Validity::Now);
    std::fs::create_dir(own.join("www")).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/network/world.py");
    let mut world = command("unshare");
    world.args(namespaces).args([python(), "-B"]).arg(script).arg(own);
    world.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    let mut servers = Running::start(world);
    if servers.line() != "ready\n" {
        return Err(format!(
            "cannot start the servers of the network tests: {}",
            servers.finish().2.trim()
        ));
    }
    drop(servers.collect_errors());
    Ok((servers, directory))
}
