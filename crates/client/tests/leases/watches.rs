//! Watches.

use std::pin::pin;

use exec_server_client::{Changes, ExecServerClient, ExecServerError, WatchEvents};
use exec_server_protocol::{FsWatchParams, PathUri};
use exec_server_test_support::ScriptedServer;
use serde_json::{Value, json};

use crate::peer::{connected, round_trip};

fn params() -> FsWatchParams {
    let path = PathUri::from_path("/link").unwrap();
    FsWatchParams { path, watch_id: String::new(), recursive: true, sandbox: None }
}

async fn serve_watch(peer: &mut ScriptedServer) -> Value {
    let (id, params) = peer.expect("fs/watch").await;
    assert_eq!(params["path"], "file:///link");
    peer.answer(&id, &json!({"path": "file:///real"})).await;
    params["watchId"].clone()
}

async fn watching(client: &ExecServerClient, peer: &mut ScriptedServer) -> (WatchEvents, Value) {
    let (watch, id) = tokio::join!(client.watch(params()), serve_watch(peer));
    (watch.unwrap(), id)
}

fn created(watch_id: &Value, name: &str) -> Value {
    let path = format!("file:///real/{name}");
    let changes = json!([{"path": path, "kind": "created"}]);
    json!({"watchId": watch_id, "changedPaths": [path], "changes": changes})
}

async fn names(watch: &mut WatchEvents) -> Vec<String> {
    let Changes { changes, rescan } = watch.next().await.unwrap().unwrap();
    assert!(!rescan);
    changes.iter().map(|change| change.path.to_string().replace("file:///real/", "")).collect()
}

#[tokio::test]
async fn changes_arrive_in_batches_and_overflow_as_a_rescan() {
    let (client, _listening, mut peer) = connected().await;
    let (mut watch, id) = watching(&client, &mut peer).await;
    assert_eq!(watch.path().to_string(), "file:///real");
    peer.notify("fs/changed", &created(&id, "a")).await;
    assert_eq!(names(&mut watch).await, ["a"]);
    for name in ["b", "c"] {
        peer.notify("fs/changed", &created(&id, name)).await;
    }
    round_trip(&mut peer, &client).await;
    assert_eq!(names(&mut watch).await, ["b", "c"]);
    for number in 0..=10_000 {
        peer.notify("fs/changed", &created(&id, &number.to_string())).await;
    }
    round_trip(&mut peer, &client).await;
    let told = watch.next().await.unwrap().unwrap();
    assert!(told.rescan && told.changes.is_empty());
}

#[tokio::test]
async fn a_watch_survives_a_lost_connection_with_a_rescan() {
    let (client, mut listening, mut peer) = connected().await;
    let (mut watch, mut id) = watching(&client, &mut peer).await;
    for round in 0..3 {
        drop(peer);
        peer = listening.accept().await;
        let renewed = async {
            // The connection is lost again, before the response to `fs/watch`.
            if round == 1 {
                peer.expect("fs/watch").await;
                drop(peer);
                peer = listening.accept().await;
            }
            (serve_watch(&mut peer).await, peer)
        };
        let (told, (new_id, same_peer)) = tokio::join!(watch.next(), renewed);
        assert_eq!(told.unwrap().unwrap(), Changes { changes: Vec::new(), rescan: true });
        assert_ne!(new_id, id);
        (id, peer) = (new_id, same_peer);
        peer.notify("fs/changed", &created(&id, "after")).await;
        assert_eq!(names(&mut watch).await, ["after"]);
    }
    drop(watch);
    assert_eq!(peer.expect("fs/unwatch").await.1["watchId"], id);
}

#[tokio::test]
async fn a_watch_that_cannot_be_renewed_ends_with_the_error() {
    let (client, mut listening, mut peer) = connected().await;
    let (mut watch, _) = watching(&client, &mut peer).await;
    drop(peer);
    let refusing = async {
        let mut peer = listening.accept().await;
        let (id, _) = peer.expect("fs/watch").await;
        peer.refuse(&id, "no such path").await;
        peer
    };
    let (told, mut peer) = tokio::join!(watch.next(), refusing);
    assert!(matches!(told, Some(Err(ExecServerError::Server(_)))), "{told:?}");
    assert!(watch.next().await.is_none());
    drop(watch);
    round_trip(&mut peer, &client).await;
}

#[tokio::test]
async fn next_may_be_dropped_while_the_watch_is_renewed() {
    let (client, mut listening, mut peer) = connected().await;
    let (mut watch, _) = watching(&client, &mut peer).await;
    drop(peer);
    let mut peer = listening.accept().await;
    let (id, _) = tokio::select! {
        told = watch.next() => panic!("{told:?} before the watch was renewed"),
        request = peer.expect("fs/watch") => request,
    };
    peer.answer(&id, &json!({"path": "file:///real"})).await;
    assert!(watch.next().await.unwrap().unwrap().rescan);
}

#[tokio::test]
async fn dropping_the_future_of_a_watch_releases_it() {
    let (client, _listening, mut peer) = connected().await;
    let (id, params_of_watch) = {
        let mut watch = pin!(client.watch(params()));
        tokio::select! {
            _ = &mut watch => panic!("no response was sent"),
            request = peer.expect("fs/watch") => request,
        }
    };
    // No `fs/unwatch` before the response: requests may overtake each other.
    round_trip(&mut peer, &client).await;
    peer.answer(&id, &json!({"path": "file:///real"})).await;
    assert_eq!(peer.expect("fs/unwatch").await.1["watchId"], params_of_watch["watchId"]);
}

#[tokio::test]
async fn closing_a_client_ends_its_watches() {
    let (client, _listening, mut peer) = connected().await;
    let (mut watch, _) = watching(&client, &mut peer).await;
    let closing = async {
        let (id, _) = peer.expect("session/close").await;
        peer.answer(&id, &json!({})).await;
    };
    tokio::join!(client.close(), closing).0.unwrap();
    assert!(matches!(watch.next().await, Some(Err(ExecServerError::Closed))));
    assert!(watch.next().await.is_none());
    assert!(matches!(client.watch(params()).await, Err(ExecServerError::Closed)));
}

#[tokio::test]
async fn an_unreadable_notification_fails_only_its_watch() {
    let (client, _listening, mut peer) = connected().await;
    let (mut broken, broken_id) = watching(&client, &mut peer).await;
    let (mut whole, whole_id) = watching(&client, &mut peer).await;
    peer.notify("fs/changed", &json!({"watchId": broken_id, "changedPaths": 7})).await;
    let error = broken.next().await.unwrap().unwrap_err();
    assert!(matches!(error, ExecServerError::ProtocolViolation(_)), "{error}");
    let (_, given_up) = peer.expect("fs/unwatch").await;
    assert_eq!(given_up["watchId"], broken_id);
    peer.notify("fs/changed", &created(&whole_id, "a")).await;
    assert_eq!(names(&mut whole).await, ["a"]);

    // Without an id, nothing else from the server can be relied on.
    peer.notify("fs/changed", &json!({"changedPaths": []})).await;
    let error = whole.next().await.unwrap().unwrap_err();
    assert!(!matches!(error, ExecServerError::Server(_)), "{error}");
    assert!(matches!(
        *client.connection_state().borrow(),
        exec_server_client::ConnectionState::Failed(_)
    ));
}
