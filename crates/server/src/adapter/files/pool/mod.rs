//! Threads for work that blocks on storage, each confined to one policy or unconfined.
//!
//! A thread cannot leave its policy, so each policy has its own threads. A job that hangs on a dead
//! network file system keeps its thread and delays no other job. [`PoolScheduler`] makes the
//! decisions; this module has the threads.
//!
//! Invariant: a single thread that is never confined, the *starter*, starts all others, since a
//! thread inherits the confinement of the thread that starts it.

mod scheduler;
mod trial;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::thread::{JoinHandle, Thread};
use std::time::Instant;

use exec_server_host::fs::{Confinement, ConfinementError, is_confined};
use exec_server_host::sandbox::Policy;
use exec_server_protocol::{ErrorKind, RpcError};
use tokio::sync::{Notify, oneshot};

use super::errors::no_thread;
use scheduler::{Limits, Next, PoolScheduler, WorkerId};
pub(crate) use trial::can_confine;

const PLAIN_LIMITS: Limits = Limits { each: 512, few: 512, usual: 512, all: 512 };
const SANDBOXED_LIMITS: Limits = Limits { each: 256, few: 8, usual: 64, all: 512 };

/// A job. It gets an error if no thread can be confined to its policy; it must then neither touch
/// files nor block.
type Work = Box<dyn FnOnce(Result<(), RpcError>) + Send>;

/// Clones share the threads. Idle threads end.
#[derive(Debug, Clone)]
pub(crate) struct FilePool {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    starter: Condvar,
    /// Notified when no job is queued, running or expected.
    idle: Notify,
}

struct State {
    pool: PoolScheduler<Policy, Work>,
    threads: HashMap<WorkerId, Thread>,
    /// Workers whose threads are about to end, or could not be started.
    ended: Vec<WorkerId>,
    has_starter: bool,
    /// The confinements that workers have entered.
    confinements: HashMap<Policy, Weak<Confinement>>,
    /// Jobs that are queued, running or expected.
    open_jobs: usize,
}

impl FilePool {
    fn new(plain: Limits, sandboxed: Limits) -> Self {
        let processors = std::thread::available_parallelism().map_or(2, usize::from).max(2);
        let state = State {
            pool: PoolScheduler::new(processors, plain, sandboxed),
            threads: HashMap::new(),
            ended: Vec::new(),
            has_starter: false,
            confinements: HashMap::new(),
            open_jobs: 0,
        };
        let (state, starter, idle) = (Mutex::new(state), Condvar::new(), Notify::new());
        Self { shared: Arc::new(Shared { state, starter, idle }) }
    }

    /// Runs a job without a policy as soon as a thread is free. Jobs run in no particular order. A
    /// job is dropped if no thread can be started for it.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        self.run_or_tell(|thread| {
            if thread.is_ok() {
                job();
            }
        });
    }

    /// Like [`Self::run`], but passes the job an error if there is no thread. With an error, the
    /// job must not block.
    pub(crate) fn run_or_tell(&self, job: impl FnOnce(Result<(), RpcError>) + Send + 'static) {
        self.run_under(&None, job);
    }

    pub(super) fn run_under(
        &self,
        policy: &Option<Policy>,
        job: impl FnOnce(Result<(), RpcError>) + Send + 'static,
    ) {
        let work = Box::new(job);
        let mut state = self.shared.lock();
        state.open_jobs += 1;
        state.pool.enqueue(policy, work, Instant::now());
        self.shared.unlock_and_wake(state);
    }

    /// Runs a job and returns its result; `None` if no thread could be started, or the job
    /// panicked. The job runs whether or not the future is polled.
    pub(crate) fn compute<T: Send + 'static, F: FnOnce() -> T + Send + 'static>(
        &self,
        job: F,
    ) -> impl Future<Output = Option<T>> + Send + use<T, F> {
        let (done, found) = oneshot::channel();
        self.run(move || drop(done.send(job())));
        async { found.await.ok() }
    }

    pub(crate) fn expect_job(&self) -> ExpectedJob {
        self.shared.lock().open_jobs += 1;
        ExpectedJob { shared: Arc::clone(&self.shared) }
    }

    pub(crate) fn jobs(&self) -> usize {
        self.shared.lock().open_jobs
    }

    pub(crate) async fn idle(&self) {
        loop {
            let mut idle = std::pin::pin!(self.shared.idle.notified());
            idle.as_mut().enable();
            if self.shared.lock().open_jobs == 0 {
                return;
            }
            idle.await;
        }
    }
}

impl Default for FilePool {
    fn default() -> Self {
        Self::new(PLAIN_LIMITS, SANDBOXED_LIMITS)
    }
}

/// Work that waits outside the pool for response budget, before or after its job. Until this is
/// dropped, the pool is not idle.
#[derive(Debug)]
pub(crate) struct ExpectedJob {
    shared: Arc<Shared>,
}

impl Drop for ExpectedJob {
    fn drop(&mut self) {
        self.shared.close_jobs(1);
    }
}

impl Shared {
    fn unlock_and_wake(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        let threads = state.threads_to_wake();
        let wakes_starter = state.pool.poll_starter();
        let starts_starter = wakes_starter && !state.has_starter && !state.pool.is_empty();
        state.has_starter |= starts_starter;
        let is_idle = state.open_jobs == 0;
        drop(state);
        for thread in threads {
            thread.unpark();
        }
        if starts_starter {
            self.start_starter();
        } else if wakes_starter {
            self.starter.notify_one();
        }
        if is_idle {
            self.idle.notify_waiters();
        }
    }

