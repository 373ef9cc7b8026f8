//! Waiting calls of one connection, each a task. They are aborted when the connection ends.

use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard};
use std::task::Poll;

use tokio::runtime;
use tokio::task::{AbortHandle, JoinSet};

#[derive(Debug, Default)]
pub(crate) struct TaskSet {
    tasks: Mutex<JoinSet<()>>,
}

impl TaskSet {
    /// Spawns a task, even from a thread outside the runtime.
    pub(crate) fn spawn_on(
        &self,
        runtime: &runtime::Handle,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> AbortHandle {
        let mut tasks = self.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn_on(task, runtime)
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Frees the memory of tasks that have ended, for as long as it is polled.
    pub(crate) async fn reap(&self) {
        poll_fn(|context| -> Poll<()> {
            let mut tasks = self.lock();
            while let Poll::Ready(Some(_)) = tasks.poll_join_next(context) {}
            Poll::Pending
        })
        .await;
    }

    pub(crate) async fn finish(&self) {
        poll_fn(|context| {
            let mut tasks = self.lock();
            loop {
                match tasks.poll_join_next(context) {
                    Poll::Ready(Some(_)) => {}
                    Poll::Ready(None) => return Poll::Ready(()),
                    Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await;
    }

    fn lock(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.tasks.lock().expect("no code panics while it holds the tasks")
    }
}
