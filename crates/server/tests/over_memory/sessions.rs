//! Sessions outlive their connections, and nothing is lost in between.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use exec_server_server::{Server, ServerConfig};
use exec_server_test_support::{RpcClient, TestServer, decoded};
use exec_server_transport::{Connection, Received, StreamPeer, length_prefixed};
use serde_json::{Value, json};
use tokio::sync::watch;

/// Collects a process's output from notifications until it has closed, and checks the numbering.
async fn follow(client: &mut RpcClient, process: &str, mut seen: u64) -> (Vec<u8>, u64) {
    let mut output = Vec::new();
    loop {
        let notification = client.notification().await;
        let params = &notification["params"];
        if params["processId"] != process {
            continue;
        }
        let seq = params["seq"].as_u64().unwrap();
        if seq <= seen {
            continue; // A client that acks ignores events that it already has.
        }
        assert_eq!(seq, seen + 1, "a gap in {notification}");
        seen = seq;
        match notification["method"].as_str().unwrap() {
            "process/output" => output.extend(decoded(&params["chunk"])),
            "process/closed" => return (output, seen),
            _ => {}
        }
    }
}

async fn wait_for_exit(server: &TestServer, session: &str, process: &str) {
    // An observer sees the exit while the owner is disconnected.
    let (mut observer, _) = RpcClient::open(server, json!({})).await;
    let params = json!({ "sessionId": session, "processId": process });
    observer.call("process/observe", params).await.unwrap();
    loop {
        let notification = observer.notification().await;
        assert_eq!(notification["params"]["sessionId"], session);
        if notification["method"] == "process/closed" {
            return observer.cut().await;
        }
    }
}

#[tokio::test]
async fn a_client_that_acks_gets_every_unconfirmed_event_again() {
    let server = TestServer::new(ServerConfig::default());
    let (mut client, session) = RpcClient::open(&server, json!({ "acks": true })).await;
    client.start("p", "seq 1 1000; exit 3", json!({})).await;
    client.cut().await;
    wait_for_exit(&server, &session, "p").await;

    let resume = json!({ "resumeSessionId": session, "acks": true });
    let (mut client, same) = RpcClient::open(&server, resume).await;
    assert_eq!(same, session);
    let (output, last) = follow(&mut client, "p", 0).await;
    let expected: String = (1..=1000).map(|n| format!("{n}\n")).collect();
    assert_eq!(String::from_utf8(output).unwrap(), expected);

    client.notify("process/ack", json!({ "processId": "p", "seq": last })).await;
    let read =
        client.call("process/read", json!({ "processId": "p", "afterSeq": 0 })).await.unwrap();
    assert_eq!(read["exitCode"], 3);
    assert_eq!(read["nextSeq"], last + 1);
}

#[tokio::test]
async fn a_client_that_sends_positions_gets_the_later_events() {
    let server = TestServer::new(ServerConfig::default());
    let (mut client, session) = RpcClient::open(&server, json!({ "acks": true })).await;
    for id in ["behind", "level", "ahead"] {
        client.start(id, "echo a; echo b >&2; exit 3", json!({})).await;
    }
    client.cut().await;
    for id in ["behind", "level", "ahead"] {
        wait_for_exit(&server, &session, id).await;
    }
    let mut client = RpcClient::connect(&server);
    let resume = json!({
        "resumeSessionId": session, "acks": true,
        "positions": { "behind": 1, "level": 4, "ahead": 1_000, "gone": 2 },
    });
    let greeting = client.call("initialize", resume).await.unwrap();
    client.notify("initialized", json!({})).await;
    assert_eq!(greeting["positions"], json!({ "behind": 4, "level": 4, "ahead": 4 }));
    let mut numbers = BTreeMap::<_, Vec<_>>::new();
    while numbers.get("behind").is_none_or(|seen| seen.len() < 3)
        || numbers.get("ahead").is_none_or(|seen| seen.len() < 4)
    {
        let params = client.notification().await["params"].clone();
        let id = params["processId"].as_str().unwrap().to_owned();
        numbers.entry(id).or_default().push(params["seq"].as_u64().unwrap());
    }
    // A position beyond the log confirms nothing.
    let expected = [("ahead", vec![1, 2, 3, 4]), ("behind", vec![2, 3, 4])];
    assert!(numbers.iter().map(|(id, seen)| (id.as_str(), seen.clone())).eq(expected));
}

