//! Notifications caused by a call: changes, results, pieces of a body and, to a client in this
//! program, the events of a process. Their sender waits for the client.

use std::sync::Arc;

use exec_server_protocol::{EventSink, Offered, ServerNotification};

use crate::connection::ClientConnection;

/// The destination of the notifications of one call. Dropping it tells a client in this program
/// that no more will follow.
#[derive(Debug)]
pub(crate) enum EventStream {
    Socket(Arc<ClientConnection>),
    InProcess(Arc<dyn EventSink>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    Yes,
    /// The client accepts no more notifications.
    Gone,
}

impl EventStream {
    pub(crate) fn in_process(sink: Arc<dyn EventSink>) -> Self {
        Self::InProcess(sink)
    }

    /// Waits until a notification can be sent at once, or the client accepts no more.
    pub(crate) async fn room(&self) {
        match self {
            Self::Socket(connection) => {
                if let Some(socket) = connection.socket() {
                    socket.outbox().room().await;
                }
            }
            Self::InProcess(sink) => tokio::select! {
                () = sink.room() => {}
                () = sink.gone() => {}
            },
        }
    }

    /// Waits for room, then sends. A notification is lost if its connection ends in the meantime.
    pub(crate) async fn send(&self, notification: impl Into<ServerNotification>) -> Sent {
        let mut notification = notification.into();
        match self {
            Self::Socket(connection) => {
                let text = notification.encode();
                let _reserved = connection.reserve(text.len()).await;
                let Some(socket) = connection.socket() else { return Sent::Gone };
                socket.outbox().push(text);
                if socket.outbox().is_closed() { Sent::Gone } else { Sent::Yes }
            }
            Self::InProcess(sink) => loop {
                match sink.offer(notification) {
                    Offered::Accepted => return Sent::Yes,
                    Offered::Gone => return Sent::Gone,
                    Offered::Full(refused) => notification = refused,
                }
                self.room().await;
            },
        }
    }

    /// Resolves when the client accepts no more. Never resolves for a socket, whose calls end by
    /// other means.
    pub(crate) async fn gone(&self) {
        match self {
            Self::Socket(_) => std::future::pending().await,
            Self::InProcess(sink) => sink.gone().await,
        }
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        if let Self::InProcess(sink) = self {
            sink.end();
        }
    }
}
