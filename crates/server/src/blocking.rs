//! Blocking waits on a thread of the runtime, for the few calls that must finish before the next
//! request of their connection begins and so cannot wait as a task.

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;

/// Runs `wait`, which may block this thread. The thread's other tasks move to other threads, unless
/// the runtime is a current-thread runtime.
pub(crate) fn allow_blocking<T>(wait: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => block_in_place(wait),
        _ => wait(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn other_tasks_run_while_a_call_blocks() {
        let (release, released) = sync_channel(1);
        let blocked = tokio::spawn(async move { allow_blocking(|| released.recv()) });
        // The only worker is blocked, and yet this task runs.
        tokio::spawn(async move { release.send(7) }).await.unwrap().unwrap();
        assert_eq!(blocked.await.unwrap(), Ok(7));
    }

    #[tokio::test]
    async fn a_call_runs_in_a_current_thread_runtime() {
        assert_eq!(allow_blocking(|| 7), 7);
    }

    #[test]
    fn a_call_runs_without_a_runtime() {
        assert_eq!(allow_blocking(|| 7), 7);
    }
}