#[tokio::test]
async fn positions_without_acks_are_not_granted() {
    let server = TestServer::new(ServerConfig::default());
    let (mut client, session) = RpcClient::open(&server, json!({})).await;
    client.start("p", "exec sleep 1000", json!({})).await;
    client.cut().await;
    let resume = json!({ "resumeSessionId": session, "positions": { "p": 0 } });
    let greeting = RpcClient::connect(&server).call("initialize", resume).await.unwrap();
    assert_eq!(greeting.get("positions"), None, "{greeting}");
}

#[tokio::test]
async fn a_client_without_acks_reads_once_and_the_rest_follows_without_a_gap() {
    let detached_session_ttl = Duration::from_secs(600);
    let server = TestServer::new(ServerConfig { detached_session_ttl, ..ServerConfig::default() });
    let (mut client, session) = RpcClient::open(&server, json!({})).await;
    // More than one response holds: 16 MiB.
    client.start("p", "head -c 20000000 /dev/zero; exit 4", json!({})).await;
    client.cut().await;
    wait_for_exit(&server, &session, "p").await;

    let (mut client, _) = RpcClient::open(&server, json!({ "resumeSessionId": session })).await;
    let read = client.call("process/read", json!({ "processId": "p" })).await.unwrap();
    assert!(read.get("droppedBytes").is_none(), "output was lost");
    let chunks = read["chunks"].as_array().unwrap();
    let got: usize = chunks.iter().map(|chunk| decoded(&chunk["chunk"]).len()).sum();
    let next = read["nextSeq"].as_u64().unwrap();
    assert_eq!(chunks.last().unwrap()["seq"], next - 1, "a gap before nextSeq");
    assert!(got < 20_000_000);
    let (rest, _) = follow(&mut client, "p", next - 1).await;
    assert_eq!(got + rest.len(), 20_000_000);
}

#[tokio::test]
async fn a_client_without_acks_or_reads_gets_missed_events_as_notifications() {
    let server = TestServer::new(ServerConfig::default());
    let (mut client, session) = RpcClient::open(&server, json!({})).await;
    client.start("p", "read line; echo $line", json!({ "pipeStdin": true })).await;
    client.cut().await;
    let (mut client, _) = RpcClient::open(&server, json!({ "resumeSessionId": session })).await;
    let write = json!({ "processId": "p", "chunk": "aGkK" });
    assert_eq!(client.call("process/write", write).await.unwrap()["status"], "accepted");
    let (output, _) = follow(&mut client, "p", 0).await;
    assert_eq!(output, b"hi\n");
}

#[tokio::test]
async fn an_attached_session_cannot_be_resumed_and_its_client_is_undisturbed() {
    let server = TestServer::new(ServerConfig::default());
    let (mut first, session) = RpcClient::open(&server, json!({})).await;
    let mut second = RpcClient::connect(&server);
    let resume = json!({ "clientName": "second", "resumeSessionId": session });
    let error = second.call("initialize", resume.clone()).await.unwrap_err();
    assert_eq!(error["code"], -32010);
    assert_eq!(first.call("process/list", json!({})).await.unwrap()["processes"], json!([]));
    // After a failed initialize the client may try again.
    first.cut().await;
    assert_eq!(second.call("initialize", resume).await.unwrap()["sessionId"], *session);
}

#[tokio::test]
async fn of_two_clients_that_resume_at_once_one_wins() {
    let server = TestServer::new(ServerConfig::default());
    for _ in 0..50 {
        let (client, session) = RpcClient::open(&server, json!({})).await;
        client.cut().await;
        let mut rivals = [RpcClient::connect(&server), RpcClient::connect(&server)];
        let resume = json!({ "resumeSessionId": session });
        let [one, other] = &mut rivals;
        let (one, other) = tokio::join!(
            one.call("initialize", resume.clone()),
            other.call("initialize", resume.clone()),
        );
        let winners = [&one, &other].iter().filter(|result| result.is_ok()).count();
        assert_eq!(winners, 1, "{one:?} {other:?}");
        for loser in [one, other].iter().filter_map(|result| result.as_ref().err()) {
            assert_eq!(loser["code"], -32010);
        }
    }
}

