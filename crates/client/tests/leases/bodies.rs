//! Bodies of HTTP responses.

use bytes::Bytes;
use exec_server_client::{ConnectionState, ExecServerClient, ExecServerError, HttpBody};
use exec_server_protocol::{Base64Bytes, HttpRequestParams};
use exec_server_test_support::ScriptedServer;
use serde_json::{Value, json};

use crate::peer::{connected, connected_to, round_trip};

fn get() -> HttpRequestParams {
    HttpRequestParams::new("GET", "http://localhost/")
}

/// Starts a streamed body. Returns it with its id.
async fn begun(client: &ExecServerClient, peer: &mut ScriptedServer) -> (HttpBody, String) {
    let request = client.http_stream(get());
    let serving = async {
        let (id, params) = peer.expect("http/request").await;
        assert_eq!((&params["streamResponse"], &params["acks"]), (&json!(true), &json!(true)));
        peer.answer(&id, &json!({"status": 200, "headers": [], "bodyBase64": ""})).await;
        params["requestId"].as_str().unwrap().to_owned()
    };
    let (answered, request_id) = tokio::join!(request, serving);
    let (head, body) = answered.unwrap();
    assert_eq!(head.status, 200);
    (body, request_id)
}

fn piece(request_id: &str, seq: u64, bytes: impl Into<Bytes>) -> Value {
    let delta = Base64Bytes::from(bytes.into());
    json!({"requestId": request_id, "seq": seq, "deltaBase64": delta, "done": false})
}

#[tokio::test]
async fn pieces_come_in_order_and_then_the_end() {
    let (client, _listening, mut peer) = connected().await;
    let (mut body, id) = begun(&client, &mut peer).await;
    peer.notify("http/request/bodyDelta", &piece(&id, 1, "one")).await;
    assert_eq!(body.next().await.unwrap().unwrap(), "one");
    peer.notify("http/request/bodyDelta", &piece(&id, 2, "two")).await;
    let mut last = piece(&id, 3, "three");
    last["done"] = json!(true);
    peer.notify("http/request/bodyDelta", &last).await;
    assert_eq!(body.next().await.unwrap().unwrap(), "two");
    assert_eq!(body.next().await.unwrap().unwrap(), "three");
    assert!(body.next().await.is_none());
    drop(body);
    round_trip(&mut peer, &client).await;
}

#[tokio::test]
async fn pieces_are_acknowledged_once_consumed() {
    let (client, _listening, mut peer) = connected().await;
    let (mut body, id) = begun(&client, &mut peer).await;
    for seq in 1..=2 {
        peer.notify("http/request/bodyDelta", &piece(&id, seq, vec![0; 1 << 20])).await;
    }
    round_trip(&mut peer, &client).await;
    for seq in 1..=2 {
        body.next().await.unwrap().unwrap();
        let ack = peer.receive().await;
        let expected =
            json!({"method": "http/request/ack", "params": {"requestId": id, "seq": seq}});
        assert_eq!(ack, expected);
    }
}

#[tokio::test]
async fn a_server_without_support_gets_no_acknowledgements_and_may_send_more() {
    let (client, _listening, mut peer) = connected_to(false).await;
    let (mut body, id) = begun(&client, &mut peer).await;
    for seq in 1..=32 {
        peer.notify("http/request/bodyDelta", &piece(&id, seq, vec![0; 1 << 20])).await;
    }
    for _ in 1..=32 {
        body.next().await.unwrap().unwrap();
    }
    round_trip(&mut peer, &client).await;
}

