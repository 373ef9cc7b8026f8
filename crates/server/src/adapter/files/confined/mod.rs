//! Threads that are kept to a policy, for work on files under it.
//!
//! A thread cannot be let out of its policy again, so each policy has threads of its own: started when there is work, few, and
//! the first to go when another policy needs a thread and there are no more to be had.
//!
//! A job that hangs keeps its thread and nobody else's, here as in [`pool`](super::pool): the clients of a server with a ceiling
//! share one policy, and do not trust each other.
//!
//! Invariant: they are started by one thread that is never confined, since what a confined thread starts is confined as well.

mod state;
mod trial;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use exec_server_host::fs::{Confinement, ConfinementError};
use exec_server_host::sandbox::Policy;
use exec_server_protocol::{ErrorKind, RpcError};

use super::errors::no_thread;
use super::pool::NoThread;
use state::{Job, LONG, State};
pub(crate) use trial::can_confine;

/// How long a thread without work stays.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Clones share the threads, which end by themselves when there is no work.
#[derive(Debug, Clone, Default)]
pub(super) struct ConfinedPools {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// For the thread that starts the others.
    wanted: Condvar,
}

impl ConfinedPools {
    /// Runs a job as soon as a thread of the policy is free. Jobs have no order among each other.
    pub(super) fn run(
        &self,
        policy: &Policy,
        job: impl FnOnce(Result<(), RpcError>) + Send + 'static,
    ) {
        let mut state = self.shared.lock();
        state.uses += 1;
        let last_use = state.uses;
        let pool = state.pools.entry(policy.clone()).or_default();
        pool.last_use = last_use;
        pool.jobs.push_back(Job { work: Box::new(job), since: Instant::now() });
        self.shared.call_thread(state, policy);
    }
}

impl Shared {
    /// Sees to it that a thread comes for the jobs of a policy.
    fn call_thread(self: &Arc<Self>, mut state: MutexGuard<'_, State>, policy: &Policy) {
        let limits = state.limits;
        let Some(pool) = state.pools.get_mut(policy) else { return };
        if pool.jobs.is_empty() || pool.coming {
            return;
        }
        // Jobs take microseconds, mostly: more threads than processors only get in each other's way.
        if pool.is_busy() && !pool.is_late() {
            return self.look_later(state);
        }
        if pool.sleeping > pool.dismissed {
            (pool.coming, pool.call) = (true, true);
            let called = Arc::clone(&pool.called);
            drop(state);
            called.notify_all();
            return;
        }
        let (is_alone, may_grow) = (pool.threads == 0, pool.threads < limits.each);
        if may_grow && state.threads < limits.usual {
            state.want_thread(policy);
            return self.tell_starter(state);
        }
        if !may_grow || state.starving.contains(policy) {
            return self.look_later(state);
        }
        if let Some(called) = state.dismiss_one() {
            state.starving.push_back(policy.clone());
            called.notify_all();
        } else if state.threads < limits.all {
            state.want_thread(policy);
            self.tell_starter(state);
        } else {
            // With a thread of its own a policy gets another one's only if that has nothing to do.
            if is_alone {
                state.starving.push_back(policy.clone());
            }
            self.look_later(state);
        }
    }

    /// Jobs wait and no thread is on its way to them. That may change without anybody who knows of them.
    fn look_later(&self, mut state: MutexGuard<'_, State>) {
        let is_known = std::mem::replace(&mut state.held_back, true);
        drop(state);
        if !is_known {
            self.wanted.notify_one();
        }
    }

    fn tell_starter(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        if std::mem::replace(&mut state.has_starter, true) {
            drop(state);
            return self.wanted.notify_one();
        }
        drop(state);
        if let Err(error) = self.start_starter() {
            tracing::error!(%error, "cannot start a thread for work on files in a sandbox");
            self.lock().has_starter = false;
            self.give_up_wanted(&no_thread(NoThread));
        }
    }

    fn start_starter(self: &Arc<Self>) -> io::Result<()> {
        // It would be confined as well, and with it every thread that it starts.
        if exec_server_host::fs::is_confined() {
            return Err(io::Error::other("the thread that asks for it is kept to a sandbox"));
        }
        let shared = Arc::clone(self);
        let starter = std::thread::Builder::new().name("files-starter".to_owned());
        starter.spawn(move || shared.start_threads()).map(drop)
    }

