use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use exec_server_host::process::launch::Launcher;
use exec_server_protocol::{
    NetworkDecision, NetworkDecisionScope, NetworkDecisionSource,
    NetworkPolicyDecisionNotification, NetworkPolicyRequestParams, NetworkPolicyResponse,
    NetworkProtocol, NetworkRequest, NetworkVerdict, RespondToServer, ServerCall,
    ServerCallResponse, ServerNotification, ServerRequestHandler, server_request,
};
use exec_server_test_support::{RpcClient, Served};
use exec_server_transport::memory;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::*;
use crate::connection::ClientConnection;
use crate::feed::ConfirmedBy;
use crate::sessions::Resume;
use crate::{Server, ServerConfig};

type Answer = Result<NetworkPolicyResponse, RequestFailure>;

fn connect(server: &Server) -> RpcClient<Served> {
    let (connection, other_end) = memory();
    let server = server.clone();
    let serving = tokio::spawn(async move { server.serve(other_end).await });
    RpcClient::over(Served { connection, serving })
}

async fn open() -> (Server, RpcClient<Served>, Arc<Session>) {
    let server = Server::new(ServerConfig::default(), Launcher::plain());
    let mut client = connect(&server);
    client.initialize(json!({"clientName": "test"})).await;
    let session = server.state().sessions.all().pop().unwrap();
    // The server answers this only after it has read `initialized`.
    client.call("environment/status", json!({})).await.unwrap();
    (server, client, session)
}

fn question(host: &str) -> NetworkPolicyRequestParams {
    let (protocol, host) = (NetworkProtocol::HttpsConnect, host.to_owned());
    let request = NetworkRequest { protocol, host, port: 443 };
    NetworkPolicyRequestParams { process_id: "p".to_owned(), request }
}

async fn ask_until(session: &Session, host: &str, deadline: Instant) -> Answer {
    session.ask_client::<server_request::NetworkPolicyRequest>(&question(host), deadline).await
}

/// Asks with a deadline that no test reaches.
fn ask(session: &Arc<Session>, host: &str) -> JoinHandle<Answer> {
    let (session, host) = (Arc::clone(session), host.to_owned());
    let deadline = Instant::now() + Duration::from_secs(3600);
    tokio::spawn(async move { ask_until(&session, &host, deadline).await })
}

async fn asked(client: &mut RpcClient<Served>) -> Value {
    client.next("a question", |message| message["method"] == "network/policyRequest").await
}

async fn answer(client: &mut RpcClient<Served>, id: &Value, decision: Value) {
    client.send(json!({"id": id, "result": {"decision": decision}})).await;
}

/// Returns once the server has read everything that the client has sent.
async fn settle(client: &mut RpcClient<Served>) {
    let _ = client.call("environment/status", json!({})).await;
}

fn allowed() -> Answer {
    Ok(NetworkPolicyResponse { decision: NetworkDecision::Allow })
}

fn decision_about(host: &str) -> NetworkPolicyDecisionNotification {
    NetworkPolicyDecisionNotification {
        process_id: "p".to_owned(),
        timestamp: "2026-01-01T00:00:00Z".to_owned(),
        scope: NetworkDecisionScope::Domain,
        decision: NetworkVerdict::Deny,
        source: NetworkDecisionSource::BaselinePolicy,
        reason: "not allowed".to_owned(),
        protocol: NetworkProtocol::HttpsConnect,
        host: host.to_owned(),
        port: 443,
        method: None,
        client: None,
        policy_override: false,
    }
}

#[tokio::test]
async fn requests_are_answered_in_any_order() {
    let (_server, mut client, session) = open().await;
    let first = ask(&session, "a.test");
    let question = asked(&mut client).await;
    let expected = json!({
        "id": 1, "method": "network/policyRequest", "params": {"processId": "p",
            "request": {"protocol": "https_connect", "host": "a.test", "port": 443}},
    });
    assert_eq!(question, expected);
    let second = ask(&session, "b.test");
    assert_eq!(asked(&mut client).await["id"], 2);
    answer(&mut client, &json!(2), json!({"type": "deny", "reason": "no"})).await;
    let denied = NetworkPolicyResponse { decision: NetworkDecision::deny("no") };
    assert_eq!(second.await.unwrap(), Ok(denied));
    answer(&mut client, &json!(1), json!({"type": "allow"})).await;
    assert_eq!(first.await.unwrap(), allowed());
}

