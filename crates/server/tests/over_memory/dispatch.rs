//! Requests of one connection: handshake, order, and which requests wait for others.

use exec_server_server::ServerConfig;
use exec_server_test_support::{RpcClient, TestServer, decoded};
use serde_json::json;

#[tokio::test]
async fn a_request_before_the_handshake_is_refused_with_the_missing_step() {
    let mut client = RpcClient::connect(&TestServer::new(ServerConfig::default()));
    let start = json!({ "processId": "p", "argv": ["true"], "cwd": "/" });
    let error = client.call("process/start", start.clone()).await.unwrap_err();
    assert_eq!(error["code"], -32600);
    assert!(error["message"].as_str().unwrap().contains("initialize"));

    client.call("initialize", json!({})).await.unwrap();
    let error = client.call("process/start", start).await.unwrap_err();
    assert!(error["message"].as_str().unwrap().contains("initialized"));
    assert_eq!(client.call("initialize", json!({})).await.unwrap_err()["code"], -32600);

    client.notify("initialized", json!(null)).await;
    let list = client.call("process/list", json!(null)).await.unwrap();
    assert_eq!(list, json!({ "processes": [] }));
    assert_eq!(client.call("no/such", json!({})).await.unwrap_err()["code"], -32601);
}

#[tokio::test]
async fn a_malformed_message_gets_an_error_and_the_connection_lives() {
    let (mut client, _) =
        RpcClient::open(&TestServer::new(ServerConfig::default()), json!({})).await;
    for message in [json!([]), json!({}), json!(7), json!({ "method": "process/list" })] {
        client.send(message).await;
        assert_eq!(client.nameless_error().await["code"], -32600);
    }
    client.send(json!({ "id": 999, "result": {} })).await;
    client.call("environment/status", json!({})).await.unwrap();
}

#[tokio::test]
async fn start_and_write_may_be_pipelined() {
    let (mut client, _) =
        RpcClient::open(&TestServer::new(ServerConfig::default()), json!({})).await;
    let start = json!({ "processId": "p", "argv": ["cat"], "cwd": "/", "pipeStdin": true,
        "env": { "PATH": "/usr/bin:/bin" } });
    client.request("process/start", start).await;
    let mut ids = Vec::new();
    for digit in ["MQ==", "Mg==", "Mw=="] {
        let write = json!({ "processId": "p", "chunk": digit });
        ids.push(client.request("process/write", write).await);
    }
    ids.push(client.request("process/closeStdin", json!({ "processId": "p" })).await);
    for id in ids {
        assert_eq!(client.response(id).await.unwrap()["status"], "accepted");
    }
    let mut output = Vec::new();
    loop {
        let notification = client.notification().await;
        match notification["method"].as_str().unwrap() {
            "process/output" => output.extend(decoded(&notification["params"]["chunk"])),
            "process/closed" => break,
            _ => {}
        }
    }
    assert_eq!(output, b"123");
}

#[tokio::test]
async fn of_many_starts_with_one_id_exactly_one_succeeds() {
    let (mut client, _) =
        RpcClient::open(&TestServer::new(ServerConfig::default()), json!({})).await;
    let start = json!({ "processId": "p", "argv": ["/bin/sleep", "1000"], "cwd": "/" });
    let mut ids = Vec::new();
    for _ in 0..20 {
        ids.push(client.request("process/start", start.clone()).await);
    }
    let mut started = 0;
    for id in ids {
        match client.response(id).await {
            Ok(_) => started += 1,
            Err(error) => assert_eq!(error["data"]["kind"], "duplicateProcess"),
        }
    }
    assert_eq!(started, 1);
}