#[tokio::test]
async fn ttl_zero_ends_the_session_with_its_connection() {
    let server = TestServer::new(ServerConfig::default());
    let (mut client, session) = RpcClient::open(&server, json!({ "detachedTtlMs": 0 })).await;
    client.start("p", "sleep 1000", json!({})).await;
    client.cut().await;
    let (mut other, _) = RpcClient::open(&server, json!({})).await;
    loop {
        let sessions = other.call("session/list", json!({})).await.unwrap();
        let listed = sessions["sessions"].as_array().unwrap();
        if listed.iter().all(|info| info["sessionId"] != *session) {
            break;
        }
        tokio::task::yield_now().await;
    }
    let error = RpcClient::connect(&server)
        .call("initialize", json!({ "resumeSessionId": session }))
        .await
        .unwrap_err();
    assert_eq!(error["code"], -32600);
}

#[tokio::test]
async fn the_operator_caps_the_ttl_that_a_client_requests() {
    let config = ServerConfig {
        max_detached_session_ttl: std::time::Duration::from_secs(7),
        ..ServerConfig::default()
    };
    let mut client = RpcClient::connect(&TestServer::new(config));
    let asked = json!({ "detachedTtlMs": u64::MAX, "acks": true });
    let granted = client.call("initialize", asked).await.unwrap();
    assert_eq!(granted["detachedTtlMs"], 7000);
    assert_eq!(granted["acks"], true);
}

#[tokio::test]
async fn session_close_ends_the_session_and_its_processes_at_once() {
    let server = TestServer::new(ServerConfig::default());
    let (mut client, session) = RpcClient::open(&server, json!({})).await;
    client.start("p", "sleep 1000", json!({})).await;
    assert_eq!(client.call("session/close", json!({})).await.unwrap(), json!({}));
    let error = client.call("process/list", json!({})).await.unwrap_err();
    assert_eq!((&error["code"], &error["data"]["kind"]), (&json!(-32600), &json!("sessionEnded")));
    let resume = json!({ "resumeSessionId": session });
    assert_eq!(
        RpcClient::connect(&server).call("initialize", resume).await.unwrap_err()["code"],
        -32600
    );
}

#[tokio::test]
async fn another_session_can_be_listed_and_closed() {
    let server = TestServer::new(ServerConfig::default());
    let (mut owner, session) = RpcClient::open(&server, json!({})).await;
    owner.start("p", "exec sleep 1000", json!({})).await;
    let (mut other, _) = RpcClient::open(&server, json!({})).await;
    let named = json!({ "sessionId": session });
    let listed = other.call("process/list", named.clone()).await.unwrap();
    assert_eq!(listed, owner.call("process/list", json!({})).await.unwrap());
    assert_eq!(listed["processes"][0]["processId"], "p");
    assert_eq!(other.call("process/list", json!({})).await.unwrap()["processes"], json!([]));

    assert_eq!(other.call("session/close", named.clone()).await.unwrap(), json!({}));
    owner.ended().await;
    for method in ["process/list", "session/close"] {
        let error = other.call(method, named.clone()).await.unwrap_err();
        assert_eq!(error["data"]["kind"], "unknownSession");
    }
    assert!(other.call("process/list", json!({})).await.is_ok(), "its own session lives on");
}

#[tokio::test]
async fn a_detached_session_can_be_closed_by_another_client() {
    let server = TestServer::new(ServerConfig::default());
    let (mut owner, session) = RpcClient::open(&server, json!({})).await;
    owner.start("p", "exec sleep 1000", json!({})).await;
    owner.cut().await;
    let (mut other, own) = RpcClient::open(&server, json!({})).await;
    other.call("session/close", json!({ "sessionId": session })).await.unwrap();
    let listed = other.call("session/list", json!({})).await.unwrap();
    assert_eq!(listed["sessions"].as_array().unwrap().len(), 1);
    // A client may name its own session.
    other.call("session/close", json!({ "sessionId": own })).await.unwrap();
    let error = other.call("process/list", json!({})).await.unwrap_err();
    assert_eq!(error["data"]["kind"], "sessionEnded");
}

#[tokio::test]
async fn a_session_may_be_kept_until_the_server_stops() {
    const YEAR_MS: u64 = 365 * 24 * 60 * 60 * 1000;
    let forever =
        ServerConfig { max_detached_session_ttl: Duration::MAX, ..ServerConfig::default() };
    for (config, granted) in [(ServerConfig::default(), YEAR_MS), (forever, u64::MAX)] {
        let server = TestServer::new(config);
        let mut client = RpcClient::connect(&server);
        let asked = json!({ "detachedTtlMs": u64::MAX });
        assert_eq!(client.call("initialize", asked).await.unwrap()["detachedTtlMs"], granted);
        client.cut().await;
        let (mut other, _) = RpcClient::open(&server, json!({})).await;
        let listed = other.call("session/list", json!({})).await.unwrap();
        assert_eq!(listed["sessions"].as_array().unwrap().len(), 2, "{listed}");
    }
}

