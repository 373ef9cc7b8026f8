//! What a person is told about a connection that is away: nothing, unless it takes long.

use std::convert::Infallible;
use std::time::Duration;

use exec_server_client::ConnectionState;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

const PATIENCE: Duration = Duration::from_secs(2);

pub(crate) fn is_away(state: &ConnectionState) -> bool {
    matches!(state, ConnectionState::Recovering { .. })
}

/// Tells once of each loss that lasts, and nothing when it is over. Never returns.
pub(crate) async fn remark(
    mut state: watch::Receiver<ConnectionState>,
    tell: impl Fn(&str),
) -> Infallible {
    while let Ok(since) = state.wait_for(is_away).await.map(|state| away_since(&state)) {
        let back = state.wait_for(|state| !is_away(state));
        if timeout_at(since + PATIENCE, back).await.is_err() {
            tell("connection lost, reconnecting…");
            let _ = state.wait_for(|state| !is_away(state)).await;
        }
    }
    std::future::pending().await
}

fn away_since(state: &ConnectionState) -> Instant {
    match state {
        ConnectionState::Recovering { since, .. } => Instant::from_std(*since),
        _ => Instant::now(),
    }
}
