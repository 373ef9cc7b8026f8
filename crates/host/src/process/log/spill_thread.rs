//! One thread does the file work of every log.
//!
//! A write may wait for the disk, so it must not run on a thread of the runtime. It must not need a
//! new thread either: under a limit on processes there is none to be had at the very moment when
//! output has to be kept. All spill files are on one file system, so one thread serves them all.

use std::io;
use std::sync::OnceLock;

use tokio::sync::{mpsc, oneshot};

type Job = Box<dyn FnOnce() + Send + Sync>;

/// Each log has at most one write under way, and each cursor one read. Full: they wait.
const QUEUED_JOBS: usize = 64;

/// `None`: the thread could not be started.
static QUEUE: OnceLock<Option<mpsc::Sender<Job>>> = OnceLock::new();

/// Starts the thread, if it does not run yet. A server calls this before it serves anyone.
pub fn start_spill_thread() {
    queue();
}

/// Runs `work` on the thread, or in place if there is none.
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
            tracing::warn!(%error, "no thread for spill files; writing them may delay others");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_is_done_with_a_thread_without_one_and_after_it_has_died() {
        let thread = start().unwrap();
        assert_eq!(run_on(Some(&thread), || Ok(1)).await.unwrap(), 1);
        assert_eq!(run_on(None, || Ok(2)).await.unwrap(), 2);
        let died = run_on::<()>(Some(&thread), || panic!("on purpose")).await;
        assert!(died.is_err());
        thread.closed().await;
        assert_eq!(run_on(Some(&thread), || Ok(3)).await.unwrap(), 3);
    }
}
