//! Sessions: listing, lifetime and observers; and `environment/info`.

use serde_json::{Value, json};

use crate::support::machine::marked;
use crate::support::{
    Client, Cut, Server, ServerBuilder, daemons, decoded, eventually, program, random_file, shell,
};

const INVALID_REQUEST: i64 = -32600;

fn listed(client: &mut Client) -> Vec<Value> {
    client.call("session/list", json!({}))["sessions"].as_array().unwrap().clone()
}

#[test]
fn sessions_are_listed_with_their_processes() {
    let server = Server::start();
    let mut first = server.client_with(&json!({"clientName": "first"}));
    let mut second = server.client_with(&json!({"clientName": "second"}));
    first.start(&shell("b", "exec sleep 1000"));
    first.start(&shell("a", "exec sleep 1000"));
    let describe = |session: &Value| {
        (session["clientName"].clone(), session["attached"].clone(), session["processes"].clone())
    };
    let mut all: Vec<_> = listed(&mut second).iter().map(describe).collect();
    all.sort_by_key(|(name, ..)| name.to_string());
    assert_eq!(
        all,
        [
            (json!("first"), json!(true), json!(["a", "b"])),
            (json!("second"), json!(true), json!([]))
        ]
    );
    let lost = first.session();
    first.cut(Cut::Rst);
    let is_detached = |client: &mut Client| {
        let sessions = listed(client);
        let session = sessions.iter().find(|session| session["sessionId"] == lost.as_str());
        session.expect("the session is kept")["attached"] == false
    };
    while !is_detached(&mut second) {}
}

#[test]
fn a_session_without_retention_ends_with_its_connection() {
    let server = Server::start();
    let mut client = server.connect();
    let granted = client.initialize(&json!({"detachedTtlMs": 0})).unwrap();
    assert_eq!(granted["detachedTtlMs"], 0);
    let watched = daemons::start_daemons(&mut client, "brief", 3);
    let session = client.session();
    client.cut(Cut::Fin);
    watched.wait_until_all_end();
    assert_eq!(marked(&daemons::marker("brief")), [] as [u32; 0]);
    let params = json!({"clientName": "late", "resumeSessionId": session});
    assert_eq!(server.connect().refused("initialize", params).code, INVALID_REQUEST);
}

#[test]
fn the_operator_limits_the_number_and_retention_of_sessions() {
    let server = Server::with(&["--max-detached-session-ttl", "10s", "--max-sessions", "3"]);
    let granted =
        server.connect().initialize(&json!({"detachedTtlMs": 86_400_000, "acks": true})).unwrap();
    assert_eq!((&granted["detachedTtlMs"], &granted["acks"]), (&json!(10_000), &json!(true)));
    let mut others: Vec<Client> = (0..2).map(|_| server.client()).collect();
    let refused = server.connect().refused("initialize", json!({"clientName": "one too many"}));
    assert!(!refused.message.is_empty());
    others[0].call("session/close", json!({}));
    server.client();
}

#[test]
fn an_observer_gets_the_output_and_may_end_the_process() {
    let server = Server::start();
    let mut owner = server.client();
    let session = owner.session();
    owner.start(&shell("watched", "echo one; read x; echo two; exec sleep 1000").with_stdin());
    let mut observer = server.client();
    let target = json!({"sessionId": session, "processId": "watched"});
    assert_eq!(observer.call("process/observe", target.clone()), json!({}));
    let mut seen = String::new();
    while seen != "one\n" {
        seen += &observed(&mut observer, &session);
    }
    owner.write("watched", "\n");
    while seen != "one\ntwo\n" {
        seen += &observed(&mut observer, &session);
    }
    // The process does not belong to the observer's own session.
    assert_eq!(observer.write("watched", "x"), "unknownProcess");
    assert_eq!(observer.call("process/list", json!({})), json!({"processes": []}));
    let mut signal = target.clone();
    signal["signal"] = "terminate".into();
    assert_eq!(observer.call("process/signal", signal), json!({}));
    assert_eq!(owner.finish_process("watched").exit_code, Some(143));
    assert_eq!(observer.event_of("watched")["params"]["exitCode"], 143);
    assert_eq!(observer.event_of("watched")["method"], "process/closed");

    owner.start(&shell("other", "exec sleep 1000"));
    let target = json!({"sessionId": session, "processId": "other"});
    assert_eq!(observer.call("process/terminate", target), json!({"running": true}));
    assert_eq!(owner.finish_process("other").exit_code, Some(137));

    let unknown = json!({"sessionId": session, "processId": "nobody"});
    assert_eq!(observer.refused("process/observe", unknown).code, INVALID_REQUEST);
}

