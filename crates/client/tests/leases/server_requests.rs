//! Requests from the server to the client.

use std::sync::{Arc, Mutex, OnceLock};

use exec_server_client::{
    ExecServerClient, ExecServerClientConnectOptions, NetworkDecisionHandler, NetworkRequestHandler,
};
use exec_server_protocol::{
    Call, EventSink, NetworkDecision, NetworkPolicyDecisionNotification,
    NetworkPolicyRequestParams, NetworkPolicyResponse, Respond, RpcError, ServerCall,
    ServerCallResponse, ServerLink, ServerNotification, ServerRequestHandler,
};
use exec_server_test_support::ScriptedServer;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use crate::peer::{connected, connected_with, round_trip};

/// A question to the client's handler, and the sender of its decision.
type Asked = (NetworkPolicyRequestParams, oneshot::Sender<NetworkDecision>);

/// Options with a handler whose decisions the test makes.
fn deciding() -> (ExecServerClientConnectOptions, mpsc::Receiver<Asked>) {
    let (sender, questions) = mpsc::channel(1000);
    let handler = NetworkRequestHandler::new(move |params| {
        let sender = sender.clone();
        async move {
            assert_ne!(params.request.host, "panic.test");
            let (decide, decision) = oneshot::channel();
            sender.send((params, decide)).await.unwrap();
            decision.await.unwrap()
        }
    });
    let on_network_request = Some(handler);
    (ExecServerClientConnectOptions { on_network_request, ..Default::default() }, questions)
}

fn params(host: &str) -> Value {
    json!({"processId": "p", "request": {"protocol": "socks5_tcp", "host": host, "port": 22}})
}

async fn ask(peer: &mut ScriptedServer, id: i64, host: &str) {
    peer.ask(&json!(id), "network/policyRequest", &params(host)).await;
}

fn decision() -> Value {
    json!({
        "processId": "p", "timestamp": "2026-01-01T00:00:00Z", "scope": "domain",
        "decision": "deny", "source": "decider", "reason": "no", "protocol": "http",
        "host": "a.test", "port": 80, "method": "GET", "policyOverride": false,
    })
}

#[tokio::test]
async fn the_handler_may_answer_in_any_order() {
    let (options, mut questions) = deciding();
    let (client, _listening, mut peer) = connected_with(options, true).await;
    ask(&mut peer, 1, "a.test").await;
    let (first, decide_first) = questions.recv().await.unwrap();
    assert_eq!(serde_json::to_value(first).unwrap(), params("a.test"));
    ask(&mut peer, 2, "b.test").await;
    let (_, decide_second) = questions.recv().await.unwrap();
    round_trip(&mut peer, &client).await;
    decide_second.send(NetworkDecision::Allow).unwrap();
    let allowed = json!({"id": 2, "result": {"decision": {"type": "allow"}}});
    assert_eq!(peer.receive().await, allowed);
    decide_first.send(NetworkDecision::ask("later")).unwrap();
    let asked = json!({"id": 1, "result": {"decision": {"type": "ask", "reason": "later"}}});
    assert_eq!(peer.receive().await, asked);
}

#[tokio::test]
async fn a_client_without_a_handler_denies() {
    let (client, _listening, mut peer) = connected().await;
    ask(&mut peer, 1, "a.test").await;
    let answer = peer.receive().await;
    assert_eq!((&answer["id"], &answer["result"]["decision"]["type"]), (&json!(1), &json!("deny")));
    round_trip(&mut peer, &client).await;
}

#[tokio::test]
async fn unknown_and_unreadable_requests_get_an_error() {
    let (options, _questions) = deciding();
    let (client, _listening, mut peer) = connected_with(options, true).await;
    for (id, method, code) in [
        (json!("probe"), "connection/probe", -32601),
        (json!(1), "future/request", -32601),
        (json!(2), "network/policyRequest", -32602),
    ] {
        peer.ask(&id, method, &json!({})).await;
        let answer = peer.receive().await;
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&id, &json!(code)));
    }
    round_trip(&mut peer, &client).await;
}

#[tokio::test]
async fn a_panicking_handler_fails_only_its_request() {
    let (options, mut questions) = deciding();
    let (client, _listening, mut peer) = connected_with(options, true).await;
    ask(&mut peer, 1, "panic.test").await;
    let answer = peer.receive().await;
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(1), &json!(-32603)));
    ask(&mut peer, 2, "a.test").await;
    questions.recv().await.unwrap().1.send(NetworkDecision::Allow).unwrap();
    assert_eq!(peer.receive().await["id"], 2);
    round_trip(&mut peer, &client).await;
}

#[tokio::test]
async fn a_response_goes_only_to_the_connection_of_its_request() {
    let (options, mut questions) = deciding();
    let (client, mut listening, mut peer) = connected_with(options, true).await;
    ask(&mut peer, 1, "a.test").await;
    let (_, mut decide) = questions.recv().await.unwrap();
    drop(peer);
    // The handler's future is dropped.
    decide.closed().await;
    let mut peer = listening.accept().await;
    ask(&mut peer, 1, "a.test").await;
    let (_, decide) = questions.recv().await.unwrap();
    round_trip(&mut peer, &client).await;
    decide.send(NetworkDecision::Allow).unwrap();
    let answer = json!({"id": 1, "result": {"decision": {"type": "allow"}}});
    assert_eq!(peer.receive().await, answer);
}

