//! Decides which workers the pool has, and which of them runs the next job. It starts and wakes no
//! thread. Callers pass the current time.
//!
//! Each policy has its own queue and workers; so does work without a policy. A queue runs as many
//! workers as there are processors, plus one for each job that has waited for a millisecond.
//! At most one idle worker at a time is on its way to a queue: when it takes a job and finds more,
//! it calls the next. Several short jobs thus wake one thread, not one each.
//!
//! A worker calls [`PoolScheduler::next`] until it is told to end. The *starter*, one thread,
//! starts workers and waits for the timers.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::time::{Duration, Instant};

/// A worker that sleeps for this long ends.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// A job that waits longer gets one more worker. A job that runs longer is assumed to wait for
/// storage.
const LATE: Duration = Duration::from_millis(1);
/// Replaces [`LATE`] if a worker must be started and the queue already has [`Limits::few`] workers.
const VERY_LATE: Duration = Duration::from_millis(20);
/// Delay before another start after a worker could not be started.
const START_RETRY: Duration = Duration::from_millis(100);

/// Limits on the number of workers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Per queue. Under a ceiling all clients share one policy, so this is more than one client can
    /// occupy.
    pub(super) each: usize,
    /// Per queue. Up to this number, another worker is started as soon as a job is late; beyond it,
    /// only when a job is very late.
    pub(super) few: usize,
    /// For all queues. From this number on, a new worker replaces an idle one, if any is idle.
    pub(super) usual: usize,
    /// For all queues, even if every worker hangs.
    pub(super) all: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct WorkerId(u64);

#[derive(Debug)]
pub(super) struct Job<J> {
    pub(super) work: J,
    pub(super) queued_at: Instant,
}

/// The instruction for a worker that asks for work.
#[derive(Debug)]
pub(super) enum Next<J> {
    Run(Job<J>),
    /// The worker sleeps until this time or until it is woken, and then asks again.
    Sleep {
        until: Instant,
    },
    End,
}

/// `P` is a policy, `J` the work of a job. The queue of `None` has no policy.
pub(super) struct PoolScheduler<P, J> {
    processors: usize,
    queues: HashMap<Option<P>, Queue<J>>,
    pub(super) workers: HashMap<WorkerId, Worker<P>>,
    /// One for work without a policy, and one that all policies share.
    budgets: [Budget<P>; 2],
    to_start: VecDeque<WorkerId>,
    to_wake: Vec<WorkerId>,
    /// A worker must be started, a check is due earlier than before, or no worker is left.
    wake_starter: bool,
    /// When the starter must check for late jobs.
    check_at: Option<Instant>,
    /// A queue needs a worker, but none could be called or started. Checked again when a worker
    /// falls asleep or ends.
    held_back: bool,
    last_id: u64,
}

/// Invariant: a queue has a worker or a job.
struct Queue<J> {
    jobs: VecDeque<Job<J>>,
    workers: usize,
    busy: usize,
    /// Workers that may be busy beyond one per processor.
    extra: usize,
    /// Ordered by time asleep, longest first.
    idle: VecDeque<WorkerId>,
    /// An idle worker was woken and has not asked for work yet.
    called: bool,
    /// A worker was started and has not asked for work yet. It may hang first, on the storage of
    /// its policy's roots.
    starting: bool,
    last_use: Instant,
}

pub(super) struct Worker<P> {
    policy: Option<P>,
    pub(super) activity: Activity,
    has_run: bool,
}

#[derive(Clone, Copy)]
pub(super) enum Activity {
    Starting,
    Busy {
        since: Instant,
    },
    Idle {
        since: Instant,
    },
    /// Woken for a job.
    Called,
    /// Woken to end.
    Dismissed,
}

/// The workers of the queues that share limits.
struct Budget<P> {
    limits: Limits,
    /// Includes workers to be started.
    workers: usize,
    /// Queues whose jobs wait until one of these workers ends.
    starving: VecDeque<Option<P>>,
}

impl<P: Clone + Eq + Hash, J> PoolScheduler<P, J> {
    pub(super) fn new(processors: usize, plain: Limits, sandboxed: Limits) -> Self {
        let budget = |limits| Budget { limits, workers: 0, starving: VecDeque::new() };
        Self {
            processors,
            queues: HashMap::new(),
            workers: HashMap::new(),
            budgets: [plain, sandboxed].map(budget),
            to_start: VecDeque::new(),
            to_wake: Vec::new(),
            wake_starter: false,
            check_at: None,
            held_back: false,
            last_id: 0,
        }
    }

    pub(super) fn enqueue(&mut self, policy: &Option<P>, work: J, now: Instant) {
        let queue = self.queues.entry(policy.clone()).or_insert_with(|| Queue::new(now));
        queue.last_use = now;
        queue.jobs.push_back(Job { work, queued_at: now });
        self.call_worker(policy, now);
    }

