//! One connection: a reader that decodes and schedules requests, a writer that sends, and the
//! handle that the rest of the server uses.

mod client_connection;
mod delivery_window;
mod outbox;
mod outgoing_queue;
mod reader;
mod request_rate;
mod scheduler;
mod server_requests;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use exec_server_transport::{CloseCode, Connection, Peer, Refusal, RefusalReason, TransportKind};
use tokio::time::Instant;

pub(crate) use client_connection::{ClientConnection, ConnectionId, Reservation};
pub(crate) use outbox::Outbox;
pub(crate) use scheduler::RequestPermit;
pub(crate) use server_requests::RequestFailure;

use crate::dispatch::Dispatcher;
use crate::server::ServerState;
use crate::telemetry::SessionEvent;
use reader::{ReadEnd, Reader};

/// How long the end of a connection or of the server waits until the last responses and events are
/// sent, and then until temporary files are removed.
pub(crate) const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Before `initialize` a client has no reason to send larger messages.
const MAX_FIRST_MESSAGE_BYTES: usize = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// The connection was lost, the client closed it, or the server closed its outbox.
    ByPeer,
    /// The connection holds the largest part of the exhausted memory budget.
    OverBudget,
    /// The client has sent nothing for the idle timeout, and has nothing in progress.
    Idle,
}

impl Ending {
    /// Returns the code and reason of the close frame. `None`: the connection is already closed, or
    /// the writer closes it.
    fn close_frame(self) -> Option<(CloseCode, &'static str)> {
        match self {
            Self::ByPeer => None,
            Self::OverBudget => {
                Some((CloseCode::Again, "the server's memory for messages is used up"))
            }
            Self::Idle => Some((CloseCode::Policy, "idle for longer than idle_connection_timeout")),
        }
    }
}

/// Serves a connection until it ends. Its session outlives it, except on stdio, where a client
/// cannot reconnect.
pub(crate) async fn serve(state: Arc<ServerState>, connection: Connection) {
    let Connection { mut incoming, mut outgoing, prober, kind, peer, principal, permit } =
        connection;
    let is_socket = matches!(kind, TransportKind::WebSocket | TransportKind::Unix);
    let address = match &peer {
        Some(Peer::Tcp { remote, .. }) => Some(*remote),
        Some(Peer::Unix { .. }) | None => None,
    };
    if is_socket && state.sandboxed_peers.may_include(peer, &state.files).await {
        tracing::warn!(
            address = address.map(tracing::field::display),
            "refused a connection that may come from inside a sandbox of this server"
        );
        state.telemetry.connection_refused(&Refusal { address, reason: RefusalReason::Sandboxed });
        let reason = "this connection may come from inside a sandbox of this server";
        outgoing.close(CloseCode::Policy, reason).await;
        return;
    }
    let memory = state.memory.share();
    incoming.charge_to(&memory);
    incoming.limit_messages(MAX_FIRST_MESSAGE_BYTES);
    let (id, outbox) = (state.next_connection(), Arc::new(Outbox::new(&memory)));
    let connection = Arc::new(ClientConnection::over_socket(
        id,
        principal,
        address,
        &state.config,
        Arc::clone(&outbox),
        memory.clone(),
        prober,
    ));
    let _registered = state.connections.register(&connection);
    state.telemetry.connection_opened(&connection);
    let log_bytes = state.config.retained_output_bytes_per_process;
    let writer = tokio::spawn(writer::write(Arc::clone(&outbox), outgoing, log_bytes));

    let dispatcher = Dispatcher::new(Arc::clone(&state), Arc::clone(&connection));
    let mut reader = Reader::new(dispatcher, Arc::clone(&outbox), &memory);
    // A client on stdio cannot reconnect.
    let idle_timeout = match kind {
        TransportKind::Stdio => Duration::ZERO,
        _ => state.config.idle_connection_timeout,
    };
    let ending = tokio::select! {
        end = reader.run(&mut incoming, idle_timeout) => match end {
            ReadEnd::Over => Ending::ByPeer,
            ReadEnd::Idle => Ending::Idle,
        },
        () = outbox.closed() => Ending::ByPeer,
        () = memory.exceeded() => Ending::OverBudget,
    };
    if ending == Ending::OverBudget {
        tracing::warn!(
            connection = id.0,
            address = address.map(tracing::field::display),
            "closing the connection that buffers most: max_buffered_bytes is used up"
        );
    }
    if let Some((code, reason)) = ending.close_frame() {
        incoming.close(code, reason);
        outbox.close();
    } else if kind == TransportKind::Stdio {
        // Stdin may have ended while the peer still reads stdout.
        let grace = state.config.shutdown_grace_period;
        let _ = tokio::time::timeout(grace, reader.begin_all()).await;
        reader.end_processes();
        connection.resources.files.cancel_searches();
        let _ = tokio::time::timeout(grace, state.files.idle()).await;
        let _ = tokio::time::timeout(FLUSH_TIMEOUT, reader.finish()).await;
    }
    if let Some(session) = reader.into_session() {
        if kind == TransportKind::Stdio {
            state.end_session(&session, Some(&connection)).await;
        } else if let Some(until) = session.detach(connection.id(), Instant::now()) {
            state.telemetry.session(SessionEvent::Detached, &session, Some(&connection));
            state.expire_later(&session, until);
        }
    }
    connection.lose_session();
    state.telemetry.connection_closed(&connection);
    outbox.close();
    connection.resources.files.end();
    if kind == TransportKind::Stdio {
        // The program is about to end; its temporary files must be removed first.
        let _ = tokio::time::timeout(FLUSH_TIMEOUT, state.files.idle()).await;
    }
    if ending.close_frame().is_some() {
        // Discard further input: closing a socket with unread bytes resets it, and a reset
        // overtakes the close frame with the reason.
        while incoming.recv().await.is_some() {}
    }
    drop(incoming);
    if let Err(error) = writer.await {
        tracing::error!(connection = id.0, %error, "the writer of a connection failed");
    }
    drop(permit);
}
