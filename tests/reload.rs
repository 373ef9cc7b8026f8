//! SIGHUP: reloaded files, settings that need a restart, and the end of a terminal.

use std::path::{Path, PathBuf};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::foreign_client::python;
use crate::support::{PROGRAM, Running, Server, ServerBuilder, command, run_command};

struct Reloaded {
    server: Server,
    directory: TempDir,
}

impl Reloaded {
    fn with(config: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config.toml");
        std::fs::write(&file, config).unwrap();
        std::fs::write(directory.path().join("token"), "a-capability-token-of-some-length")
            .unwrap();
        let server = ServerBuilder::new()
            .arguments(&["--config", text(&file), "--log", "info"])
            .capture_stderr()
            .start();
        Self { server, directory }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Reloads this configuration and returns the log line that sums up the reload.
    fn reload(&mut self, config: &str) -> String {
        std::fs::write(self.file("config.toml"), config).unwrap();
        self.server.signal(Signal::HUP);
        loop {
            let line = self.server.error_line();
            if line.contains("setting") || line.contains("a restart would fail") {
                return line;
            }
        }
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn changed_settings_that_need_a_restart_are_named() {
    let mut reloaded = Reloaded::with("max_sessions = 5\n[sandbox]\ntrusted_links = []\n");
    let line = reloaded.reload("max_sessions = 5\n");
    assert!(line.contains("reloaded nothing; no setting has changed"), "{line}");
    // The flag for `log` overrides the file.
    let line = reloaded
        .reload("max_sessions = 6\nlog = \"debug\"\nallow_host = [\"a\"]\n[network]\nallow = []\n");
    assert!(line.contains("need a restart"), "{line}");
    assert!(line.contains("allow_host, max_sessions, network.allow"), "{line}");
    assert!(!line.contains("log"), "{line}");
    // Values must not reach the log.
    let line = reloaded.reload("name = \"secret\"\n");
    assert!(line.contains("a restart would fail") && !line.contains("secret"), "{line}");
    let line = reloaded.reload("no_such_setting = 1\n");
    assert!(line.contains("a restart would fail") && line.contains("no_such_setting"), "{line}");
    assert_eq!(reloaded.server.get("/readyz"), 200);
}

#[test]
fn reloaded_secrets_are_named_even_with_a_changed_setting() {
    let auth = "ws_auth = \"capability-token\"\nws_token_file = ";
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    std::fs::write(&token, "a-capability-token-of-some-length").unwrap();
    let config = format!("{auth}{token:?}\n");
    let mut reloaded = Reloaded::with(&config);
    let line = reloaded.reload(&config);
    assert!(line.contains("reloaded the token or secret; no setting"), "{line}");
    // The name of the file is a setting: without a restart, the server reads the old file.
    let other = format!("{auth}{:?}\n", reloaded.file("token"));
    let line = reloaded.reload(&other);
    assert!(line.contains("need a restart") && line.contains("ws_token_file"), "{line}");
    std::fs::remove_file(&token).unwrap();
    reloaded.server.signal(Signal::HUP);
    let line = reloaded.server.error_line();
    assert!(
        line.contains(text(&token)) && line.contains("the server keeps the previous version"),
        "{line}"
    );
    assert!(reloaded.server.connect_with("a-capability-token-of-some-length").is_ok());
}

#[test]
fn a_rendezvous_names_the_settings_that_it_uses() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("config.toml");
    std::fs::write(&config, "log = \"info\"\n").unwrap();
    let mut program = command(PROGRAM);
    program.args(["rendezvous", "--listen", "http://127.0.0.1:0", "--data"]);
    program.arg(directory.path().join("data")).env("EXEC_SERVER_CONFIG", &config);
    let mut rendezvous = Running::start(program);
    assert!(rendezvous.line().starts_with("http://127.0.0.1:"));
    std::fs::write(&config, "log = \"info,exec_server=debug\"\nmax_sessions = 7\n").unwrap();
    rendezvous.signal(Signal::HUP);
    let line = loop {
        let line = rendezvous.error_line();
        if line.contains("reloaded") {
            break line;
        }
    };
    assert!(line.contains("need a restart") && line.contains("settings=\"log\""), "{line}");
    rendezvous.signal(Signal::TERM);
    assert_eq!(rendezvous.finish().0.code(), Some(0));
}

/// Starts a server in a terminal, closes the terminal, and prints the reaction of the server.
const TERMINAL: &str = r#"
import os, pty, signal, socket, sys, tempfile
with tempfile.TemporaryDirectory() as directory:
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(directory + "/notify")
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["NOTIFY_SOCKET"] = directory + "/notify"
        os.execvp(sys.argv[2], sys.argv[2:])
    def wait_for(state):
        while not manager.recv(1000).startswith(state):
            pass
    wait_for(b"READY=1")
    if sys.argv[1] == "signal":
        os.kill(pid, signal.SIGHUP)
        wait_for(b"READY=1")
        print("reloaded")
    os.close(terminal)
    if sys.argv[1] == "nohup":
        wait_for(b"RELOADING=1")
        print("reloaded")
        os.kill(pid, signal.SIGTERM)
    print("ended with", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"#;

fn at_terminal(way: &str, wrapper: &[&str]) -> String {
    let python = python();
    let mut command = command(text(&python));
    command.args(["-c", TERMINAL, way]).args(wrapper).args([PROGRAM, "--discoverable=false"]);
    let outcome = run_command(command);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    outcome.stdout
}

#[test]
fn a_closed_terminal_shuts_a_server_down_cleanly() {
    assert_eq!(at_terminal("close", &[]), "ended with 0\n");
    assert_eq!(at_terminal("signal", &[]), "reloaded\nended with 0\n");
}

#[test]
fn nohup_keeps_a_server_running_after_its_terminal_closes() {
    let wrapper = ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh"];
    assert_eq!(at_terminal("nohup", &wrapper), "reloaded\nended with 0\n");
}
