//! `exec-server shell` and `attach` in a terminal, driven by keys.

use std::path::Path;

use rustix::process::Signal;

use crate::support::machine::{self, marked};
use crate::support::tmux::Tmux;
use crate::support::{Server, eventually};

/// An interactive shell whose prompt differs from the outer shell's and from the typed text.
const SHELL: &str = "$X shell -- env PS1='in''ner> ' bash --norc --noprofile";

const INTERRUPTIBLE: &str = "sh -c 'trap \"echo caught-\\$((1 + 1)); exit\" INT; echo ready-$((1 + 1)); while :; do sleep 0.01; done'";

/// Writes the modes of the outer shell's terminal into a file.
fn record_modes(tmux: &Tmux, file: &Path) -> String {
    tmux.line(&format!("stty -a > {0}.part; mv {0}.part {0}", file.display()));
    eventually("the modes are recorded", || file.exists());
    std::fs::read_to_string(file).unwrap()
}

struct Terminal {
    tmux: Tmux,
    directory: tempfile::TempDir,
    before: String,
}

impl Terminal {
    fn open(server: &Server) -> Self {
        let tmux = Tmux::start(server);
        let directory = tempfile::tempdir().unwrap();
        let before = record_modes(&tmux, &directory.path().join("before"));
        Self { tmux, directory, before }
    }

    /// Runs a command in the outer shell, which then prints the command's exit code. The test types
    /// both on one line, since a line typed too early would go to the command.
    fn run(&self, command: &str) {
        self.tmux.line(&format!("{command}; echo code-$?-end"));
    }

    /// Runs `shell`, waits for its prompt and returns the pid of the command.
    fn run_shell(&self) -> u32 {
        let pid_file = self.directory.path().join("pid");
        // `exec` keeps the pid that the intermediate shell has written.
        self.run(&format!("sh -c 'echo $$ > {}; exec {SHELL_IN_QUOTES}'", pid_file.display()));
        self.tmux.wait_for("inner>");
        std::fs::read_to_string(&pid_file).unwrap().trim().parse().unwrap()
    }

    fn assert_left_with(&self, code: i32) {
        self.tmux.wait_for(&format!("code-{code}-end"));
        let after = record_modes(&self.tmux, &self.directory.path().join("after"));
        let modes = |text: &str| text.split_once(';').unwrap().1.to_owned();
        // The size may have changed; it is in the first line.
        let without_size = |text: &str| modes(&modes(&modes(text)));
        assert_eq!(without_size(&after), without_size(&self.before));
    }
}

#[test]
fn a_shell_has_the_size_keys_and_exit_code_of_a_terminal() {
    let server = Server::start();
    let terminal = Terminal::open(&server);
    let tmux = &terminal.tmux;
    terminal.run(SHELL);
    tmux.wait_for("inner>");
    tmux.line("stty size; echo TERM-$TERM");
    tmux.wait_for("30 100");
    tmux.wait_for("TERM-tmux");

    tmux.resize(90, 20);
    // The signal that reports the size to the shell may still be on its way.
    eventually("the size has changed", || {
        tmux.line("stty size");
        tmux.screen().contains("20 90")
    });

    // An interrupt discards pending input, so the test types on only after it is handled.
    tmux.line(INTERRUPTIBLE);
    tmux.wait_for("ready-2");
    tmux.keys(&["C-c"]);
    tmux.wait_for("caught-2");
    tmux.line("echo interrupted-$((1 + 1))");
    tmux.wait_for("interrupted-2");

    tmux.keys(&["-l", "~?"]);
    tmux.wait_for("Supported escape sequences:");
    tmux.line("exit 7");
    terminal.assert_left_with(7);
}

#[test]
fn an_escape_sequence_ends_a_shell() {
    let server = Server::start();
    let terminal = Terminal::open(&server);
    let tmux = &terminal.tmux;
    let marker = format!("{}-left", std::process::id());
    terminal.run(&format!("$X shell -- env PS1='in''ner> ' EXEC_SERVER_TEST={marker} bash --norc"));
    tmux.wait_for("inner>");
    tmux.line("sleep 1000");
    eventually("the sleep runs", || marked(&marker).len() >= 2);
    tmux.keys(&["Enter"]);
    tmux.keys(&["-l", "~."]);
    terminal.assert_left_with(255);
    eventually("its processes have ended", || marked(&marker).is_empty());
}

#[test]
fn the_login_shell_of_the_server_is_started() {
    let server = Server::start();
    let terminal = Terminal::open(&server);
    let tmux = &terminal.tmux;
    terminal.run("$X shell");
    // Its prompt is unknown. Keys pressed too early wait in its terminal.
    tmux.line("echo name-$0-end");
    tmux.wait_for("name--");
    tmux.line("exit 3");
    terminal.assert_left_with(3);
}

#[test]
fn a_terminal_is_restored_when_the_command_is_terminated() {
    let server = Server::start();
    let terminal = Terminal::open(&server);
    machine::signal(terminal.run_shell(), Signal::TERM);
    terminal.assert_left_with(143);
}

#[test]
fn a_terminal_is_restored_while_the_command_is_stopped() {
    let server = Server::start();
    let terminal = Terminal::open(&server);
    let tmux = &terminal.tmux;
    machine::signal(terminal.run_shell(), Signal::TSTP);
    terminal.assert_left_with(128 + 19);
    terminal.run("fg");
    tmux.line("echo again-$((1 + 1))");
    tmux.wait_for("again-2");
    tmux.line("exit 5");
    tmux.wait_for("code-5-end");
}

const SHELL_IN_QUOTES: &str = "$X shell -- env \"PS1=in\"\"ner> \" bash --norc";

#[test]
fn a_detached_terminal_can_be_attached_and_detached() {
    let server = Server::start();
    let shell = ["env", "PS1=inner> ", "bash", "--norc"];
    let started = server.run(&[&["run", "-d", "-t", "--name", "tty"][..], &shell].concat());
    assert_eq!(started.code, Some(0), "{}", started.stderr);
    let terminal = Terminal::open(&server);
    let tmux = &terminal.tmux;
    tmux.line("until $X attach tty; do :; done; echo back-$?-");
    tmux.wait_for("inner>");
    tmux.line("stty size");
    tmux.wait_for("30 100\ninner>");
    tmux.keys(&["-l", "~."]);
    // On its own line, not behind the prompt of the detached shell.
    tmux.wait_for("\ndetached; tty keeps running");
    tmux.wait_for("back-0-");
    assert!(server.run(&["ps"]).stdout.contains("running"));

    terminal.run("clear; until $X attach tty; do :; done");
    tmux.wait_for("inner>");
    tmux.line("exit 0");
    terminal.assert_left_with(0);
}
