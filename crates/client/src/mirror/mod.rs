//! The client's copy of a process's log: in order, each event once, bounded.
//!
//! Events are accepted only in sequence. Events that a current subscriber has not consumed, or that
//! a first subscriber may want, are never evicted. When that leaves no room, the mirror refuses
//! output until there is room. Over a connection, the feeder then reads the refused output from the
//! server's log; in the same program, it makes the process wait. This module does not know its
//! feeder.

mod state;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Context, Poll};

use bytes::Bytes;
use exec_server_protocol::{Denial, ExitDetails, OutputStream, ReadResponse};
use tokio::sync::{Notify, watch};

use crate::ExecServerError;
use crate::events::{ExecProcessEvent, ProcessEvents, ProcessExit};
use state::{CAPACITY, State, Subscriber, WORTHWHILE_ROOM};

/// An event appended to a mirror.
#[derive(Debug, Clone)]
pub enum MirrorEvent {
    Output {
        stream: OutputStream,
        chunk: Bytes,
    },
    Exited {
        exit_code: i32,
        sandbox_denied: bool,
        denied: Option<Denial>,
        details: Option<Box<ExitDetails>>,
    },
    Closed,
}

/// The outcome of an offered event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    Accepted,
    /// The event was accepted before, or the mirror accepts no more.
    Duplicate,
    /// An earlier event is missing.
    Hole,
    /// There is no room: events that a subscriber has not consumed, or that a first one may want,
    /// fill the mirror.
    Full,
}

/// Whether a gap in the output is acceptable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GapPolicy {
    /// The start asked for lossless output, so a gap fails the process for this client.
    Fatal,
    /// A gap is declared as an event: the start asked for `onFull: discard`, or this mirror was
    /// created after the start.
    Declared,
}

/// A mirror of one process. Clones share it.
#[derive(Debug, Clone)]
pub struct ProcessMirror {
    shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct WeakMirror(Weak<Shared>);

impl WeakMirror {
    pub(crate) fn upgrade(&self) -> Option<ProcessMirror> {
        self.0.upgrade().map(|shared| ProcessMirror { shared })
    }
}

#[derive(Debug)]
struct Shared {
    process_id: String,
    gaps: GapPolicy,
    state: Mutex<State>,
    /// Carries the next sequence number.
    wake: watch::Sender<u64>,
    /// Notified when the mirror has room again after a refusal, when it fails, and when its process
    /// will never have a handle: then a feeder that waits for room goes on.
    room: Arc<Notify>,
    /// Notified when the process loses its handle or a subscriber, or will never have a handle.
    abandoned: Notify,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SubscriberId(u64);

impl ProcessMirror {
    /// Creates an empty mirror that expects event 1.
    #[must_use]
    pub fn new(process_id: impl Into<String>, gaps: GapPolicy) -> Self {
        Self::telling(process_id.into(), gaps, 1, Arc::default())
    }

    /// Creates a mirror that expects event `next` first and notifies `room` when it has room again.
    pub(crate) fn telling(
        process_id: String,
        gaps: GapPolicy,
        next: u64,
        room: Arc<Notify>,
    ) -> Self {
        let state = State {
            events: VecDeque::new(),
            cost: 0,
            next,
            evicted_bytes: 0,
            exit: None,
            closed: false,
            failure: None,
            refused: false,
            awaits_subscriber: true,
            without_handle: false,
            unwanted: false,
            subscribers: BTreeMap::new(),
            next_subscriber: 0,
        };
        let (wake, _) = watch::channel(next);
        Self {
            shared: Arc::new(Shared {
                process_id,
                gaps,
                state: Mutex::new(state),
                wake,
                room,
                abandoned: Notify::new(),
            }),
        }
    }

    #[must_use]
    pub fn process_id(&self) -> &str {
        &self.shared.process_id
    }

    /// The sequence number of the next acceptable event.
    #[must_use]
    pub fn next_seq(&self) -> u64 {
        self.lock().next
    }

    /// Whether no further event is accepted: the process has closed or failed.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.lock().is_over()
    }

    pub fn offer(&self, seq: u64, event: MirrorEvent) -> Offer {
        let offer = self.lock().offer(seq, event);
        if offer == Offer::Accepted {
            self.announce();
        }
        offer
    }