#[tokio::test]
async fn an_observer_may_signal_and_terminate_an_observed_process() {
    let server = TestServer::new(ServerConfig::default());
    let (mut owner, session) = RpcClient::open(&server, json!({ "clientName": "owner" })).await;
    // Only builtins: the signal goes to the whole group, and a dying `sleep` would print a message.
    let script = "trap 'echo usr1' USR1; echo up; while :; do :; done";
    owner.start("p", script, json!({})).await;
    let (mut observer, _) = RpcClient::open(&server, json!({ "clientName": "observer" })).await;
    let process = json!({ "sessionId": session, "processId": "p" });
    observer.call("process/observe", process.clone()).await.unwrap();
    assert_eq!(decoded(&observer.notification().await["params"]["chunk"]), b"up\n");
    let signal = json!({ "sessionId": session, "processId": "p", "signal": "user1" });
    observer.call("process/signal", signal).await.unwrap();
    assert_eq!(decoded(&observer.notification().await["params"]["chunk"]), b"usr1\n");
    let answer = observer.call("process/terminate", process).await.unwrap();
    assert_eq!(answer, json!({ "running": true }));
    let (output, _) = follow(&mut owner, "p", 0).await;
    assert_eq!(output, b"up\nusr1\n");
}

#[tokio::test]
async fn the_number_of_sessions_is_bounded() {
    let server = TestServer::new(ServerConfig { max_sessions: 1, ..ServerConfig::default() });
    let (_first, _) = RpcClient::open(&server, json!({})).await;
    let error = RpcClient::connect(&server).call("initialize", json!({})).await.unwrap_err();
    assert_eq!(error["data"]["kind"], "tooManySessions");
}

#[tokio::test]
async fn a_session_of_finished_processes_makes_room_for_another() {
    let server = TestServer::new(ServerConfig { max_sessions: 1, ..ServerConfig::default() });
    let (mut job, session) = RpcClient::open(&server, json!({ "detachedTtlMs": u64::MAX })).await;
    job.start("p", "true", json!({})).await;
    follow(&mut job, "p", 0).await;
    job.cut().await;
    let error = RpcClient::connect(&server).call("initialize", json!({})).await.unwrap_err();
    assert_eq!(error["data"]["kind"], "tooManySessions", "its client may be about to reconnect");

    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(31)).await;
    tokio::time::resume();
    // The process may take a moment to finish.
    let mut other = RpcClient::connect(&server);
    while other.call("initialize", json!({})).await.is_err() {
        tokio::task::yield_now().await;
    }
    let resume = json!({ "resumeSessionId": session });
    let error = RpcClient::connect(&server).call("initialize", resume).await.unwrap_err();
    assert_eq!(error["data"]["kind"], "unknownSession");
}

#[tokio::test]
async fn after_shutdown_begins_no_session_opens_and_every_client_gets_the_end() {
    let server = TestServer::new(ServerConfig::default());
    let (mut client, _) = RpcClient::open(&server, json!({})).await;
    client.start("p", "sleep 1000", json!({})).await;
    server.shutdown().await;
    let (_, last) = follow(&mut client, "p", 0).await;
    assert_eq!(last, 2);
    let error: Value = RpcClient::connect(&server).call("initialize", json!({})).await.unwrap_err();
    assert_eq!(error["data"]["kind"], "shuttingDown");
}

#[tokio::test]
async fn the_response_to_a_resume_precedes_the_output() {
    let server = TestServer::new(ServerConfig::default());
    let (mut client, mut session) = RpcClient::open(&server, json!({ "acks": true })).await;
    for number in 0..20 {
        client.start(&number.to_string(), "while :; do echo x; sleep 0.001; done", json!({})).await;
    }
    for _ in 0..20 {
        client.cut().await;
        client = RpcClient::connect(&server);
        let resume = json!({ "resumeSessionId": session, "acks": true });
        session = client.first_message_answers("initialize", resume).await;
    }
}