#[tokio::test]
async fn error_responses_and_invalid_responses_are_failures() {
    let (_server, mut client, session) = open().await;
    let deny = |reason: &str| json!({"result": {"decision": {"type": "deny", "reason": reason}}});
    for response in [
        json!({"error": {"code": -32601, "message": "unknown"}}),
        json!({"error": "broken"}),
        json!({"error": {"code": 1, "message": "a\nb".repeat(1000), "data": [1]}}),
        json!({"result": {"decision": {"type": "a\nb".repeat(1000)}}}),
        json!({"error": {"code": 1, "message": "x"}, "result": {"decision": {"type": "allow"}}}),
        json!({}),
        json!({"result": null}),
        json!({"result": "allow"}),
        json!({"result": {"decision": {"type": "maybe"}}}),
        json!({"result": {"decision": {"type": "ask"}}}),
        deny(&"x".repeat(1025)),
        deny("a\nb"),
        deny("\u{1b}[31m"),
    ] {
        let waiting = ask(&session, "a.test");
        let mut message = response.clone();
        message["id"] = asked(&mut client).await["id"].clone();
        client.send(message).await;
        let failure = waiting.await.unwrap().unwrap_err();
        let expected = match response.get("error") {
            Some(_) => matches!(failure, RequestFailure::Refused(_)),
            None => matches!(failure, RequestFailure::Unreadable(_)),
        };
        assert!(expected, "{response}: {failure}");
        let text = failure.to_string();
        assert!(text.len() < 300 && !text.contains(char::is_control), "{text:?}");
    }
}

#[tokio::test]
async fn a_late_response_is_ignored() {
    let (_server, mut client, session) = open().await;
    let timed_out = ask_until(&session, "a.test", Instant::now()).await;
    assert_eq!(timed_out, Err(RequestFailure::TimedOut));
    let late = asked(&mut client).await["id"].clone();
    let second = ask(&session, "b.test");
    let current = asked(&mut client).await["id"].clone();
    answer(&mut client, &late, json!({"type": "allow"})).await;
    settle(&mut client).await;
    assert!(!second.is_finished());
    answer(&mut client, &current, json!({"type": "deny", "reason": ""})).await;
    assert_ne!(second.await.unwrap(), allowed());
}

#[tokio::test]
async fn responses_to_unknown_requests_are_ignored() {
    let (_server, mut client, session) = open().await;
    let waiting = ask(&session, "a.test");
    let id = asked(&mut client).await["id"].clone();
    for wrong in [json!(99), json!(0), json!(-7), json!("1")] {
        answer(&mut client, &wrong, json!({"type": "allow"})).await;
    }
    settle(&mut client).await;
    assert!(!waiting.is_finished());
    answer(&mut client, &id, json!({"type": "deny", "reason": "first"})).await;
    answer(&mut client, &id, json!({"type": "allow"})).await;
    let denied = NetworkPolicyResponse { decision: NetworkDecision::deny("first") };
    assert_eq!(waiting.await.unwrap(), Ok(denied));
    settle(&mut client).await;
}

#[tokio::test]
async fn a_request_is_repeated_after_a_lost_connection() {
    let (server, mut client, session) = open().await;
    let waiting = ask(&session, "a.test");
    let before = asked(&mut client).await;
    client.cut().await;
    assert!(!waiting.is_finished());
    let mut client = connect(&server);
    let resume = json!({"clientName": "test", "resumeSessionId": session.id()});
    client.first_message_answers("initialize", resume).await;
    client.notify("initialized", json!({})).await;
    let after = asked(&mut client).await;
    assert_eq!(after["params"], before["params"]);
    answer(&mut client, &after["id"], json!({"type": "allow"})).await;
    assert_eq!(waiting.await.unwrap(), allowed());
}

