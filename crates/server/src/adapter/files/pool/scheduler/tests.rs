//! Random inputs in virtual time. The rules hold after each input, and in the end every job has run
//! or failed and every worker is gone.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const PROCESSORS: usize = 2;
const PLAIN: Limits = Limits { each: 5, few: 5, usual: 5, all: 5 };

/// Limits of sandboxed work.
fn limits() -> impl Strategy<Value = Limits> {
    (1_usize..5, 1_usize..5, 1_usize..6, 0_usize..3).prop_map(|(each, few, usual, more)| Limits {
        each,
        few,
        usual,
        all: usual + more,
    })
}

/// An event of the pool. The number selects one of the threads or jobs to which it can happen.
#[derive(Debug, Clone)]
enum Input {
    Enqueue(Option<u8>),
    TimePasses(Duration),
    StarterLooks,
    WorkerStarts(usize),
    StartFails(usize),
    WorkerWakes(usize),
    /// A sleeping worker asks without having been woken.
    SleeperLooks(usize),
    JobEnds(usize),
    HandedBack(usize),
}

fn input() -> impl Strategy<Value = Input> {
    let policy = prop_oneof![2 => Just(None), 5 => (0_u8..4).prop_map(Some)];
    let time = prop_oneof![
        8 => (0_u64..3_000).prop_map(Duration::from_micros),
        2 => (0_u64..50).prop_map(Duration::from_millis),
        1 => (0_u64..12).prop_map(Duration::from_secs),
    ];
    let pick = 0_usize..20;
    prop_oneof![
        10 => policy.prop_map(Input::Enqueue),
        6 => time.prop_map(Input::TimePasses),
        4 => Just(Input::StarterLooks),
        6 => pick.clone().prop_map(Input::WorkerStarts),
        1 => pick.clone().prop_map(Input::StartFails),
        6 => pick.clone().prop_map(Input::WorkerWakes),
        1 => pick.clone().prop_map(Input::SleeperLooks),
        5 => pick.clone().prop_map(Input::JobEnds),
        1 => pick.prop_map(Input::HandedBack),
    ]
}

/// A thread, as the pool would run it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Thread {
    Starting,
    Running { job: usize },
    Asleep { until: Instant },
    Woken,
}

struct Model {
    sandboxed: Limits,
    pool: PoolScheduler<u8, usize>,
    now: Instant,
    threads: BTreeMap<u64, (Option<u8>, Thread)>,
    /// The policy of each job, by its number.
    jobs: Vec<Option<u8>>,
    waiting: BTreeSet<usize>,
    /// Jobs that have run, or failed for want of a thread.
    over: BTreeSet<usize>,
    /// When another start may be tried after one has failed.
    retry_at: Instant,
}

impl Model {
    fn new(sandboxed: Limits) -> Self {
        let now = Instant::now();
        Self {
            sandboxed,
            pool: PoolScheduler::new(PROCESSORS, PLAIN, sandboxed),
            now,
            threads: BTreeMap::new(),
            jobs: Vec::new(),
            waiting: BTreeSet::new(),
            over: BTreeSet::new(),
            retry_at: now,
        }
    }

    fn apply(&mut self, input: &Input) {
        let is_starting = |thread| thread == Thread::Starting;
        let is_running = |thread| matches!(thread, Thread::Running { .. });
        match *input {
            Input::Enqueue(policy) => {
                let job = self.jobs.len();
                self.jobs.push(policy);
                self.waiting.insert(job);
                self.pool.enqueue(&policy, job, self.now);
            }
            Input::TimePasses(time) => self.now += time,
            Input::StarterLooks => self.pool.handle_timeout(self.now),
            Input::WorkerStarts(pick) => self.ask(self.pick(pick, is_starting)),
            Input::StartFails(pick) => self.fail_start(self.pick(pick, is_starting)),
            Input::WorkerWakes(pick) => self.ask(self.pick(pick, |it| it == Thread::Woken)),
            Input::SleeperLooks(pick) => {
                self.ask(self.pick(pick, |thread| matches!(thread, Thread::Asleep { .. })));
            }
            Input::JobEnds(pick) => self.ask(self.pick(pick, is_running)),
            Input::HandedBack(pick) => self.hand_back(self.pick(pick, is_running)),
        }
        self.perform();
        self.check();
    }

