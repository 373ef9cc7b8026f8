//! File handles.

use exec_server_client::{ConnectionState, ExecServerClient, ExecServerError, NewFile, OpenFile};
use exec_server_protocol::{FsCreateParams, FsOpenParams, PathUri};
use exec_server_test_support::ScriptedServer;
use serde_json::{Value, json};

use crate::peer::{connected, round_trip};

fn path() -> PathUri {
    PathUri::from_path("/a").unwrap()
}

fn open_params() -> FsOpenParams {
    let (path, handle_id) = (path(), String::new());
    FsOpenParams { path, handle_id, follow_symlinks: None, details: false, sandbox: None }
}

fn open_response(params: &Value) -> Value {
    json!({"handleId": params["handleId"], "metadata": metadata()})
}

fn metadata() -> Value {
    json!({
        "isDirectory": false, "isFile": true, "isSymlink": false, "size": 5,
        "createdAtMs": 0, "modifiedAtMs": 0,
    })
}

async fn opened(client: &ExecServerClient, peer: &mut ScriptedServer) -> (OpenFile, Value) {
    let serving = async {
        let (id, params) = peer.expect("fs/open").await;
        peer.answer(&id, &open_response(&params)).await;
        params["handleId"].clone()
    };
    let (file, id) = tokio::join!(client.open_file(open_params()), serving);
    (file.unwrap(), id)
}

async fn created(client: &ExecServerClient, peer: &mut ScriptedServer) -> (NewFile, Value) {
    let serving = async {
        let (id, params) = peer.expect("fs/create").await;
        peer.answer(&id, &json!({"handleId": params["handleId"], "size": 7})).await;
        params["handleId"].clone()
    };
    let creating = client.create_file(FsCreateParams::new(path(), ""));
    let (file, id) = tokio::join!(creating, serving);
    (file.unwrap(), id)
}

#[tokio::test]
async fn dropping_a_handle_closes_it() {
    let (client, _listening, mut peer) = connected().await;
    let (file, read_id) = opened(&client, &mut peer).await;
    drop(file);
    assert_eq!(peer.expect("fs/close").await.1, json!({"handleId": read_id}));
    let (file, written_id) = created(&client, &mut peer).await;
    assert_eq!(file.written(), 7);
    assert_ne!(written_id, read_id);
    drop(file);
    let closed = peer.expect("fs/close").await.1;
    assert_eq!(closed, json!({"handleId": written_id, "keep": true}));
}

#[tokio::test]
async fn a_commit_closes_once() {
    let (client, _listening, mut peer) = connected().await;
    let (file, id) = created(&client, &mut peer).await;
    let serving = async {
        let (call, params) = peer.expect("fs/close").await;
        assert_eq!(params, json!({"handleId": id}));
        peer.answer(&call, &json!({"committed": true, "size": 9})).await;
    };
    let (committed, ()) = tokio::join!(file.commit(), serving);
    assert_eq!(committed.unwrap().size, Some(9));
    round_trip(&mut peer, &client).await;
}

#[tokio::test]
async fn a_commit_of_an_unknown_handle_is_interrupted() {
    let (client, _listening, mut peer) = connected().await;
    let (file, _) = created(&client, &mut peer).await;
    let serving = async {
        let (call, _) = peer.expect("fs/close").await;
        peer.answer(&call, &json!({})).await;
    };
    let (committed, ()) = tokio::join!(file.commit(), serving);
    let error = committed.unwrap_err();
    assert!(matches!(error, ExecServerError::Interrupted { method: "fs/close" }), "{error}");
}

#[tokio::test]
async fn a_lost_connection_ends_handles_at_once() {
    let (client, mut listening, mut peer) = connected().await;
    let (file, _) = opened(&client, &mut peer).await;
    let (new, _) = created(&client, &mut peer).await;
    let reading = async { tokio::join!(file.read_block(0, 9), file.read_block(9, 9)) };
    let cutting = async {
        peer.expect("fs/readBlock").await;
        drop(peer);
    };
    // The next connection has not been accepted yet.
    let ((first, second), ()) = tokio::join!(reading, cutting);
    for error in [first.unwrap_err(), second.unwrap_err()] {
        assert!(
            matches!(error, ExecServerError::Interrupted { method: "fs/readBlock" }),
            "{error}"
        );
    }
    assert!(matches!(*client.connection_state().borrow(), ConnectionState::Recovering { .. }));
    let error = new.commit().await.unwrap_err();
    assert!(matches!(error, ExecServerError::Interrupted { method: "fs/close" }), "{error}");

    let mut peer = listening.accept().await;
    let error = file.read_block(0, 9).await.unwrap_err();
    assert!(matches!(error, ExecServerError::Interrupted { method: "fs/readBlock" }), "{error}");
    drop(file);
    round_trip(&mut peer, &client).await;
}

#[tokio::test]
async fn a_handle_unknown_to_the_next_connection_is_interrupted() {
    let (client, mut listening, mut peer) = connected().await;
    let (file, _) = opened(&client, &mut peer).await;
    let mut reading = Box::pin(file.read_block(0, 9));
    // The call is sent, but not polled again until the client has reconnected.
    tokio::select! {
        biased;
        read = &mut reading => panic!("{read:?}"),
        () = std::future::ready(()) => {}
    }
    peer.expect("fs/readBlock").await;
    drop(peer);
    let mut peer = listening.accept().await;
    let (id, _) = peer.expect("fs/readBlock").await;
    peer.refuse(&id, "handleId \"1\" is not open on this connection").await;
    round_trip(&mut peer, &client).await;
    let error = reading.await.unwrap_err();
    assert!(matches!(error, ExecServerError::Interrupted { method: "fs/readBlock" }), "{error}");
}

#[tokio::test]
async fn opening_waits_for_the_next_connection() {
    let (client, mut listening, mut peer) = connected().await;
    let serving = async {
        let (_, lost) = peer.expect("fs/open").await;
        drop(peer);
        let mut peer = listening.accept().await;
        let (id, params) = peer.expect("fs/open").await;
        assert_ne!(params["handleId"], lost["handleId"]);
        peer.answer(&id, &open_response(&params)).await;
        peer
    };
    let (file, mut peer) = tokio::join!(client.open_file(open_params()), serving);
    drop(file.unwrap());
    peer.expect("fs/close").await;
}

#[tokio::test]
async fn metadata_is_read_by_path_if_the_server_reports_none() {
    let (client, _listening, mut peer) = connected().await;
    let serving = async {
        let (id, params) = peer.expect("fs/open").await;
        assert_eq!(params["details"], true);
        peer.answer(&id, &json!({"handleId": params["handleId"]})).await;
        let (id, params) = peer.expect("fs/getMetadata").await;
        assert_eq!(params["path"], "file:///a");
        peer.answer(&id, &metadata()).await;
    };
    let (file, ()) = tokio::join!(client.open_file(open_params()), serving);
    assert_eq!(file.unwrap().metadata().size, 5);
}
