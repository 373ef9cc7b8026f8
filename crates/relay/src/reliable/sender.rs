//! The sending half: the records in flight, and when they are sent again.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::{Acknowledgement, WINDOW_BYTES, WINDOW_RECORDS};

/// The timeout until a round trip has been measured.
const FIRST_TIMEOUT: Duration = Duration::from_secs(1);
/// TCP loses frames only when a socket is lost, and a `resume` reports that. So this timeout is for
/// frames that a rendezvous drops, and is long enough for a peer on a busy machine.
const SHORTEST_TIMEOUT: Duration = Duration::from_secs(1);
const LONGEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Sequence numbers do not wrap: the stream must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the stream has used all of its sequence numbers")]
pub struct SequenceExhausted;

/// Records that the old socket may have lost cannot be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the socket is lost, and the peer does not acknowledge what it has received")]
pub struct SocketLost;

#[derive(Debug)]
pub(super) struct Sender {
    /// Oldest first, without gaps in their numbers.
    records: VecDeque<Record>,
    /// The number of the first record or, if there is none, of the next record.
    first_seq: u64,
    bytes: usize,
    peer: Peer,
    round_trip: RoundTrip,
    /// Losses noticed by timeout since the last measured round trip, or the last new socket of this
    /// end; each doubles the timeout.
    timeouts: u32,
    /// When a loss was last noticed by timeout. Records sent earlier belong to the same loss.
    last_loss: Option<Instant>,
    retransmissions: u64,
}

#[derive(Debug)]
struct Record {
    bytes: Bytes,
    state: State,
}

impl Record {
    fn is_due(&self) -> bool {
        matches!(self.state, State::Due { .. })
    }

    /// Returns whether the record was in flight at a timeout, or when a socket was lost.
    fn may_be_lost(&self) -> bool {
        matches!(
            self.state,
            State::Due { before: true } | State::UnderWay { path: Path::MayBeLost, .. }
        )
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Due to be sent. `before`: it was sent before.
    Due { before: bool },
    UnderWay {
        since: Instant,
        /// When the record counts as lost.
        until: Instant,
        path: Path,
    },
    /// The peer has it, but lacks an earlier record.
    Received,
}

/// Whether the acknowledgement of a record is a sample of the round-trip time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Path {
    Sample,
    /// Not a sample: the acknowledgement may have to wait for an earlier record, which may be lost.
    /// Records sent after the earlier one was acknowledged are samples again; otherwise a busy
    /// stream would have no samples after its first loss.
    BehindLost,
    /// Not a sample: the record was sent twice, or was in flight at a timeout.
    MayBeLost,
}

/// The behaviour of the other end, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Peer {
    /// It has acknowledged nothing so far. Records are forgotten to make room for others. If the
    /// peer turns out to lack one, the next `resume` shows it the gap, and it ends the stream.
    Silent,
    Acknowledges,
}

impl Default for Sender {
    fn default() -> Self {
        Self {
            records: VecDeque::new(),
            first_seq: 0,
            bytes: 0,
            peer: Peer::Silent,
            round_trip: RoundTrip::default(),
            timeouts: 0,
            last_loss: None,
            retransmissions: 0,
        }
    }
}

impl Sender {
    pub(super) fn peer_acknowledges(&self) -> bool {
        self.peer == Peer::Acknowledges
    }

    pub(super) fn retransmissions(&self) -> u64 {
        self.retransmissions
    }

    pub(super) fn unacknowledged_records(&self) -> usize {
        self.records.len()
    }

    pub(super) fn is_settled(&self) -> bool {
        match self.peer {
            Peer::Silent => !self.has_due(),
            Peer::Acknowledges => {
                self.records.iter().all(|record| record.state == State::Received)
                    // An `ack` of 0 does not prove that record 0 was received, so a lone record 0
                    // is never removed.
                    || (self.first_seq == 0 && self.records.len() == 1 && !self.has_due())
            }
        }
    }

    pub(super) fn has_due(&self) -> bool {
        self.records.iter().any(Record::is_due)
    }

    pub(super) fn has_room(&self) -> bool {
        let fits = self.records.len() < WINDOW_RECORDS as usize && self.bytes < WINDOW_BYTES;
        let oldest = self.records.front().map(|record| record.state);
        let forgettable =
            self.peer == Peer::Silent && matches!(oldest, Some(State::UnderWay { .. }));
        fits || forgettable
    }

    pub(super) fn send(&mut self, bytes: Bytes) -> Result<(), SequenceExhausted> {
        let seq = self.first_seq + self.records.len() as u64;
        if seq > u64::from(u32::MAX) {
            return Err(SequenceExhausted);
        }
        self.forget_for_room();
        self.bytes += bytes.len();
        self.records.push_back(Record { bytes, state: State::Due { before: false } });
        Ok(())
    }

