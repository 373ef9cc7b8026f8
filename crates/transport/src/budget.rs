//! Memory shared by the connections of a server: unfinished messages, running requests, and unsent
//! responses.
//!
//! Each connection bounds its own memory, but there may be many connections. So all of them charge
//! their memory to one [`MemoryBudget`], in coarse steps. A reservation that can wait may use half
//! of the budget; the other half is for connections that hold little, and for memory that cannot
//! wait. If a reservation has waited for too long, or the whole budget is exceeded, the connection
//! that holds the most memory is closed.
//!
//! The size of a response in preparation is a guess, and often far too large. A guess waits for
//! memory and for other guesses. It takes no memory from other reservations, and does not count
//! when the connection to close is chosen.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};

/// Holdings up to this size are not counted, so that small messages cost nothing.
const UNCOUNTED: usize = 16 << 10;
/// Larger holdings are rounded up to a multiple of this.
const STEP: usize = 64 << 10;
/// A connection that holds at most the budget divided by this, including what it asks for, does not
/// wait while memory is left.
const LITTLE: usize = 16;
/// The smallest budget with which connections can still work.
const LEAST: usize = 4 << 20;
/// How long a reservation waits before the largest connection is closed for it, and the minimum
/// time between such closings.
const WAIT_TIMEOUT: Duration = Duration::from_secs(2);

/// Clones share the budget.
#[derive(Debug, Clone)]
pub struct MemoryBudget(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limit: usize,
    state: Mutex<State>,
    released: Notify,
}

#[derive(Debug, Default)]
struct State {
    used: Tally,
    /// Memory held by connections that are being closed.
    leaving: usize,
    shares: HashMap<u64, Share>,
    /// Waiting reservations of all connections.
    waiting: Tally,
    next_id: u64,
    /// When a connection was last closed for a waiting reservation.
    last_closing: Option<Instant>,
}

