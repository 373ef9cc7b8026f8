//! Connections within one process, for tests and for embedding: messages pass as they are.

use std::collections::VecDeque;
use std::io;

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::connection::Connection;

/// Messages that wait for a reader in each direction; a `flush` beyond that waits.
const CAPACITY: usize = 64;

/// Two connections that talk to each other.
pub fn memory() -> (Connection, Connection) {
    let (to_right, from_left) = mpsc::channel(CAPACITY);
    let (to_left, from_right) = mpsc::channel(CAPACITY);
    (end(to_right, from_right), end(to_left, from_left))
}

fn end(sender: mpsc::Sender<Bytes>, receiver: mpsc::Receiver<Bytes>) -> Connection {
    let prober = MemoryProber { sender: sender.downgrade() };
    let writer = MemoryWriter { waiting: VecDeque::new(), buffered: 0, sender: Some(sender) };
    Connection::from_memory(MemoryReader { receiver }, writer, prober)
}

pub(crate) struct MemoryReader {
    receiver: mpsc::Receiver<Bytes>,
}

impl MemoryReader {
    pub(crate) async fn recv(&mut self) -> Option<Bytes> {
        self.receiver.recv().await
    }

    pub(crate) fn close(&mut self) {
        self.receiver.close();
        while self.receiver.try_recv().is_ok() {}
    }
}

pub(crate) struct MemoryWriter {
    waiting: VecDeque<Bytes>,
    buffered: usize,
    /// `None` once closed.
    sender: Option<mpsc::Sender<Bytes>>,
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

    pub(crate) async fn close(&mut self) {
        // An error means that the peer is gone: as closed as it can be.
        let _ = self.flush().await;
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
    async fn messages_pass_until_one_side_goes() {
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
}
