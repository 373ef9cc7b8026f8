//! Decides when to dial, how long to wait, and when to give up.
//!
//! Events and the time enter through `handle_*`; actions and the next timeout leave through
//! `poll_*`. The module knows no socket, clock or session, so a test can play any sequence of
//! events.

use std::collections::VecDeque;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::time::Instant;

/// How long to try to replace a lost connection, and how long to pause between attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecoveryPolicy {
    /// Time from the loss until giving up; `None` sets no limit. A server keeps a session for 30 s
    /// unless asked for more, so a longer deadline needs a longer `detached_ttl`, too.
    pub deadline: Option<Duration>,
    /// The pause after the first failed attempt. It doubles with each further failure, up to
    /// `longest_pause`. Jitter shortens each pause by up to half. The first attempt after a loss is
    /// immediate, unless the connection lived for less than this.
    pub first_pause: Duration,
    pub longest_pause: Duration,
    /// Time limit for one attempt to reconnect, from dialling to the response to `initialize`.
    pub attempt: Duration,
}

impl Default for RecoveryPolicy {
    fn default() -> Self {
        Self {
            deadline: Some(Duration::from_secs(25)),
            first_pause: Duration::from_millis(100),
            longest_pause: Duration::from_secs(2),
            attempt: Duration::from_secs(5),
        }
    }
}

/// The number of a connection or attempt. Events of earlier ones have no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Generation(u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Dial and send `initialize`.
    Dial(Generation),
    /// The attempt takes too long: drop it, with its connection.
    HangUp(Generation),
    /// The session is resumed: read the events that the client has missed.
    CatchUp(Generation),
    Admit(Generation),
    /// Fail everything that waits.
    GiveUp(GiveUpReason),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GiveUpReason {
    /// The first attempt failed; there is no session to recover.
    NeverConnected,
    Deadline(Duration),
    /// A retry cannot succeed: the server or the transport refused for good, the server broke the
    /// protocol, or the connector cannot redial.
    Permanent,
}

/// Whether a retry may succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    Temporary,
    Permanent,
}

#[derive(Debug)]
pub(crate) struct Recovery {
    policy: RecoveryPolicy,
    generation: Generation,
    state: State,
    actions: VecDeque<Action>,
    rng: SmallRng,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The very first attempt.
    Opening {
        until: Instant,
    },
    Connected {
        since: Instant,
    },
    Recovering {
        since: Instant,
        failed: u32,
        step: Step,
    },
    GivenUp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Pausing {
        until: Instant,
    },
    /// From dialling to the response to `initialize`.
    Attempting {
        until: Instant,
    },
    /// No time limit but the deadline: a slow link is no reason to start over.
    CatchingUp,
}

impl Recovery {
    /// Begins with the first attempt. `seed` determines the jitter.
    pub(crate) fn new(
        policy: RecoveryPolicy,
        first_attempt: Duration,
        now: Instant,
        seed: u64,
    ) -> Self {
        let generation = Generation(1);
        Self {
            policy,
            generation,
            state: State::Opening { until: later(now, first_attempt) },
            actions: VecDeque::from([Action::Dial(generation)]),
            rng: SmallRng::seed_from_u64(seed),
        }
    }

    /// Returns the time of the loss and the number of failed attempts while the connection is being
    /// recovered.
    pub(crate) fn recovering(&self) -> Option<(Instant, u32)> {
        match self.state {
            State::Recovering { since, failed, .. } => Some((since, failed)),
            State::Opening { .. } | State::Connected { .. } | State::GivenUp => None,
        }
    }

    pub(crate) fn is_connected(&self) -> bool {
        matches!(self.state, State::Connected { .. })
    }

