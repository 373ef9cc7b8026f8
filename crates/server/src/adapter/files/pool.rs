//! Threads for work that blocks on storage.
//!
//! A job that hangs on a dead network file system keeps its thread and nobody else's. Jobs that take microseconds should not
//! pay for a thread each, though, nor take the processors from those who send the answers: a thread that is awake takes one
//! after the other, and no more work than there are processors while jobs need not wait. One more thread *watches* then, and
//! works as soon as a job has waited for too long.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot};

/// Jobs of all clients that hang, together; beyond, jobs wait.
const MAX_THREADS: usize = 512;
/// How long a thread without work stays.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// A job that waits for longer gets a thread more. One that runs for longer is slow because of its storage.
const LONG: Duration = Duration::from_millis(1);

static PROCESSORS: LazyLock<usize> =
    LazyLock::new(|| std::thread::available_parallelism().map_or(2, usize::from).max(2));

struct Job {
    work: Box<dyn FnOnce(Result<(), NoThread>) + Send>,
    since: Instant,
}

/// No thread could be started, and there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoThread;

/// Clones share the threads, which end by themselves when there is no work.
#[derive(Debug, Clone, Default)]
pub(crate) struct FilePool {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    called: Condvar,
    /// Never notified: the thread that watches only lets time pass.
    time: Condvar,
    /// Told when nothing is queued, running or announced.
    idle: Notify,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Announced ones, too.
    running: usize,
    /// Threads that are at a job.
    busy: usize,
    /// Threads that may be busy beyond one for each processor.
    extra: usize,
    /// A thread watches how long jobs wait.
    watched: bool,
    threads: usize,
    sleeping: usize,
    /// A sleeping thread was called and has not woken yet.
    call: bool,
    /// A thread was called or started and has not arrived yet.
    coming: bool,
}

impl FilePool {
    /// Runs a job as soon as a thread is free. Jobs have no order among each other. One for which
    /// there is no thread is dropped.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        self.run_or_tell(|thread| {
            if thread.is_ok() {
                job();
            }
        });
    }

    /// The same for a job that wants to know if there is no thread. It must not block then.
    pub(crate) fn run_or_tell(&self, job: impl FnOnce(Result<(), NoThread>) + Send + 'static) {
        let mut state = self.shared.lock();
        state.jobs.push_back(Job { work: Box::new(job), since: Instant::now() });
        self.shared.call_thread(state);
    }

    /// Runs a job and returns what it found; `None` if no thread could be had. It runs whether the future is polled or not.
    pub(crate) fn compute<T: Send + 'static, F: FnOnce() -> T + Send + 'static>(
        &self,
        job: F,
    ) -> impl Future<Output = Option<T>> + Send + use<T, F> {
        let (done, found) = oneshot::channel();
        self.run(move || drop(done.send(job())));
        async { found.await.ok() }
    }

    /// A job will come: until what is returned is dropped, the pool is not idle.
    pub(crate) fn expect_job(&self) -> ExpectedJob {
        self.shared.lock().running += 1;
        ExpectedJob { shared: Arc::clone(&self.shared) }
    }

    /// Waits until nothing is queued, running or announced.
    pub(crate) async fn idle(&self) {
        loop {
            let mut idle = std::pin::pin!(self.shared.idle.notified());
            idle.as_mut().enable();
            if self.shared.lock().is_idle() {
                return;
            }
            idle.await;
        }
    }
}

/// Of a job that waits outside the pool, for room for its answer.
#[derive(Debug)]
pub(crate) struct ExpectedJob {
    shared: Arc<Shared>,
}

impl Drop for ExpectedJob {
    fn drop(&mut self) {
        self.shared.ended(self.shared.lock());
    }
}

impl Shared {
    fn call_thread(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        if state.jobs.is_empty() || state.coming || (state.is_full() && state.watched) {
            return;
        }
        if state.sleeping > 0 {
            (state.coming, state.call) = (true, true);
            drop(state);
            self.called.notify_one();
        } else if state.threads < MAX_THREADS {
            state.coming = true;
            state.threads += 1;
            drop(state);
            self.start_thread();
        }
    }

    fn start_thread(self: &Arc<Self>) {
        let Err(error) = self.spawn() else { return };
        tracing::error!(%error, "cannot start a thread for work on files");
        let mut state = self.lock();
        state.coming = false;
        state.threads -= 1;
        // If others run they will do it, later. Otherwise it is given up, and told so.
        let abandoned =
            if state.threads == 0 { std::mem::take(&mut state.jobs) } else { VecDeque::new() };
        let is_idle = state.is_idle();
        drop(state);
        for job in abandoned {
            (job.work)(Err(NoThread));
        }
        if is_idle {
            self.idle.notify_waiters();
        }
    }

    fn spawn(self: &Arc<Self>) -> io::Result<()> {
        // It would be confined as well, for ever, and whatever it does for others would fail.
        if exec_server_host::fs::is_confined() {
            return Err(io::Error::other("the thread that asks for it is kept to a sandbox"));
        }
        let shared = Arc::clone(self);
        let thread = std::thread::Builder::new().name("files".to_owned());
        thread.spawn(move || shared.work()).map(drop)
    }