    /// The thread that starts the others. It ends when there are none.
    fn start_threads(self: &Arc<Self>) {
        let mut started = HashMap::new();
        let mut state = self.lock();
        loop {
            if let Some(policy) = state.wanted.pop_front() {
                let ended = std::mem::take(&mut state.ended);
                drop(state);
                // What has said that it ends may still be there for a while, and counts for the kernel.
                for thread in ended.iter().filter_map(|id| started.remove(id)) {
                    let _ = JoinHandle::join(thread);
                }
                started.extend(self.start_thread(&policy).map(|it| (it.thread().id(), it)));
                state = self.lock();
            } else if state.threads == 0 {
                state.has_starter = false;
                state.ended.clear();
                return;
            } else if state.held_back {
                let time = self.wanted.wait_timeout(state, LONG);
                drop(time.expect("no code panics while it holds the pools"));
                self.call_for_late_jobs();
                state = self.lock();
            } else {
                state = self.wanted.wait(state).expect("no code panics while it holds the pools");
            }
        }
    }

    fn call_for_late_jobs(self: &Arc<Self>) {
        let mut state = self.lock();
        state.held_back = state.pools.values().any(|pool| !pool.jobs.is_empty() && !pool.coming);
        let late = state.pools.iter().filter(|(_, pool)| pool.is_late());
        let late: Vec<_> = late.map(|(policy, _)| policy.clone()).collect();
        drop(state);
        for policy in late {
            self.call_thread(self.lock(), &policy);
        }
    }

    fn start_thread(self: &Arc<Self>, policy: &Policy) -> Option<JoinHandle<()>> {
        let (shared, its_policy) = (Arc::clone(self), policy.clone());
        let thread = std::thread::Builder::new().name("files-confined".to_owned());
        match thread.spawn(move || shared.work(&its_policy)) {
            Ok(thread) => Some(thread),
            Err(error) => {
                tracing::error!(%error, "cannot start a thread for work on files in a sandbox");
                self.give_up(policy, &no_thread(NoThread));
                None
            }
        }
    }

    fn work(self: &Arc<Self>, policy: &Policy) {
        let begun = Instant::now();
        let confinement = match self.confine(policy) {
            Ok(confinement) => confinement,
            Err(error) => return self.give_up(policy, &unavailable(&error)),
        };
        let mut is_fresh = true;
        while let Some(job) = self.next_job(policy, is_fresh) {
            // The kernel goes by what was granted when the thread began; of the same name there may be something else now. But what
            // a job found that was there already, it may find: else one could be passed on for ever.
            if job.since >= begun && !confinement.is_current() {
                return self.leave_to_another(policy, &confinement, job);
            }
            is_fresh = false;
            if catch_unwind(AssertUnwindSafe(|| (job.work)(Ok(())))).is_err() {
                tracing::error!("work on a file panicked");
            }
        }
    }

    fn confine(&self, policy: &Policy) -> Result<Arc<Confinement>, ConfinementError> {
        let known = self.lock().pools.get(policy).and_then(|pool| pool.confinement.clone());
        let confinement = match known.filter(|known| known.is_current()) {
            Some(known) => known,
            None => Arc::new(Confinement::new(policy.clone())?),
        };
        confinement.enter()?;
        if let Some(pool) = self.lock().pools.get_mut(policy) {
            pool.confinement = Some(Arc::clone(&confinement));
            pool.coming = false;
        }
        Ok(confinement)
    }

    /// `None` when the thread is to end.
    fn next_job(self: &Arc<Self>, policy: &Policy, is_fresh: bool) -> Option<Job> {
        let mut state = self.lock();
        loop {
            // Somebody has no thread at all: this one makes room, and its own policy waits for its turn. But each does one
            // job at least, or two policies could pass a thread to and fro for ever.
            let may_yield = !is_fresh || state.pool(policy).jobs.is_empty();
            if may_yield && !state.starving.is_empty() {
                return self.end_thread(state, policy);
            }
            let pool = state.pool(policy);
            if let Some(job) = pool.jobs.pop_front() {
                self.call_thread(state, policy);
                return Some(job);
            }
            pool.sleeping += 1;
            let called = Arc::clone(&pool.called);
            let (woken, slept) = called
                .wait_timeout_while(state, IDLE_TIMEOUT, |state| {
                    let pool = state.pool(policy);
                    !pool.call && pool.dismissed == 0
                })
                .expect("no code panics while it holds the pools");
            state = woken;
            let pool = state.pool(policy);
            pool.sleeping -= 1;
            if pool.call {
                (pool.call, pool.coming) = (false, false);
            } else {
                if !slept.timed_out() {
                    pool.dismissed -= 1;
                }
                return self.end_thread(state, policy);
            }
        }
    }

