//! Writes the messages of one connection to its socket: responses first, then the feeds in turn.

use std::sync::Arc;
use std::time::Duration;

use exec_server_transport::{CloseCode, Outgoing};
use tokio::time::Instant;

use super::delivery_window::DeliveryWindow;
use super::outbox::Outbox;
use super::outgoing_queue::{OutgoingQueue, Taken};

/// How much is batched for one write to the socket.
const BATCH_BYTES: usize = 512 << 10;
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs until the outbox is closed or the socket fails.
pub(super) async fn write(outbox: Arc<Outbox>, outgoing: Outgoing, log_bytes: usize) {
    let window = DeliveryWindow::new(&outgoing, log_bytes);
    let answers = OutgoingQueue::default();
    let mut writer = Writer { outbox, outgoing, window, answers, answer_bytes: 0 };
    while !writer.outbox.is_closed() && writer.step().await {}
    writer.outbox.close();
    if writer.outgoing.buffered() > BATCH_BYTES {
        // The peer reads nothing, and the memory is needed.
        return;
    }
    // A peer that reads nothing does not take the close frame either.
    let goodbye = writer.outgoing.close(CloseCode::Away, "");
    let _ = tokio::time::timeout(GOODBYE_TIMEOUT, goodbye).await;
}

struct Writer {
    outbox: Arc<Outbox>,
    outgoing: Outgoing,
    window: DeliveryWindow,
    /// Empty between two steps.
    answers: OutgoingQueue,
    /// Bytes of responses in the buffer.
    answer_bytes: usize,
}

impl Writer {
    /// Batches, sends or waits. Returns false when the connection has ended.
    async fn step(&mut self) -> bool {
        self.window.settle(Instant::now());
        let feed = self.outbox.take(&mut self.answers, self.window.is_open());
        let nothing = self.answers.is_empty() && feed.is_none();
        self.push_answers();
        if let Some(feed) = feed {
            let before = self.outgoing.buffered();
            if let Some(seq) = feed.send_slice(&mut self.outgoing).await {
                let bytes = self.outgoing.buffered() - before;
                self.window.pushed(feed, seq, bytes, Instant::now());
            }
        }
        self.window.ping_if_due(&mut self.outgoing, Instant::now());
        match self.outgoing.buffered() {
            0 if nothing => self.wait().await,
            0 => {
                // The feed is not live or has no new events, or its dialect has no notification for
                // them.
                self.window.written();
                true
            }
            buffered if nothing || buffered >= BATCH_BYTES => self.flush().await,
            _ => true,
        }
    }

    fn push_answers(&mut self) {
        let Self { outgoing, window, answers, answer_bytes, .. } = self;
        answers.drain(|message, events| {
            match message {
                Taken::Small(text) => {
                    *answer_bytes += text.len();
                    outgoing.push(text);
                }
                Taken::Large(text) => {
                    *answer_bytes += text.len();
                    outgoing.push_owned(text.into());
                }
            }
            if let Some((feed, seq)) = events {
                window.pushed(feed, seq, 0, Instant::now());
            }
        });
    }

    async fn wait(&mut self) -> bool {
        let window_is_open = self.window.is_open();
        tokio::select! {
            () = self.outbox.filled(window_is_open) => true,
            () = self.window.news() => true,
            () = self.outgoing.reader_gone() => false,
            () = self.outgoing.control_pending() => {
                // Nothing but a control frame is due, so the connection is idle.
                self.answers.release_idle();
                self.outbox.release_idle();
                self.flush().await
            }
        }
    }

    /// Returns false if the socket failed, or the outbox was closed before the flush completed.
    async fn flush(&mut self) -> bool {
        let flushed = tokio::select! {
            flushed = self.outgoing.flush() => flushed,
            () = self.outbox.closed() => return false,
        };
        match flushed {
            Ok(()) => {
                self.outbox.sent(std::mem::take(&mut self.answer_bytes));
                self.window.written();
                true
            }
            Err(error) => {
                tracing::debug!(%error, "cannot write to a connection");
                false
            }
        }
    }
}