    /// Forgets old records: a peer that acknowledges nothing is assumed to have received everything
    /// that the socket of this end took.
    fn forget_for_room(&mut self) {
        while self.peer == Peer::Silent
            && (self.records.len() >= WINDOW_RECORDS as usize || self.bytes >= WINDOW_BYTES)
            && matches!(self.records.front(), Some(Record { state: State::UnderWay { .. }, .. }))
        {
            self.pop_front();
        }
    }

    fn pop_front(&mut self) {
        if let Some(record) = self.records.pop_front() {
            self.bytes -= record.bytes.len();
            self.first_seq += 1;
        }
    }

    pub(super) fn handle_ack(
        &mut self,
        Acknowledgement { ack, ack_bits }: Acknowledgement,
        is_ack_frame: bool,
        now: Instant,
    ) {
        if !is_ack_frame && ack == 0 && ack_bits == 0 {
            // A peer that never acknowledges anything sends this, too.
            return;
        }
        self.peer = Peer::Acknowledges;
        // The peer cannot have a record that does not exist yet: the rendezvous forged this.
        let end = self.first_seq + self.records.len() as u64;
        let newest = 32 - u64::from(ack_bits.leading_zeros());
        if u64::from(ack) + newest >= end.max(1) && (ack > 0 || newest > 0) {
            return;
        }
        // An `ack` of 0 does not prove that record 0 was received.
        while ack > 0 && self.first_seq <= u64::from(ack) && !self.records.is_empty() {
            self.measure(0, now);
            self.pop_front();
        }
        for bit in (0..32).filter(|bit| ack_bits & (1 << bit) != 0) {
            let seq = u64::from(ack) + 1 + bit;
            let Some(index) = seq.checked_sub(self.first_seq) else { continue };
            let index = usize::try_from(index).unwrap_or(usize::MAX);
            self.measure(index, now);
            if let Some(record) = self.records.get_mut(index) {
                record.state = State::Received;
            }
        }
    }

    fn measure(&mut self, index: usize, now: Instant) {
        if let Some(Record { state: State::UnderWay { since, path: Path::Sample, .. }, .. }) =
            self.records.get(index)
        {
            self.round_trip.measure(now.saturating_duration_since(*since));
            // Only now is it certain that the timeout is long enough.
            self.timeouts = 0;
        }
    }

    /// Returns the number with which this side continues on a new socket.
    pub(super) fn next_unacknowledged(&self) -> u32 {
        u32::try_from(self.first_seq).unwrap_or(u32::MAX)
    }

    pub(super) fn replace_socket(&mut self) -> Result<(), SocketLost> {
        let has_sent = self.first_seq > 0
            || self.records.iter().any(|record| record.state != State::Due { before: false });
        if has_sent && self.peer != Peer::Acknowledges {
            return Err(SocketLost);
        }
        self.send_again(|_| true);
        self.timeouts = 0;
        Ok(())
    }

    /// Handles a new socket of the peer: its old socket may have lost the records in flight.
    pub(super) fn handle_resume(&mut self) {
        if self.peer == Peer::Acknowledges {
            self.send_again(|_| true);
        }
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.poll_timeout().is_none_or(|moment| moment > now) {
            return;
        }
        let last_loss = self.last_loss;
        let is_new_loss = self.records.iter().any(|record| match record.state {
            State::UnderWay { since, until, .. } => {
                until <= now && last_loss.is_none_or(|last_loss| since >= last_loss)
            }
            State::Due { .. } | State::Received => false,
        });
        // A burst that is lost as a whole times out record by record. If each record doubled the
        // timeout, the repair would take many seconds.
        if is_new_loss {
            self.timeouts = self.timeouts.saturating_add(1);
            self.last_loss = Some(now);
        }
        self.send_again(|until| until <= now);
    }

    /// Marks lost records as due. The acknowledgement of a record that was sent twice does not show
    /// which copy arrived, and that of a record behind a lost one may have to wait for the lost
    /// one. So no record in flight remains a sample: otherwise an outage would look like a long
    /// round trip, and the next loss would be noticed late.
    fn send_again(&mut self, is_lost: impl Fn(Instant) -> bool) {
        for record in &mut self.records {
            if let State::UnderWay { since, until, .. } = record.state {
                record.state = match is_lost(until) {
                    true => State::Due { before: true },
                    false => State::UnderWay { since, until, path: Path::MayBeLost },
                };
            }
        }
    }