    /// A connection ended, or an attempt failed.
    pub(crate) fn handle_lost(&mut self, generation: Generation, refusal: Refusal, now: Instant) {
        if generation != self.generation {
            return;
        }
        match (self.state, refusal) {
            (State::GivenUp, _) => {}
            (State::Opening { .. }, _) => self.give_up(GiveUpReason::NeverConnected),
            (State::Connected { .. } | State::Recovering { .. }, Refusal::Permanent) => {
                self.give_up(GiveUpReason::Permanent);
            }
            (State::Connected { since }, Refusal::Temporary)
                if now < later(since, self.policy.first_pause) =>
            {
                // A server that accepts and then drops connections must not cause a busy loop.
                self.pause(now, 0, now);
            }
            (State::Connected { .. }, Refusal::Temporary) => {
                let step = self.attempt(now);
                self.state = State::Recovering { since: now, failed: 0, step };
            }
            (State::Recovering { step: Step::Pausing { .. }, .. }, Refusal::Temporary) => {}
            (State::Recovering { since, failed, .. }, Refusal::Temporary) => {
                self.pause(since, failed, now);
            }
        }
    }

    pub(crate) fn handle_initialized(&mut self, generation: Generation, now: Instant) {
        if generation != self.generation {
            return;
        }
        match &mut self.state {
            State::Opening { .. } => {
                self.state = State::Connected { since: now };
                self.actions.push_back(Action::Admit(generation));
            }
            State::Recovering { step: step @ Step::Attempting { .. }, .. } => {
                *step = Step::CatchingUp;
                self.actions.push_back(Action::CatchUp(generation));
            }
            State::Recovering { .. } | State::Connected { .. } | State::GivenUp => {}
        }
    }

    pub(crate) fn handle_caught_up(&mut self, generation: Generation, now: Instant) {
        let is_catching_up = matches!(self.state, State::Recovering { step: Step::CatchingUp, .. });
        if generation == self.generation && is_catching_up {
            self.state = State::Connected { since: now };
            self.actions.push_back(Action::Admit(generation));
        }
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        match self.state {
            State::Opening { until } if now >= until => {
                self.actions.push_back(Action::HangUp(self.generation));
                self.give_up(GiveUpReason::NeverConnected);
            }
            State::Recovering { since, failed, step } => {
                if let Some(deadline) = self.policy.deadline
                    && now >= later(since, deadline)
                {
                    return self.give_up(GiveUpReason::Deadline(deadline));
                }
                match step {
                    Step::Pausing { until } if now >= until => {
                        let step = self.attempt(now);
                        self.state = State::Recovering { since, failed, step };
                    }
                    Step::Attempting { until } if now >= until => {
                        self.actions.push_back(Action::HangUp(self.generation));
                        self.pause(since, failed, now);
                    }
                    Step::Pausing { .. } | Step::Attempting { .. } | Step::CatchingUp => {}
                }
            }
            State::Opening { .. } | State::Connected { .. } | State::GivenUp => {}
        }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        match self.state {
            State::Opening { until } => Some(until),
            State::Recovering { since, step, .. } => {
                let deadline = self.policy.deadline.map(|deadline| later(since, deadline));
                let step = match step {
                    Step::Pausing { until } | Step::Attempting { until } => Some(until),
                    Step::CatchingUp => None,
                };
                [deadline, step].into_iter().flatten().min()
            }
            State::Connected { .. } | State::GivenUp => None,
        }
    }

    pub(crate) fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    fn attempt(&mut self, now: Instant) -> Step {
        self.generation = Generation(self.generation.0 + 1);
        self.actions.push_back(Action::Dial(self.generation));
        Step::Attempting { until: later(now, self.policy.attempt) }
    }

    /// Pauses for half to all of the computed time, so that clients of a lost server do not
    /// reconnect simultaneously.
    fn pause(&mut self, since: Instant, failed: u32, now: Instant) {
        let RecoveryPolicy { first_pause, longest_pause, .. } = self.policy;
        let doubled = first_pause.saturating_mul(1_u32.checked_shl(failed).unwrap_or(u32::MAX));
        let pause = doubled.min(longest_pause).mul_f64(self.rng.random_range(0.5..=1.0));
        let step = Step::Pausing { until: later(now, pause) };
        self.state = State::Recovering { since, failed: failed.saturating_add(1), step };
    }

    fn give_up(&mut self, reason: GiveUpReason) {
        self.state = State::GivenUp;
        self.actions.push_back(Action::GiveUp(reason));
    }
}

