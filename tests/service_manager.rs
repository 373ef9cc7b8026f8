//! Socket activation and notifications. A Python script replaces systemd.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;

use exec_server_test_support::skipped;
use rustix::process::Signal;

use crate::foreign_client::python;
use crate::support::{
    PROGRAM, Running, Server, ServerBuilder, command, eventually, run_command, run_program,
};

/// `pass.py SOCKETS VARIABLES PROGRAM…`: binds the sockets (`NAME=ADDRESS NAME=/PATH …`), passes
/// them as descriptors from 3 on, sets the variables and executes the program. `NAME=file`,
/// `NAME=udp` and `NAME=connection` pass a descriptor that no server can use.
pub(crate) const PASS: &str = r#"
import fcntl, os, socket, sys
names, high = [], []
for word in sys.argv[1].split():
    name, kind = word.split("=", 1)
    names.append(name)
    if kind.startswith("/"):
        it = socket.socket(socket.AF_UNIX)
        it.bind(kind)
        it.listen()
    elif kind == "file":
        it = open("/dev/null")
    elif kind == "connection":
        it, peer = socket.socketpair()
        high.append(fcntl.fcntl(it.fileno(), fcntl.F_DUPFD, 100))
        continue
    elif kind == "udp":
        it = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        it.bind(("127.0.0.1", 0))
    else:
        it = socket.socket(socket.AF_INET)
        it.bind((kind, 0))
        it.listen()
    high.append(fcntl.fcntl(it.fileno(), fcntl.F_DUPFD, 100))
os.closerange(3, 100)
for index, descriptor in enumerate(high):
    os.dup2(descriptor, 3 + index)
os.closerange(100, 200)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(high)), LISTEN_FDNAMES=":".join(names))
for word in sys.argv[2].split():
    name, value = word.split("=", 1)
    os.environ[name] = value
os.execvp(sys.argv[3], sys.argv[3:])
"#;

fn passing(sockets: &str, variables: &str) -> ServerBuilder {
    let python = python();
    ServerBuilder::new().through(&[text(&python), "-c", PASS, sockets, variables])
}

