//! How processes end, and how the server reports it.

use serde_json::json;

use crate::support::{AckingInbox, Choices, Inbox as _, Server, Start, eventually, machine, shell};

#[test]
fn exit_codes_are_exact() {
    let server = Server::start();
    let mut client = server.client();
    let started: Vec<Start> =
        (0..=255).map(|code| shell(&format!("exit{code}"), &format!("exit {code}"))).collect();
    for start in &started {
        client.request("process/start", start.params());
    }
    for (code, start) in (0..).zip(&started) {
        let end = client.finish_process(start.id());
        assert_eq!((end.exit_code, end.signal), (Some(code), None));
    }
}

#[test]
fn a_fatal_signal_is_reported_as_128_and_its_number() {
    // All signals whose default is to end the process; libc reserves 32 and 33.
    let fatal = (1..=16).chain(24..=27).chain(29..=31).chain(34..=64);
    let server = Server::start();
    let mut client = server.client();
    for signal in fatal {
        // Without a core file.
        let script = format!("ulimit -c 0; kill -{signal} $$; exit 99");
        let end = client.run(&shell(&format!("signal{signal}"), &script));
        assert_eq!((end.exit_code, end.signal), (Some(128 + signal), Some(signal)));
    }
}

#[test]
fn every_named_signal_arrives() {
    let server = Server::start();
    let mut client = server.client();
    let names = [
        ("interrupt", "INT"),
        ("terminate", "TERM"),
        ("hangup", "HUP"),
        ("quit", "QUIT"),
        ("user1", "USR1"),
        ("user2", "USR2"),
    ];
    for (name, trapped) in names {
        let script =
            format!("trap 'echo got {trapped}; exit 7' {trapped}; echo ready; while :; do :; done");
        client.start(&shell(name, &script));
        let mut inbox = AckingInbox::new(name);
        client.wait_for_output(&mut inbox, "ready");
        client.call("process/signal", json!({"processId": name, "signal": name}));
        client.wait_for_output(&mut inbox, &format!("got {trapped}"));
    }
    client.start(&shell("stopped", "echo pid $$; read line; echo continued").with_stdin());
    let mut inbox = AckingInbox::new("stopped");
    client.wait_for_output(&mut inbox, "\n");
    let pid = inbox.transcript().text().trim_start_matches("pid ").trim().parse().unwrap();
    client.call("process/signal", json!({"processId": "stopped", "signal": "stop"}));
    eventually("the process stops", || machine::state(pid) == Some('T'));
    client.call("process/signal", json!({"processId": "stopped", "signal": "continue"}));
    client.write("stopped", "\n");
    client.wait_for_output(&mut inbox, "continued");
    client.start(&shell("killed", "echo ready; exec sleep 1000"));
    client.wait_for_output(&mut AckingInbox::new("killed"), "ready");
    client.call("process/signal", json!({"processId": "killed", "signal": "kill"}));
    let wait = client.call("process/wait", json!({"processId": "killed"}));
    assert_eq!(wait["exitCode"], 137);
    assert_eq!(
        client.call("process/signal", json!({"processId": "nobody", "signal": "kill"})),
        json!({})
    );
}

#[test]
fn terminate_that_races_exit_gives_one_exit_and_one_close() {
    terminate_races_exit(300);
}

#[test]
#[ignore = "soak: 10,000 races, run by `just soak-counts`"]
fn soak_terminate_that_races_exit_gives_one_exit_and_one_close() {
    terminate_races_exit(10_000);
}

fn terminate_races_exit(rounds: u64) {
    let server = Server::start();
    let mut client = server.client();
    let mut choices = Choices::new(1);
    for round in 0..rounds {
        let id = format!("race{round}");
        let spins = choices.below(200);
        let script = format!("i=0; while [ $i -lt {spins} ]; do i=$((i+1)); done; exit 3");
        client.request("process/start", shell(&id, &script).params());
        for _ in 0..choices.below(3) {
            client.call("environment/status", json!({}));
        }
        let terminate = client.request("process/terminate", json!({"processId": id}));
        // The transcript asserts that the exit comes once, and before the close.
        let end = client.finish_process(&id);
        assert!(matches!(end.exit_code, Some(3 | 137)), "{end:?}");
        client.answer(terminate).unwrap();
    }
}

#[test]
fn the_exit_record_has_signal_duration_and_usage() {
    let server = Server::start();
    let mut client = server.client();
    client
        .start(&shell("worker", "i=0; while [ $i -lt 1000 ]; do i=$((i+1)); done; kill -TERM $$"));
    let wait = client.call("process/wait", json!({"processId": "worker"}));
    assert_eq!((&wait["exitCode"], &wait["signal"]), (&json!(143), &json!(15)));
    client.finish_process("worker");
    let read = client.call("process/read", json!({"processId": "worker"}));
    assert_eq!(read["signal"], 15);
    for field in ["durationMs", "cpuMs", "maxRssBytes"] {
        assert!(read[field].is_u64(), "{field} is missing: {read}");
    }
    assert!(read["maxRssBytes"].as_u64().unwrap() > 0);
}
