//! Moves everything of one connection to its socket: answers first, then the processes in turn.

use std::sync::Arc;
use std::time::Duration;

use exec_server_transport::{CloseCode, Outgoing};

use super::feed::Feed;
use super::outbox::Outbox;

/// How much is gathered for one write to the socket.
const BATCH_BYTES: usize = 512 << 10;
const GOODBYE_PATIENCE: Duration = Duration::from_secs(1);

/// Runs until the outbox is closed or the socket fails.
pub(super) async fn write(outbox: Arc<Outbox>, mut outgoing: Outgoing) {
    let mut unsent = Unsent::default();
    while !outbox.is_closed() {
        let (answers, feed) = outbox.take();
        let nothing = answers.is_empty() && feed.is_none();
        for answer in &answers {
            outgoing.push(answer);
            unsent.answer_bytes += answer.len();
        }
        if let Some(feed) = feed
            && let Some(seq) = feed.send_slice(&mut outgoing).await
        {
            unsent.events.push((feed, seq));
        }
        if outgoing.buffered() > 0 && (nothing || outgoing.buffered() >= BATCH_BYTES) {
            if !flush(&mut outgoing, &outbox).await {
                break;
            }
            unsent.sent(&outbox);
        } else if nothing {
            tokio::select! {
                () = outbox.filled() => {}
                () = outgoing.control_pending() => {
                    if !flush(&mut outgoing, &outbox).await {
                        break;
                    }
                }
            }
        }
    }
    outbox.close();
    // The peer may be one that takes nothing, and then not even a goodbye.
    let goodbye = outgoing.close(CloseCode::Away, "");
    let _ = tokio::time::timeout(GOODBYE_PATIENCE, goodbye).await;
}

/// False when the socket failed, or when the connection was given up while it took nothing.
async fn flush(outgoing: &mut Outgoing, outbox: &Outbox) -> bool {
    tokio::select! {
        flushed = outgoing.flush() => match flushed {
            Ok(()) => true,
            Err(error) => {
                tracing::debug!(%error, "a connection takes no more");
                false
            }
        },
        () = outbox.closed() => false,
    }
}

/// What the next flush will have sent.
#[derive(Default)]
struct Unsent {
    answer_bytes: usize,
    events: Vec<(Arc<Feed>, u64)>,
}

impl Unsent {
    fn sent(&mut self, outbox: &Outbox) {
        outbox.sent(std::mem::take(&mut self.answer_bytes));
        for (feed, seq) in self.events.drain(..) {
            feed.written(seq);
        }
    }
}