    fn work(self: &Arc<Self>) {
        self.lock().coming = false;
        while let Some(job) = self.next_job() {
            let begun = Instant::now();
            if catch_unwind(AssertUnwindSafe(|| (job.work)(Ok(())))).is_err() {
                tracing::error!("work on a file panicked");
            }
            let mut state = self.lock();
            state.left_job(begun.elapsed());
            self.ended(state);
        }
    }

    /// A job, or the announcement of one.
    fn ended(&self, mut state: MutexGuard<'_, State>) {
        state.running -= 1;
        if state.is_idle() {
            drop(state);
            self.idle.notify_waiters();
        }
    }

    /// `None` when there was nothing to do for a while.
    fn next_job(self: &Arc<Self>) -> Option<Job> {
        let mut state = self.lock();
        loop {
            if !state.is_full()
                && let Some(job) = state.jobs.pop_front()
            {
                state.running += 1;
                state.busy += 1;
                self.call_thread(state);
                return Some(job);
            }
            if !state.jobs.is_empty() && !state.watched {
                state = self.watch(state);
                continue;
            }
            state.sleeping += 1;
            state = self
                .called
                .wait_timeout_while(state, IDLE_TIMEOUT, |state| !state.call)
                .expect("no code panics while it holds the pool")
                .0;
            state.sleeping -= 1;
            if !state.call {
                state.threads -= 1;
                let is_last = state.threads == 0;
                drop(state);
                if is_last {
                    exec_server_protocol::release_spare();
                    exec_server_host::return_freed_memory();
                }
                return None;
            }
            (state.call, state.coming) = (false, false);
        }
    }

    /// Returns when jobs need no watch, or one more thread.
    fn watch<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.watched = true;
        while state.is_full()
            && let Some(oldest) = state.jobs.front()
        {
            let left = LONG.saturating_sub(oldest.since.elapsed());
            if left.is_zero() {
                state.extra += 1;
                break;
            }
            state = self
                .time
                .wait_timeout(state, left)
                .expect("no code panics while it holds the pool")
                .0;
        }
        state.watched = false;
        state
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds the pool")
    }
}

impl State {
    /// Whether as many threads work as are useful, or more.
    fn is_full(&self) -> bool {
        self.busy >= *PROCESSORS + self.extra
    }

    fn left_job(&mut self, took: Duration) {
        self.busy -= 1;
        if self.busy == 0 {
            self.extra = 0;
        } else if took > LONG {
            self.extra = self.extra.saturating_sub(1);
        }
    }

    fn is_idle(&self) -> bool {
        self.jobs.is_empty() && self.running == 0
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FilePool").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::sync_channel;

    use exec_server_host::fs::{Confinement, is_confined};
    use exec_server_host::sandbox::{Network, Policy};

    use super::*;

    #[tokio::test]
    async fn every_job_is_done_once() {
        let (pool, done) = (FilePool::default(), Arc::new(AtomicUsize::new(0)));
        for _ in 0..10_000 {
            let done = Arc::clone(&done);
            pool.run(move || {
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        pool.idle().await;
        assert_eq!(done.load(Ordering::Relaxed), 10_000);
    }

    #[tokio::test]
    async fn a_pool_waits_for_jobs_that_were_announced() {
        let pool = FilePool::default();
        let (coming, idle) = (pool.expect_job(), pool.idle());
        tokio::pin!(idle);
        tokio::select! {
            biased;
            () = &mut idle => panic!("it did not wait"),
            () = std::future::ready(()) => {}
        }
        let (sender, receiver) = sync_channel(1);
        pool.run(move || sender.send(()).unwrap());
        drop(coming);
        idle.await;
        receiver.try_recv().unwrap();
    }

    #[test]
    fn jobs_that_hang_delay_nobody() {
        let (pool, barrier) = (FilePool::default(), Arc::new(Barrier::new(65)));
        for _ in 0..64 {
            let barrier = Arc::clone(&barrier);
            pool.run(move || {
                barrier.wait();
            });
        }
        let (sender, receiver) = sync_channel(1);
        pool.run(move || sender.send(()).unwrap());
        receiver.recv().unwrap();
        barrier.wait();
    }

    /// Whatever is built: the thread would be confined for as long as the pool uses it.
    #[tokio::test]
    async fn a_confined_thread_starts_none() {
        let pool = FilePool::default();
        let confined = pool.clone();
        let (tell, told) = sync_channel(1);
        let asked = std::thread::spawn(move || {
            let policy = Policy::unrestricted(Network::Enabled);
            Arc::new(Confinement::new(policy).unwrap()).enter().unwrap();
            confined.run_or_tell(move |thread| tell.send(thread).unwrap());
            confined.compute(is_confined)
        });
        assert_eq!(asked.join().unwrap().await, None);
        assert_eq!(told.recv().unwrap(), Err(NoThread));
        pool.idle().await;
        assert_eq!(pool.compute(is_confined).await, Some(false));
    }

    #[tokio::test]
    async fn a_panic_costs_one_job() {
        let pool = FilePool::default();
        pool.run(|| panic!("on purpose"));
        pool.idle().await;
        let (sender, receiver) = sync_channel(1);
        pool.run(move || sender.send(()).unwrap());
        receiver.recv().unwrap();
    }
}