    /// Called by a worker that was started, was woken, has slept or has run its job.
    pub(super) fn next(&mut self, id: WorkerId, now: Instant) -> Next<J> {
        let worker = self.workers.get_mut(&id).expect("a worker that asks has not ended");
        let policy = worker.policy.clone();
        let queue = self.queues.get_mut(&policy).expect("a queue with a worker exists");
        let is_over = match worker.activity {
            Activity::Starting => {
                queue.starting = false;
                false
            }
            Activity::Called => {
                queue.called = false;
                false
            }
            Activity::Busy { since } => {
                queue.finish_job(now - since);
                false
            }
            Activity::Idle { since } if now < since + IDLE_TIMEOUT => {
                return Next::Sleep { until: since + IDLE_TIMEOUT };
            }
            Activity::Idle { .. } => {
                queue.idle.retain(|idle| *idle != id);
                true
            }
            Activity::Dismissed => true,
        };
        // Another queue waits for a slot: this worker makes room, and its own queue waits for its
        // turn. But each worker runs at least one job, or two queues could pass a slot back and
        // forth forever.
        let may_yield = worker.has_run || queue.jobs.is_empty();
        let budget = &self.budgets[group(&policy)];
        if is_over || may_yield && budget.starving.iter().any(|starving| *starving != policy) {
            self.end_worker(id);
            self.settle(&policy, now);
            return Next::End;
        }
        if let Some(job) = queue.take_job(self.processors, now) {
            worker.activity = Activity::Busy { since: now };
            worker.has_run = true;
            self.call_worker(&policy, now);
            return Next::Run(job);
        }
        worker.activity = Activity::Idle { since: now };
        queue.idle.push_back(id);
        self.settle(&policy, now);
        Next::Sleep { until: now + IDLE_TIMEOUT }
    }

    /// Takes back a job that a worker cannot run, and ends the worker. Another worker runs the job.
    pub(super) fn hand_back(&mut self, id: WorkerId, job: Job<J>, now: Instant) {
        let policy = self.workers[&id].policy.clone();
        let queue = self.queues.get_mut(&policy).expect("a queue with a worker exists");
        queue.finish_job(Duration::ZERO);
        queue.jobs.push_front(job);
        self.end_worker(id);
        self.settle(&policy, now);
    }

    /// Removes a worker that could not be started, or cannot serve its queue. Other workers of the
    /// queue run its jobs; if there are none, the jobs are returned.
    #[must_use]
    pub(super) fn fail_start(&mut self, id: WorkerId, now: Instant) -> VecDeque<Job<J>> {
        let policy = self.workers[&id].policy.clone();
        let queue = self.queues.get_mut(&policy).expect("a queue with a worker exists");
        queue.starting = false;
        let mut failed = VecDeque::new();
        if queue.workers == 1 {
            failed.append(&mut queue.jobs);
        }
        self.end_worker(id);
        let needs_worker = self.queues.get(&policy).is_some_and(Queue::needs_worker);
        self.held_back |= needs_worker && !self.call_idle(&policy);
        // Another start at once would fail again.
        if self.held_back {
            self.check_later(now + START_RETRY);
        }
        failed
    }

