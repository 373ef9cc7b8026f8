//! Threads for work that blocks on storage, each kept to one policy or to none.
//!
//! A thread cannot be let out of its policy again, so each policy has threads of its own. A job that
//! hangs on a dead network file system keeps its thread and delays no other job. [`PoolScheduler`]
//! decides; the threads are here.
//!
//! Invariant: one thread that is never confined, the *starter*, starts all others, since a thread
//! that a confined one starts is confined as well.

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

/// It is told if there is no thread for it that keeps to its policy. It must not touch anything
/// then, nor block.
type Work = Box<dyn FnOnce(Result<(), RpcError>) + Send>;

/// Clones share the threads, which end by themselves when there is no work.
#[derive(Debug, Clone)]
pub(crate) struct FilePool {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    /// Wakes the starter.
    starter: Condvar,
    /// Told when no job is queued, running or expected.
    idle: Notify,
}

struct State {
    pool: PoolScheduler<Policy, Work>,
    /// Of workers, to wake them.
    threads: HashMap<WorkerId, Thread>,
    /// Workers whose threads are about to end.
    ended: Vec<WorkerId>,
    has_starter: bool,
    /// Those that workers are in.
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

    /// Runs a job without a policy as soon as a thread is free. Jobs have no order among each
    /// other. A job for which there is no thread is dropped.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        self.run_or_tell(|thread| {
            if thread.is_ok() {
                job();
            }
        });
    }

    /// The same for a job that wants to know if there is no thread. It must not block then.
    pub(crate) fn run_or_tell(&self, job: impl FnOnce(Result<(), RpcError>) + Send + 'static) {
        self.run_under(&None, job);
    }

    /// Runs a job on a thread that is kept to the policy, or tells the job why it cannot.
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

    /// Runs a job and returns its result; `None` if no thread could be had. It runs whether the
    /// future is polled or not.
    pub(crate) fn compute<T: Send + 'static, F: FnOnce() -> T + Send + 'static>(
        &self,
        job: F,
    ) -> impl Future<Output = Option<T>> + Send + use<T, F> {
        let (done, found) = oneshot::channel();
        self.run(move || drop(done.send(job())));
        async { found.await.ok() }
    }

    /// A job will come: the pool is not idle until the returned value is dropped.
    pub(crate) fn expect_job(&self) -> ExpectedJob {
        self.shared.lock().open_jobs += 1;
        ExpectedJob { shared: Arc::clone(&self.shared) }
    }

    /// Waits until no job is queued, running or expected.
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

/// Of a job that waits outside the pool, for room for its answer.
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
    /// Wakes those who have something to do since the state changed.
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
        let Err(error) = spawn("files-starter", move || shared.start_workers()) else { return };
        tracing::error!(%error, "cannot start a thread for work on files");
        let mut state = self.lock();
        while let Some((worker, _)) = state.pool.poll_start() {
            self.fail_start(state, worker, &no_thread());
            state = self.lock();
        }
        state.has_starter = false;
    }

    /// What the starter does. It ends when there are no workers.
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
                // A thread that is about to end still counts for the kernel.
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
            tracing::error!(%error, "cannot start a thread for work on files");
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
                    // The kernel goes by what was granted when the thread began; of the same name
                    // there may be something else now. But what was there before a job, the job may
                    // find: else it could be handed back for ever.
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

/// Starts a thread, but not from a confined one.
fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    if is_confined() {
        return Err(io::Error::other("the thread that asks for it is kept to a sandbox"));
    }
    std::thread::Builder::new().name(name.to_owned()).spawn(run)
}

