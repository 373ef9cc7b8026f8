//! However the server ends, no process that it started survives.

use rustix::process::Signal;
use serde_json::json;

use crate::support::daemons::{daemons, marker, start_daemons};
use crate::support::machine::{Watched, descendants, marked};
use crate::support::{
    AckingInbox, Client, Gate, Server, ServerBuilder, eventually, program, shell, wire::Wire,
};

const TREES: usize = 100;

#[test]
fn a_server_stopped_under_load_drains_and_exits_with_0() {
    for signal in [Signal::TERM, Signal::INT] {
        drain_under_load(signal);
    }
}

fn drain_under_load(signal: Signal) {
    let mut server = Server::with(&["--shutdown-grace-period-ms", "600000"]);
    let mut loud: Vec<Client> = (0..4).map(|_| server.client()).collect();
    for client in &mut loud {
        client.start(&program("yes", &["yes"]));
    }
    let gate = Gate::new();
    let mut client = server.client();
    // Short sleeps: a long one could swallow the signal between its fork and its exec.
    let script = format!(
        "trap 'echo leaving; read x < {}; echo done; exit 7' TERM; echo ready; while :; do sleep 0.01; done",
        gate.path()
    );
    client.start(&shell("polite", &script));
    let mut inbox = AckingInbox::new("polite");
    client.wait_for_output(&mut inbox, "ready");
    let wait = client.request("process/wait", json!({"processId": "polite"}));
    assert_eq!((server.get("/readyz"), server.get("/healthz")), (200, 200));

    server.signal(signal);
    eventually("the server is not ready", || server.get("/readyz") == 503);
    assert_eq!(server.get("/healthz"), 200);
    assert!(Wire::connect(server.url()).is_err(), "a new client was accepted");
    client.wait_for_output(&mut inbox, "leaving");
    client.refused("process/start", shell("late", "true").params());
    gate.open();
    client.wait_for_output(&mut inbox, "done");
    assert_eq!(client.answer(wait).unwrap()["exitCode"], 7);
    assert_eq!(server.wait().code(), Some(0));
    assert_eq!(server.rest_of_stdout(), "");
}

#[test]
fn trees_that_ignore_term_are_killed_after_the_grace_period() {
    let mut server = Server::with(&["--shutdown-grace-period-ms", "100"]);
    let mut client = server.client();
    let watched = start_trees(&server, &mut client, "grace");
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
    watched.wait_until_all_end();
    assert_eq!(marked(&marker("grace")), [] as [u32; 0]);
}

#[test]
fn an_idle_stdio_server_ends_when_its_output_is_closed() {
    let (mut server, client) = Server::stdio();
    let _stdin = client.stop_reading();
    assert!(server.wait().success());

    let (mut server, mut client) = Server::stdio();
    client.initialize(&json!({})).unwrap();
    client.start(&shell("p", "exec sleep 1000"));
    let watched = Watched::new(&descendants(server.pid()));
    let _stdin = client.stop_reading();
    assert!(server.wait().success());
    watched.wait_until_all_end();
}

#[test]
fn the_end_of_stdin_ends_a_stdio_server_and_all_its_trees() {
    let (mut server, mut client) = Server::stdio();
    client.initialize(&json!({})).unwrap();
    let watched = start_trees(&server, &mut client, "stdio");
    client.finish();
    assert_eq!(server.wait().code(), Some(0));
    watched.wait_until_all_end();
    assert_eq!(marked(&marker("stdio")), [] as [u32; 0]);
}

#[test]
fn signals_end_a_stdio_server_too() {
    let (mut server, mut client) = Server::stdio();
    client.initialize(&json!({})).unwrap();
    client.start(&shell("plain", "echo up; exec sleep 1000"));
    client.wait_for_output(&mut AckingInbox::new("plain"), "up");
    let watched = Watched::new(&descendants(server.pid()));
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
    watched.wait_until_all_end();
}

#[test]
fn a_second_signal_ends_the_server_and_all_trees_at_once() {
    for (second, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let mut server = Server::with(&["--shutdown-grace-period-ms", "600000"]);
        let mut client = server.client();
        let id = format!("second{code}");
        let _daemons = start_daemons(&mut client, &id, 10);
        let watched = Watched::new(&descendants(server.pid()));
        server.signal(Signal::TERM);
        eventually("the shutdown begins", || server.get("/readyz") == 503);
        server.signal(second);
        assert_eq!(server.wait().code(), Some(code));
        watched.wait_until_all_end();
        assert_eq!(marked(&marker(&id)), [] as [u32; 0]);
    }
}

#[test]
fn a_server_without_a_listener_waits_for_its_signal() {
    // It prints nothing on standard output, so the spawner shows that it runs.
    let mut server = ServerBuilder::new().arguments(&["--listen", "off"]).start_silent();
    eventually("the spawner runs", || !descendants(server.pid()).is_empty());
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
    assert_eq!(server.rest_of_stdout(), "");
}

/// Starts `TREES` processes, each with daemons that ignore TERM.
fn start_trees(server: &Server, client: &mut Client, name: &str) -> Watched {
    let id = |n: usize| format!("{name}{n}");
    for n in 0..TREES {
        let start = daemons(&id(n), 2).variable("EXEC_SERVER_TEST", &marker(name));
        client.request("process/start", start.params());
    }
    for n in 0..TREES {
        client.wait_for_output(&mut AckingInbox::new(&id(n)), "all");
    }
    eventually("all daemons run", || marked(&marker(name)).len() >= 3 * TREES);
    Watched::new(&descendants(server.pid()))
}