    /// Continues at `seq` although earlier events, with `dropped_bytes` of output, are missing.
    /// Fails under [`GapPolicy::Fatal`]. Has no effect if the mirror is over or has all events
    /// before `seq`.
    pub fn skip_to(&self, seq: u64, dropped_bytes: u64) -> Result<(), ExecServerError> {
        let mut state = self.lock();
        if state.is_over() || seq <= state.next {
            return Ok(());
        }
        if self.shared.gaps == GapPolicy::Fatal {
            let process_id = self.shared.process_id.clone();
            return Err(ExecServerError::Gap { process_id, dropped_bytes });
        }
        state.skip_to(seq, dropped_bytes);
        drop(state);
        self.announce();
        Ok(())
    }

    /// Returns the size of the retained output and gaps after `seq`.
    pub(crate) fn output_bytes_after(&self, seq: u64) -> u64 {
        let state = self.lock();
        let later = state.events.iter().rev().take_while(|event| event.seq > seq);
        later.map(|event| event.entry.output_bytes()).sum()
    }

    /// Ends the mirror, unless it is over. Subscribers receive the remaining events, then this
    /// error.
    pub fn fail(&self, error: ExecServerError) {
        let mut state = self.lock();
        if !state.is_over() {
            state.failure = Some(error);
            state.wake_subscribers();
            drop(state);
            self.announce();
            // A feeder that waits for room may continue: a failed mirror treats every event as a
            // duplicate.
            self.shared.room.notify_one();
        }
    }

    /// Returns the free capacity if even the largest chunk would fit. Otherwise returns `None`, and
    /// the mirror notifies `room` once that chunk fits.
    pub(crate) fn worthwhile_room(&self) -> Option<usize> {
        let mut state = self.lock();
        state.evict_for(WORTHWHILE_ROOM);
        let room = CAPACITY.saturating_sub(state.cost);
        state.refused |= room < WORTHWHILE_ROOM;
        (room >= WORTHWHILE_ROOM).then_some(room)
    }

    /// Stops keeping every event for a first subscriber: the holder of the handle reads instead of
    /// subscribing.
    pub fn expect_no_subscriber(&self) {
        let mut state = self.lock();
        state.awaits_subscriber = false;
        self.tell_room(state);
    }

    pub(crate) fn lose_handle(&self) {
        let mut state = self.lock();
        state.without_handle = true;
        state.awaits_subscriber = false;
        self.tell_room(state);
        self.shared.abandoned.notify_waiters();
    }

    pub(crate) fn is_without_handle(&self) -> bool {
        self.lock().without_handle
    }

    /// Records that this process will never have a handle.
    pub(crate) fn give_away(&self) {
        let mut state = self.lock();
        state.unwanted = true;
        state.awaits_subscriber = false;
        drop(state);
        self.shared.room.notify_one();
        self.shared.abandoned.notify_waiters();
    }

    pub(crate) fn is_unwanted(&self) -> bool {
        self.lock().unwanted
    }

    pub(crate) fn is_unobserved(&self) -> bool {
        let state = self.lock();
        state.without_handle && state.subscribers.is_empty()
    }

    /// Resolves when the condition holds. Checks it first, and again whenever `abandoned` is
    /// notified.
    pub(crate) async fn wait_until(&self, reached: impl Fn() -> bool + Send) {
        loop {
            let mut told = std::pin::pin!(self.shared.abandoned.notified());
            told.as_mut().enable();
            if reached() {
                return;
            }
            told.await;
        }
    }

    pub(crate) fn downgrade(&self) -> WeakMirror {
        WeakMirror(Arc::downgrade(&self.shared))
    }

    /// Records that the process has a handle again. Returns false if it already had one.
    pub(crate) fn regain_handle(&self) -> bool {
        std::mem::take(&mut self.lock().without_handle)
    }

    /// Returns whether [`Self::give_away`] was called since the last call of this method.
    pub(crate) fn take_unwanted(&self) -> bool {
        std::mem::take(&mut self.lock().unwanted)
    }

    /// After an [`Offer::Full`], resolves when the event should be offered again: any chunk fits,
    /// the mirror has failed, or its process will never have a handle.
    pub async fn has_room(&self) {
        self.shared.room.notified().await;
    }