    fn pick(&self, pick: usize, can: impl Fn(Thread) -> bool) -> Option<u64> {
        let able: Vec<_> = self
            .threads
            .iter()
            .filter(|(_, (_, thread))| can(*thread))
            .map(|(id, _)| *id)
            .collect();
        able.get(pick % able.len().max(1)).copied()
    }

    /// Lets a thread ask for work. If it was running a job, the job has ended.
    fn ask(&mut self, id: Option<u64>) {
        let Some(id) = id else { return };
        let (policy, thread) = self.threads[&id];
        if let Thread::Running { job } = thread {
            assert!(self.over.insert(job), "job {job} was run twice");
        }
        let thread = match self.pool.next(WorkerId(id), self.now) {
            Next::Run(job) => {
                assert_eq!(self.jobs[job.work], policy, "a job of another policy");
                assert!(self.waiting.remove(&job.work), "job {} does not wait", job.work);
                Thread::Running { job: job.work }
            }
            Next::Sleep { until } => Thread::Asleep { until },
            Next::End => {
                self.threads.remove(&id);
                return;
            }
        };
        self.threads.insert(id, (policy, thread));
    }

    fn fail_start(&mut self, id: Option<u64>) {
        let Some((id, (policy, _))) = id.and_then(|id| self.threads.remove_entry(&id)) else {
            return;
        };
        let others = self.threads.values().filter(|(of, _)| *of == policy).count();
        let failed = self.pool.fail_start(WorkerId(id), self.now);
        assert!(failed.is_empty() || others == 0, "others could have run the jobs");
        for job in failed {
            assert_eq!(self.jobs[job.work], policy);
            assert!(self.waiting.remove(&job.work));
            assert!(self.over.insert(job.work));
        }
        self.retry_at = self.now + START_RETRY;
    }

    fn hand_back(&mut self, id: Option<u64>) {
        let Some((id, (_, thread))) = id.and_then(|id| self.threads.remove_entry(&id)) else {
            return;
        };
        let Thread::Running { job } = thread else { unreachable!("it was picked as running") };
        self.waiting.insert(job);
        let job = Job { work: job, queued_at: self.now };
        self.pool.hand_back(WorkerId(id), job, self.now);
    }

    fn perform(&mut self) {
        while let Some((id, policy)) = self.pool.poll_start() {
            assert!(self.threads.insert(id.0, (policy, Thread::Starting)).is_none());
        }
        while let Some(id) = self.pool.poll_wake() {
            let (_, thread) = self.threads.get_mut(&id.0).expect("a thread to wake");
            assert!(matches!(thread, Thread::Asleep { .. }), "{thread:?} is woken");
            *thread = Thread::Woken;
        }
        if self.pool.next_timeout().is_some_and(|at| at <= self.now) {
            self.pool.handle_timeout(self.now);
            self.perform();
        }
    }

    fn check(&self) {
        let count = |is: &dyn Fn(&Option<u8>) -> bool| {
            self.threads.values().filter(|(policy, _)| is(policy)).count()
        };
        assert!(count(&Option::is_none) <= PLAIN.all);
        assert!(count(&Option::is_some) <= self.sandboxed.all);
        let policies: BTreeSet<_> = self.jobs.iter().copied().collect();
        for policy in policies {
            let limits = if policy.is_some() { self.sandboxed } else { PLAIN };
            let threads = count(&|other| *other == policy);
            assert!(threads <= limits.each, "{threads} threads of {policy:?}");
            self.check_late(policy, limits, threads, count(&|it| it.is_some() == policy.is_some()));
        }
        let queued: usize = self.pool.queues.values().map(|queue| queue.jobs.len()).sum();
        assert_eq!(queued, self.waiting.len(), "a job was lost");
        assert_eq!(self.pool.is_empty(), self.threads.is_empty());
        assert!(!self.threads.is_empty() || self.waiting.is_empty(), "jobs without any thread");
    }

