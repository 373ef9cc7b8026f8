//! The output that was sent on a connection and is not yet known to have been read.
//!
//! Bytes accepted by a socket prove little: kernels on both sides hold megabytes, which a lost
//! connection destroys. So pings follow the output, and their pongs report how far the peer has
//! read. That confirms output for clients that never ack, and it bounds the output in flight, so
//! that for a near peer, anything that may have to be sent again is still in the memory of the log.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use exec_server_transport::Outgoing;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::feed::SocketFeed;

/// A ping follows after this much output.
const PING_BYTES: usize = 256 << 10;
/// How long the last, smaller piece may go without a ping.
const PING_DELAY: Duration = Duration::from_millis(500);
/// Maximum output in flight to a near peer: about the memory of one log, after base64.
const NEAR_WINDOW: usize = 5 << 18;
/// Maximum output in flight to a far peer, which needs more to fill its link. A resend may then
/// have to read the spill file, which keeps up with such a link.
const FAR_WINDOW: usize = 8 << 20;
/// A peer with at least this round trip is far.
const FAR: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(super) struct DeliveryWindow {
    /// The highest ping answered; `None` if the transport has no pings.
    pongs: Option<watch::Receiver<u64>>,
    ping_bytes: usize,
    unpinged: Piece,
    pinged: VecDeque<SentPing>,
    under_way: usize,
    shortest_round_trip: Duration,
}

/// Some output, and the last event of each feed in it.
#[derive(Debug, Default)]
struct Piece {
    bytes: usize,
    events: Vec<(Arc<SocketFeed>, u64)>,
    since: Option<Instant>,
}

#[derive(Debug)]
struct SentPing {
    ping: u64,
    at: Instant,
    piece: Piece,
}

impl DeliveryWindow {
    /// `log_bytes` is the memory of one log: a smaller log gets more frequent pings.
    pub(super) fn new(outgoing: &Outgoing, log_bytes: usize) -> Self {
        Self {
            pongs: outgoing.receipts(),
            ping_bytes: PING_BYTES.min(log_bytes / 4),
            unpinged: Piece::default(),
            pinged: VecDeque::new(),
            under_way: 0,
            shortest_round_trip: Duration::MAX,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        let far = self.shortest_round_trip != Duration::MAX && self.shortest_round_trip >= FAR;
        self.under_way < if far { FAR_WINDOW } else { NEAR_WINDOW }
    }

    /// Records that events of a feed up to `seq` were put into the buffer.
    pub(super) fn pushed(&mut self, feed: Arc<SocketFeed>, seq: u64, bytes: usize, now: Instant) {
        self.under_way += bytes;
        self.unpinged.bytes += bytes;
        self.unpinged.since.get_or_insert(now);
        match self.unpinged.events.iter_mut().find(|(other, _)| Arc::ptr_eq(other, &feed)) {
            // The response to a read may end before events that were sent earlier.
            Some((_, last)) => *last = seq.max(*last),
            None => self.unpinged.events.push((feed, seq)),
        }
    }

    pub(super) fn ping_if_due(&mut self, outgoing: &mut Outgoing, now: Instant) {
        let due = (self.unpinged.bytes > 0 && self.unpinged.bytes >= self.ping_bytes)
            || self.unpinged.since.is_some_and(|since| now >= since + PING_DELAY);
        if due && let Some(ping) = outgoing.request_receipt() {
            let piece = std::mem::take(&mut self.unpinged);
            self.pinged.push_back(SentPing { ping, at: now, piece });
        }
    }

    /// Records that the socket has taken the whole buffer. Without pings, that is the only evidence
    /// that the peer has read it.
    pub(super) fn written(&mut self) {
        if self.pongs.is_none() {
            let piece = std::mem::take(&mut self.unpinged);
            self.received(piece);
        }
    }

    /// Processes the pongs that have arrived.
    pub(super) fn settle(&mut self, now: Instant) {
        let newest = self.pongs.as_mut().map_or(0, |pongs| *pongs.borrow_and_update());
        while let Some(pinged) = self.pinged.pop_front_if(|pinged| pinged.ping <= newest) {
            self.shortest_round_trip = self.shortest_round_trip.min(now - pinged.at);
            self.received(pinged.piece);
        }
    }

    fn received(&mut self, piece: Piece) {
        self.under_way -= piece.bytes;
        for (feed, seq) in piece.events {
            feed.received(seq);
        }
    }

    /// Resolves when [`Self::settle`] or [`Self::ping_if_due`] has something to do.
    pub(super) async fn news(&mut self) {
        let answered = async {
            match &mut self.pongs {
                Some(pongs) if !self.pinged.is_empty() => {
                    if pongs.changed().await.is_err() {
                        std::future::pending::<()>().await;
                    }
                }
                _ => std::future::pending().await,
            }
        };
        let due = async {
            match self.unpinged.since {
                Some(since) => tokio::time::sleep_until(since + PING_DELAY).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = answered => {}
            () = due => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feed::tests::finished;

    #[tokio::test]
    async fn a_response_with_fewer_events_does_not_reduce_what_is_confirmed() {
        let (process, feed) = finished(&Arc::default()).await;
        let mut window = DeliveryWindow::new(&exec_server_transport::memory().0.outgoing, 1 << 20);
        window.pushed(Arc::clone(&feed), 3, 100, Instant::now());
        window.pushed(feed, 1, 0, Instant::now());
        window.written();
        assert_eq!(process.log().confirmed(), 3);
        assert_eq!(window.under_way, 0);
    }
}
