//! Notifications that follow a call: changes, results, pieces of a body. Whoever sends them waits for the client.

use std::sync::Arc;

use exec_server_protocol::{EventSink, Offered, ServerNotification};

use crate::connection::ClientConnection;

/// Where the notifications of one call go. Dropping it tells a client in this program that none will follow.
#[derive(Debug)]
pub(crate) enum EventStream {
    Socket(Arc<ClientConnection>),
    InProcess(Arc<dyn EventSink>),
}

/// What became of a notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    Yes,
    /// The client wants nothing more.
    Gone,
}

impl EventStream {
    pub(crate) fn in_process(sink: Arc<dyn EventSink>) -> Self {
        Self::InProcess(sink)
    }

    /// Waits until a notification could be sent at once, or the client wants nothing more.
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

    /// Waits until there is room, and sends. What is sent to a connection that ends meanwhile is lost with it.
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

    /// Resolves when the client wants nothing more. A socket ends its calls by other means.
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