#[tokio::test]
async fn no_request_is_sent_before_the_handshake_is_complete() {
    let (server, client, session) = open().await;
    client.cut().await;
    let mut client = connect(&server);
    let resume = json!({"clientName": "test", "resumeSessionId": session.id()});
    client.call("initialize", resume).await.unwrap();
    let unasked = ask_until(&session, "early.test", Instant::now()).await;
    assert_eq!(unasked, Err(RequestFailure::TimedOut));
    session.notify(decision_about("early.test"));
    assert_eq!(session.dropped_notifications.load(Ordering::Relaxed), 1);
    client.notify("initialized", json!({})).await;
    let waiting = ask(&session, "a.test");
    let question = asked(&mut client).await;
    assert_eq!(question["params"]["request"]["host"], "a.test");
    answer(&mut client, &question["id"], json!({"type": "allow"})).await;
    assert_eq!(waiting.await.unwrap(), allowed());
}

/// Collects the requests that it gets, and their response callbacks.
#[derive(Debug)]
struct Handler {
    asked: mpsc::UnboundedSender<(ServerCall, DebugRespond)>,
    notified: Mutex<Vec<ServerNotification>>,
}

struct DebugRespond(RespondToServer);

impl std::fmt::Debug for DebugRespond {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DebugRespond")
    }
}

impl ServerRequestHandler for Handler {
    fn request(&self, call: ServerCall, respond: RespondToServer) {
        self.asked.send((call, DebugRespond(respond))).unwrap();
    }

    fn notify(&self, notification: ServerNotification) {
        self.notified.lock().unwrap().push(notification);
    }
}

fn handler() -> (Arc<Handler>, mpsc::UnboundedReceiver<(ServerCall, DebugRespond)>) {
    #[expect(clippy::disallowed_methods, reason = "a test sends a few requests")]
    let (asked, questions) = mpsc::unbounded_channel();
    (Arc::new(Handler { asked, notified: Mutex::default() }), questions)
}

#[tokio::test]
async fn only_the_attached_connection_may_respond() {
    let (_server, mut client, session) = open().await;
    let waiting = ask(&session, "a.test");
    let first = asked(&mut client).await["id"].clone();
    let (handler, mut questions) = handler();
    let successor = Arc::new(ClientConnection::in_process(ConnectionId(u64::MAX)));
    successor.set_handler(handler);
    let (confirmed_by, positions) = (ConfirmedBy::Ack, BTreeMap::new());
    let resume = Resume { confirmed_by, detached_ttl: None, positions };
    let predecessor = session.connection().unwrap().id();
    session.attach(&successor, &resume, Some(predecessor)).unwrap();
    let (call, respond) = questions.recv().await.unwrap();
    assert_eq!(call, ServerCall::NetworkPolicyRequest(question("a.test")));
    answer(&mut client, &first, json!({"type": "allow"})).await;
    settle(&mut client).await;
    assert!(!waiting.is_finished());
    let denied = NetworkPolicyResponse { decision: NetworkDecision::deny("no") };
    respond.0(Ok(ServerCallResponse::NetworkPolicyRequest(denied.clone())));
    assert_eq!(waiting.await.unwrap(), Ok(denied));
    assert!(questions.try_recv().is_err(), "asked twice on one connection");
}

#[tokio::test]
async fn a_request_of_a_detached_session_waits_until_its_deadline() {
    let (_server, client, session) = open().await;
    client.cut().await;
    let failed = ask_until(&session, "a.test", Instant::now()).await;
    assert_eq!(failed, Err(RequestFailure::TimedOut));
}

#[tokio::test]
async fn the_end_of_a_session_fails_its_requests() {
    let (_server, mut client, session) = open().await;
    let waiting = ask(&session, "a.test");
    asked(&mut client).await;
    client.call("session/close", json!({})).await.unwrap();
    assert_eq!(waiting.await.unwrap(), Err(RequestFailure::SessionEnded));
    let deadline = Instant::now() + Duration::from_secs(3600);
    let afterwards = ask_until(&session, "a.test", deadline).await;
    assert_eq!(afterwards, Err(RequestFailure::SessionEnded));

    let (_server, client, session) = open().await;
    client.cut().await;
    let detached = ask(&session, "a.test");
    session.end();
    assert_eq!(detached.await.unwrap(), Err(RequestFailure::SessionEnded));
}