#[tokio::test]
async fn the_number_of_unanswered_requests_is_bounded() {
    let (options, mut questions) = deciding();
    let (client, _listening, mut peer) = connected_with(options, true).await;
    let mut open = Vec::new();
    for id in 1..=256 {
        ask(&mut peer, id, "a.test").await;
        open.push(questions.recv().await.unwrap().1);
    }
    ask(&mut peer, 257, "a.test").await;
    let refused = peer.receive().await;
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!(257), &json!(-32603)));
    round_trip(&mut peer, &client).await;
    open.pop().unwrap().send(NetworkDecision::Allow).unwrap();
    assert_eq!(peer.receive().await["id"], 256);
    ask(&mut peer, 258, "a.test").await;
    questions.recv().await.unwrap();
}

#[tokio::test]
async fn closing_a_client_aborts_its_handlers() {
    let (options, mut questions) = deciding();
    let (client, _listening, mut peer) = connected_with(options, true).await;
    ask(&mut peer, 1, "a.test").await;
    let (_, mut decide) = questions.recv().await.unwrap();
    drop(client);
    decide.closed().await;
}

#[tokio::test]
async fn decisions_are_reported() {
    let (sender, mut decisions) = mpsc::channel(10);
    let take = move |decision| sender.try_send(decision).unwrap();
    let options = ExecServerClientConnectOptions {
        on_network_decision: Some(NetworkDecisionHandler::new(take)),
        ..Default::default()
    };
    let (client, _listening, mut peer) = connected_with(options, true).await;
    peer.notify("network/policyDecision", &json!({"processId": "p"})).await;
    peer.notify("network/policyDecision", &decision()).await;
    let reported = decisions.recv().await.unwrap();
    assert_eq!(serde_json::to_value(reported).unwrap(), decision());
    round_trip(&mut peer, &client).await;

    let (client, _listening, mut peer) = connected().await;
    peer.notify("network/policyDecision", &decision()).await;
    round_trip(&mut peer, &client).await;
}

/// An in-process server that only sends requests.
#[derive(Debug, Default)]
struct AskingServer(OnceLock<Arc<dyn ServerRequestHandler>>);

impl ServerLink for AskingServer {
    fn session_id(&self) -> &'static str {
        "s"
    }

    fn call(&self, _: Call, _: Option<Arc<dyn EventSink>>, respond: Respond) {
        respond(Err(RpcError::internal("this server only asks")));
    }

    fn handle_requests(&self, handler: Arc<dyn ServerRequestHandler>) {
        self.0.set(handler).unwrap();
    }
}

impl AskingServer {
    /// The response never arrives if the client drops the request.
    fn ask(&self, host: &str) -> oneshot::Receiver<Result<ServerCallResponse, RpcError>> {
        let (sender, receiver) = oneshot::channel();
        let params = serde_json::from_value(params(host)).unwrap();
        let respond = Box::new(move |response| drop(sender.send(response)));
        self.0.get().unwrap().request(ServerCall::NetworkPolicyRequest(params), respond);
        receiver
    }
}

fn decided(decision: NetworkDecision) -> ServerCallResponse {
    ServerCallResponse::NetworkPolicyRequest(NetworkPolicyResponse { decision })
}

#[tokio::test]
async fn an_in_process_client_answers_requests() {
    let server = Arc::new(AskingServer::default());
    let (options, mut questions) = deciding();
    let reported = Arc::new(Mutex::new(Vec::new()));
    let taken = Arc::clone(&reported);
    let take = move |decision| taken.lock().unwrap().push(decision);
    let on_network_decision = Some(NetworkDecisionHandler::new(take));
    let options = ExecServerClientConnectOptions { on_network_decision, ..options };
    let link = Arc::clone(&server) as Arc<dyn ServerLink>;
    let client = ExecServerClient::connect_in_process_with(link, &options);

    let answer = server.ask("a.test");
    questions.recv().await.unwrap().1.send(NetworkDecision::Allow).unwrap();
    assert_eq!(answer.await.unwrap(), Ok(decided(NetworkDecision::Allow)));
    assert!(server.ask("panic.test").await.is_err());

    let decision: NetworkPolicyDecisionNotification = serde_json::from_value(decision()).unwrap();
    let notification = ServerNotification::NetworkPolicyDecision(decision.clone());
    server.0.get().unwrap().notify(notification);
    assert_eq!(*reported.lock().unwrap(), [decision]);

    let mut open = Vec::new();
    for _ in 0..256 {
        let answer = server.ask("a.test");
        open.push((answer, questions.recv().await.unwrap()));
    }
    assert_eq!(server.ask("a.test").await.unwrap().unwrap_err().code, -32603);
    drop(client);
    for (answer, (_, mut decide)) in open {
        decide.closed().await;
        assert!(answer.await.is_err());
    }
}

#[tokio::test]
async fn an_in_process_client_denies_without_a_handler() {
    let server = Arc::new(AskingServer::default());
    let link = Arc::clone(&server) as Arc<dyn ServerLink>;
    let _client = ExecServerClient::connect_in_process(link);
    let answer = server.ask("a.test").await.unwrap().unwrap();
    let ServerCallResponse::NetworkPolicyRequest(response) = answer;
    assert!(matches!(response.decision, NetworkDecision::Deny { .. }));
}