#[tokio::test]
async fn a_server_that_exceeds_the_window_fails_only_the_body() {
    let (client, _listening, mut peer) = connected().await;
    let (mut flooded, id) = begun(&client, &mut peer).await;
    let (mut other, other_id) = begun(&client, &mut peer).await;
    for seq in 1..=17 {
        peer.notify("http/request/bodyDelta", &piece(&id, seq, vec![0; 1 << 20])).await;
    }
    let (_, params) = peer.expect("http/cancel").await;
    assert_eq!(params["requestId"], json!(id));
    let error = loop {
        match flooded.next().await.unwrap() {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(error, ExecServerError::ProtocolViolation(_)), "{error}");
    assert!(flooded.next().await.is_none());
    peer.notify("http/request/bodyDelta", &piece(&other_id, 1, "fine")).await;
    assert_eq!(other.next().await.unwrap().unwrap(), "fine");
}

#[tokio::test]
async fn a_missing_piece_fails_the_body_and_cancels_the_request() {
    let (client, _listening, mut peer) = connected().await;
    let (mut body, id) = begun(&client, &mut peer).await;
    peer.notify("http/request/bodyDelta", &piece(&id, 1, "one")).await;
    peer.notify("http/request/bodyDelta", &piece(&id, 3, "three")).await;
    assert_eq!(body.next().await.unwrap().unwrap(), "one");
    let error = body.next().await.unwrap().unwrap_err();
    assert!(matches!(error, ExecServerError::ProtocolViolation(_)), "{error}");
    peer.expect("http/cancel").await;
}

#[tokio::test]
async fn a_failed_download_is_an_error_after_the_received_pieces() {
    let (client, _listening, mut peer) = connected().await;
    let (mut body, id) = begun(&client, &mut peer).await;
    let mut last = piece(&id, 1, "some");
    last["done"] = json!(true);
    last["error"] = json!("connection closed");
    peer.notify("http/request/bodyDelta", &last).await;
    assert_eq!(body.next().await.unwrap().unwrap(), "some");
    let error = body.next().await.unwrap().unwrap_err();
    assert!(error.to_string().contains("connection closed"), "{error}");
    assert!(body.next().await.is_none());
}

#[tokio::test]
async fn a_lost_connection_fails_the_body_at_once() {
    let (client, mut listening, mut peer) = connected().await;
    let (mut body, id) = begun(&client, &mut peer).await;
    let (mut idle, _) = begun(&client, &mut peer).await;
    peer.notify("http/request/bodyDelta", &piece(&id, 1, "one")).await;
    round_trip(&mut peer, &client).await;
    drop(peer);
    // The next connection has not been accepted yet.
    let error = idle.next().await.unwrap().unwrap_err();
    assert!(matches!(error, ExecServerError::Interrupted { method: "http/request" }), "{error}");
    assert!(matches!(*client.connection_state().borrow(), ConnectionState::Recovering { .. }));
    assert_eq!(body.next().await.unwrap().unwrap(), "one");
    assert!(body.next().await.unwrap().is_err());

    let mut peer = listening.accept().await;
    let (mut again, new_id) = begun(&client, &mut peer).await;
    assert_ne!(new_id, id);
    // Late messages from an old connection have no effect.
    peer.notify("http/request/bodyDelta", &piece(&id, 2, "late")).await;
    peer.notify("http/request/bodyDelta", &piece(&new_id, 1, "new")).await;
    assert_eq!(again.next().await.unwrap().unwrap(), "new");
    drop((body, idle));
    round_trip(&mut peer, &client).await;
}

#[tokio::test]
async fn dropping_a_body_or_its_future_cancels_the_request() {
    let (client, _listening, mut peer) = connected().await;
    let (body, id) = begun(&client, &mut peer).await;
    drop(body);
    let (_, params) = peer.expect("http/cancel").await;
    assert_eq!(params["requestId"], json!(id));

    let answered = {
        let mut request = std::pin::pin!(client.http_stream(get()));
        tokio::select! {
            _ = &mut request => panic!("no response was sent"),
            request = peer.expect("http/request") => request,
        }
    };
    let (_, params) = peer.expect("http/cancel").await;
    assert_eq!(params["requestId"], answered.1["requestId"]);
    // The response may be in flight.
    peer.answer(&answered.0, &json!({"status": 200, "headers": [], "bodyBase64": ""})).await;
    peer.expect("http/cancel").await;
}

#[tokio::test]
async fn a_whole_response_is_cancelled_only_if_its_future_is_dropped() {
    let (client, _listening, mut peer) = connected().await;
    let serving = async {
        let (id, params) = peer.expect("http/request").await;
        assert_eq!(params["streamResponse"], json!(false));
        peer.answer(&id, &json!({"status": 204, "headers": [], "bodyBase64": "aGk="})).await;
    };
    let (response, ()) = tokio::join!(client.http_fetch(get()), serving);
    assert_eq!(&response.unwrap().body_base64[..], b"hi");
    round_trip(&mut peer, &client).await;

    let params = tokio::select! {
        _ = client.http_fetch(get()) => panic!("no response was sent"),
        request = peer.expect("http/request") => request.1,
    };
    let (_, cancelled) = peer.expect("http/cancel").await;
    assert_eq!(cancelled["requestId"], params["requestId"]);
}