    fn end_thread(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, State>,
        policy: &Policy,
    ) -> Option<Job> {
        state.lose_thread(policy);
        self.tell_starter_if_needed(state);
        None
    }

    /// For the jobs of this policy this thread is of no use any more.
    fn leave_to_another(self: &Arc<Self>, policy: &Policy, own: &Arc<Confinement>, job: Job) {
        let mut state = self.lock();
        let pool = state.pool(policy);
        pool.jobs.push_front(job);
        pool.confinement.take_if(|known| Arc::ptr_eq(known, own));
        state.lose_thread(policy);
        self.tell_starter_if_needed(state);
        self.call_thread(self.lock(), policy);
    }

    /// The starter exists as long as a thread does, so this never starts one from a confined thread.
    fn tell_starter_if_needed(&self, state: MutexGuard<'_, State>) {
        let is_needed = !state.wanted.is_empty() || state.threads == 0;
        let is_last = state.threads == 0;
        drop(state);
        if is_needed {
            self.wanted.notify_one();
        }
        if is_last {
            exec_server_protocol::release_spare();
            exec_server_host::return_freed_memory();
        }
    }

    /// A thread that was wanted is not to be had. If its policy has others they do the work; otherwise nobody does.
    fn give_up(self: &Arc<Self>, policy: &Policy, error: &RpcError) {
        let mut state = self.lock();
        let pool = state.pool(policy);
        pool.coming = false;
        let jobs = if pool.threads == 1 { std::mem::take(&mut pool.jobs) } else { VecDeque::new() };
        if pool.sleeping > pool.dismissed && !pool.jobs.is_empty() {
            (pool.coming, pool.call) = (true, true);
            pool.called.notify_all();
        }
        state.lose_thread(policy);
        self.tell_starter_if_needed(state);
        for job in jobs {
            (job.work)(Err(error.clone()));
        }
    }

