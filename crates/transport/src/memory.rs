//! Connections within one process, for tests and for embedding: messages pass unchanged.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use tokio::sync::mpsc;
use tungstenite::protocol::frame::coding::CloseCode;

use crate::connection::Connection;

/// Queued messages in each direction; a `flush` beyond that waits.
const CAPACITY: usize = 64;

pub fn memory() -> (Connection, Connection) {
    memory_with_capacity(CAPACITY)
}

/// Like [`memory`], with room for `messages` messages in each direction.
pub fn memory_with_capacity(messages: usize) -> (Connection, Connection) {
    let (to_right, from_left) = direction(messages);
    let (to_left, from_right) = direction(messages);
    (end(to_right, from_right), end(to_left, from_left))
}

/// The code and the reason with which a writer closed its direction.
type Closing = Arc<OnceLock<(CloseCode, String)>>;

fn direction(messages: usize) -> (MemoryWriter, MemoryReader) {
    let (sender, receiver) = mpsc::channel(messages);
    let closing = Closing::default();
    let writer = MemoryWriter {
        waiting: VecDeque::new(),
        buffered: 0,
        sender: Some(sender),
        closing: Arc::clone(&closing),
    };
    (writer, MemoryReader { receiver, closing })
}

fn end(writer: MemoryWriter, reader: MemoryReader) -> Connection {
    let sender = writer.sender.as_ref().expect("a new writer is open").downgrade();
    Connection::from_memory(reader, writer, MemoryProber { sender })
}

pub(crate) struct MemoryReader {
    receiver: mpsc::Receiver<Bytes>,
    closing: Closing,
}

impl MemoryReader {
    pub(crate) async fn recv(&mut self) -> Option<Bytes> {
        self.receiver.recv().await
    }

    pub(crate) fn close(&mut self) {
        self.receiver.close();
        while self.receiver.try_recv().is_ok() {}
    }

    pub(crate) fn peer_close(&self) -> Option<(CloseCode, &str)> {
        self.closing.get().map(|(code, reason)| (*code, &**reason))
    }
}

pub(crate) struct MemoryWriter {
    waiting: VecDeque<Bytes>,
    buffered: usize,
    /// `None` once closed.
    sender: Option<mpsc::Sender<Bytes>>,
    closing: Closing,
}

impl MemoryWriter {
    pub(crate) fn push(&mut self, message: Bytes) {
        self.buffered += message.len();
        self.waiting.push_back(message);
    }

    pub(crate) fn buffered(&self) -> usize {
        self.buffered
    }

    pub(crate) async fn flush(&mut self) -> io::Result<()> {
        while !self.waiting.is_empty() {
            let sender = self.sender.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
            let place = sender.reserve().await.map_err(|_| io::ErrorKind::BrokenPipe)?;
            if let Some(message) = self.waiting.pop_front() {
                self.buffered -= message.len();
                place.send(message);
            }
        }
        Ok(())
    }

    pub(crate) async fn close(&mut self, code: CloseCode, reason: &str) {
        // An error means that the peer is gone, so the direction is closed anyway.
        let _ = self.flush().await;
        // Only the first close counts.
        let _ = self.closing.set((code, reason.to_owned()));
        self.sender = None;
    }
}

#[derive(Debug, Clone)]
pub(crate) struct MemoryProber {
    sender: mpsc::WeakSender<Bytes>,
}

impl MemoryProber {
    pub(crate) fn probe(&self) -> bool {
        self.sender.upgrade().is_some_and(|sender| !sender.is_closed())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::connection::Received;

    #[tokio::test]
    async fn messages_pass_until_one_side_closes() {
        let (mut left, mut right) = memory();
        left.outgoing.push(b"one");
        left.outgoing.push_with(3, |buffer| buffer.extend_from_slice(b"two"));
        assert_eq!(left.outgoing.buffered(), 6);
        left.outgoing.flush().await.unwrap();
        assert_eq!(right.incoming.recv().await, Some(Received::Message(Bytes::from("one"))));
        assert_eq!(right.incoming.recv().await, Some(Received::Message(Bytes::from("two"))));

        assert!(left.prober.probe(Duration::ZERO).await);
        drop(right);
        assert!(!left.prober.probe(Duration::ZERO).await);
        assert_eq!(left.incoming.recv().await, None);
        left.outgoing.push(b"three");
        assert!(left.outgoing.flush().await.is_err());
    }

    #[tokio::test]
    async fn a_close_has_a_code_and_a_reason() {
        let (mut left, mut right) = memory_with_capacity(1);
        left.outgoing.push(b"last");
        left.outgoing.close(CloseCode::Restart, "restarting").await;
        assert_eq!(right.incoming.recv().await, Some(Received::Message(Bytes::from("last"))));
        assert_eq!(right.incoming.recv().await, None);
        assert_eq!(right.incoming.peer_close(), Some(CloseCode::Restart));
        assert_eq!(right.incoming.peer_close_reason(), "restarting");
        drop(right);
        assert_eq!(left.incoming.recv().await, None);
        assert_eq!(left.incoming.peer_close(), None);
    }
}