#[tokio::test]
async fn a_failed_start_reports_the_reason_and_frees_its_id() {
    let (mut client, _) =
        RpcClient::open(&TestServer::new(ServerConfig::default()), json!({})).await;
    for (argv, cwd, code, word) in [
        (json!(["nope"]), "/", -32600, "nope"),
        (json!(["true"]), "/no/such/directory", -32004, "/no/such/directory"),
        (json!(["true"]), "/etc/passwd", -32602, "/etc/passwd"),
        (json!([]), "/", -32602, "argv"),
        (json!(["a\u{0}b"]), "/", -32602, "NUL"),
    ] {
        let start = json!({ "processId": "p", "argv": argv, "cwd": cwd,
            "env": { "PATH": "/usr/bin:/bin" } });
        let error = client.call("process/start", start).await.unwrap_err();
        assert_eq!(error["code"], code, "{error}");
        assert!(error["message"].as_str().unwrap().contains(word), "{error}");
    }
    client.start("p", "exit 0", json!({})).await;
    loop {
        let notification = client.notification().await;
        if notification["method"] == "process/closed" {
            assert_eq!(notification["params"]["seq"], 2, "a failed start left events behind");
            return;
        }
    }
}

#[tokio::test]
async fn long_polls_delay_no_other_request() {
    let config = ServerConfig { concurrent_requests: 2, ..ServerConfig::default() };
    let (mut client, _) = RpcClient::open(&TestServer::new(config), json!({})).await;
    client.start("p", "sleep 1000", json!({})).await;
    let mut polls = Vec::new();
    for _ in 0..100 {
        let read = json!({ "processId": "p", "waitMs": 3_600_000 });
        polls.push(client.request("process/read", read).await);
        polls.push(client.request("process/wait", json!({ "processId": "p" })).await);
    }
    for _ in 0..100 {
        client.call("environment/status", json!({})).await.unwrap();
        client.call("process/list", json!({})).await.unwrap();
    }
    client.call("process/terminate", json!({ "processId": "p" })).await.unwrap();
    for poll in polls {
        client.response(poll).await.unwrap();
    }
}

#[tokio::test]
async fn with_one_permit_a_wait_blocks_everything_but_control() {
    let config = ServerConfig { concurrent_requests: 1, ..ServerConfig::default() };
    let (mut client, _) = RpcClient::open(&TestServer::new(config), json!({})).await;
    client.start("p", "sleep 1000", json!({})).await;
    client.start("q", "sleep 1000", json!({})).await;
    let poll = json!({ "processId": "p", "waitMs": 3_600_000 });
    let poll = client.request("process/read", poll).await;
    let list = client.request("process/list", json!({})).await;
    let wait = client.request("process/wait", json!({ "processId": "q" })).await;
    let signal = json!({ "processId": "q", "signal": "kill" });
    client.call("process/signal", signal).await.unwrap();
    client.call("environment/status", json!({})).await.unwrap();
    client.call("http/cancel", json!({ "requestId": "none" })).await.unwrap();
    client.call("fs/cancelSearch", json!({ "searchId": "none" })).await.unwrap();
    assert!(client.has_no_response(), "a request ran beside a waiting one");
    client.call("process/terminate", json!({ "processId": "p" })).await.unwrap();
    for request in [poll, list, wait] {
        client.response(request).await.unwrap();
    }
}

#[tokio::test]
async fn a_child_that_never_reads_costs_a_bounded_buffer_and_still_dies_at_once() {
    let (mut client, _) =
        RpcClient::open(&TestServer::new(ServerConfig::default()), json!({})).await;
    client.start("p", "sleep 1000", json!({ "pipeStdin": true })).await;
    let mebibyte = exec_server_protocol::Base64Bytes::from(vec![0u8; 1 << 20]);
    let chunk = serde_json::to_value(mebibyte).unwrap();
    let mut writes = Vec::new();
    for _ in 0..20 {
        let write = json!({ "processId": "p", "chunk": chunk });
        writes.push(client.request("process/write", write).await);
    }
    let answer = client.call("process/terminate", json!({ "processId": "p" })).await.unwrap();
    assert_eq!(answer["running"], true);
    let (mut accepted, mut closed, mut full) = (0, 0, 0);
    for id in writes {
        match client.response(id).await {
            Ok(answer) if answer["status"] == "accepted" => accepted += 1,
            Ok(answer) => {
                assert_eq!(answer["status"], "stdinClosed");
                closed += 1;
            }
            Err(error) => {
                assert_eq!(error["data"]["kind"], "stdinFull");
                full += 1;
            }
        }
    }
    assert!((4..=5).contains(&accepted), "{accepted} accepted");
    assert!(closed + accepted <= 9 && full >= 11, "{accepted} {closed} {full}");
}