/// Returns the text of the next output notification to an observer.
fn observed(observer: &mut Client, session: &str) -> String {
    let event = observer.event_of("watched");
    assert_eq!(event["method"], "process/output");
    assert_eq!(event["params"]["sessionId"], session);
    String::from_utf8(decoded(&event["params"]["chunk"])).unwrap()
}

#[test]
fn an_observer_that_does_not_read_blocks_no_client_and_gets_the_gap() {
    const LEN: usize = 24 << 20;
    let directory = tempfile::tempdir().unwrap();
    let file = random_file(directory.path(), LEN);
    let server = Server::start();
    let mut owner = server.client_with(&json!({"acks": true}));
    let session = owner.session();
    let script = format!("read x; exec cat {}", file.display());
    owner.start(&shell("watched", &script).with_stdin());
    let mut observer = server.client();
    observer.call("process/observe", json!({"sessionId": session, "processId": "watched"}));
    owner.write("watched", "\n");

    let mut received = 0;
    for seq in 1.. {
        let event = owner.event_of("watched");
        assert_eq!(event["params"]["seq"], seq);
        owner.notify("process/ack", json!({"processId": "watched", "seq": seq}));
        match event["method"].as_str().unwrap() {
            "process/output" => received += decoded(&event["params"]["chunk"]).len(),
            "process/closed" => break,
            _ => {}
        }
    }
    assert_eq!(received, LEN);

    let (mut seen, mut missed) = (0, 0);
    loop {
        let event = observer.event_of("watched");
        let params = &event["params"];
        missed += params["droppedBytes"].as_u64().unwrap_or(0);
        match event["method"].as_str().unwrap() {
            "process/output" => seen += decoded(&params["chunk"]).len() as u64,
            "process/closed" => break,
            _ => {}
        }
    }
    assert!(missed > 0, "the observer kept up, which tests nothing");
    assert_eq!(seen + missed, LEN as u64);
}

#[test]
fn environment_info_describes_the_machine() {
    let server = Server::start();
    let mut client = server.client();
    let info = client.call("environment/info", json!({}));
    let shell_path = info["shell"]["path"].as_str().unwrap();
    assert!(std::path::Path::new(shell_path).is_file(), "{info}");
    assert!(shell_path.ends_with(info["shell"]["name"].as_str().unwrap()));
    for uri in [&info["cwd"], &info["tempDir"]] {
        assert!(uri.as_str().unwrap().starts_with("file:///"), "{info}");
    }
    let capabilities = info["capabilities"].as_object().unwrap();
    assert_eq!(capabilities.len(), 6);
    assert!(capabilities.values().all(Value::is_boolean));
    assert_eq!(info["processTeardown"]["keeper"], true);
    let named = program("ls", &["ls", shell_path]).with("cwd", info["cwd"].clone());
    assert_eq!(client.run(&named).exit_code, Some(0));
}

#[test]
fn temporary_directories_contain_only_an_absolute_tmpdir() {
    for (tmpdir, expected) in [
        ("", json!([])),
        ("relative", json!([])),
        ("/tmp", json!(["file:///tmp"])),
        ("/var/tmp/a%20b", json!(["file:///var/tmp/a%2520b"])),
    ] {
        let server = ServerBuilder::new().variable("TMPDIR", tmpdir).start();
        let info = server.client().call("environment/info", json!({}));
        assert_eq!(info["temporaryDirectories"], expected, "{tmpdir:?}");
        assert!(info["tempDir"].as_str().unwrap().starts_with("file:///"), "{info}");
    }
}

#[test]
fn closed_sessions_leave_no_processes() {
    let server = Server::start();
    let mut witness = server.client();
    witness.run(&shell("first", "true"));
    for n in 0..20 {
        let mut client = server.client();
        client.start(&shell("p", "sleep 1000 & exec sleep 1000").with("tty", n % 2 == 0));
        client.call("session/close", json!({}));
    }
    eventually("only the spawner is left", || {
        crate::support::machine::descendants(server.pid()).len() == 1
    });
    assert_eq!(listed(&mut witness).len(), 1);
}