    fn start_starter(self: &Arc<Self>) {
        let shared = Arc::clone(self);
        let name = "files-starter";
        let Err(error) = spawn(name, move || shared.start_workers()) else { return };
        tracing::error!(%error, thread = name, "cannot start a thread for file operations");
        let mut state = self.lock();
        while let Some((worker, _)) = state.pool.poll_start() {
            self.fail_start(state, worker, &no_thread());
            state = self.lock();
        }
        state.has_starter = false;
    }

    /// Runs the starter, which ends when there are no workers.
    fn start_workers(self: &Arc<Self>) {
        let mut started = HashMap::new();
        let mut state = self.lock();
        loop {
            let now = Instant::now();
            state.pool.poll_starter();
            state.pool.handle_timeout(now);
            for thread in state.threads_to_wake() {
                thread.unpark();
            }
            if let Some((worker, policy)) = state.pool.poll_start() {
                let ended = std::mem::take(&mut state.ended);
                drop(state);
                // Until it has ended, a thread counts against the kernel's limits.
                for thread in ended.iter().filter_map(|worker| started.remove(worker)) {
                    let _ = JoinHandle::join(thread);
                }
                started.extend(self.start_worker(worker, policy).map(|thread| (worker, thread)));
                state = self.lock();
            } else if state.pool.is_empty() {
                state.has_starter = false;
                state.ended.clear();
                drop(state);
                exec_server_protocol::release_spare();
                return exec_server_host::return_freed_memory();
            } else if let Some(at) = state.pool.next_timeout() {
                let woken = self.starter.wait_timeout(state, at - now);
                state = woken.expect("no code panics while it holds the pool").0;
            } else {
                let woken = self.starter.wait(state);
                state = woken.expect("no code panics while it holds the pool");
            }
        }
    }

    fn start_worker(
        self: &Arc<Self>,
        worker: WorkerId,
        policy: Option<Policy>,
    ) -> Option<JoinHandle<()>> {
        let shared = Arc::clone(self);
        let name = if policy.is_some() { "files-confined" } else { "files" };
        let started = spawn(name, move || shared.work(worker, policy.as_ref()));
        if let Err(error) = &started {
            tracing::error!(%error, thread = name, "cannot start a thread for file operations");
            self.fail_start(self.lock(), worker, &no_thread());
        }
        started.ok()
    }

    fn fail_start(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, State>,
        worker: WorkerId,
        error: &RpcError,
    ) {
        let failed = state.pool.fail_start(worker, Instant::now());
        state.ended.push(worker);
        self.unlock_and_wake(state);
        let count = failed.len();
        for job in failed {
            run(job.work, Err(error.clone()));
        }
        self.close_jobs(count);
    }

    fn work(self: &Arc<Self>, worker: WorkerId, policy: Option<&Policy>) {
        let begun = Instant::now();
        let confinement = match policy.map(|policy| self.confine(policy)).transpose() {
            Ok(confinement) => confinement,
            Err(error) => return self.fail_start(self.lock(), worker, &unavailable(&error)),
        };
        let mut state = self.lock();
        state.threads.insert(worker, std::thread::current());
        loop {
            let now = Instant::now();
            match state.pool.next(worker, now) {
                Next::Run(job) => {
                    self.unlock_and_wake(state);
                    // The kernel confines the thread to the files that existed when it began; the
                    // same names may refer to other files now. A job that was queued before the
                    // thread began runs anyway; otherwise it could be handed back forever.
                    let is_current = || confinement.as_ref().is_none_or(|it| it.is_current());
                    if job.queued_at >= begun && !is_current() {
                        state = self.lock();
                        state.pool.hand_back(worker, job, Instant::now());
                        break;
                    }
                    run(job.work, Ok(()));
                    state = self.lock();
                    state.open_jobs -= 1;
                }
                Next::Sleep { until } => {
                    self.unlock_and_wake(state);
                    std::thread::park_timeout(until - now);
                    state = self.lock();
                }
                Next::End => break,
            }
        }
        state.threads.remove(&worker);
        state.ended.push(worker);
        self.unlock_and_wake(state);
    }

    fn confine(&self, policy: &Policy) -> Result<Arc<Confinement>, ConfinementError> {
        let known = self.lock().confinements.get(policy).and_then(Weak::upgrade);
        let confinement = match known.filter(|known| known.is_current()) {
            Some(known) => known,
            None => Arc::new(Confinement::new(policy.clone())?),
        };
        confinement.enter()?;
        let mut state = self.lock();
        state.confinements.retain(|_, known| known.strong_count() > 0);
        state.confinements.insert(policy.clone(), Arc::downgrade(&confinement));
        Ok(confinement)
    }

    fn close_jobs(self: &Arc<Self>, count: usize) {
        let mut state = self.lock();
        state.open_jobs -= count;
        self.unlock_and_wake(state);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds the pool")
    }
}

impl State {
    fn threads_to_wake(&mut self) -> Vec<Thread> {
        let mut threads = Vec::new();
        while let Some(worker) = self.pool.poll_wake() {
            threads.extend(self.threads.get(&worker).cloned());
        }
        threads
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    if is_confined() {
        return Err(io::Error::other("the calling thread is confined to a sandbox"));
    }
    std::thread::Builder::new().name(name.to_owned()).spawn(run)
}

fn run(work: Work, thread: Result<(), RpcError>) {
    if catch_unwind(AssertUnwindSafe(|| work(thread))).is_err() {
        tracing::error!("a job on a file thread panicked");
    }
}

fn unavailable(error: &ConfinementError) -> RpcError {
    RpcError::invalid_request(error.to_string()).with_kind(ErrorKind::SandboxUnavailable)
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FilePool").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