    /// Checks that a late job has a worker on its way, unless none is possible.
    fn check_late(&self, policy: Option<u8>, limits: Limits, own: usize, all: usize) {
        let Some(queue) = self.pool.queues.get(&policy) else { return };
        let Some(oldest) = queue.jobs.front() else { return };
        let late_at = oldest.queued_at + if own >= limits.few { VERY_LATE } else { LATE };
        let has = |is: &dyn Fn(Option<u8>, Thread) -> bool| {
            self.threads.values().any(|(of, thread)| is(*of, *thread))
        };
        let comes =
            has(&|of, thread| of == policy && matches!(thread, Thread::Starting | Thread::Woken));
        let in_budget = |of: Option<u8>| of.is_some() == policy.is_some();
        let own_sleeps = has(&|of, it| of == policy && matches!(it, Thread::Asleep { .. }));
        let sleeps = has(&|of, it| in_budget(of) && matches!(it, Thread::Asleep { .. }));
        let ends = has(&|of, it| in_budget(of) && it == Thread::Woken);
        assert!(
            self.now < late_at
                || comes
                || own >= limits.each
                || all >= limits.all && !sleeps
                || ends
                || self.now < self.retry_at && !own_sleeps,
            "a job of {policy:?} is late, and has {own} threads of {all}: {:?}",
            self.threads,
        );
    }

    fn finish(&mut self) {
        for _ in 0..10_000 {
            if self.threads.is_empty() {
                break;
            }
            let able = |thread| !matches!(thread, Thread::Asleep { until } if until > self.now);
            let next = self.pick(0, able);
            if next.is_none() {
                let wakes = self.threads.values().filter_map(|(_, thread)| match thread {
                    Thread::Asleep { until } => Some(*until),
                    _ => None,
                });
                self.now = wakes.chain(self.pool.next_timeout()).min().expect("a thread sleeps");
            }
            self.ask(next);
            self.perform();
            self.check();
        }
        assert!(self.threads.is_empty(), "threads are left: {:?}", self.threads);
        assert_eq!(self.over.len(), self.jobs.len(), "jobs were not done");
        assert!(self.pool.queues.is_empty());
        for budget in &self.pool.budgets {
            assert_eq!(budget.workers, 0);
        }
        assert!(self.pool.poll_starter(), "the starter is not woken to end");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_rules_hold_for_any_sequence_of_inputs(limits in limits(), inputs in vec(input(), 1..120)) {
        let mut model = Model::new(limits);
        for input in &inputs {
            model.apply(input);
        }
        if !model.jobs.is_empty() {
            model.finish();
        }
    }
}

/// A starting worker may hang: its policy's roots may be on dead storage.
#[test]
fn an_idle_worker_is_called_while_another_starts() {
    let (mut pool, now) =
        (PoolScheduler::<u8, usize>::new(PROCESSORS, PLAIN, PLAIN), Instant::now());
    let policy = Some(0);
    pool.enqueue(&policy, 1, now);
    let (first, _) = pool.poll_start().unwrap();
    assert!(matches!(pool.next(first, now), Next::Run(Job { work: 1, .. })));
    pool.enqueue(&policy, 2, now);
    let (_hangs, _) = pool.poll_start().unwrap();
    assert!(matches!(pool.next(first, now), Next::Run(Job { work: 2, .. })));
    assert!(matches!(pool.next(first, now), Next::Sleep { .. }));
    pool.enqueue(&policy, 3, now);
    assert_eq!(pool.poll_wake(), Some(first));
    assert!(pool.poll_start().is_none());
    assert!(matches!(pool.next(first, now), Next::Run(Job { work: 3, .. })));
}
