//! Messages about a lost connection. Short outages are not reported.

use std::convert::Infallible;
use std::time::Duration;

use exec_server_client::ConnectionState;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

/// Shorter outages are not reported.
const REPORT_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) fn is_away(state: &ConnectionState) -> bool {
    matches!(state, ConnectionState::Recovering { .. })
}

/// Reports each long outage and, with `says_end`, that the client has reconnected. Never returns.
pub(crate) async fn report(
    mut state: watch::Receiver<ConnectionState>,
    tell: impl Fn(&str),
    says_end: bool,
) -> Infallible {
    while let Ok(since) = state.wait_for(is_away).await.map(|state| away_since(&state)) {
        let back = state.wait_for(|state| !is_away(state));
        if timeout_at(since + REPORT_TIMEOUT, back).await.is_err() {
            tell("connection lost, reconnecting… (Ctrl-C gives up)");
            let back = state.wait_for(|state| !is_away(state)).await;
            if says_end && back.is_ok_and(|state| matches!(*state, ConnectionState::Connected)) {
                tell("connected again");
            }
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