    fn give_up_wanted(self: &Arc<Self>, error: &RpcError) {
        loop {
            let Some(policy) = self.lock().wanted.pop_front() else { return };
            self.give_up(&policy, error);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds the pools")
    }
}

fn unavailable(error: &dyn std::error::Error) -> RpcError {
    RpcError::invalid_request(error.to_string()).with_kind(ErrorKind::SandboxUnavailable)
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfinedPools").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::sync::mpsc::{Receiver, sync_channel};

    use exec_server_host::fs::{OpenFile, Symlinks, is_confined};
    use exec_server_host::sandbox::{
        Access, DeclaredFiles, DeclaredPolicy, Entry, EntryPath, HostNames, Network, PolicyContext,
    };

    use super::state::Limits;
    use super::*;

    fn limited(limits: Limits) -> ConfinedPools {
        let state = Mutex::new(State { limits, ..State::default() });
        ConfinedPools { shared: Arc::new(Shared { state, wanted: Condvar::new() }) }
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
        let pools = ConfinedPools::default();
        let directories = directories(&root, 3);
        let (sender, receiver) = sync_channel(0);
        for _ in 0..20 {
            for (own, other) in [(0, 1), (1, 2), (2, 0)] {
                let (sender, own, other) =
                    (sender.clone(), directories[own].clone(), directories[other].clone());
                pools.run(&policy(&own.clone()), move |kept| {
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
    fn hang(pools: &ConfinedPools, policy: &Policy) -> (Receiver<()>, impl FnOnce() + use<>) {
        let (begin, begun) = sync_channel(1);
        let (end, ended) = sync_channel::<()>(1);
        pools.run(policy, move |kept| {
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
        let pools = limited(Limits { each: 2, usual: 5, all: 5 });
        let policies: Vec<_> = directories(&root, 6).iter().map(|path| policy(path)).collect();
        let mut hanging = Vec::new();
        for policy in &policies[..5] {
            let (begun, end) = hang(&pools, policy);
            begun.recv().unwrap();
            hanging.push(end);
        }
        // More work for one that has a thread, and then the first for one that has none.
        let (second, end_second) = hang(&pools, &policies[0]);
        let (late, end_late) = hang(&pools, &policies[5]);
        hanging.remove(0)();
        late.recv().unwrap();
        assert!(second.try_recv().is_err());
        hanging.remove(0)();
        second.recv().unwrap();
        assert_eq!(pools.shared.lock().threads, 5);
        end_second();
        end_late();
    }

    #[test]
    fn a_policy_does_not_take_all_threads() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let pools = limited(Limits { each: 3, usual: 2, all: 4 });
        let (policy, other) = (policy(&root), policy(&directories(&root, 1)[0]));
        let mut hanging = Vec::new();
        for _ in 0..3 {
            let (begun, end) = hang(&pools, &policy);
            begun.recv().unwrap();
            hanging.push(end);
        }
        let (waiting, end) = hang(&pools, &policy);
        let (begun, end_other) = hang(&pools, &other);
        begun.recv().unwrap();
        assert_eq!(pools.shared.lock().threads, 4);
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
        let pools = limited(Limits { each: 3, usual: 2, all: 2 });
        let (policy, other) = (policy(&root), policy(&directories(&root, 1)[0]));
        let [(hangs, end_last), (begun, end_first)] = [(); 2].map(|()| hang(&pools, &policy));
        hangs.recv().unwrap();
        begun.recv().unwrap();
        let (waiting, end_waiting) = hang(&pools, &policy);
        let (begun, end_other) = hang(&pools, &other);
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
        let pools = ConfinedPools::default();
        let hanging: Vec<_> = (0..64).map(|_| hang(&pools, &policy)).collect();
        let (begun, end) = hang(&pools, &policy);
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
        let (pools, policy) = (ConfinedPools::default(), policy(&directory));
        let (begun, end) = hang(&pools, &policy);
        begun.recv().unwrap();
        let mut state = pools.shared.lock();
        state.want_thread(&policy);
        pools.shared.tell_starter(state);
        while pools.shared.lock().pool(&policy).sleeping == 0 {
            std::thread::yield_now();
        }
        std::fs::rename(&directory, root.join("elsewhere")).unwrap();
        std::fs::create_dir(&directory).unwrap();
        std::fs::write(directory.join("file"), "new").unwrap();
        let (sender, receiver) = sync_channel(1);
        pools.run(&policy, move |kept| {
            kept.unwrap();
            let file = OpenFile::open(&directory.join("file"), Symlinks::Follow);
            sender.send(file.and_then(|file| file.read_to_end(10))).unwrap();
        });
        assert_eq!(receiver.recv().unwrap().unwrap(), b"new");
        end();
    }

    #[test]
    fn a_panic_costs_one_job() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let (pools, policy) = (ConfinedPools::default(), policy(&root));
        pools.run(&policy, |_| panic!("on purpose"));
        let (begun, end) = hang(&pools, &policy);
        begun.recv().unwrap();
        end();
    }

    #[test]
    fn whoever_cannot_be_confined_does_nothing() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let pools = ConfinedPools::default();
        let directory = root.join("directory");
        std::fs::create_dir(&directory).unwrap();
        let policy = policy(&directory);
        // Somebody has put a link in the place of what is granted.
        std::fs::remove_dir(&directory).unwrap();
        std::os::unix::fs::symlink(&root, &directory).unwrap();
        for _ in 0..3 {
            let (sender, receiver) = sync_channel(1);
            pools.run(&policy, move |kept| sender.send(kept).unwrap());
            let error = receiver.recv().unwrap().unwrap_err();
            assert_eq!(error.kind(), Some(&ErrorKind::SandboxUnavailable));
        }
        std::fs::remove_file(&directory).unwrap();
        std::fs::create_dir(&directory).unwrap();
        let (begun, end) = hang(&pools, &policy);
        begun.recv().unwrap();
        end();
    }
}