/// Starts a server that must fail and returns its error.
fn refusal(sockets: &str, variables: &str, arguments: &[&str]) -> String {
    let builder = passing(sockets, variables).arguments(arguments).capture_stderr();
    let mut server = builder.start_silent();
    assert_eq!(server.wait().code(), Some(1));
    server.stderr()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn shell(server: &Server, script: &str) -> String {
    let url = server.url();
    let outcome = server.run(&["run", "--connect", url, "--", "sh", "-c", script]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    outcome.stdout
}

#[test]
fn a_server_listens_on_passed_sockets() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("passed.sock");
    let sockets = format!("local={} web=127.0.0.1", socket.display());
    let mut server = passing(&sockets, "").arguments(&["--listen", "systemd"]).start();
    assert_eq!(server.url(), format!("unix://{}", socket.display()));
    let web = server.next_line();
    assert!(web.starts_with("ws://127.0.0.1:") && !web.ends_with(":0"), "{web}");
    for url in [server.url(), &web] {
        let outcome = server.run(&["run", "--connect", url, "--", "echo", "hello"]);
        assert_eq!(outcome.stdout, "hello\n", "{outcome:?}");
    }
    // Processes inherit neither the variables nor the descriptors.
    assert_eq!(shell(&server, "env | grep -E '^(LISTEN_|NOTIFY_)'; true"), "");
    let descriptors = shell(&server, "exec 2>&-; for fd in /proc/$$/fd/*; do echo ${fd##*/}; done");
    let is_inherited = |line: &&str| matches!(line.parse(), Ok(3..=9));
    assert_eq!(descriptors.lines().find(is_inherited), None, "{descriptors}");
    // The socket file belongs to the service manager, so the server leaves it.
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
    assert!(socket.exists());
}

#[test]
fn a_listener_uses_the_sockets_with_its_name() {
    let sockets = "one=127.0.0.1 two=127.0.0.1";
    let mut server = passing(sockets, "")
        .arguments(&["--listen", "systemd:two", "--log", "warn"])
        .capture_stderr()
        .start();
    let warning = server.error_line();
    assert!(warning.contains("\"one\"") && warning.contains("systemd:one"), "{warning}");
    assert_eq!(server.get("/healthz"), 200);
    let error = refusal(sockets, "", &["--listen", "systemd:three"]);
    assert!(error.contains("only: one, two"), "{error}");
}

#[test]
fn unusable_passed_sockets_are_refused_with_the_reason() {
    for (sockets, variables, said) in [
        ("a=127.0.0.1", "LISTEN_PID=1", "passed to process 1 (LISTEN_PID)"),
        ("a=127.0.0.1", "LISTEN_FDS=2", "descriptor 4 is not open"),
        ("a=127.0.0.1", "LISTEN_FDS=two", "LISTEN_FDS is \"two\""),
        ("a=127.0.0.1", "LISTEN_FDNAMES=a:b", "2 names for 1 sockets"),
        ("a=file", "", "it is not a socket"),
        ("a=udp", "", "it is a datagram or packet socket"),
        ("a=connection", "", "Accept=no"),
    ] {
        let error = refusal(sockets, variables, &["--listen", "systemd"]);
        assert!(error.contains(said), "{said}: {error}");
        assert!(error.contains("--listen systemd"), "{error}");
    }
    let outcome = run_program(&["--listen", "systemd"]);
    assert_eq!(outcome.code, Some(1));
    assert!(outcome.stderr.contains("LISTEN_FDS is not set"), "{outcome:?}");
    assert!(outcome.stderr.contains(".socket unit"), "{outcome:?}");
    // A server without a `systemd` listener ignores the variables.
    let server = passing("a=127.0.0.1", "LISTEN_PID=1").start();
    assert_eq!(server.get("/healthz"), 200);
}

#[test]
fn a_passed_public_socket_needs_authentication_and_tls() {
    let error = refusal("a=0.0.0.0", "", &["--listen", "systemd"]);
    assert!(error.contains("without authentication"), "{error}");
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    std::fs::write(&token, "a-capability-token-of-some-length\n").unwrap();
    let auth = ["--ws-auth", "capability-token", "--ws-token-file", text(&token)];
    let listen = [&["--listen", "systemd"][..], &auth].concat();
    let error = refusal("a=0.0.0.0", "", &listen);
    assert!(error.contains("without TLS"), "{error}");
    // With a certificate, the server uses TLS.
    let state = text(directory.path());
    let server = passing("a=0.0.0.0", &format!("XDG_STATE_HOME={state}"))
        .arguments(&[&listen[..], &["--tls-self-signed"]].concat())
        .start();
    assert!(server.url().starts_with("wss://0.0.0.0:"), "{}", server.url());
}

#[test]
fn a_rendezvous_listens_on_a_passed_socket() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let start = |sockets: &str, more: &[&str]| {
        let python = python();
        let mut program = command(text(&python));
        program.args(["-c", PASS, sockets, "", PROGRAM, "rendezvous", "--listen", "systemd"]);
        program.args(more).arg("--data").arg(&data);
        Running::start(program)
    };
    let mut running = start("relay=127.0.0.1", &[]);
    let url = running.line();
    assert!(url.starts_with("http://127.0.0.1:"), "{url}");
    running.signal(Signal::TERM);
    assert_eq!(running.finish().0.code(), Some(0));

    let mut running = start("relay=127.0.0.1", &["--tls-self-signed"]);
    let url = running.line();
    assert!(url.starts_with("https://127.0.0.1:"), "{url}");
    drop(running);

    let socket = directory.path().join("relay.sock");
    for (sockets, said) in [
        ("a=127.0.0.1 b=127.0.0.1".to_owned(), "the service manager passed 2"),
        (format!("a={}", socket.display()), "the rendezvous serves TCP"),
        ("a=0.0.0.0".to_owned(), "without TLS"),
    ] {
        let (status, _, log) = start(&sockets, &[]).finish();
        assert_eq!(status.code(), Some(1));
        assert!(log.contains(said), "{log}");
    }
}

/// `systemd-socket-activate` passes the socket once a client connects.
#[test]
fn systemd_itself_passes_a_socket() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("passed.sock");
    let mut program = command("systemd-socket-activate");
    program.arg("--listen").arg(&socket).args(["--fdname=local", PROGRAM]);
    program.args(["--listen", "systemd:local", "--discoverable=false"]);
    let mut found = command("sh");
    found.args(["-c", "command -v systemd-socket-activate"]);
    if run_command(found).code != Some(0) {
        skipped("no systemd-socket-activate: sockets are passed by Python only");
        return;
    }
    let running = Running::start(program);
    let url = format!("unix://{}", socket.display());
    eventually("the server answers", || {
        run_program(&["run", "--connect", &url, "--", "echo", "hello"]).stdout == "hello\n"
    });
    running.signal(Signal::TERM);
    assert_eq!(running.finish().0.code(), Some(0));
}