    /// Subscribes to the retained events, then live ones. The first subscriber misses nothing,
    /// unless [`Self::expect_no_subscriber`] was called or all handles were dropped before.
    #[must_use]
    pub fn subscribe(&self) -> ProcessEvents {
        let mut state = self.lock();
        state.awaits_subscriber = false;
        let position = state.first();
        let id = state.next_subscriber;
        state.next_subscriber += 1;
        let missed = state.evicted_bytes;
        let missed_exit = state.exit.as_ref().is_some_and(|exit| exit.seq < position);
        let subscriber = Subscriber { position, missed, missed_exit, waker: None };
        state.subscribers.insert(id, subscriber);
        drop(state);
        ProcessEvents::new(self.clone(), SubscriberId(id))
    }

    /// Returns a receiver of the next sequence number, which changes with every event.
    #[must_use]
    pub fn wake(&self) -> watch::Receiver<u64> {
        self.shared.wake.subscribe()
    }

    /// Resolves when there is an event after `after`, or when none will follow.
    pub async fn news_beyond(&self, after: u64) {
        let mut wake = self.wake();
        // The value is marked as seen before the check, so that no change is missed.
        loop {
            wake.borrow_and_update();
            {
                let state = self.lock();
                if state.is_over() || after.checked_add(1).is_some_and(|next| next < state.next) {
                    return;
                }
            }
            if wake.changed().await.is_err() {
                return;
            }
        }
    }

    /// Returns the response to `process/read` from this copy, or `None` if events after `after`
    /// were evicted.
    #[must_use]
    pub fn read(&self, after: u64, max_bytes: u64) -> Option<ReadResponse> {
        let state = self.lock();
        if after.saturating_add(1) < state.first() {
            return None;
        }
        Some(state.read(after, max_bytes))
    }

    /// Like [`Self::read`], from the first retained event. Also counts the evicted output as
    /// dropped.
    #[must_use]
    pub fn read_retained(&self, max_bytes: u64) -> ReadResponse {
        let state = self.lock();
        let read = state.read(state.first() - 1, max_bytes);
        let dropped_bytes = read.dropped_bytes.saturating_add(state.evicted_bytes);
        ReadResponse { dropped_bytes, ..read }
    }

    #[must_use]
    pub fn exit(&self) -> Option<ProcessExit> {
        self.lock().exit.clone()
    }

    pub(crate) fn poll_event(
        &self,
        SubscriberId(id): SubscriberId,
        context: &Context<'_>,
    ) -> Poll<Option<ExecProcessEvent>> {
        let mut state = self.lock();
        let Some(mut subscriber) = state.subscribers.remove(&id) else { return Poll::Ready(None) };
        let event = state.next_event(&mut subscriber);
        if event.is_none() && !state.is_over() {
            subscriber.waker = Some(context.waker().clone());
            state.subscribers.insert(id, subscriber);
            return Poll::Pending;
        }
        let event = event.or_else(|| state.failure.clone().map(ExecProcessEvent::Failed));
        // After `Closed` and `Failed` the subscriber stays removed, and the next poll returns
        // `None`.
        if !matches!(
            event,
            Some(ExecProcessEvent::Closed { .. } | ExecProcessEvent::Failed(_)) | None
        ) {
            state.subscribers.insert(id, subscriber);
        }
        self.tell_room(state);
        Poll::Ready(event)
    }

    pub(crate) fn unsubscribe(&self, SubscriberId(id): SubscriberId) {
        let mut state = self.lock();
        state.subscribers.remove(&id);
        self.tell_room(state);
        self.shared.abandoned.notify_waiters();
    }

    fn tell_room(&self, mut state: MutexGuard<'_, State>) {
        let wanted = if state.refused { WORTHWHILE_ROOM } else { 0 };
        state.evict_for(wanted);
        if state.refused && state.cost + WORTHWHILE_ROOM <= CAPACITY {
            state.refused = false;
            drop(state);
            self.shared.room.notify_one();
        }
    }