/// Adds a duration of any size. A result beyond the range of the clock becomes a year from now.
fn later(now: Instant, duration: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);
    now.checked_add(duration).unwrap_or(now + FAR)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Clock(Instant);

    impl Clock {
        fn after(&mut self, duration: Duration) -> Instant {
            self.0 += duration;
            self.0
        }
    }

    fn actions(recovery: &mut Recovery) -> Vec<Action> {
        std::iter::from_fn(|| recovery.poll_action()).collect()
    }

    const FIRST_ATTEMPT: Duration = Duration::from_secs(10);
    const FIRST: Generation = Generation(1);
    const SECOND: Generation = Generation(2);

    fn connected() -> (Recovery, Clock) {
        let now = Instant::now();
        let mut recovery = Recovery::new(RecoveryPolicy::default(), FIRST_ATTEMPT, now, 7);
        assert_eq!(actions(&mut recovery), [Action::Dial(FIRST)]);
        recovery.handle_initialized(FIRST, now);
        assert_eq!(actions(&mut recovery), [Action::Admit(FIRST)]);
        assert_eq!(recovery.poll_timeout(), None);
        (recovery, Clock(now + FIRST_ATTEMPT))
    }

    #[test]
    fn calls_are_admitted_only_after_recovery() {
        let (mut recovery, clock) = connected();
        recovery.handle_lost(FIRST, Refusal::Temporary, clock.0);
        assert_eq!(
            actions(&mut recovery),
            [Action::Dial(SECOND)],
            "the first attempt is immediate"
        );
        assert!(!recovery.is_connected());
        recovery.handle_initialized(SECOND, clock.0);
        assert_eq!(actions(&mut recovery), [Action::CatchUp(SECOND)]);
        assert!(!recovery.is_connected());
        recovery.handle_caught_up(SECOND, clock.0);
        assert_eq!(actions(&mut recovery), [Action::Admit(SECOND)]);
        assert!(recovery.is_connected());
    }

    #[test]
    fn a_short_lived_connection_is_redialled_after_a_pause() {
        let (mut recovery, mut clock) = connected();
        let (began, mut generation) = (clock.0, FIRST);
        for _ in 0..1000 {
            recovery.handle_lost(generation, Refusal::Temporary, clock.0);
            while recovery.poll_action().is_none() {
                let next = recovery.poll_timeout().unwrap();
                let now = clock.after(next - clock.0);
                recovery.handle_timeout(now);
            }
            generation = Generation(generation.0 + 1);
            recovery.handle_initialized(generation, clock.0);
            recovery.handle_caught_up(generation, clock.0);
            actions(&mut recovery);
        }
        assert!(clock.0 - began > 900 * RecoveryPolicy::default().first_pause / 2);
    }

    #[test]
    fn events_of_an_old_connection_are_ignored() {
        let (mut recovery, clock) = connected();
        recovery.handle_lost(FIRST, Refusal::Temporary, clock.0);
        recovery.handle_initialized(SECOND, clock.0);
        actions(&mut recovery);
        for refusal in [Refusal::Temporary, Refusal::Permanent] {
            recovery.handle_lost(FIRST, refusal, clock.0);
        }
        recovery.handle_initialized(FIRST, clock.0);
        recovery.handle_caught_up(FIRST, clock.0);
        assert_eq!(actions(&mut recovery), []);
        recovery.handle_caught_up(SECOND, clock.0);
        assert!(recovery.is_connected());
    }

    #[test]
    fn attempts_are_spaced_and_end_at_the_deadline() {
        let (mut recovery, mut clock) = connected();
        let lost_at = clock.0;
        recovery.handle_lost(FIRST, Refusal::Temporary, lost_at);
        let (mut pauses, mut dials) = (Vec::new(), 0);
        let over = loop {
            match recovery.poll_action() {
                Some(Action::Dial(generation)) => {
                    dials += 1;
                    recovery.handle_lost(generation, Refusal::Temporary, clock.0);
                }
                Some(Action::GiveUp(over)) => break over,
                Some(_) => {}
                None => {
                    let next = recovery.poll_timeout().unwrap();
                    pauses.push(next - clock.0);
                    let now = clock.after(next - clock.0);
                    recovery.handle_timeout(now);
                }
            }
        };
        assert_eq!(over, GiveUpReason::Deadline(Duration::from_secs(25)));
        assert_eq!(clock.0 - lost_at, Duration::from_secs(25), "exactly at the deadline");
        let policy = RecoveryPolicy::default();
        assert!(pauses[0] >= policy.first_pause / 2 && pauses[0] <= policy.first_pause);
        assert!(pauses.iter().all(|pause| *pause <= policy.longest_pause));
        assert!((13..40).contains(&dials), "{dials} attempts");
        assert_eq!(recovery.poll_timeout(), None);
    }

    #[test]
    fn without_a_deadline_recovery_never_gives_up() {
        let now = Instant::now();
        let policy = RecoveryPolicy { deadline: None, ..RecoveryPolicy::default() };
        let mut recovery = Recovery::new(policy, FIRST_ATTEMPT, now, 7);
        recovery.handle_initialized(FIRST, now);
        recovery.handle_lost(FIRST, Refusal::Temporary, now);
        let mut clock = Clock(now);
        for _ in 0..10_000 {
            match recovery.poll_action() {
                Some(Action::Dial(generation)) => {
                    recovery.handle_lost(generation, Refusal::Temporary, clock.0);
                }
                Some(Action::GiveUp(over)) => panic!("{over:?}"),
                Some(_) => {}
                None => {
                    let next = recovery.poll_timeout().unwrap();
                    let now = clock.after(next - clock.0);
                    recovery.handle_timeout(now);
                }
            }
        }
    }

    #[test]
    fn a_hanging_attempt_is_aborted() {
        let (mut recovery, mut clock) = connected();
        recovery.handle_lost(FIRST, Refusal::Temporary, clock.0);
        actions(&mut recovery);
        let now = clock.after(RecoveryPolicy::default().attempt);
        recovery.handle_timeout(now);
        assert_eq!(actions(&mut recovery), [Action::HangUp(SECOND)]);
        assert_eq!(recovery.recovering().unwrap().1, 1);
        recovery.handle_lost(SECOND, Refusal::Temporary, now);
        assert_eq!(recovery.recovering().unwrap().1, 1, "the aborted attempt is counted");
        let now = recovery.poll_timeout().unwrap();
        recovery.handle_timeout(now);
        assert_eq!(actions(&mut recovery), [Action::Dial(Generation(3))]);
    }

    #[test]
    fn a_loss_while_catching_up_retries_under_the_same_deadline() {
        let (mut recovery, mut clock) = connected();
        let lost_at = clock.0;
        recovery.handle_lost(FIRST, Refusal::Temporary, lost_at);
        recovery.handle_initialized(SECOND, clock.0);
        let now = clock.after(Duration::from_secs(5));
        recovery.handle_lost(SECOND, Refusal::Temporary, now);
        assert_eq!(recovery.recovering(), Some((lost_at, 1)));
        recovery.handle_timeout(lost_at + Duration::from_secs(25));
        assert!(
            actions(&mut recovery)
                .contains(&Action::GiveUp(GiveUpReason::Deadline(Duration::from_secs(25))))
        );
    }

    #[test]
    fn a_permanent_refusal_gives_up_at_once() {
        let (mut recovery, clock) = connected();
        recovery.handle_lost(FIRST, Refusal::Temporary, clock.0);
        actions(&mut recovery);
        recovery.handle_lost(SECOND, Refusal::Permanent, clock.0);
        assert_eq!(actions(&mut recovery), [Action::GiveUp(GiveUpReason::Permanent)]);

        let mut never = Recovery::new(RecoveryPolicy::default(), FIRST_ATTEMPT, clock.0, 7);
        actions(&mut never);
        never.handle_lost(FIRST, Refusal::Temporary, clock.0);
        assert_eq!(actions(&mut never), [Action::GiveUp(GiveUpReason::NeverConnected)]);
    }

    #[test]
    fn huge_durations_do_not_overflow_the_clock() {
        let policy = RecoveryPolicy {
            deadline: Some(Duration::MAX),
            first_pause: Duration::MAX,
            longest_pause: Duration::MAX,
            attempt: Duration::MAX,
        };
        let now = Instant::now();
        let mut recovery = Recovery::new(policy, FIRST_ATTEMPT, now, 7);
        recovery.handle_initialized(FIRST, now);
        recovery.handle_lost(FIRST, Refusal::Temporary, now);
        recovery.handle_lost(SECOND, Refusal::Temporary, now);
        assert!(recovery.poll_timeout().unwrap() > now);
    }
}
