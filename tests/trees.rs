//! The tree of a process ends when it should, and not before.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::daemons::{leave_daemons, marker, start_daemons};
use crate::support::machine::{self, Watched, descendants, marked};
use crate::support::{AckingInbox, Client, Cut, Gate, Inbox as _, Server, eventually, shell};

#[test]
fn terminate_kills_daemons_that_left_the_session_and_ignore_signals() {
    let server = Server::start();
    let mut client = server.client();
    let watched = start_daemons(&mut client, "fifty", 50);
    assert!(client.terminate("fifty"));
    watched.wait_until_all_end();
    assert_eq!(marked(&marker("fifty")), [] as [u32; 0]);
    let wait = client.call("process/wait", json!({"processId": "fifty"}));
    assert_eq!(wait["exitCode"], 137);
    assert!(!client.terminate("fifty"));
    assert!(!client.terminate("nobody"));
}

#[test]
fn a_killed_server_leaves_no_process() {
    let mut server = Server::start();
    let mut client = server.client();
    let _daemons = start_daemons(&mut client, "orphans", 10);
    client.start(&shell("plain", "echo up; exec sleep 1000").tty());
    client.wait_for_output(&mut AckingInbox::new("plain"), "up");
    let watched = Watched::new(&descendants(server.pid()));
    server.signal(Signal::KILL);
    server.wait();
    watched.wait_until_all_end();
    assert_eq!(marked(&marker("orphans")), [] as [u32; 0]);
}

#[test]
fn background_processes_survive_a_normal_exit_until_terminate() {
    let server = Server::start();
    let mut client = server.client();
    let start = shell("parent", &format!("{}; exit 0", leave_daemons(3)))
        .variable("EXEC_SERVER_TEST", &marker("parent"));
    let end = client.run(&start);
    assert_eq!(end.exit_code, Some(0));
    let listed = client.call("process/list", json!({}))["processes"][0].clone();
    assert_eq!((&listed["running"], &listed["descendants"]), (&json!(false), &json!(3)));
    let watched = Watched::new(&marked(&marker("parent")));
    assert!(!client.terminate("parent"), "the leader has exited");
    watched.wait_until_all_end();
}

#[test]
fn kill_on_exit_ends_background_processes() {
    let server = Server::start();
    let mut client = server.client();
    let start = shell("parent", &format!("{}; echo left; read line", leave_daemons(3)))
        .with_stdin()
        .with("killOnExit", true)
        .variable("EXEC_SERVER_TEST", &marker("kill-on-exit"));
    client.start(&start);
    client.wait_for_output(&mut AckingInbox::new("parent"), "left");
    eventually("the parent and all daemons run", || marked(&marker("kill-on-exit")).len() == 4);
    let watched = Watched::new(&marked(&marker("kill-on-exit")));
    client.write("parent", "\n");
    watched.wait_until_all_end();
    let wait = client.call("process/wait", json!({"processId": "parent"}));
    assert_eq!(wait["exitCode"], 0);
}

#[test]
fn exit_comes_before_the_output_of_a_surviving_grandchild_and_close_after_it() {
    let server = Server::start();
    let mut client = server.client();
    let gate = Gate::new();
    let script = format!("(read x < {}; echo late) & echo early; exit 9", gate.path());
    client.start(&shell("parent", &script));
    let wait = client.call("process/wait", json!({"processId": "parent"}));
    assert_eq!((&wait["exitCode"], &wait["closed"]), (&json!(9), &json!(false)));
    gate.open();
    let methods: Vec<Value> = (0..4).map(|_| client.event_of("parent")["method"].clone()).collect();
    assert_eq!(methods, ["process/output", "process/exited", "process/output", "process/closed"]);
}