#[tokio::test]
async fn a_resume_keeps_the_granted_ttl() {
    let server = TestServer::new(ServerConfig::default());
    let (client, session) = RpcClient::open(&server, json!({ "detachedTtlMs": 77_000 })).await;
    client.cut().await;
    let (client, _) = RpcClient::open(&server, json!({ "resumeSessionId": session })).await;
    client.cut().await;
    let mut client = RpcClient::connect(&server);
    let resume = json!({ "resumeSessionId": session, "detachedTtlMs": 78_000 });
    assert_eq!(client.call("initialize", resume).await.unwrap()["detachedTtlMs"], 78_000);
}

#[tokio::test]
async fn a_session_is_closed_even_if_its_client_hangs_up_at_once() {
    let server = TestServer::new(ServerConfig::default());
    let (mut observer, own) = RpcClient::open(&server, json!({})).await;
    for _ in 0..20 {
        let (mut client, _) = RpcClient::open(&server, json!({})).await;
        client.start("p", "sleep 1000", json!({})).await;
        client.request("session/close", json!({})).await;
        client.cut().await;
        let sessions = observer.call("session/list", json!({})).await.unwrap();
        let listed = sessions["sessions"].as_array().unwrap();
        assert!(listed.iter().all(|info| info["sessionId"] == own), "{sessions}");
    }
}

#[tokio::test]
async fn an_observer_sees_the_end_of_a_process_when_its_session_ends() {
    let server = TestServer::new(ServerConfig::default());
    let (mut owner, session) = RpcClient::open(&server, json!({})).await;
    owner.start("p", "echo up; exec sleep 1000", json!({})).await;
    let (mut observer, _) = RpcClient::open(&server, json!({})).await;
    let process = json!({ "sessionId": session, "processId": "p" });
    observer.call("process/observe", process).await.unwrap();
    assert_eq!(decoded(&observer.notification().await["params"]["chunk"]), b"up\n");
    owner.call("session/close", json!({})).await.unwrap();
    let (_, last) = follow(&mut observer, "p", 1).await;
    assert_eq!(last, 3);
}

/// A peer that cannot be probed, like a harness that acknowledges nothing.
#[derive(Debug)]
struct CannotAsk;

impl StreamPeer for CannotAsk {
    fn bytes_read(&self) -> Option<watch::Receiver<u64>> {
        None
    }

    fn probe(&self, _: Duration) -> Pin<Box<dyn Future<Output = bool> + Send + '_>> {
        unreachable!("it cannot be probed")
    }
}

/// Opens a client on a stream whose ends cannot be probed. Also returns its session id.
async fn silent_client(server: &TestServer) -> (Connection, Value) {
    let (near, far) = tokio::io::duplex(1 << 16);
    let over = |stream| {
        let (read, write) = tokio::io::split(stream);
        length_prefixed(read, write, Arc::new(CannotAsk))
    };
    let serving = Server::clone(server);
    tokio::spawn(async move { serving.serve(over(near)).await });
    let mut client = over(far);
    let hello = json!({ "id": 1, "method": "initialize", "params": { "clientName": "old" } });
    client.outgoing.push(hello.to_string().as_bytes());
    client.outgoing.flush().await.unwrap();
    let session = next_message(&mut client).await["result"]["sessionId"].clone();
    (client, session)
}

async fn next_message(client: &mut Connection) -> Value {
    match client.incoming.recv().await {
        Some(Received::Message(text)) => serde_json::from_slice(&text).unwrap(),
        other => panic!("expected a message, received {other:?}"),
    }
}

#[tokio::test]
async fn a_client_without_pings_is_probed_by_a_request() {
    let server = TestServer::new(ServerConfig::default());
    let (mut first, session) = silent_client(&server).await;
    let mut second = RpcClient::connect(&server);
    let resume = json!({ "clientName": "second", "resumeSessionId": session });
    let answering = async {
        let request = next_message(&mut first).await;
        assert_eq!(request["method"], "connection/probe");
        let error = json!({ "code": -32601, "message": "method not found" });
        let answer = json!({ "id": request["id"], "error": error }).to_string();
        first.outgoing.push(answer.as_bytes());
        first.outgoing.flush().await.unwrap();
    };
    let (refused, ()) = tokio::join!(second.call("initialize", resume.clone()), answering);
    assert_eq!(refused.unwrap_err()["code"], -32010);
    // The first client no longer responds.
    assert_eq!(second.call("initialize", resume).await.unwrap()["sessionId"], session);
}