    /// Nothing is retransmitted to a peer that does not acknowledge: it may mistake a copy for new
    /// data.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        if self.peer != Peer::Acknowledges {
            return None;
        }
        let timeouts = self.records.iter().filter_map(|record| match record.state {
            State::UnderWay { until, .. } => Some(until),
            State::Due { .. } | State::Received => None,
        });
        timeouts.min()
    }

    fn timeout(&self) -> Duration {
        let doubled = self.round_trip.timeout().saturating_mul(1 << self.timeouts.min(10));
        doubled.min(LONGEST_TIMEOUT)
    }

    pub(super) fn poll_transmit(&mut self, now: Instant) -> Option<(u32, Bytes)> {
        let index = self.records.iter().position(Record::is_due)?;
        let path = match self.records[index].state {
            State::Due { before: true } => {
                self.retransmissions += 1;
                Path::MayBeLost
            }
            _ if self.records.iter().any(Record::may_be_lost) => Path::BehindLost,
            _ => Path::Sample,
        };
        let until = now + self.timeout();
        let record = &mut self.records[index];
        record.state = State::UnderWay { since: now, until, path };
        let seq = u32::try_from(self.first_seq + index as u64).ok()?;
        Some((seq, record.bytes.clone()))
    }
}

/// The round-trip estimator of RFC 6298.
#[derive(Debug, Clone, Copy, Default)]
struct RoundTrip {
    smoothed: Option<(Duration, Duration)>,
}

impl RoundTrip {
    fn measure(&mut self, sample: Duration) {
        self.smoothed = Some(match self.smoothed {
            None => (sample, sample / 2),
            Some((mean, variation)) => {
                let deviation = mean.abs_diff(sample);
                ((mean * 7 + sample) / 8, (variation * 3 + deviation) / 4)
            }
        });
    }

