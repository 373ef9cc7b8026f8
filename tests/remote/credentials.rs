//! How both ends authenticate to a registry, and the errors of a registry that refuses.

use crate::support::relay::ENVIRONMENT_ID;
use crate::support::rendezvous::{Rendezvous, create_identity};
use crate::support::{PROGRAM, Relay, Running, command, run_command, run_with_input};

#[test]
fn a_login_is_found_with_or_without_a_trailing_slash() {
    let relay = Relay::start();
    let state = tempfile::tempdir().unwrap();
    let with_slash = format!("{}/", relay.url());
    let mut login = command(PROGRAM);
    login.args(["login", "--remote", &with_slash]).env("XDG_STATE_HOME", state.path());
    let logged_in = run_with_input(login, relay.credentials()[1].as_bytes());
    assert_eq!(logged_in.status.code(), Some(0));

    let entry = format!(
        "[[environments]]\nid = \"box\"\nremote = {:?}\nenvironment_id = {ENVIRONMENT_ID:?}\n",
        relay.url()
    );
    std::fs::write(relay.environments_file(), entry).unwrap();
    let run = || {
        let mut run = relay.command(&["run", "--on", "box", "--", "echo", "hello"]);
        run.env("XDG_STATE_HOME", state.path()).env_remove("CODEX_API_KEY");
        run_command(run)
    };
    let outcome = run();
    assert_eq!((outcome.code, &*outcome.stdout), (Some(0), "hello\n"), "{}", outcome.stderr);

    let mut logout = command(PROGRAM);
    logout.args(["logout", "--remote", relay.url()]).env("XDG_STATE_HOME", state.path());
    assert_eq!(run_command(logout).code, Some(0));
    let outcome = run();
    assert_eq!(outcome.code, Some(125));
    assert!(outcome.stderr.contains("exec-server login --remote"), "{}", outcome.stderr);
}

#[test]
fn a_refused_environment_logs_every_cause() {
    let (data, other_data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let rendezvous = Rendezvous::start(data.path());
    let mut program = command(PROGRAM);
    // With a listener, the server continues without the relay.
    program
        .args(["--listen", "ws://127.0.0.1:0", "--remote", &rendezvous.url])
        .args(["--environment-id", ENVIRONMENT_ID, "--use-agent-identity-auth"])
        .env("EXEC_SERVER_ACCESS_TOKEN", create_identity(other_data.path(), "environment"));
    let mut server = Running::start(program);
    let line = loop {
        let line = server.error_line();
        assert!(!line.is_empty(), "the server ended");
        if line.contains("no longer reachable through the relay") {
            break line;
        }
    };
    assert!(line.contains("cannot register a task for the agent identity: "), "{line}");
    assert!(line.contains("401"), "{line}");
}