#[tokio::test]
async fn modes_can_be_forbidden() {
    let config = ServerConfig { allow_direct_exec: false, ..ServerConfig::default() };
    let (mut client, _) = RpcClient::open(&TestServer::new(config), json!({})).await;
    let start =
        |mode: &str| json!({ "processId": "p", "argv": ["/bin/true"], "cwd": "/", "mode": mode });
    let error = client.call("process/start", start("direct")).await.unwrap_err();
    assert_eq!(error["data"]["kind"], "modeForbidden");
    client.call("process/start", start("prepared")).await.unwrap();
}

#[tokio::test]
async fn unenforceable_options_are_refused() {
    let (mut client, _) =
        RpcClient::open(&TestServer::new(ServerConfig::default()), json!({})).await;
    for (extra, kind) in [
        (json!({ "sandbox": { "type": "read-only" } }), "sandboxUnavailable"),
        (json!({ "enforceManagedNetwork": true }), "managedNetworkUnavailable"),
        (json!({ "managedNetwork": { "loopbackPorts": [1] } }), "sandboxUnavailable"),
        (json!({ "networkProxy": { "proxy": {} } }), "sandboxUnavailable"),
        (json!({ "network": {} }), "sandboxUnavailable"),
    ] {
        let mut start = json!({ "processId": "p", "argv": ["/bin/true"], "cwd": "/" });
        start.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let error = client.call("process/start", start).await.unwrap_err();
        assert_eq!((&error["code"], &error["data"]["kind"]), (&json!(-32600), &json!(kind)));
    }
    let sandbox = json!({ "sandbox": { "type": "danger-full-access" }, "shellSnapshot": {} });
    client.start("p", "exit 0", sandbox).await;
}

#[tokio::test]
async fn a_wait_never_overtakes_the_start_of_its_process() {
    let config = ServerConfig { concurrent_requests: 2, ..ServerConfig::default() };
    let (mut client, _) = RpcClient::open(&TestServer::new(config), json!({})).await;
    let mut waits = Vec::new();
    for number in 0..50 {
        let start = json!({ "processId": number.to_string(), "argv": ["/bin/true"], "cwd": "/" });
        client.request("process/start", start).await;
        let wait = json!({ "processId": number.to_string() });
        waits.push(client.request("process/wait", wait).await);
    }
    for wait in waits {
        assert_eq!(client.response(wait).await.unwrap()["exitCode"], 0);
    }
}

#[tokio::test]
async fn a_truncated_read_names_the_number_after_its_last_chunk() {
    let (mut client, _) =
        RpcClient::open(&TestServer::new(ServerConfig::default()), json!({})).await;
    // A grandchild writes after the exit, when the test sends a line.
    let script = "exec 3<&0; echo a; (read line <&3; echo late) & exit 0";
    client.start("p", script, json!({ "pipeStdin": true })).await;
    loop {
        match client.notification().await["method"].as_str().unwrap() {
            "process/exited" => {
                let write = json!({ "processId": "p", "chunk": "Cg==" });
                client.call("process/write", write).await.unwrap();
            }
            "process/closed" => break,
            _ => {}
        }
    }
    let mut after = 0;
    let mut output = Vec::new();
    loop {
        let read = json!({ "processId": "p", "afterSeq": after, "maxBytes": 1 });
        let page = client.call("process/read", read).await.unwrap();
        let chunks = page["chunks"].as_array().unwrap();
        if chunks.is_empty() {
            assert_eq!(page["nextSeq"], 5);
            break;
        }
        assert_eq!(chunks.len(), 1);
        output.extend(decoded(&chunks[0]["chunk"]));
        after = chunks[0]["seq"].as_u64().unwrap();
        assert!(page["nextSeq"] == after + 1 || page["nextSeq"] == 5, "{page}");
    }
    assert_eq!(output, b"a\nlate\n");
}
