//! Every command works on an environment behind a relay.

use std::io::Write as _;

use exec_server_test_support::Gate;

use crate::cli_http::Web;
use crate::support::tmux::Tmux;
use crate::support::{Outcome, PROGRAM, Relay, Running, command, run_command, run_with_input};

/// The commands that these tests cover.
const TRIED: [&str; 17] = [
    "attach", "cat", "cp", "forget", "grep", "http", "kill", "logs", "ls", "mkdir", "ps", "rm",
    "run", "shell", "status", "wait", "watch",
];

/// Runs a command that must succeed and returns its output.
fn output_of(relay: &Relay, arguments: &[&str]) -> String {
    let Outcome { code, stdout, stderr } = relay.run(arguments);
    assert_eq!(code, Some(0), "{arguments:?}: {stderr}");
    stdout
}

#[test]
fn processes_run_and_can_be_found_later() {
    let relay = Relay::start();
    let outcome =
        relay.run(&["run", "--on", "box", "--", "sh", "-c", "echo out; echo err >&2; exit 3"]);
    assert_eq!((outcome.code, &*outcome.stdout, &*outcome.stderr), (Some(3), "out\n", "err\n"));

    let echoed = run_with_input(relay.command(&["run", "--on", "box", "--", "cat"]), b"typed");
    assert_eq!(echoed.stdout, b"typed");

    let gate = Gate::new();
    let script = format!("echo begun; read x < {}; echo done; exit 4", gate.path());
    output_of(
        &relay,
        &["run", "--on", "box", "--detach", "--name", "job", "--", "sh", "-c", &script],
    );
    assert!(output_of(&relay, &["ps", "--on", "box"]).contains("job"));
    let mut attached = Running::start(relay.command(&["attach", "--on", "box", "job"]));
    let first = attached.line();
    assert_eq!(first, "begun\n", "{:?}", attached.error_line());
    gate.open();
    assert_eq!(attached.line(), "done\n");
    assert_eq!(attached.finish().0.code(), Some(4));
    assert_eq!(relay.run(&["wait", "--on", "box", "job"]).code, Some(4));
    assert_eq!(output_of(&relay, &["logs", "--on", "box", "job"]), "begun\ndone\n");
    output_of(&relay, &["forget", "--on", "box", "job"]);

    output_of(&relay, &["run", "--on", "box", "--detach", "--name", "long", "--", "sleep", "1000"]);
    output_of(&relay, &["kill", "--on", "box", "long"]);
    assert_eq!(relay.run(&["wait", "--on", "box", "long"]).code, Some(143));
}

#[test]
fn files_are_copied_listed_searched_and_removed() {
    let relay = Relay::start();
    let scratch = tempfile::tempdir().unwrap();
    let here = scratch.path().join("here");
    let content: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
    std::fs::File::create(&here).unwrap().write_all(&content).unwrap();
    let there = scratch.path().join("there");
    let there = there.to_str().unwrap();
    output_of(&relay, &["mkdir", "--on", "box", there]);
    let remote = format!("box:{there}/copy");
    output_of(&relay, &["cp", here.to_str().unwrap(), &remote]);
    let back = scratch.path().join("back");
    output_of(&relay, &["cp", &remote, back.to_str().unwrap()]);
    assert!(std::fs::read(back).unwrap() == content);

    let note = format!("{there}/note");
    std::fs::write(&note, "one\ntwo needle\n").unwrap();
    assert_eq!(output_of(&relay, &["ls", "--on", "box", there]), "copy\nnote\n");
    assert_eq!(output_of(&relay, &["cat", "--on", "box", &note]), "one\ntwo needle\n");
    assert!(output_of(&relay, &["grep", "--on", "box", "needle", there]).contains("two needle"));
    let mut watching = Running::start(relay.command(&["watch", "--on", "box", there]));
    // `watch` does not report when it is ready, so the test makes changes until it prints one.
    let mut number = 0;
    let change = loop {
        std::fs::write(format!("{there}/new{number}"), "x").unwrap();
        number += 1;
        if let Some(line) = watching.line_if_any() {
            break line;
        }
    };
    assert!(change.contains("new"), "{change}");
    drop(watching);
    output_of(&relay, &["rm", "--on", "box", "-r", there]);
    assert!(!std::path::Path::new(there).exists());
}

#[test]
fn the_status_of_the_server_is_for_its_operator_only() {
    let outcome = Relay::start().run(&["status", "--on", "box"]);
    assert_eq!((outcome.code, &*outcome.stdout), (Some(1), ""), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("operator"), "{}", outcome.stderr);
}

#[test]
fn shells_and_http_requests_run_in_the_environment() {
    let relay = Relay::start();
    let web = Web::start();
    assert_eq!(output_of(&relay, &["http", "--on", "box", &web.at("/hello")]), "hello\n");

    let tmux = Tmux::start_with("EXEC_SERVER_ENVIRONMENTS", relay.environments_file());
    tmux.line("$X shell --on box -- env PS1='in''ner> ' bash --norc --noprofile; echo code-$?-end");
    tmux.wait_for("inner>");
    tmux.line("stty size; echo sum-$((1 + 1))");
    tmux.wait_for("30 100");
    tmux.wait_for("sum-2");
    tmux.line("exit 7");
    tmux.wait_for("code-7-end");
}

#[test]
fn every_command_that_takes_an_environment_is_tested() {
    let help = |arguments: &[&str]| {
        let mut help = command(PROGRAM);
        help.args(arguments);
        run_command(help).stdout
    };
    let overview = help(&["--help"]);
    let names = overview.lines().filter_map(|line| {
        let name = line.strip_prefix("  ")?.split(' ').next()?;
        name.starts_with(|first: char| first.is_ascii_lowercase()).then_some(name)
    });
    let mut with_environment: Vec<_> =
        names.filter(|name| help(&[name, "--help"]).contains("--on ")).collect();
    // The operands of `cp` name the environment.
    with_environment.push("cp");
    with_environment.sort_unstable();
    with_environment.dedup();
    assert_eq!(with_environment, TRIED);
}