#[derive(Debug)]
struct Share {
    used: Tally,
    waiting: Tally,
    exceeded: watch::Sender<bool>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Kind {
    #[default]
    Memory,
    Guess,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Tally {
    memory: usize,
    guessed: usize,
}

impl Tally {
    fn of(&mut self, kind: Kind) -> &mut usize {
        match kind {
            Kind::Memory => &mut self.memory,
            Kind::Guess => &mut self.guessed,
        }
    }

    /// Returns the amount that competes with a reservation of this kind.
    fn before(self, kind: Kind) -> usize {
        match kind {
            Kind::Memory => self.memory,
            Kind::Guess => self.memory + self.guessed,
        }
    }
}

/// One connection's share of the budget. Clones belong to the same connection.
#[derive(Debug, Clone)]
pub struct MemoryShare(Arc<Member>);

#[derive(Debug)]
struct Member {
    id: u64,
    budget: MemoryBudget,
    exceeded: watch::Receiver<bool>,
}

/// Memory for one purpose of a connection, released on drop. A holding without a connection is not
/// counted.
#[derive(Debug, Default)]
pub struct Holding {
    share: Option<MemoryShare>,
    kind: Kind,
    /// The counted size.
    bytes: usize,
    /// Kept while a reservation waits, even if the wait is interrupted and resumed.
    waiting: Option<Waiting>,
}

impl MemoryBudget {
    #[must_use]
    pub fn new(limit: usize) -> Self {
        let (state, released) = (Mutex::default(), Notify::new());
        Self(Arc::new(Shared { limit: limit.max(LEAST), state, released }))
    }

    /// Creates the share of a new connection.
    #[must_use]
    pub fn share(&self) -> MemoryShare {
        let (exceeded, is_exceeded) = watch::channel(false);
        let mut state = self.lock();
        let id = state.next_id;
        state.next_id += 1;
        let (used, waiting) = (Tally::default(), Tally::default());
        state.shares.insert(id, Share { used, waiting, exceeded });
        drop(state);
        MemoryShare(Arc::new(Member { id, budget: self.clone(), exceeded: is_exceeded }))
    }

    /// The largest reservation for a single message.
    #[must_use]
    pub fn largest(&self) -> usize {
        self.0.limit / 2
    }

    /// The memory held by all connections now, without guesses.
    #[must_use]
    pub fn used(&self) -> usize {
        self.lock().used.memory
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().expect("no code panics while it holds the budget")
    }
}

impl MemoryShare {
    #[must_use]
    pub fn hold(&self) -> Holding {
        self.hold_as(Kind::Memory)
    }

    /// Creates a holding whose size is a guess until it is [set](Holding::set).
    #[must_use]
    pub fn hold_guess(&self) -> Holding {
        self.hold_as(Kind::Guess)
    }

    fn hold_as(&self, kind: Kind) -> Holding {
        Holding { share: Some(self.clone()), kind, bytes: 0, waiting: None }
    }

    #[must_use]
    pub fn budget(&self) -> &MemoryBudget {
        &self.0.budget
    }

    /// Resolves when this connection must be closed, because the budget is exhausted and it holds
    /// the most memory.
    pub async fn exceeded(&self) {
        let mut exceeded = self.0.exceeded.clone();
        // The sender lives as long as this share.
        let _ = exceeded.wait_for(|exceeded| *exceeded).await;
    }
}

impl Drop for Member {
    /// No holding is left, since each keeps its share alive.
    fn drop(&mut self) {
        self.budget.lock().shares.remove(&self.id);
    }
}

impl Holding {
    /// Takes or releases memory without waiting, and replaces a guess. If the budget is exceeded,
    /// closes the connection that holds the most memory.
    pub fn set(&mut self, bytes: usize) {
        let counted = counted(bytes);
        let Some(MemoryShare(member)) = &self.share else { return };
        let is_same = counted == self.bytes && (self.kind == Kind::Memory || counted == 0);
        if !is_same {
            let mut state = member.budget.lock();
            state.change(member.id, self.kind, self.bytes, 0);
            state.change(member.id, Kind::Memory, 0, counted);
            while state.used.memory - state.leaving > member.budget.0.limit && state.close_largest()
            {
            }
            drop(state);
            if counted < self.bytes {
                member.budget.0.released.notify_waiters();
            }
        }
        (self.kind, self.bytes, self.waiting) = (Kind::Memory, counted, None);
    }

    /// Takes memory as soon as it is available. Cancel-safe.
    pub async fn grow_to(&mut self, bytes: usize) {
        let Some(MemoryShare(member)) = self.share.clone() else { return };
        loop {
            let mut released = std::pin::pin!(member.budget.0.released.notified());
            released.as_mut().enable();
            if self.try_grow_to(bytes) {
                return;
            }
            let since = self.waiting.get_or_insert_with(|| Waiting::new(&member, self.kind)).since;
            let more = counted(bytes) - self.bytes;
            let next_closing = member.budget.close_for(member.id, more, since);
            tokio::select! {
                () = released => {}
                () = sleep_until(next_closing) => {}
            }
        }
    }

    /// Takes memory if it is available.
    pub fn try_grow_to(&mut self, bytes: usize) -> bool {
        let counted = counted(bytes);
        let Some(MemoryShare(member)) = self.share.as_ref().filter(|_| counted > self.bytes) else {
            self.waiting = None;
            return true;
        };
        let mut state = member.budget.lock();
        if !state.has_room(member.id, self.kind, counted - self.bytes, member.budget.0.limit) {
            return false;
        }
        state.change(member.id, self.kind, self.bytes, counted);
        drop(state);
        (self.bytes, self.waiting) = (counted, None);
        true
    }
}

fn counted(bytes: usize) -> usize {
    if bytes <= UNCOUNTED { 0 } else { bytes.next_multiple_of(STEP) }
}

/// A waiting reservation. Connections that hold more wait behind it, except as [`LITTLE`] says.
#[derive(Debug)]
struct Waiting {
    member: Arc<Member>,
    kind: Kind,
    since: Instant,
}

impl Waiting {
    fn new(member: &Arc<Member>, kind: Kind) -> Self {
        member.budget.lock().wait(member.id, kind, 1);
        Self { member: Arc::clone(member), kind, since: Instant::now() }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.member.budget.lock().wait(self.member.id, self.kind, -1);
        self.member.budget.0.released.notify_waiters();
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.set(0);
    }
}

impl MemoryBudget {
    /// Closes the largest connection if a reservation of another connection has waited for too
    /// long. Returns when the next closing is due. If the waiting connection is itself the largest,
    /// it just keeps waiting. Guesses in the way are no reason to close a connection: actual sizes
    /// soon replace them.
    fn close_for(&self, waiting: u64, more: usize, since: Instant) -> Instant {
        let (mut state, now) = (self.lock(), Instant::now());
        let due = state.last_closing.map_or(since, |last| last.max(since)) + WAIT_TIMEOUT;
        if now < due {
            return due;
        }
        let is_held = state.used.memory + more > self.0.limit / 2;
        if is_held && state.largest() != Some(waiting) {
            state.last_closing = Some(now);
            state.close_largest();
        }
        now + WAIT_TIMEOUT
    }
}

impl State {
    fn has_room(&self, id: u64, kind: Kind, more: usize, limit: usize) -> bool {
        let own = self.shares.get(&id).map_or(0, |share| share.used.before(kind));
        let total = self.used.before(kind) + more;
        (total <= limit / 2 && !self.is_behind_another(kind, own))
            || (own + more <= limit / LITTLE && total <= limit)
    }

    /// Whether a connection that holds less is waiting. Without this check, the connections that
    /// hold the most would take all released memory.
    fn is_behind_another(&self, kind: Kind, own: usize) -> bool {
        let waits = |share: &Share| share.waiting.before(kind) > 0 && !*share.exceeded.borrow();
        let mut shares = self.shares.values();
        self.waiting.before(kind) > 0
            && shares.any(|share| waits(share) && share.used.before(kind) < own)
    }

    fn wait(&mut self, id: u64, kind: Kind, change: isize) {
        let Some(share) = self.shares.get_mut(&id) else { return };
        for waiting in [share.waiting.of(kind), self.waiting.of(kind)] {
            *waiting = waiting.saturating_add_signed(change);
        }
    }

    fn change(&mut self, id: u64, kind: Kind, from: usize, to: usize) {
        let Some(share) = self.shares.get_mut(&id) else { return };
        for used in [share.used.of(kind), self.used.of(kind)] {
            *used = *used - from + to;
        }
        if kind == Kind::Memory && *share.exceeded.borrow() {
            self.leaving = self.leaving - from + to;
        }
    }

    /// Returns the connection that holds the most memory, among those not already being closed.
    fn largest(&self) -> Option<u64> {
        let stays = |share: &Share| share.used.memory > 0 && !*share.exceeded.borrow();
        let staying = self.shares.iter().filter(|(_, share)| stays(share));
        staying.max_by_key(|(_, share)| share.used.memory).map(|(id, _)| *id)
    }

    /// Returns false if every connection that holds memory is already being closed.
    fn close_largest(&mut self) -> bool {
        let largest = self.largest().and_then(|id| self.shares.get_mut(&id));
        let Some(largest) = largest else { return false };
        largest.exceeded.send_replace(true);
        self.leaving += largest.used.memory;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn budget() -> MemoryBudget {
        MemoryBudget::new(8 * MIB)
    }

    fn is_exceeded(share: &MemoryShare) -> bool {
        *share.0.exceeded.borrow()
    }

    #[test]
    fn memory_is_counted_in_steps_and_given_back() {
        let budget = budget();
        let share = budget.share();
        let mut held = share.hold();
        for (bytes, counted) in [
            (UNCOUNTED, 0),
            (UNCOUNTED + 1, STEP),
            (STEP, STEP),
            (STEP + 1, 2 * STEP),
            (3 * MIB, 3 * MIB),
            (UNCOUNTED, 0),
            (MIB, MIB),
        ] {
            held.set(bytes);
            assert_eq!(budget.used(), counted, "{bytes}");
        }
        drop(held);
        assert_eq!(budget.used(), 0);
        drop(share);
        assert!(budget.lock().shares.is_empty());
    }

    #[test]
    fn a_holding_without_a_connection_is_not_counted() {
        let mut held = Holding::default();
        held.set(usize::MAX / 2);
        assert!(held.try_grow_to(usize::MAX / 2));
    }

    #[test]
    fn half_the_budget_is_reserved_for_connections_that_hold_little() {
        let budget = budget();
        let (large, small) = (budget.share(), budget.share());
        let (mut held, mut little) = (large.hold(), small.hold());
        assert!(held.try_grow_to(4 * MIB));
        assert!(!held.try_grow_to(4 * MIB + 1), "more than half was reserved");
        assert!(little.try_grow_to(MIB / 2));
        assert!(!little.try_grow_to(MIB));
        assert!(!is_exceeded(&large) && !is_exceeded(&small));
    }

    #[test]
    fn the_largest_connection_is_closed_once_when_the_budget_is_exceeded() {
        let budget = budget();
        let shares = [2, 5, 1].map(|size| (budget.share(), size));
        let mut held: Vec<_> = shares.iter().map(|(share, _)| share.hold()).collect();
        for (held, (_, size)) in held.iter_mut().zip(&shares) {
            held.set(size * MIB);
        }
        assert!(shares.iter().all(|(share, _)| !is_exceeded(share)));
        held[2].set(2 * MIB);
        assert_eq!(shares.each_ref().map(|(share, _)| is_exceeded(share)), [false, true, false]);
        // The closed connection still holds its memory, but that counts as free.
        held[2].set(3 * MIB);
        assert_eq!(shares.each_ref().map(|(share, _)| is_exceeded(share)), [false, true, false]);
        held[1].set(0);
        assert_eq!((budget.used(), budget.lock().leaving), (5 * MIB, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_reservation_waits_for_memory() {
        let budget = budget();
        let (first, second) = (budget.share(), budget.share());
        let (mut held, mut waiting) = (first.hold(), second.hold());
        held.grow_to(4 * MIB).await;
        let release = async {
            tokio::time::sleep(WAIT_TIMEOUT / 2).await;
            drop(held);
        };
        tokio::join!(waiting.grow_to(MIB), release);
        assert_eq!(budget.used(), MIB);
        assert!(!is_exceeded(&first) && !is_exceeded(&second));
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_wait_closes_the_largest_connection() {
        let budget = budget();
        let shares: Vec<_> = (0..12).map(|_| budget.share()).collect();
        let mut clients = tokio::task::JoinSet::new();
        for (number, share) in shares.iter().enumerate() {
            let share = share.clone();
            clients.spawn(async move {
                // Each sends a message in pieces, and holds what it has sent until it is closed.
                let mut held = share.hold();
                let sends = async {
                    for sent in 1..=(3 * MIB) / STEP {
                        held.grow_to(sent * STEP).await;
                        tokio::task::yield_now().await;
                    }
                };
                let is_closed = tokio::select! {
                    () = sends => false,
                    () = share.exceeded() => true,
                };
                (number, is_closed)
            });
        }
        let mut finished = 0;
        while let Some(ended) = clients.join_next().await {
            finished += usize::from(!ended.unwrap().1);
        }
        assert!(finished > 0, "every connection was closed");
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn released_memory_goes_to_those_that_hold_least() {
        let budget = budget();
        let (greedy, leaving, modest) = (budget.share(), budget.share(), budget.share());
        let (mut held, mut more) = (greedy.hold(), greedy.hold());
        let (mut freed, mut wanted) = (leaving.hold(), modest.hold());
        held.grow_to(2 * MIB).await;
        freed.grow_to(2 * MIB).await;
        let release = async {
            tokio::time::sleep(WAIT_TIMEOUT / 2).await;
            drop(freed);
        };
        let greedy_waits = tokio::time::timeout(WAIT_TIMEOUT * 3 / 4, more.grow_to(2 * MIB));
        let (taken, (), ()) = tokio::join!(greedy_waits, wanted.grow_to(MIB), release);
        assert!(taken.is_err(), "the larger connection took memory that the smaller one waits for");
        assert_eq!(budget.used(), 3 * MIB);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_waiting_for_its_own_memory_is_not_closed() {
        let budget = budget();
        let share = budget.share();
        let (mut held, mut more) = (share.hold(), share.hold());
        held.grow_to(4 * MIB).await;
        let waiting = tokio::time::timeout(10 * WAIT_TIMEOUT, more.grow_to(MIB)).await;
        assert!(waiting.is_err() && !is_exceeded(&share));
        drop(held);
        more.grow_to(MIB).await;
    }

    #[tokio::test(start_paused = true)]
    async fn an_interrupted_wait_keeps_its_start() {
        let budget = budget();
        let (first, second) = (budget.share(), budget.share());
        let (mut held, mut waiting) = (first.hold(), second.hold());
        held.set(5 * MIB);
        let begun = Instant::now();
        while !is_exceeded(&first) {
            let _ = tokio::time::timeout(WAIT_TIMEOUT / 10, waiting.grow_to(MIB)).await;
            assert!(begun.elapsed() <= 2 * WAIT_TIMEOUT, "the wait restarted each time");
        }
        assert!(!is_exceeded(&second));
        drop(held);
        waiting.grow_to(MIB).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_guess_does_not_select_a_connection_to_close() {
        let budget = budget();
        let shares = [(); 3].map(|()| budget.share());
        let [guesser, holder, sender] = &shares;
        let (mut guess, mut held, mut message) =
            (guesser.hold_guess(), holder.hold(), sender.hold());
        held.grow_to(MIB).await;
        guess.grow_to(3 * MIB).await;
        // The guess does not keep memory from the message.
        message.grow_to(3 * MIB).await;
        drop(held);
        let mut more = holder.hold();
        tokio::join!(more.grow_to(2 * MIB), async {
            sender.exceeded().await;
            drop(message);
        });
        assert_eq!(shares.each_ref().map(is_exceeded), [false, false, true]);
        // An existing response counts with its actual size.
        more.set(0);
        guess.set(5 * MIB);
        assert_eq!(budget.used(), 5 * MIB);
        tokio::join!(more.grow_to(MIB), async {
            guesser.exceeded().await;
            drop(guess);
        });
        assert_eq!(shares.each_ref().map(is_exceeded), [true, false, true]);
    }

    #[tokio::test(start_paused = true)]
    async fn guesses_wait_for_each_other_without_closing_connections() {
        let budget = budget();
        let [first, second, idle] = [(); 3].map(|()| budget.share());
        let (mut guess, mut other, mut held) =
            (first.hold_guess(), second.hold_guess(), idle.hold());
        guess.grow_to(3 * MIB).await;
        held.grow_to(MIB / 2).await;
        let waiting = tokio::time::timeout(10 * WAIT_TIMEOUT, other.grow_to(2 * MIB)).await;
        assert!(waiting.is_err(), "guesses exceed the budget");
        assert!(![&first, &second, &idle].into_iter().any(is_exceeded));
        drop(guess);
        other.grow_to(2 * MIB).await;
    }

    #[tokio::test(start_paused = true)]
    async fn an_interrupted_wait_keeps_its_turn() {
        let budget = budget();
        let (large, modest) = (budget.share(), budget.share());
        let (mut held, mut more, mut wanted) = (large.hold(), large.hold(), modest.hold());
        held.grow_to(4 * MIB).await;
        let interrupted = tokio::time::timeout(WAIT_TIMEOUT / 2, wanted.grow_to(MIB)).await;
        assert!(interrupted.is_err());
        held.set(2 * MIB);
        assert!(
            !more.try_grow_to(MIB),
            "the larger connection took memory that the smaller one waits for"
        );
        wanted.grow_to(MIB).await;
        assert!(more.try_grow_to(MIB));
    }
}