/// The service manager's end of `NOTIFY_SOCKET`.
struct Manager {
    socket: UnixDatagram,
    path: String,
    _directory: tempfile::TempDir,
}

impl Manager {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self { socket, path: text(&path).to_owned(), _directory: directory }
    }

    /// Returns the state and the status of the next message.
    fn next(&self) -> (String, String) {
        let mut buffer = [0; 1024];
        let len = self.socket.recv(&mut buffer).unwrap();
        let message = std::str::from_utf8(&buffer[..len]).unwrap();
        let (state, status) = message.split_once("\nSTATUS=").unwrap();
        (state.lines().next().unwrap().to_owned(), status.to_owned())
    }
}

#[test]
fn a_server_notifies_the_service_manager() {
    let manager = Manager::new();
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("config.toml");
    std::fs::write(&config, "max_sessions = 5\n").unwrap();
    let mut server = ServerBuilder::new()
        .variable("NOTIFY_SOCKET", &manager.path)
        .arguments(&["--config", text(&config)])
        .capture_stderr()
        .start();
    assert_eq!(manager.next().0, "READY=1");
    assert_eq!(shell(&server, "echo ${NOTIFY_SOCKET-none}"), "none\n");
    std::fs::write(&config, "max_sessions = 6\n").unwrap();
    server.signal(Signal::HUP);
    assert_eq!(manager.next().0, "RELOADING=1");
    let (state, status) = manager.next();
    assert_eq!(state, "READY=1");
    assert!(status.contains("needs a restart for max_sessions"), "{status}");
    server.signal(Signal::TERM);
    assert_eq!(manager.next().0, "STOPPING=1");
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn a_rendezvous_notifies_the_service_manager() {
    let manager = Manager::new();
    let directory = tempfile::tempdir().unwrap();
    let mut program = command(PROGRAM);
    program.args(["rendezvous", "--listen", "http://127.0.0.1:0", "--data"]);
    program.arg(directory.path()).env("NOTIFY_SOCKET", &manager.path);
    let running = Running::start(program);
    assert_eq!(manager.next().0, "READY=1");
    running.signal(Signal::HUP);
    assert_eq!(manager.next().0, "RELOADING=1");
    assert_eq!(manager.next(), ("READY=1".to_owned(), "reloaded nothing".to_owned()));
    running.signal(Signal::TERM);
    assert_eq!(manager.next().0, "STOPPING=1");
    assert_eq!(running.finish().0.code(), Some(0));
}

/// The service manager keeps the socket while the service restarts; clients wait in the meantime.
#[test]
fn no_connection_is_refused_between_two_servers_on_one_socket() {
    const RESTART: &str = r#"
import os, signal, socket, subprocess, sys
listener = socket.socket(socket.AF_INET)
listener.bind(("127.0.0.1", 0))
listener.listen()
def start():
    script = 'exec 3<&"$0" && LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"'
    return subprocess.Popen(["bash", "-c", script, str(listener.fileno())] + sys.argv[1:],
                            pass_fds=[listener.fileno()], stdout=subprocess.PIPE)
server = start()
print(server.stdout.readline().decode().strip(), flush=True)
sys.stdin.readline()
server.send_signal(signal.SIGTERM)
assert server.wait() == 0
print("stopped", flush=True)
sys.stdin.readline()
server = start()
sys.stdin.readline()
server.send_signal(signal.SIGTERM)
sys.exit(server.wait())
"#;
    let python = python();
    let mut program = command(text(&python));
    program.args(["-c", RESTART, PROGRAM, "--listen", "systemd", "--discoverable=false"]);
    let mut manager = Running::start(program);
    let url = manager.line().trim_end().to_owned();
    let connect = || {
        let mut run = command(PROGRAM);
        run.args(["run", "--connect", &url, "--", "echo", "hello"]);
        Running::start(run)
    };
    assert_eq!(connect().line(), "hello\n");
    manager.say("stop\n");
    assert_eq!(manager.line(), "stopped\n");
    let mut waiting = connect();
    assert_eq!(waiting.line_if_any(), None);
    manager.say("start\n");
    assert_eq!(waiting.line(), "hello\n");
    manager.say("stop\n");
    assert_eq!(manager.finish().0.code(), Some(0));
}
