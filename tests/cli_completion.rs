//! Completion with the Tab key in bash, zsh and fish, each in a terminal.

use crate::support::tmux::Tmux;
use crate::support::{PROGRAM, Server, command, run_command, run_program};
use exec_server_test_support::skipped;

/// How to start a shell without user settings, and how to load the completion script in it.
struct Shell {
    name: &'static str,
    start: &'static str,
    source: &'static str,
}

const BASH: Shell = Shell {
    name: "bash",
    start: "env PS1='in''ner> ' bash --norc --noprofile",
    source: "source <(exec-server completions bash)",
};
const ZSH: Shell = Shell {
    name: "zsh",
    start: "env PS1='in''ner> ' zsh -f",
    source: "autoload -U compinit; compinit -u -D; source <(exec-server completions zsh)",
};
const FISH: Shell = Shell {
    name: "fish",
    start: "fish --no-config --private --init-command 'function fish_prompt; echo -n in\"\"ner\\>\\ ; end'",
    source: "exec-server completions fish | source",
};

impl Shell {
    fn is_missing(&self) -> bool {
        command(self.name).arg("--version").output().is_err()
    }
}

fn completes(shell: &Shell) {
    let server = Server::start();
    let directory = tempfile::tempdir().unwrap();
    let environments = directory.path().join("environments.toml");
    let url = server.url();
    let entry = format!("[[environments]]\nid = \"staging\"\nurl = {url:?}\n");
    std::fs::write(&environments, entry).unwrap();
    let started = server.run(&["run", "-d", "--name", "nightly-build", "sleep", "1000"]);
    assert_eq!(started.code, Some(0), "{}", started.stderr);

    let tmux = Tmux::start(&server);
    tmux.line(&format!("export EXEC_SERVER_ENVIRONMENTS={}", environments.display()));
    // Shells write their own files into these directories.
    let home = directory.path().display();
    tmux.line(&format!(
        "export HOME={home} XDG_CONFIG_HOME={home} XDG_DATA_HOME={home} XDG_CACHE_HOME={home}"
    ));
    tmux.line("PATH=$(dirname $X):$PATH HISTFILE=");
    tmux.line(shell.start);
    tmux.wait_for("inner>");
    tmux.line(&format!("{}; echo sour''ced", shell.source));
    tmux.wait_for("sourced");
    for (typed, completed) in [
        // Completes a command, an option, and names of processes, environments and commands.
        ("exec-server forg", "exec-server forget"),
        ("exec-server logs --foll", "exec-server logs --follow"),
        ("exec-server logs night", "exec-server logs nightly-build"),
        ("exec-server ps --on stag", "exec-server ps --on staging"),
        ("exec-server logs --on staging night", "exec-server logs --on staging nightly-build"),
        ("exec-server man wat", "exec-server man watch"),
    ] {
        tmux.keys(&["-l", typed]);
        tmux.press_until("Tab", completed);
        tmux.keys(&["C-u"]);
        tmux.line("clear");
    }
}

#[test]
fn bash_completes_commands_options_processes_and_environments() {
    if BASH.is_missing() {
        return skipped("bash is not installed");
    }
    completes(&BASH);
}

#[test]
fn zsh_completes_commands_options_processes_and_environments() {
    if ZSH.is_missing() {
        return skipped("zsh is not installed");
    }
    completes(&ZSH);
}

#[test]
fn fish_completes_commands_options_processes_and_environments() {
    if FISH.is_missing() {
        return skipped("fish is not installed");
    }
    completes(&FISH);
}

#[test]
fn completion_is_silent_without_a_server() {
    let mut complete = command(PROGRAM);
    complete
        .args(["--", "exec-server", "logs", "--connect", "ws://127.0.0.1:1", "night"])
        .env("EXEC_SERVER_COMPLETE", "bash")
        .env("_CLAP_COMPLETE_INDEX", "4");
    let outcome = run_command(complete);
    assert_eq!((outcome.code, outcome.stdout.as_str(), outcome.stderr.as_str()), (Some(0), "", ""));
    assert_eq!(run_program(&["completions", "csh"]).code, Some(2));
}
