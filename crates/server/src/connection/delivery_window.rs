//! What has been sent on a connection and is not yet known to have been read.
//!
//! A socket that took bytes says little: kernels on both sides hold megabytes that a cut destroys. So
//! the output is followed by questions (WebSocket pings) whose answers say how far the peer has read.
//! That confirms output for clients that never ack, and it bounds how much is under way, so that what
//! may have to be sent again is still in the memory of the log.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use exec_server_transport::Outgoing;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::feed::SocketFeed;

/// How much is sent between two questions, at most.
const QUESTION_BYTES: usize = 256 << 10;
/// How long the last, smaller piece may stay unasked for.
const QUESTION_DELAY: Duration = Duration::from_millis(500);
/// What may be under way to a near peer: about the memory of one log, after base64.
const NEAR_WINDOW: usize = 5 << 18;
/// A far peer needs more to fill its link, and its link is slow enough for the spill file.
const FAR_WINDOW: usize = 8 << 20;
const FAR: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(super) struct DeliveryWindow {
    /// The highest question answered; `None` where the transport cannot ask.
    answers: Option<watch::Receiver<u64>>,
    question_bytes: usize,
    unasked: Piece,
    asked: VecDeque<Asked>,
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
struct Asked {
    question: u64,
    at: Instant,
    piece: Piece,
}

impl DeliveryWindow {
    /// `log_bytes` is the memory of one log: with less of it, questions come more often.
    pub(super) fn new(outgoing: &Outgoing, log_bytes: usize) -> Self {
        Self {
            answers: outgoing.receipts(),
            question_bytes: QUESTION_BYTES.min(log_bytes / 4),
            unasked: Piece::default(),
            asked: VecDeque::new(),
            under_way: 0,
            shortest_round_trip: Duration::MAX,
        }
    }

    /// Whether more output may be sent.
    pub(super) fn is_open(&self) -> bool {
        let far = self.shortest_round_trip != Duration::MAX && self.shortest_round_trip >= FAR;
        self.under_way < if far { FAR_WINDOW } else { NEAR_WINDOW }
    }

    /// Events of a feed up to `seq` have been put into the buffer.
    pub(super) fn pushed(&mut self, feed: Arc<SocketFeed>, seq: u64, bytes: usize, now: Instant) {
        self.under_way += bytes;
        self.unasked.bytes += bytes;
        self.unasked.since.get_or_insert(now);
        match self.unasked.events.iter_mut().find(|(other, _)| Arc::ptr_eq(other, &feed)) {
            // An answer to a read may bring less than what was sent before it.
            Some((_, last)) => *last = seq.max(*last),
            None => self.unasked.events.push((feed, seq)),
        }
    }

    /// Puts a question behind what was pushed, when it is time to.
    pub(super) fn ask_if_due(&mut self, outgoing: &mut Outgoing, now: Instant) {
        let due = (self.unasked.bytes > 0 && self.unasked.bytes >= self.question_bytes)
            || self.unasked.since.is_some_and(|since| now >= since + QUESTION_DELAY);
        if due && let Some(question) = outgoing.request_receipt() {
            let piece = std::mem::take(&mut self.unasked);
            self.asked.push_back(Asked { question, at: now, piece });
        }
    }

    /// The socket has taken the whole buffer. Where nobody can be asked, that is all there is to know.
    pub(super) fn written(&mut self) {
        if self.answers.is_none() {
            let piece = std::mem::take(&mut self.unasked);
            self.received(piece);
        }
    }

    /// Takes note of the answers that have come.
    pub(super) fn settle(&mut self, now: Instant) {
        let newest = self.answers.as_mut().map_or(0, |answers| *answers.borrow_and_update());
        while let Some(asked) = self.asked.pop_front_if(|asked| asked.question <= newest) {
            self.shortest_round_trip = self.shortest_round_trip.min(now - asked.at);
            self.received(asked.piece);
        }
    }

    fn received(&mut self, piece: Piece) {
        self.under_way -= piece.bytes;
        for (feed, seq) in piece.events {
            feed.received(seq);
        }
    }

    /// Resolves when [`Self::settle`] or [`Self::ask_if_due`] has something to do.
    pub(super) async fn news(&mut self) {
        let answered = async {
            match &mut self.answers {
                Some(answers) if !self.asked.is_empty() => {
                    if answers.changed().await.is_err() {
                        std::future::pending::<()>().await;
                    }
                }
                _ => std::future::pending().await,
            }
        };
        let due = async {
            match self.unasked.since {
                Some(since) => tokio::time::sleep_until(since + QUESTION_DELAY).await,
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
    async fn an_answer_that_brings_less_does_not_lower_the_mark() {
        let (process, feed) = finished(&Arc::default()).await;
        let mut window = DeliveryWindow::new(&exec_server_transport::memory().0.outgoing, 1 << 20);
        window.pushed(Arc::clone(&feed), 3, 100, Instant::now());
        window.pushed(feed, 1, 0, Instant::now());
        window.written();
        assert_eq!(process.log().confirmed(), 3);
        assert_eq!(window.under_way, 0);
    }
}
