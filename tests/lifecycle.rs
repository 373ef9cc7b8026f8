//! The order of calls, and which calls wait for others.

use serde_json::{Value, json};

use crate::support::{Gate, Server, encoded, machine, shell};

const INVALID_REQUEST: i64 = -32600;

#[test]
fn nothing_is_spawned_before_initialized() {
    let server = Server::start();
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("trace");
    let start = shell("early", &format!("echo ran >> {}", trace.display()));
    let mut client = server.connect();

    let before_initialize = client.request("process/start", start.params());
    let initialize = client.request("initialize", json!({"clientName": "hasty"}));
    let before_initialized = client.request("process/start", start.params());
    client.notify("initialized", json!({}));
    let list = client.request("process/list", json!({}));

    let failure = client.answer(before_initialize).unwrap_err();
    assert_eq!(failure.code, INVALID_REQUEST);
    assert!(failure.message.contains("initialize"), "{failure:?}");
    client.answer(initialize).unwrap();
    let failure = client.answer(before_initialized).unwrap_err();
    assert_eq!(failure.code, INVALID_REQUEST);
    assert!(failure.message.contains("initialized"), "{failure:?}");
    assert_eq!(client.answer(list).unwrap(), json!({"processes": []}));
    assert!(!trace.exists(), "a refused start ran");
}

#[test]
fn a_second_initialize_changes_nothing() {
    let server = Server::start();
    let mut client = server.client();
    let session = client.session();
    let failure = client.refused("initialize", json!({"clientName": "again"}));
    assert_eq!(failure.code, INVALID_REQUEST);
    let sessions = client.call("session/list", json!({}))["sessions"].clone();
    assert_eq!(sessions.as_array().unwrap().len(), 1);
    assert_eq!(sessions[0]["sessionId"], session.as_str());
    assert_eq!(sessions[0]["clientName"], "end-to-end");
}

#[test]
fn initialize_may_be_retried_after_a_failure() {
    let server = Server::start();
    let mut client = server.connect();
    let unknown =
        json!({"clientName": "x", "resumeSessionId": "00000000-0000-4000-8000-000000000000"});
    assert_eq!(client.refused("initialize", unknown).code, INVALID_REQUEST);
    assert_eq!(client.refused("initialize", json!({"clientName": 7})).code, -32602);
    let result = client.initialize(&json!({})).unwrap();
    assert_eq!(result["protocolVersion"], "exec-server.v0");
    assert_eq!(client.call("environment/status", json!({})), json!({"status": "ready"}));
}

#[test]
fn an_unknown_method_is_named_and_changes_nothing() {
    let server = Server::start();
    let mut client = server.client();
    let failure = client.refused("process/teleport", json!({}));
    assert_eq!(failure.code, -32601);
    assert!(failure.message.contains("process/teleport"), "{failure:?}");
    assert_eq!(client.run(&shell("after", "exit 3")).exit_code, Some(3));
}

#[test]
fn bad_params_are_refused_with_their_own_code() {
    let server = Server::start();
    let mut client = server.client();
    let bad: [(&str, Value); 8] = [
        ("process/start", json!({})),
        ("process/start", json!({"processId": "a", "argv": [], "cwd": "file:///tmp", "env": {}})),
        (
            "process/start",
            json!({"processId": "a", "argv": ["true"], "cwd": "relative", "env": {}}),
        ),
        (
            "process/start",
            json!({"processId": "a", "argv": ["true"], "cwd": "http://x/", "env": {}}),
        ),
        (
            "process/start",
            json!({"processId": "a", "argv": ["true"], "cwd": "file://host/tmp", "env": {}}),
        ),
        ("process/write", json!({"processId": "a", "chunk": "***"})),
        ("process/signal", json!({"processId": "a", "signal": "tickle"})),
        ("process/read", json!({"processId": "a", "afterSeq": -1})),
    ];
    for (method, params) in bad {
        let failure = client.refused(method, params.clone());
        assert_eq!(failure.code, -32602, "{method} {params}: {failure:?}");
        assert!(!failure.message.contains('\n'));
    }
}

