//! What is said about a connection that is away while a copy goes on: nothing, unless it takes long.

use std::convert::Infallible;
use std::time::Duration;

use exec_server_client::ConnectionState;
use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(2);

/// One line for each loss that lasts. Never returns.
pub(super) async fn remark(
    states: Vec<watch::Receiver<ConnectionState>>,
    tell: impl Fn(&str),
) -> Infallible {
    join_all(states.into_iter().map(|state| remark_one(state, &tell))).await;
    std::future::pending().await
}

async fn remark_one(mut state: watch::Receiver<ConnectionState>, tell: impl Fn(&str)) {
    while state.wait_for(is_away).await.is_ok() {
        let back = state.wait_for(|state| !is_away(state));
        if timeout(PATIENCE, back).await.is_err() {
            tell("connection lost, reconnecting…");
            let _ = state.wait_for(|state| !is_away(state)).await;
        }
    }
}

fn is_away(state: &ConnectionState) -> bool {
    matches!(state, ConnectionState::Recovering { .. })
}
