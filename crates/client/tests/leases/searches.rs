//! Searches.

use std::pin::pin;

use exec_server_client::{ExecServerError, SearchResults};
use exec_server_protocol::{FsSearchParams, PathUri};
use exec_server_test_support::ScriptedServer;
use serde_json::{Value, json};

use crate::peer::{connected, round_trip};

fn params() -> FsSearchParams {
    FsSearchParams::new(PathUri::from_path("/").unwrap(), "needle")
}

fn results(search_id: &Value, lines: &[u64]) -> Value {
    let one = |line| json!({"path": "/a", "lineNumber": line, "text": "needle", "submatches": []});
    json!({"searchId": search_id, "results": lines.iter().map(one).collect::<Vec<_>>()})
}

fn summary(matches: u64) -> Value {
    json!({"matches": matches, "filesSearched": 1, "unreadable": 0, "truncated": false,
           "cancelled": false})
}

async fn lines(search: &mut SearchResults) -> Option<Vec<u64>> {
    let found = search.next().await?.unwrap();
    Some(found.iter().map(|found| found.line_number).collect())
}

/// Starts a search that has found line 1. Returns it with its request id and its search id.
async fn begun(
    client: &exec_server_client::ExecServerClient,
    peer: &mut ScriptedServer,
) -> (SearchResults, Value, Value) {
    let serving = async {
        let (id, params) = peer.expect("fs/search").await;
        peer.notify("fs/searchResults", &results(&params["searchId"], &[1])).await;
        (id, params["searchId"].clone())
    };
    let (search, (id, search_id)) = tokio::join!(client.search(params()), serving);
    (search.unwrap(), id, search_id)
}

#[tokio::test]
async fn results_arrive_as_they_are_found_before_the_summary() {
    let (client, _listening, mut peer) = connected().await;
    let (mut search, id, search_id) = begun(&client, &mut peer).await;
    assert_eq!(lines(&mut search).await, Some(vec![1]));
    assert_eq!(search.summary(), None);
    peer.notify("fs/searchResults", &results(&search_id, &[2, 3])).await;
    peer.answer(&id, &summary(3)).await;
    assert_eq!(lines(&mut search).await, Some(vec![2, 3]));
    assert_eq!(lines(&mut search).await, None);
    assert_eq!(search.summary().unwrap().matches, 3);
    drop(search);
    round_trip(&mut peer, &client).await;
}

#[tokio::test]
async fn a_search_that_finds_nothing_has_a_summary() {
    let (client, _listening, mut peer) = connected().await;
    let serving = async {
        let (id, _) = peer.expect("fs/search").await;
        peer.answer(&id, &summary(0)).await;
    };
    let (search, ()) = tokio::join!(client.search(params()), serving);
    let mut search = search.unwrap();
    assert_eq!(lines(&mut search).await, None);
    assert_eq!(search.summary().unwrap().files_searched, 1);
}

#[tokio::test]
async fn an_early_summary_is_delivered_after_the_results() {
    let (client, _listening, mut peer) = connected().await;
    let searching = async {
        let mut searching = pin!(client.search(params()));
        // The call is not polled again until the results and the response have arrived.
        let (id, search_id) = tokio::select! {
            biased;
            _ = &mut searching => panic!("no response was sent"),
            (id, params) = peer.expect("fs/search") => (id, params["searchId"].clone()),
        };
        peer.notify("fs/searchResults", &results(&search_id, &[1])).await;
        peer.answer(&id, &summary(1)).await;
        round_trip(&mut peer, &client).await;
        searching.await
    };
    let mut search = searching.await.unwrap();
    assert_eq!(search.summary(), None);
    assert_eq!(lines(&mut search).await, Some(vec![1]));
    assert_eq!(search.summary(), None);
    assert_eq!(lines(&mut search).await, None);
    assert_eq!(search.summary().unwrap().matches, 1);
}

#[tokio::test]
async fn a_bad_pattern_is_an_error_of_the_call() {
    let (client, _listening, mut peer) = connected().await;
    let serving = async {
        let (id, _) = peer.expect("fs/search").await;
        peer.refuse(&id, "unclosed group").await;
    };
    let (search, ()) = tokio::join!(client.search(params()), serving);
    assert!(search.unwrap_err().to_string().contains("unclosed group"));
    round_trip(&mut peer, &client).await;
}

#[tokio::test]
async fn dropping_a_search_or_its_future_cancels_it() {
    let (client, _listening, mut peer) = connected().await;
    let (search, id, search_id) = begun(&client, &mut peer).await;
    drop(search);
    let (_, params_of_cancel) = peer.expect("fs/cancelSearch").await;
    assert_eq!(params_of_cancel["searchId"], search_id);
    peer.answer(&id, &summary(1)).await;

    let begun = {
        let mut search = pin!(client.search(params()));
        tokio::select! {
            _ = &mut search => panic!("no response was sent"),
            begun = peer.expect("fs/search") => begun.1,
        }
    };
    let (_, params_of_cancel) = peer.expect("fs/cancelSearch").await;
    assert_eq!(params_of_cancel["searchId"], begun["searchId"]);
    assert_ne!(params_of_cancel["searchId"], search_id);
}

#[tokio::test]
async fn a_lost_connection_fails_a_search() {
    let (client, mut listening, mut peer) = connected().await;
    let (mut search, ..) = begun(&client, &mut peer).await;
    drop(peer);
    assert_eq!(lines(&mut search).await, Some(vec![1]));
    let error = search.next().await.unwrap().unwrap_err();
    assert!(matches!(error, ExecServerError::Interrupted { method: "fs/search" }), "{error}");
    assert!(search.next().await.is_none() && search.summary().is_none());
    let mut peer = listening.accept().await;
    drop(search);
    round_trip(&mut peer, &client).await;
}
