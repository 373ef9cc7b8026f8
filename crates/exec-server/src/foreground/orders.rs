//! Orders to a process, apart from its input.

use std::cell::Cell;
use std::time::Duration;

use exec_server_client::{ExecServerClient, ExecServerError, ExecServerProcess};
use exec_server_protocol::{ErrorKind, TerminateMode, WaitParams};
use tokio::sync::mpsc;

use super::signals::{ForwardedSignal, ReceivedSignal};
use super::terminal_size;

/// The time between TERM and KILL for a process that this program ends.
pub(super) const KILL_AFTER: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) enum Order {
    Signal(ForwardedSignal),
    /// Resizes to the size that the local terminal has when the order is executed.
    Resize,
    Terminate,
}

impl Order {
    pub(super) fn from_signal(received: ReceivedSignal, has_terminal: bool) -> Option<Self> {
        match received {
            ReceivedSignal::Forward(signal) => Some(Self::Signal(signal)),
            ReceivedSignal::Resized => has_terminal.then_some(Self::Resize),
            ReceivedSignal::Stopped | ReceivedSignal::Continued => None,
        }
    }
}

/// Executes orders one after another. A call waits while the connection is lost, but neither input
/// nor output waits for the call. Most errors are ignored: they mean that the process or the
/// connection has ended, which the events of the process report too.
///
/// Resolves only when a signal that asks to end cannot take effect: the process has exited, the
/// server refuses to send the signal, or the process was already asked to end and its output is
/// blocked. Returns the number of that signal, which must then end this program: it may be waiting
/// only because its own output is read slowly or not at all.
pub(super) async fn perform(
    client: &ExecServerClient,
    process: &ExecServerProcess,
    mut orders: mpsc::Receiver<Order>,
    is_blocked: &Cell<bool>,
) -> u8 {
    let mut was_asked_to_end = false;
    while let Some(order) = orders.recv().await {
        match order {
            Order::Signal(signal) => {
                // While this program is blocked on writing output, the process may be blocked too,
                // and its end cannot be reported.
                let in_vain = (was_asked_to_end && is_blocked.get())
                    || (signal.asks_to_end && has_exited(client, process).await);
                if signal.asks_to_end && in_vain {
                    return signal.number;
                }
                was_asked_to_end |= signal.asks_to_end;
                let sent = retry_interrupted(|| process.signal(signal.name)).await;
                if signal.asks_to_end && matches!(sent, Err(ExecServerError::Server(_))) {
                    return signal.number;
                }
            }
            Order::Resize => {
                if let Some(size) = terminal_size() {
                    let _ = process.resize(size).await;
                }
            }
            Order::Terminate => {
                let _ = retry_interrupted(|| process.terminate(graceful())).await;
            }
        }
    }
    std::future::pending().await
}

/// Repeats an order interrupted by a lost connection, because it may not have arrived; so it may
/// arrive twice. The next call waits for the connection.
async fn retry_interrupted<T, F>(order: impl Fn() -> F) -> Result<T, ExecServerError>
where
    F: Future<Output = Result<T, ExecServerError>>,
{
    loop {
        match order().await {
            Err(ExecServerError::Interrupted { .. }) => {}
            done => return done,
        }
    }
}

async fn has_exited(client: &ExecServerClient, process: &ExecServerProcess) -> bool {
    let process_id = process.process_id().to_owned();
    let answer = client.process_wait(WaitParams { process_id, timeout_ms: Some(0) }).await;
    answer.map_or_else(
        |error| error.kind() == Some(&ErrorKind::UnknownProcess),
        |answer| answer.exited,
    )
}

pub(super) fn graceful() -> TerminateMode {
    TerminateMode::Graceful {
        timeout_ms: u64::try_from(KILL_AFTER.as_millis()).unwrap_or(u64::MAX),
    }
}