    /// Checks for late jobs. Called by the starter whenever it wakes.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.check_at.is_some_and(|at| at <= now) {
            self.check_at = None;
            self.call_workers(now);
        }
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.check_at
    }

    pub(super) fn poll_start(&mut self) -> Option<(WorkerId, Option<P>)> {
        let id = self.to_start.pop_front()?;
        Some((id, self.workers[&id].policy.clone()))
    }

    pub(super) fn poll_wake(&mut self) -> Option<WorkerId> {
        self.to_wake.pop()
    }

    /// Returns whether to wake the starter.
    pub(super) fn poll_starter(&mut self) -> bool {
        std::mem::take(&mut self.wake_starter)
    }

    /// Returns whether there is no worker, and so no job.
    pub(super) fn is_empty(&self) -> bool {
        self.workers.is_empty()
    }

    /// Calls workers after a worker of this policy has fallen asleep or ended. The queue of that
    /// policy comes first.
    fn settle(&mut self, policy: &Option<P>, now: Instant) {
        self.call_worker(policy, now);
        if self.held_back {
            self.call_workers(now);
        }
    }

    /// Calls or starts a worker for a queue that needs one, or arranges for a later check if the
    /// queue is full or a limit is reached.
    fn call_worker(&mut self, policy: &Option<P>, now: Instant) {
        let Some(queue) = self.queues.get(policy).filter(|queue| queue.needs_worker()) else {
            return;
        };
        let limits = self.budgets[group(policy)].limits;
        if queue.is_full(self.processors) {
            let grows = queue.idle.is_empty() && queue.workers >= limits.few;
            let late_at = queue.oldest() + if grows { VERY_LATE } else { LATE };
            if now < late_at {
                return self.check_later(late_at);
            }
        }
        let (is_alone, may_grow) = (queue.workers == 0, queue.workers < limits.each);
        if self.call_idle(policy) {
            return;
        }
        let of = group(policy);
        if !may_grow || self.budgets[of].starving.contains(policy) {
            self.held_back = true;
        } else if self.budgets[of].workers < limits.usual {
            self.start_worker(policy);
        } else if self.dismiss_one(of) {
            self.budgets[of].starving.push_back(policy.clone());
        } else if self.budgets[of].workers < limits.all {
            self.start_worker(policy);
        } else if is_alone {
            self.budgets[of].starving.push_back(policy.clone());
        } else {
            // The queue gets the slot of another queue's worker only when that worker sleeps or
            // ends.
            self.held_back = true;
        }
    }

    fn call_workers(&mut self, now: Instant) {
        self.held_back = false;
        let needy = self.queues.iter().filter(|(_, queue)| queue.needs_worker());
        let needy: Vec<_> = needy.map(|(policy, _)| policy.clone()).collect();
        for policy in needy {
            self.call_worker(&policy, now);
        }
    }

    fn call_idle(&mut self, policy: &Option<P>) -> bool {
        let Some(queue) = self.queues.get_mut(policy) else { return false };
        // The last one to fall asleep, so that the others may end.
        let Some(id) = queue.idle.pop_back() else { return false };
        queue.called = true;
        self.wake(id, Activity::Called);
        true
    }

    /// Ends an idle worker of the queue that was least recently used.
    fn dismiss_one(&mut self, of: usize) -> bool {
        let queues = self.queues.iter_mut().filter(|(policy, _)| group(policy) == of);
        let idle = queues.map(|(_, queue)| queue).filter(|queue| !queue.idle.is_empty());
        let Some(queue) = idle.min_by_key(|queue| queue.last_use) else { return false };
        let id = queue.idle.pop_front().expect("it has an idle worker");
        self.wake(id, Activity::Dismissed);
        true
    }

    fn wake(&mut self, id: WorkerId, activity: Activity) {
        self.workers.get_mut(&id).expect("an idle worker exists").activity = activity;
        self.to_wake.push(id);
    }

    pub(super) fn start_worker(&mut self, policy: &Option<P>) {
        self.last_id += 1;
        let id = WorkerId(self.last_id);
        let worker =
            Worker { policy: policy.clone(), activity: Activity::Starting, has_run: false };
        self.workers.insert(id, worker);
        self.budgets[group(policy)].workers += 1;
        let queue = self.queues.get_mut(policy).expect("a queue with a job exists");
        queue.workers += 1;
        queue.starting = true;
        self.to_start.push_back(id);
        self.wake_starter = true;
    }

    /// Removes a worker and gives its slot to a starving queue. Below the usual limit, several
    /// starving queues get a worker each.
    fn end_worker(&mut self, id: WorkerId) {
        let policy = self.workers.remove(&id).expect("a worker ends once").policy;
        let budget = &mut self.budgets[group(&policy)];
        budget.workers -= 1;
        let mut room = budget.limits.usual.saturating_sub(budget.workers).max(1);
        let queue = self.queues.get_mut(&policy).expect("a queue with a worker exists");
        queue.workers -= 1;
        if queue.workers == 0 && queue.jobs.is_empty() {
            self.queues.remove(&policy);
        }
        while room > 0
            && let Some(starving) = self.budgets[group(&policy)].starving.pop_front()
        {
            // Its own workers may have run the jobs in the meantime.
            let needs_worker = |queue: &Queue<J>| queue.needs_worker() && queue.idle.is_empty();
            if self.queues.get(&starving).is_some_and(needs_worker) {
                self.start_worker(&starving);
                room -= 1;
            }
        }
        self.wake_starter |= self.workers.is_empty();
    }

    fn check_later(&mut self, at: Instant) {
        if self.check_at.is_none_or(|known| at < known) {
            self.check_at = Some(at);
            self.wake_starter = true;
        }
    }
}

/// Returns the index of the budget that a queue shares.
fn group<P>(policy: &Option<P>) -> usize {
    usize::from(policy.is_some())
}

impl<J> Queue<J> {
    fn new(now: Instant) -> Self {
        Self {
            jobs: VecDeque::new(),
            workers: 0,
            busy: 0,
            extra: 0,
            idle: VecDeque::new(),
            called: false,
            starting: false,
            last_use: now,
        }
    }

    /// Returns whether an idle worker should be called or, if there is none, a worker started.
    /// While a worker starts, no other is started.
    fn needs_worker(&self) -> bool {
        let can_come = !self.idle.is_empty() || !self.starting;
        !self.jobs.is_empty() && !self.called && can_come
    }

    fn is_full(&self, processors: usize) -> bool {
        self.busy >= processors + self.extra
    }

    fn oldest(&self) -> Instant {
        self.jobs.front().expect("a queue that needs a worker has jobs").queued_at
    }

    /// Returns the next job for a worker that is awake. If all slots are in use, only a job that has
    /// waited too long is returned, and takes an extra slot.
    fn take_job(&mut self, processors: usize, now: Instant) -> Option<Job<J>> {
        if self.is_full(processors) {
            let oldest = self.jobs.front()?;
            if now < oldest.queued_at + LATE {
                return None;
            }
            self.extra += 1;
        }
        let job = self.jobs.pop_front()?;
        self.busy += 1;
        Some(job)
    }

    fn finish_job(&mut self, took: Duration) {
        self.busy -= 1;
        if self.busy == 0 {
            self.extra = 0;
        } else if took > LATE {
            self.extra = self.extra.saturating_sub(1);
        }
    }
}
