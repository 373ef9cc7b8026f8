//! How many threads each policy has, and who is to get the next: numbers only. No thread is started or woken here.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, LazyLock};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use exec_server_host::fs::Confinement;
use exec_server_host::sandbox::Policy;
use exec_server_protocol::RpcError;

/// As many threads of a policy as are started for jobs that have to wait a little.
const FEW: usize = 8;
/// A job that waits for longer gets a thread more, however many of its policy are awake.
pub(super) const LONG: Duration = Duration::from_millis(1);
/// The same where there are a few threads already: they hang, or their work takes long.
const TOO_LONG: Duration = Duration::from_millis(20);

static PROCESSORS: LazyLock<usize> =
    LazyLock::new(|| std::thread::available_parallelism().map_or(2, usize::from).max(2));

/// Of threads.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Of one policy: under a ceiling it is that of all clients, so it is more than one of them can have at work.
    pub(super) each: usize,
    /// Of all policies together, unless all of these are at work: what is idle goes when another policy needs a thread.
    pub(super) usual: usize,
    /// Of all policies together. As many jobs may hang as on threads that are free.
    pub(super) all: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { each: 256, usual: 64, all: 512 }
    }
}

pub(super) struct Job {
    /// It is told why, if it cannot be kept to its policy; then it must not touch anything.
    pub(super) work: Box<dyn FnOnce(Result<(), RpcError>) + Send>,
    pub(super) since: Instant,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) limits: Limits,
    pub(super) pools: HashMap<Policy, Pool>,
    /// Those that are being started, too.
    pub(super) threads: usize,
    /// Policies with work that wait until another one loses a thread.
    pub(super) starving: VecDeque<Policy>,
    /// Threads to be started, by policy.
    pub(super) wanted: VecDeque<Policy>,
    pub(super) has_starter: bool,
    /// Jobs may be waiting that no thread is on its way to.
    pub(super) held_back: bool,
    /// Threads that have nothing more to do.
    pub(super) ended: Vec<ThreadId>,
    /// Counts uses, to know which was the last.
    pub(super) uses: u64,
}

/// Invariant: it has a thread or a job.
#[derive(Default)]
pub(super) struct Pool {
    /// Made by the first thread.
    pub(super) confinement: Option<Arc<Confinement>>,
    pub(super) jobs: VecDeque<Job>,
    pub(super) threads: usize,
    pub(super) sleeping: usize,
    /// A thread was called or wanted and has not arrived yet.
    pub(super) coming: bool,
    /// One of the sleeping threads was called.
    pub(super) call: bool,
    /// Sleeping threads that are to end.
    pub(super) dismissed: usize,
    pub(super) called: Arc<Condvar>,
    pub(super) last_use: u64,
}

impl Pool {
    /// There are jobs, and as many threads awake as are useful.
    pub(super) fn is_busy(&self) -> bool {
        !self.jobs.is_empty() && self.threads - self.sleeping >= *PROCESSORS
    }

    /// A job has waited for too long to be held back further.
    pub(super) fn is_late(&self) -> bool {
        let would_grow = self.sleeping <= self.dismissed && self.threads >= FEW;
        let patience = if would_grow { TOO_LONG } else { LONG };
        self.jobs.front().is_some_and(|job| job.since.elapsed() >= patience)
    }
}

impl State {
    pub(super) fn want_thread(&mut self, policy: &Policy) {
        self.threads += 1;
        let pool = self.pool(policy);
        pool.threads += 1;
        pool.coming = true;
        self.wanted.push_back(policy.clone());
    }

    /// This thread ends. Whoever starves gets its place; others that do as well only if there is room, since for them somebody
    /// else ends.
    pub(super) fn lose_thread(&mut self, policy: &Policy) {
        self.threads -= 1;
        self.ended.push(std::thread::current().id());
        let pool = self.pool(policy);
        pool.threads -= 1;
        if pool.threads == 0 && pool.jobs.is_empty() {
            self.pools.remove(policy);
        } else if pool.threads == 0 {
            (pool.coming, pool.call) = (false, false);
            if !self.starving.contains(policy) {
                self.starving.push_back(policy.clone());
            }
        }
        let mut room = self.limits.usual.saturating_sub(self.threads).max(1);
        while room > 0
            && let Some(policy) = self.starving.pop_front()
        {
            // Its own threads may have done the work since.
            if self.pools.get(&policy).is_some_and(|pool| !pool.jobs.is_empty() && !pool.coming) {
                self.want_thread(&policy);
                room -= 1;
            }
        }
    }

    /// The thread of the policy that was least recently used, if it sleeps.
    pub(super) fn dismiss_one(&mut self) -> Option<Arc<Condvar>> {
        let sleeps = |pool: &&mut Pool| pool.sleeping > pool.dismissed + usize::from(pool.call);
        let pool = self.pools.values_mut().filter(sleeps).min_by_key(|pool| pool.last_use)?;
        pool.dismissed += 1;
        Some(Arc::clone(&pool.called))
    }

    pub(super) fn pool(&mut self, policy: &Policy) -> &mut Pool {
        self.pools.get_mut(policy).expect("a pool with a thread or a job is there")
    }
}