#[test]
fn responses_without_a_request_are_ignored() {
    let server = Server::start();
    let mut client = server.client();
    client.send(&json!({"id": 77, "result": {}}));
    client.send(&json!({"id": "x", "error": {"code": 1, "message": "no"}}));
    client.send(&json!({"id": "next", "method": "environment/status"}));
    assert_eq!(client.receive().unwrap()["id"], "next");
}

#[test]
fn long_polls_do_not_delay_other_requests() {
    let server = Server::start();
    let mut client = server.client();
    client.start(&shell("quiet", "read line; exit 5").with_stdin());
    let polls: Vec<u64> = (0..100)
        .flat_map(|_| {
            let read = json!({"processId": "quiet", "waitMs": 60_000});
            let wait = json!({"processId": "quiet"});
            [client.request("process/read", read), client.request("process/wait", wait)]
        })
        .collect();
    for _ in 0..50 {
        client.call("environment/status", json!({}));
        client.call("process/list", json!({}));
    }
    assert!(polls.iter().all(|id| !client.has_answer(*id)), "a poll ended without an event");
    assert_eq!(client.write("quiet", "\n"), "accepted");
    for id in polls {
        client.answer(id).unwrap();
    }
}

#[test]
fn a_server_with_one_concurrent_request_works() {
    let server = Server::with(&["--concurrent-requests", "1"]);
    let mut client = server.client();
    for n in 0..20 {
        let id = format!("p{n}");
        assert_eq!(client.run(&shell(&id, "echo hi")).text(), "hi\n");
    }
    let gate = Gate::new();
    client.start(&shell("held", &format!("read x < {}; exit 4", gate.path())));
    let poll = client.request("process/wait", json!({"processId": "held"}));
    let behind = client.request("process/start", shell("behind", "echo hi").params());
    // Control requests overtake; other requests keep their order.
    client.call("environment/status", json!({}));
    client.call("process/signal", json!({"processId": "p0", "signal": "terminate"}));
    assert!(!client.has_answer(behind), "a request ran while an earlier one waited");
    gate.open();
    assert_eq!(client.answer(poll).unwrap()["exitCode"], 4);
    client.answer(behind).unwrap();
    assert_eq!(client.finish_process("behind").text(), "hi\n");
}

#[test]
fn a_start_and_its_writes_may_be_pipelined() {
    let server = Server::start();
    let mut client = server.client();
    for n in 0..50 {
        let id = format!("cat{n}");
        let start = shell(&id, "cat").with_stdin();
        let mut requests = vec![client.request("process/start", start.params())];
        for word in ["one ", "two ", "three"] {
            let params = json!({"processId": id, "chunk": encoded(word)});
            requests.push(client.request("process/write", params));
        }
        requests.push(client.request("process/closeStdin", json!({"processId": id})));
        for request in requests {
            client.answer(request).unwrap();
        }
        assert_eq!(client.finish_process(&id).text(), "one two three");
    }
}

#[test]
fn waiting_uses_no_cpu_time() {
    let server = Server::start();
    let mut client = server.client();
    client.start(&shell("quiet", "read line").with_stdin());
    for wait in [60_000, u64::MAX] {
        for after in [0, 1, u64::MAX] {
            let read =
                json!({"processId": "quiet", "afterSeq": after, "waitMs": wait, "maxBytes": 0});
            client.request("process/read", read);
        }
        client.request("process/wait", json!({"processId": "quiet", "timeoutMs": wait}));
    }
    let mut observer = server.client();
    let target = json!({"sessionId": client.session(), "processId": "quiet"});
    observer.call("process/observe", target);
    let _stalled: Vec<_> = (0..20).map(|_| server.client()).collect();
    client.call("environment/status", json!({}));

    let before = machine::cpu_ticks(server.pid());
    // A busy loop would use most of the three seconds, which are 300 ticks.
    client.run(&shell("pause", "sleep 3"));
    let used = machine::cpu_ticks(server.pid()) - before;
    assert!(used < 100, "{used} ticks");
}
