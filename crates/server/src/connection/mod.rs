//! One connection: a reader that decodes and schedules requests, a writer that sends, and the handle by
//! which the rest of the server knows it.

mod answers;
mod bodies;
mod feed;
mod files;
mod handle;
mod handlers;
mod lanes;
mod named;
mod outbox;
mod reader;
mod responder;
mod window;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use exec_server_transport::{CloseCode, Connection, TransportKind};

pub(crate) use feed::{Audience, Confirms};
pub(crate) use handle::{ConnectionHandle, ConnectionId};

use crate::server::Shared;
use reader::Reader;

/// How long a peer has to take the last answers and events.
pub(crate) const FAREWELL: Duration = Duration::from_secs(1);

/// Before `initialize` a client has no reason to send more.
const MAX_FIRST_MESSAGE_BYTES: usize = 1 << 20;

/// How a connection came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// It is lost, or one side has closed it.
    ByPeer,
    /// It holds most of a budget that is used up.
    OverBudget,
}

/// Serves a connection to its end. What belongs to its session outlives it, except on stdio, where
/// there is nobody to come back.
pub(crate) async fn serve(shared: Arc<Shared>, connection: Connection) {
    let Connection { mut incoming, mut outgoing, prober, kind, peer } = connection;
    let is_socket = matches!(kind, TransportKind::WebSocket | TransportKind::Unix);
    if is_socket && shared.guests.may_include(peer, &shared.files).await {
        tracing::warn!("refused a connection that may come from inside a sandbox of this server");
        outgoing.close(CloseCode::Policy, "may come from inside a sandbox of this server").await;
        return;
    }
    let memory = shared.memory.share();
    incoming.charge_to(&memory);
    incoming.limit_messages(MAX_FIRST_MESSAGE_BYTES);
    let handle = ConnectionHandle::new(shared.next_connection(), memory.clone(), prober);
    let handle = Arc::new(handle);
    let _registered = shared.connections.register(&handle);
    let log_bytes = shared.config.retained_output_bytes_per_process;
    let writer = tokio::spawn(writer::write(Arc::clone(handle.outbox()), outgoing, log_bytes));

    let mut reader = Reader::new(Arc::clone(&shared), Arc::clone(&handle));
    let ending = tokio::select! {
        () = reader.run(&mut incoming) => Ending::ByPeer,
        () = handle.outbox().closed() => Ending::ByPeer,
        () = memory.exceeded() => Ending::OverBudget,
    };
    if ending == Ending::OverBudget {
        tracing::warn!("closing the connection that buffers most: max_buffered_bytes is used up");
        incoming.close(CloseCode::Again, "the server's memory for messages is used up");
        handle.outbox().close();
    } else if kind == TransportKind::Stdio {
        // The peer has said all it had to say, and may still be reading.
        let grace = shared.config.shutdown_grace_period;
        let _ = tokio::time::timeout(grace, reader.begin_all()).await;
        reader.end_processes();
        handle.files.cancel_searches();
        let _ = tokio::time::timeout(grace, shared.files.idle()).await;
        let _ = tokio::time::timeout(FAREWELL, reader.finish()).await;
    }
    if let Some(session) = reader.into_session() {
        if kind == TransportKind::Stdio {
            shared.end_session(&session).await;
        } else if let Some(until) = session.detach(handle.id()) {
            shared.expire_later(&session, until);
        }
    }
    handle.lose_session();
    handle.outbox().close();
    handle.files.end();
    if kind == TransportKind::Stdio {
        // The program is about to end, and temporary files are to go before it.
        let _ = tokio::time::timeout(FAREWELL, shared.files.idle()).await;
    }
    if ending == Ending::OverBudget {
        // What it still sends is thrown away: a socket closed over unread bytes is reset, and a reset
        // overtakes the close frame with the reason.
        while incoming.recv().await.is_some() {}
    }
    drop(incoming);
    if let Err(error) = writer.await {
        tracing::error!(%error, "the writer of a connection failed");
    }
}