#[test]
fn a_graceful_terminate_kills_after_its_timeout() {
    let server = Server::start();
    let mut client = server.client();
    client.start(&shell(
        "polite",
        "trap 'echo bye; exit 4' TERM; echo ready; while :; do sleep 0.01; done",
    ));
    let mut inbox = AckingInbox::new("polite");
    client.wait_for_output(&mut inbox, "ready");
    terminate_gracefully(&mut client, "polite", 100_000);
    client.wait_for_output(&mut inbox, "bye");
    assert_eq!(client.call("process/wait", json!({"processId": "polite"}))["exitCode"], 4);

    let watched = start_daemons(&mut client, "deaf", 5);
    terminate_gracefully(&mut client, "deaf", 1);
    watched.wait_until_all_end();
    assert_eq!(client.call("process/wait", json!({"processId": "deaf"}))["exitCode"], 137);
}

fn terminate_gracefully(client: &mut Client, id: &str, timeout_ms: u64) {
    let mode = json!({"type": "graceful", "timeoutMs": timeout_ms});
    let result = client.call("process/terminate", json!({"processId": id, "mode": mode}));
    assert_eq!(result, json!({"running": true}));
}

#[test]
fn closing_a_session_ends_its_trees_before_the_response() {
    let server = Server::start();
    let mut client = server.client();
    let _watched = start_daemons(&mut client, "closing", 5);
    assert_eq!(client.call("session/close", json!({})), json!({}));
    assert_eq!(marked(&marker("closing")), [] as [u32; 0]);
    assert_eq!(client.refused("process/list", json!({})).code, -32600);
}

#[test]
fn an_expired_session_ends_its_trees() {
    let server = Server::start();
    let mut client = server.client_with(&json!({"detachedTtlMs": 1}));
    let session = client.session();
    let watched = start_daemons(&mut client, "expiring", 5);
    client.cut(Cut::Rst);
    watched.wait_until_all_end();
    let params = json!({"clientName": "late", "resumeSessionId": session});
    assert_eq!(server.connect().refused("initialize", params).code, -32600);
}

#[test]
fn the_death_of_a_keeper_ends_its_process() {
    let server = Server::start();
    let mut client = server.client();
    client.start(&shell("kept", "echo pid $$; exec sleep 1000"));
    let mut inbox = AckingInbox::new("kept");
    client.wait_for_output(&mut inbox, "\n");
    let child = inbox.transcript().text().trim_start_matches("pid ").trim().parse().unwrap();
    let watched = Watched::new(&[child]);
    machine::signal(machine::parent(child), Signal::KILL);
    watched.wait_until_all_end();
    let wait = client.call("process/wait", json!({"processId": "kept"}));
    assert_eq!(wait["exitCode"], 137);
    assert_eq!(client.run(&shell("next", "echo fine")).text(), "fine\n");
}

#[test]
fn the_server_survives_the_death_of_the_spawner() {
    let server = Server::start();
    let mut client = server.client();
    client.run(&shell("first", "true"));
    eventually("the first run has ended", || descendants(server.pid()).len() == 1);
    let spawner = descendants(server.pid());
    machine::signal(spawner[0], Signal::KILL);
    Watched::new(&spawner).wait_until_all_end();
    assert_eq!(client.run(&shell("next", "echo fine")).text(), "fine\n");
}

#[test]
fn a_process_that_stops_its_keeper_does_not_escape() {
    let mut server = Server::start();
    let mut client = server.client();
    for id in ["terminated", "left"] {
        // The script waits until the keeper has reported the start; a keeper stopped earlier never
        // would.
        let script = "read line; kill -STOP $PPID; echo stopped; exec sleep 1000";
        client.start(&shell(id, script).with_stdin().variable("EXEC_SERVER_TEST", &marker(id)));
        client.write(id, "\n");
        client.wait_for_output(&mut AckingInbox::new(id), "stopped");
    }
    let terminated = Watched::new(&marked(&marker("terminated")));
    assert!(client.terminate("terminated"));
    terminated.wait_until_all_end();

    let left = Watched::new(&marked(&marker("left")));
    server.signal(Signal::KILL);
    server.wait();
    left.wait_until_all_end();
}