#[tokio::test]
async fn a_client_that_never_responds_blocks_only_its_own_requests() {
    let (_server, mut client, session) = open().await;
    let waiting: Vec<_> = (0..256).map(|n| ask(&session, &format!("{n}.test"))).collect();
    let mut ids = Vec::new();
    for _ in &waiting {
        ids.push(asked(&mut client).await["id"].clone());
    }
    assert_eq!(ask(&session, "one.more.test").await.unwrap(), Err(RequestFailure::TooMany));
    client.start("p", "echo fine", json!({})).await;
    let output = client.notification().await;
    assert_eq!(output["params"]["chunk"], "ZmluZQo=");
    answer(&mut client, &ids[0], json!({"type": "allow"})).await;
    let place_is_free = ask_once_free(&session, &mut client).await;
    assert_eq!(place_is_free["id"], 257);
    assert_eq!(waiting.iter().filter(|question| !question.is_finished()).count(), 255);
    client.cut().await;
    session.end();
    for question in waiting {
        let _ = question.await.unwrap();
    }
}

/// Asks once the server has freed a slot for the question, and returns the request that arrives.
async fn ask_once_free(session: &Arc<Session>, client: &mut RpcClient<Served>) -> Value {
    settle(client).await;
    drop(ask(session, "next.test"));
    asked(client).await
}

#[tokio::test]
async fn an_in_process_client_gets_requests_through_its_handler() {
    let server = Server::new(ServerConfig::default(), Launcher::plain());
    let link = server.connect_in_process("local").unwrap();
    let session = server.state().sessions.all().pop().unwrap();
    let refused = ask(&session, "a.test").await.unwrap().unwrap_err();
    assert!(matches!(refused, RequestFailure::Refused(error) if error.code == -32601));

    let (handler, mut questions) = handler();
    link.handle_requests(Arc::clone(&handler) as Arc<dyn ServerRequestHandler>);
    let answered = ask(&session, "a.test");
    let (_, respond) = questions.recv().await.unwrap();
    respond.0(Ok(ServerCallResponse::NetworkPolicyRequest(allowed().unwrap())));
    assert_eq!(answered.await.unwrap(), allowed());

    let dropped = ask(&session, "a.test");
    drop(questions.recv().await.unwrap());
    assert_eq!(dropped.await.unwrap(), Err(RequestFailure::Dropped));

    session.notify(decision_about("a.test"));
    let notified = handler.notified.lock().unwrap().pop();
    let expected = ServerNotification::NetworkPolicyDecision(decision_about("a.test"));
    assert_eq!(notified, Some(expected));

    let ended = ask(&session, "a.test");
    let unanswered = questions.recv().await.unwrap();
    drop(link);
    assert_eq!(ended.await.unwrap(), Err(RequestFailure::SessionEnded));
    drop(unanswered);
}

#[tokio::test]
async fn undeliverable_notifications_are_dropped_and_counted() {
    let (_server, mut client, session) = open().await;
    let dropped = || session.dropped_notifications.load(Ordering::Relaxed);
    session.notify(decision_about("a.test"));
    let notification = client.notification().await;
    assert_eq!(notification["method"], "network/policyDecision");
    assert_eq!(notification["params"]["source"], "baseline_policy");
    assert_eq!(dropped(), 0);

    // Nothing is sent in the meantime: this test does not yield to the writer.
    let mut sent = 0;
    while dropped() == 0 {
        session.notify(decision_about("b.test"));
        sent += 1;
    }
    for _ in 1..sent {
        assert_eq!(client.notification().await["params"]["host"], "b.test");
    }
    settle(&mut client).await;
    client.cut().await;
    session.notify(decision_about("c.test"));
    assert_eq!(dropped(), 2);
}
