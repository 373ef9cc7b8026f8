//! One thread for the file I/O of every log.
//!
//! A write may wait for the disk, so it must not run on a thread of the runtime. Nor must it need a
//! new thread, which a process limit may deny at the very moment when output must be kept. All
//! spill files are on one filesystem, so one thread is enough.

use std::io;
use std::sync::OnceLock;

use tokio::sync::{mpsc, oneshot};

type Job = Box<dyn FnOnce() + Send + Sync>;

/// Logs and cursors wait while the queue is full. Each log has at most one write in flight, each
/// cursor one read.
const QUEUED_JOBS: usize = 64;

/// `None`: the thread could not be started.
static QUEUE: OnceLock<Option<mpsc::Sender<Job>>> = OnceLock::new();

/// Starts the thread at the first call. A server calls this before it accepts connections.
pub fn start_spill_thread() {
    queue();
}

/// Runs `work` on the spill thread, or on the calling thread if there is none.
pub(super) async fn run<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + Sync + 'static,
) -> io::Result<T> {
    run_on(queue(), work).await
}

async fn run_on<T: Send + 'static>(
    queue: Option<&mpsc::Sender<Job>>,
    work: impl FnOnce() -> io::Result<T> + Send + Sync + 'static,
) -> io::Result<T> {
    let (report, outcome) = oneshot::channel();
    let job: Job = Box::new(move || drop(report.send(work())));
    match queue {
        Some(queue) => {
            if let Err(mpsc::error::SendError(job)) = queue.send(job).await {
                job();
            }
        }
        None => job(),
    }
    outcome.await.unwrap_or_else(|_| Err(io::Error::other("the spill thread panicked")))
}

fn queue() -> Option<&'static mpsc::Sender<Job>> {
    QUEUE.get_or_init(start).as_ref()
}

fn start() -> Option<mpsc::Sender<Job>> {
    let (sender, mut receiver) = mpsc::channel::<Job>(QUEUED_JOBS);
    let thread = std::thread::Builder::new().name("spill".to_owned());
    let work = move || {
        while let Some(job) = receiver.blocking_recv() {
            job();
        }
    };
    match thread.spawn(work) {
        Ok(_) => Some(sender),
        Err(error) => {
            tracing::warn!(%error, "cannot start the spill thread; reads and writes of spill files may delay other requests");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_runs_even_without_a_thread_and_after_a_panic() {
        let thread = start().unwrap();
        assert_eq!(run_on(Some(&thread), || Ok(1)).await.unwrap(), 1);
        assert_eq!(run_on(None, || Ok(2)).await.unwrap(), 2);
        let died = run_on::<()>(Some(&thread), || panic!("on purpose")).await;
        assert!(died.is_err());
        thread.closed().await;
        assert_eq!(run_on(Some(&thread), || Ok(3)).await.unwrap(), 3);
    }
}