    fn announce(&self) {
        let next = self.lock().next;
        self.shared.wake.send_replace(next);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().expect("no code panics while it holds a mirror")
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    fn output(text: &[u8]) -> MirrorEvent {
        let chunk = Bytes::copy_from_slice(text);
        MirrorEvent::Output { stream: OutputStream::Stdout, chunk }
    }

    fn exited() -> MirrorEvent {
        MirrorEvent::Exited { exit_code: 3, sandbox_denied: false, denied: None, details: None }
    }

    fn drain(events: &mut ProcessEvents) -> Vec<String> {
        let mut found = Vec::new();
        let mut context = Context::from_waker(Waker::noop());
        while let Poll::Ready(event) = events.poll_next_event(&mut context) {
            found.push(match event {
                Some(ExecProcessEvent::Output(chunk)) => {
                    format!("{}:{}", chunk.seq, String::from_utf8_lossy(&chunk.chunk))
                }
                Some(ExecProcessEvent::Gap { dropped_bytes }) => format!("gap {dropped_bytes}"),
                Some(ExecProcessEvent::Exited(exit)) => {
                    format!("{}:exit {}", exit.seq, exit.exit_code)
                }
                Some(ExecProcessEvent::Closed { seq }) => format!("{seq}:closed"),
                Some(ExecProcessEvent::Failed(error)) => format!("failed: {error}"),
                None => {
                    found.push("end".into());
                    return found;
                }
            });
        }
        found
    }

    #[test]
    fn events_are_accepted_in_order_and_once() {
        let mirror = ProcessMirror::new("p", GapPolicy::Fatal);
        let mut early = mirror.subscribe();
        assert_eq!(mirror.offer(2, output(b"b")), Offer::Hole);
        assert_eq!(mirror.offer(1, output(b"a")), Offer::Accepted);
        assert_eq!(mirror.offer(1, output(b"a")), Offer::Duplicate);
        assert_eq!(drain(&mut early), ["1:a"]);
        assert_eq!(mirror.offer(2, output(b"b")), Offer::Accepted);
        assert_eq!(mirror.offer(3, exited()), Offer::Accepted);
        assert_eq!(mirror.offer(4, MirrorEvent::Closed), Offer::Accepted);
        assert_eq!(mirror.offer(5, output(b"z")), Offer::Duplicate);
        assert_eq!(drain(&mut early), ["2:b", "3:exit 3", "4:closed", "end"]);
        assert_eq!(drain(&mut mirror.subscribe()), ["1:a", "2:b", "3:exit 3", "4:closed", "end"]);
    }

    #[test]
    fn unconsumed_events_are_not_evicted() {
        let mirror = ProcessMirror::new("p", GapPolicy::Fatal);
        let mut slow = mirror.subscribe();
        let chunk = vec![b'x'; 300 << 10];
        let mut seq = 1;
        while mirror.offer(seq, output(&chunk)) == Offer::Accepted {
            seq += 1;
        }
        assert_eq!(seq, 14, "thirteen chunks fit");
        assert_eq!(mirror.offer(seq, output(&chunk)), Offer::Full);
        assert_eq!(mirror.offer(seq, exited()), Offer::Accepted, "only output is bounded");
        assert_eq!(drain(&mut slow).len(), 14);
        assert_eq!(mirror.offer(15, output(&chunk)), Offer::Accepted);
        drop(slow);
        for seq in 16..100 {
            assert_eq!(mirror.offer(seq, output(&chunk)), Offer::Accepted, "no subscriber waits");
        }
        let late = drain(&mut mirror.subscribe());
        assert_eq!(
            late[0],
            format!("gap {}", (99 - 1 - 13) * chunk.len()),
            "an exit does not count as output"
        );
        assert_eq!(late.len(), 1 + 1 + 13, "the gap, the exit, the retained chunks");
    }

    #[test]
    fn an_evicted_exit_is_still_delivered() {
        let mirror = ProcessMirror::new("p", GapPolicy::Fatal);
        mirror.expect_no_subscriber();
        mirror.offer(1, exited());
        let chunk = vec![b'x'; 300 << 10];
        for seq in 2..30 {
            mirror.offer(seq, output(&chunk));
        }
        mirror.offer(30, MirrorEvent::Closed);
        let late = drain(&mut mirror.subscribe());
        assert!(late[0].starts_with("gap "), "{}", late[0]);
        assert_eq!(late[1], "1:exit 3");
        assert_eq!(late.len(), 2 + 13 + 2);
    }

    #[test]
    fn everything_is_kept_for_the_first_subscriber() {
        let mirror = ProcessMirror::new("p", GapPolicy::Fatal);
        let chunk = vec![b'x'; 300 << 10];
        let fits = (1..).take_while(|seq| mirror.offer(*seq, output(&chunk)) == Offer::Accepted);
        assert_eq!(fits.count(), 13);
        let mut first = mirror.subscribe();
        assert_eq!(drain(&mut first).len(), 13, "without a gap before them");
        assert!(mirror.lock().cost <= state::RETAINED, "read events are evicted");
        assert_eq!(mirror.offer(14, output(&chunk)), Offer::Accepted);
    }

    #[test]
    fn tiny_events_are_bounded() {
        let mirror = ProcessMirror::new("p", GapPolicy::Fatal);
        mirror.expect_no_subscriber();
        for seq in 1..100_000 {
            mirror.offer(seq, output(b"x"));
        }
        assert!(mirror.lock().events.len() < 80_000);
    }

    #[test]
    fn a_gap_is_declared_in_its_place_or_fatal() {
        let mirror = ProcessMirror::new("p", GapPolicy::Declared);
        let mut events = mirror.subscribe();
        mirror.offer(1, output(b"a"));
        mirror.skip_to(7, 1000).unwrap();
        mirror.offer(7, output(b"b"));
        assert_eq!(drain(&mut events), ["1:a", "gap 1000", "7:b"]);
        let read = mirror.read(0, u64::MAX).unwrap();
        assert_eq!((read.chunks.len(), read.next_seq, read.dropped_bytes), (2, 8, 1000));

        let strict = ProcessMirror::new("p", GapPolicy::Fatal);
        assert!(matches!(
            strict.skip_to(7, 1000),
            Err(ExecServerError::Gap { dropped_bytes: 1000, .. })
        ));
    }

    #[test]
    fn a_failure_follows_the_remaining_events() {
        let mirror = ProcessMirror::new("p", GapPolicy::Fatal);
        mirror.offer(1, output(b"a"));
        mirror.fail(ExecServerError::Closed);
        assert_eq!(
            drain(&mut mirror.subscribe()),
            ["1:a", "failed: the client or its session was closed", "end"]
        );
        assert_eq!(mirror.offer(2, output(b"b")), Offer::Duplicate);
        assert!(mirror.read(1, 1).unwrap().failure.is_some());
    }

    #[test]
    fn a_read_is_bounded_and_reports_evicted_output() {
        let mirror = ProcessMirror::new("p", GapPolicy::Fatal);
        for seq in 1..=5 {
            mirror.offer(seq, output(b"12345"));
        }
        let read = mirror.read(1, 11).unwrap();
        assert_eq!(read.chunks.iter().map(|chunk| chunk.seq).collect::<Vec<_>>(), [2, 3]);
        assert_eq!(read.next_seq, 4);
        let read = mirror.read(0, 0).unwrap();
        assert_eq!((read.chunks.len(), read.next_seq), (1, 2), "at least one");
        assert_eq!(mirror.read(u64::MAX, u64::MAX).unwrap().chunks.len(), 0);
        mirror.expect_no_subscriber();
        for seq in 6..40 {
            mirror.offer(seq, output(&vec![0; 200 << 10]));
        }
        assert!(mirror.read(0, 1).is_none());
        assert!(mirror.read_retained(u64::MAX).dropped_bytes > 0);
    }

    #[test]
    fn a_gap_behind_a_bounded_read_is_counted_by_the_next_read() {
        let mirror = ProcessMirror::new("p", GapPolicy::Declared);
        mirror.offer(1, output(b"a"));
        mirror.skip_to(7, 1000).unwrap();
        mirror.offer(7, output(b"b"));
        let first = mirror.read(0, 1).unwrap();
        assert_eq!((first.chunks.len(), first.next_seq, first.dropped_bytes), (1, 2, 0));
        let second = mirror.read(1, 1).unwrap();
        assert_eq!((second.chunks.len(), second.next_seq, second.dropped_bytes), (1, 8, 1000));
    }

    #[test]
    fn evicted_output_and_gaps_count_as_dropped() {
        let mirror = ProcessMirror::new("p", GapPolicy::Declared);
        mirror.expect_no_subscriber();
        for seq in 1..40 {
            mirror.offer(seq, output(&vec![0; 200 << 10]));
        }
        mirror.skip_to(50, 1000).unwrap();
        mirror.offer(50, output(b"b"));
        let evicted = mirror.lock().evicted_bytes;
        assert!(evicted > 0);
        assert_eq!(mirror.read_retained(u64::MAX).dropped_bytes, evicted + 1000);
    }
}
