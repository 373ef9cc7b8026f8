//! The events that the driver waits for. Each function pends forever if there is nothing to wait
//! for.

use std::future;

use exec_server_transport::{Connection, Incoming, Outgoing, Received};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::ConnectError;
use crate::connector::Dialing;
use crate::recovery::Generation;

/// Resolves when the caller of `connect` has stopped waiting for the first connection.
pub(super) async fn nobody_waits<T>(opened: &mut Option<oneshot::Sender<T>>) {
    match opened {
        Some(opened) => opened.closed().await,
        None => future::pending().await,
    }
}

pub(super) async fn receive(incoming: Option<&mut Incoming>) -> Option<Received> {
    match incoming {
        Some(incoming) => incoming.recv().await,
        None => future::pending().await,
    }
}

/// Writes buffered data, or the next control frame such as a pong. Cancel-safe.
pub(super) async fn write(outgoing: Option<&mut Outgoing>) -> std::io::Result<()> {
    let Some(outgoing) = outgoing else { return future::pending().await };
    if outgoing.buffered() == 0 {
        outgoing.control_pending().await;
    }
    outgoing.flush().await
}

pub(super) async fn dialled(
    dialing: &mut Option<(Generation, Dialing)>,
) -> (Generation, Result<Connection, ConnectError>) {
    let Some((generation, attempt)) = dialing else { return future::pending().await };
    let generation = *generation;
    let outcome = attempt.await;
    *dialing = None;
    (generation, outcome)
}

pub(super) async fn sleep_until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => future::pending().await,
    }
}
