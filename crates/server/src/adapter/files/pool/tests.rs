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
async fn every_job_runs_once() {
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
async fn an_announced_job_keeps_the_pool_busy() {
    let pool = FilePool::default();
    let (coming, idle) = (pool.expect_job(), pool.idle());
    tokio::pin!(idle);
    tokio::select! {
        biased;
        () = &mut idle => panic!("the pool is idle despite an expected job"),
        () = std::future::ready(()) => {}
    }
    let (sender, receiver) = sync_channel(1);
    pool.run(move || sender.send(()).unwrap());
    drop(coming);
    idle.await;
    receiver.try_recv().unwrap();
}

#[test]
fn hanging_jobs_delay_no_others() {
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

/// Release builds must check this, too: a new thread inherits the confinement and would keep it for
/// as long as the pool uses the thread.
#[tokio::test]
async fn a_confined_thread_starts_no_threads() {
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
fn jobs_run_on_threads_confined_to_their_policy() {
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

/// Starts a job that reports when it begins, and then waits until the test ends it.
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
fn a_policy_without_a_thread_gets_the_next_free_one() {
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
    // Queue more work for a policy with a thread, then the first job of a policy without a thread.
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

/// The thread that could have taken the job ends to make room for another policy.
#[test]
fn a_job_behind_a_hanging_one_gets_the_next_idle_thread() {
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

/// By default, at most 64 requests of one connection run at once.
#[test]
fn hanging_jobs_of_one_client_delay_no_others_under_the_same_policy() {
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

/// The unused thread was started for a job that another thread has run.
#[test]
fn an_unused_thread_does_not_work_on_replaced_files() {
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
fn a_thread_that_cannot_be_confined_runs_no_job() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path().canonicalize().unwrap();
    let pool = FilePool::default();
    let directory = root.join("directory");
    std::fs::create_dir(&directory).unwrap();
    let policy = policy(&directory);
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