fn run(work: Work, thread: Result<(), RpcError>) {
    if catch_unwind(AssertUnwindSafe(|| work(thread))).is_err() {
        tracing::error!("work on a file panicked");
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
mod tests {
    use std::path::{Path, PathBuf};
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{Receiver, sync_channel};

    use exec_server_host::fs::{OpenFile, Symlinks};
    use exec_server_host::sandbox::{
        Access, DeclaredFiles, DeclaredPolicy, Entry, EntryPath, HostNames, Network, PolicyContext,
    };

    use super::scheduler::{Activity, Worker};
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
        assert_eq!(told.recv().unwrap(), Err(no_thread()));
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

    /// With these limits for sandboxed work.
    fn limited(each: usize, usual: usize, all: usize) -> FilePool {
        FilePool::new(PLAIN_LIMITS, Limits { each, usual, all, ..SANDBOXED_LIMITS })
    }

    fn policy(directory: &Path) -> Policy {
        let path = EntryPath::Path(directory.to_owned());
        let declared = DeclaredPolicy {
            files: DeclaredFiles::Restricted {
                entries: vec![Entry { path, access: Access::Write, skip_missing: false }],
                glob_scan_max_depth: None,
            },
            network: Network::Restricted,
        };
        Policy::resolve(&declared, &PolicyContext::default(), &HostNames).unwrap()
    }

    fn directories(root: &Path, count: usize) -> Vec<PathBuf> {
        let directories = (0..count).map(|number| {
            let directory = root.join(number.to_string());
            std::fs::create_dir(&directory).unwrap();
            directory
        });
        directories.collect()
    }

    #[test]
    fn jobs_run_where_their_policy_holds() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let pool = FilePool::default();
        let directories = directories(&root, 3);
        let (sender, receiver) = sync_channel(0);
        for _ in 0..20 {
            for (own, other) in [(0, 1), (1, 2), (2, 0)] {
                let (sender, own, other) =
                    (sender.clone(), directories[own].clone(), directories[other].clone());
                pool.run_under(&Some(policy(&own)), move |kept| {
                    kept.unwrap();
                    assert!(is_confined());
                    let wrote = std::fs::write(own.join("file"), "").is_ok();
                    let escaped = std::fs::write(other.join("file"), "").is_ok();
                    sender.send((wrote, escaped)).unwrap();
                });
            }
            for _ in 0..3 {
                assert_eq!(receiver.recv().unwrap(), (true, false));
            }
        }
    }

    /// A job that says that it has begun, and waits until it may end.
    fn hang(pool: &FilePool, policy: &Policy) -> (Receiver<()>, impl FnOnce() + use<>) {
        let (begin, begun) = sync_channel(1);
        let (end, ended) = sync_channel::<()>(1);
        pool.run_under(&Some(policy.clone()), move |kept| {
            kept.unwrap();
            begin.send(()).unwrap();
            let _ = ended.recv();
        });
        (begun, move || drop(end))
    }

    #[test]
    fn a_policy_without_a_thread_gets_one_as_soon_as_any_is_free() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let pool = limited(2, 5, 5);
        let policies: Vec<_> = directories(&root, 6).iter().map(|path| policy(path)).collect();
        let mut hanging = Vec::new();
        for policy in &policies[..5] {
            let (begun, end) = hang(&pool, policy);
            begun.recv().unwrap();
            hanging.push(end);
        }
        // More work for one that has a thread, and then the first for one that has none.
        let (second, end_second) = hang(&pool, &policies[0]);
        let (late, end_late) = hang(&pool, &policies[5]);
        hanging.remove(0)();
        late.recv().unwrap();
        assert!(second.try_recv().is_err());
        hanging.remove(0)();
        second.recv().unwrap();
        assert_eq!(pool.shared.lock().pool.workers.len(), 5);
        end_second();
        end_late();
    }

    #[test]
    fn a_policy_does_not_take_all_threads() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let pool = limited(3, 2, 4);
        let (policy, other) = (policy(&root), policy(&directories(&root, 1)[0]));
        let mut hanging = Vec::new();
        for _ in 0..3 {
            let (begun, end) = hang(&pool, &policy);
            begun.recv().unwrap();
            hanging.push(end);
        }
        let (waiting, end) = hang(&pool, &policy);
        let (begun, end_other) = hang(&pool, &other);
        begun.recv().unwrap();
        assert_eq!(pool.shared.lock().pool.workers.len(), 4);
        assert!(waiting.try_recv().is_err());
        hanging.remove(0)();
        waiting.recv().unwrap();
        end();
        end_other();
    }

    /// The thread that would have come to it has made room for another policy.
    #[test]
    fn a_job_behind_one_that_hangs_gets_the_next_thread_that_is_idle() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let pool = limited(3, 2, 2);
        let (policy, other) = (policy(&root), policy(&directories(&root, 1)[0]));
        let [(hangs, end_last), (begun, end_first)] = [(); 2].map(|()| hang(&pool, &policy));
        hangs.recv().unwrap();
        begun.recv().unwrap();
        let (waiting, end_waiting) = hang(&pool, &policy);
        let (begun, end_other) = hang(&pool, &other);
        end_first();
        begun.recv().unwrap();
        end_other();
        waiting.recv().unwrap();
        end_waiting();
        end_last();
    }

    /// One client has at most 64 requests at work, by default.
    #[test]
    fn jobs_of_one_client_that_hang_delay_nobody_under_the_same_policy() {
        let root = tempfile::tempdir().unwrap();
        let policy = policy(&root.path().canonicalize().unwrap());
        let pool = FilePool::default();
        let hanging: Vec<_> = (0..64).map(|_| hang(&pool, &policy)).collect();
        let (begun, end) = hang(&pool, &policy);
        begun.recv().unwrap();
        end();
        for (begun, end) in hanging {
            begun.recv().unwrap();
            end();
        }
    }

    /// It was started for a job that another thread has done.
    #[test]
    fn a_thread_that_had_nothing_to_do_yet_does_not_work_on_what_was_replaced() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let directory = root.join("directory");
        std::fs::create_dir(&directory).unwrap();
        std::fs::write(directory.join("file"), "old").unwrap();
        let (pool, policy) = (FilePool::default(), policy(&directory));
        let (begun, end) = hang(&pool, &policy);
        begun.recv().unwrap();
        let mut state = pool.shared.lock();
        state.pool.start_worker(&Some(policy.clone()));
        pool.shared.unlock_and_wake(state);
        let is_idle = |worker: &Worker<_>| matches!(worker.activity, Activity::Idle { .. });
        while !pool.shared.lock().pool.workers.values().any(is_idle) {
            std::thread::yield_now();
        }
        std::fs::rename(&directory, root.join("elsewhere")).unwrap();
        std::fs::create_dir(&directory).unwrap();
        std::fs::write(directory.join("file"), "new").unwrap();
        let (sender, receiver) = sync_channel(1);
        pool.run_under(&Some(policy.clone()), move |kept| {
            kept.unwrap();
            let file = OpenFile::open(&directory.join("file"), Symlinks::Follow);
            sender.send(file.and_then(|file| file.read_to_end(10))).unwrap();
        });
        assert_eq!(receiver.recv().unwrap().unwrap(), b"new");
        end();
    }

    #[test]
    fn a_panic_under_a_policy_costs_one_job() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let (pool, policy) = (FilePool::default(), policy(&root));
        pool.run_under(&Some(policy.clone()), |_| panic!("on purpose"));
        let (begun, end) = hang(&pool, &policy);
        begun.recv().unwrap();
        end();
    }

    #[test]
    fn whoever_cannot_be_confined_does_nothing() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let pool = FilePool::default();
        let directory = root.join("directory");
        std::fs::create_dir(&directory).unwrap();
        let policy = policy(&directory);
        // Somebody has put a link in the place of what is granted.
        std::fs::remove_dir(&directory).unwrap();
        std::os::unix::fs::symlink(&root, &directory).unwrap();
        for _ in 0..3 {
            let (sender, receiver) = sync_channel(1);
            pool.run_under(&Some(policy.clone()), move |kept| sender.send(kept).unwrap());
            let error = receiver.recv().unwrap().unwrap_err();
            assert_eq!(error.kind(), Some(&ErrorKind::SandboxUnavailable));
        }
        std::fs::remove_file(&directory).unwrap();
        std::fs::create_dir(&directory).unwrap();
        let (begun, end) = hang(&pool, &policy);
        begun.recv().unwrap();
        end();
    }
}