    fn timeout(&self) -> Duration {
        match self.smoothed {
            None => FIRST_TIMEOUT,
            Some((mean, variation)) => (mean + variation * 4).max(SHORTEST_TIMEOUT),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(count: usize, now: Instant) -> Sender {
        let mut sender = Sender::default();
        for number in 0..count {
            sender.send(Bytes::from(vec![u8::try_from(number).unwrap()])).unwrap();
        }
        while sender.poll_transmit(now).is_some() {}
        sender
    }

    fn due(sender: &mut Sender, now: Instant) -> Vec<u32> {
        std::iter::from_fn(|| sender.poll_transmit(now)).map(|(seq, _)| seq).collect()
    }

    fn ack(sender: &mut Sender, ack: u32, ack_bits: u32, now: Instant) {
        sender.handle_ack(Acknowledgement { ack, ack_bits }, false, now);
    }

    #[test]
    fn only_missing_records_are_sent_again() {
        let start = Instant::now();
        let mut sender = sent(5, start);
        assert_eq!(sender.poll_timeout(), None, "the peer may be one that never acknowledges");
        ack(&mut sender, 1, 0b10, start);
        let timeout = sender.poll_timeout().unwrap();
        assert_eq!(timeout, start + SHORTEST_TIMEOUT);
        sender.handle_timeout(timeout);
        assert_eq!(due(&mut sender, timeout), [2, 4]);
        assert_eq!(sender.poll_timeout().unwrap(), timeout + 2 * SHORTEST_TIMEOUT);
        ack(&mut sender, 4, 0, timeout);
        assert_eq!((sender.poll_timeout(), sender.records.len()), (None, 0));
        assert_eq!(sender.retransmissions(), 2);
    }

    #[test]
    fn an_outage_is_not_taken_for_a_long_round_trip() {
        let start = Instant::now();
        let mut sender = sent(40, start);
        ack(&mut sender, 1, 0, start);
        let mut now = start;
        for _ in 0..4 {
            now = sender.poll_timeout().unwrap();
            sender.handle_timeout(now);
            due(&mut sender, now);
            sender.send(Bytes::from_static(b"sent during the outage")).unwrap();
            due(&mut sender, now);
        }
        assert!(now >= start + 15 * SHORTEST_TIMEOUT, "the pauses grow");
        ack(&mut sender, 43, 0, now);
        for _ in 0..2 {
            sender.send(Bytes::from_static(b"afterwards")).unwrap();
            due(&mut sender, now);
            let last = sender.next_unacknowledged();
            ack(&mut sender, last, 0, now);
        }
        sender.send(Bytes::from_static(b"lost")).unwrap();
        due(&mut sender, now);
        assert_eq!(sender.poll_timeout(), Some(now + SHORTEST_TIMEOUT));
    }

    #[test]
    fn a_busy_stream_notices_the_second_outage_as_soon_as_the_first() {
        let start = Instant::now();
        let mut sender = sent(3, start);
        ack(&mut sender, 1, 0, start);
        let mut now = start;
        for _ in 0..4 {
            now = sender.poll_timeout().unwrap();
            sender.handle_timeout(now);
            due(&mut sender, now);
        }
        // From now on one record is always in flight.
        for last_received in 2..10 {
            sender.send(Bytes::from_static(b"more")).unwrap();
            due(&mut sender, now);
            ack(&mut sender, last_received, 0, now);
            assert!(!sender.records.is_empty());
        }
        assert_eq!(sender.poll_timeout(), Some(now + SHORTEST_TIMEOUT));
    }

    #[test]
    fn a_lost_burst_is_sent_again_within_one_timeout() {
        const PAUSE: Duration = Duration::from_millis(5);
        let start = Instant::now();
        let mut sender = sent(1, start);
        sender.handle_ack(Acknowledgement::default(), true, start);
        let mut now = start;
        for _ in 0..40 {
            now += PAUSE;
            sender.send(Bytes::from_static(b"x")).unwrap();
            due(&mut sender, now);
        }
        let mut sent_again = 0;
        while let Some(timeout) = sender.poll_timeout().filter(|it| *it <= now + FIRST_TIMEOUT) {
            sender.handle_timeout(timeout);
            sent_again += due(&mut sender, timeout).len();
        }
        assert_eq!(sent_again, 41);
        assert_eq!(sender.poll_timeout(), Some(start + 3 * FIRST_TIMEOUT), "doubled once");
    }

    #[test]
    fn a_path_slower_than_the_timeout_is_measured() {
        const ROUND_TRIP: Duration = Duration::from_secs(3);
        let mut now = Instant::now();
        let mut sender = sent(1, now);
        ack(&mut sender, 0, 0, now);
        sender.handle_ack(Acknowledgement::default(), true, now);
        let mut sent = 1;
        for _ in 0..20 {
            sender.send(Bytes::from_static(b"x")).unwrap();
            sent += due(&mut sender, now).len();
            let arrives = now + ROUND_TRIP;
            while let Some(timeout) = sender.poll_timeout().filter(|timeout| *timeout < arrives) {
                sender.handle_timeout(timeout);
                sent += due(&mut sender, timeout).len();
            }
            now = arrives;
            let last = sender.first_seq + sender.records.len() as u64 - 1;
            ack(&mut sender, u32::try_from(last).unwrap(), 0, now);
        }
        assert!(sent < 30, "{sent} frames for 21 records");
    }

    #[test]
    fn an_ack_frame_of_zero_shows_that_the_peer_acknowledges_but_removes_nothing() {
        let start = Instant::now();
        let mut sender = sent(1, start);
        ack(&mut sender, 0, 0, start);
        assert!(!sender.peer_acknowledges());
        sender.handle_ack(Acknowledgement::default(), true, start);
        assert!(sender.peer_acknowledges() && sender.records.len() == 1);
    }

    #[test]
    fn an_acknowledgement_of_unsent_records_is_ignored() {
        let start = Instant::now();
        let mut sender = sent(3, start);
        for (forged, bits) in [(3, 0), (u32::MAX, 0), (u32::MAX, u32::MAX), (0, 0b100), (1, 0b10)] {
            ack(&mut sender, forged, bits, start);
            assert_eq!(sender.records.len(), 3, "{forged} {bits:b}");
        }
        ack(&mut sender, 2, 0, start);
        assert_eq!(sender.records.len(), 0);
    }

    #[test]
    fn a_new_socket_gets_the_records_that_the_old_one_may_have_lost() {
        let start = Instant::now();
        let mut sender = sent(4, start);
        assert_eq!(sender.replace_socket(), Err(SocketLost));
        ack(&mut sender, 1, 0b10, start);
        sender.replace_socket().unwrap();
        assert_eq!(sender.next_unacknowledged(), 2);
        assert_eq!(due(&mut sender, start), [2]);
        assert!(Sender::default().replace_socket().is_ok(), "nothing was in flight");
    }

    #[test]
    fn a_silent_peer_gets_everything_and_memory_stays_bounded() {
        let start = Instant::now();
        let mut sender = Sender::default();
        for _ in 0..10 * WINDOW_RECORDS {
            assert!(sender.has_room());
            sender.send(Bytes::from_static(b"x")).unwrap();
            assert_eq!(due(&mut sender, start).len(), 1);
        }
        assert_eq!(sender.records.len(), WINDOW_RECORDS as usize);
        // Once the peer acknowledges, records are removed only by acknowledgements.
        ack(&mut sender, 10 * WINDOW_RECORDS - 33, 0, start);
        assert_eq!(sender.records.len(), 32);
        while sender.has_room() {
            sender.send(Bytes::from_static(b"x")).unwrap();
        }
        assert_eq!(sender.records.len(), WINDOW_RECORDS as usize);
    }

    #[test]
    fn a_stream_ends_when_its_sequence_numbers_are_used_up() {
        let mut sender = Sender { first_seq: u64::from(u32::MAX), ..Sender::default() };
        sender.send(Bytes::from_static(b"last")).unwrap();
        assert_eq!(due(&mut sender, Instant::now()), [u32::MAX]);
        assert_eq!(sender.send(Bytes::from_static(b"more")), Err(SequenceExhausted));
    }
}
