//! A value that is created on first use, and again once it is unusable.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Mutex;

/// A value whose creation is asynchronous and may fail with the error `E`.
///
/// Concurrent callers share one attempt, including its failure. A failure is not cached: later
/// callers try again.
#[derive(Debug)]
pub(super) struct Lazy<T, E> {
    failures: AtomicU64,
    /// Locked during an attempt. If the caller that makes the attempt is cancelled, the next
    /// waiting caller makes a new one.
    slot: Mutex<Slot<T, E>>,
}

#[derive(Debug)]
enum Slot<T, E> {
    Empty,
    Made(T),
    Failed(E),
}

impl<T: Clone, E: Clone> Lazy<T, E> {
    pub(super) fn new() -> Self {
        Self { failures: AtomicU64::new(0), slot: Mutex::new(Slot::Empty) }
    }

    pub(super) async fn get(
        &self,
        is_usable: impl Fn(&T) -> bool,
        make: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let failures_before = self.failures.load(Ordering::Acquire);
        let mut slot = self.slot.lock().await;
        match &*slot {
            Slot::Made(value) if is_usable(value) => return Ok(value.clone()),
            // The attempt that this caller was waiting for has failed.
            Slot::Failed(error) if self.failures.load(Ordering::Acquire) > failures_before => {
                return Err(error.clone());
            }
            Slot::Made(_) | Slot::Failed(_) | Slot::Empty => {}
        }
        let made = make.await;
        *slot = match &made {
            Ok(value) => Slot::Made(value.clone()),
            Err(error) => {
                self.failures.fetch_add(1, Ordering::Release);
                Slot::Failed(error.clone())
            }
        };
        made
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::sync::Notify;

    use super::*;

    #[tokio::test]
    async fn concurrent_callers_share_one_attempt() {
        let lazy = Lazy::new();
        let (attempts, gate) = (Cell::new(0), Notify::new());
        let make = |outcome: Result<u32, &'static str>| {
            let (attempts, gate) = (&attempts, &gate);
            async move {
                attempts.set(attempts.get() + 1);
                gate.notified().await;
                outcome
            }
        };
        let get = |outcome| lazy.get(|_| true, make(outcome));
        let open = async { gate.notify_one() };
        let (a, b, c, ()) = tokio::join!(get(Err("no")), get(Ok(1)), get(Ok(2)), open);
        assert_eq!((a, b, c), (Err("no"), Err("no"), Err("no")));
        assert_eq!(attempts.get(), 1);

        gate.notify_one();
        assert_eq!(get(Ok(3)).await, Ok(3), "a failure is not cached");
        assert_eq!(get(Ok(4)).await, Ok(3));
        assert_eq!(attempts.get(), 2);

        gate.notify_one();
        let replaced = lazy.get(|value| *value != 3, make(Ok(5))).await;
        assert_eq!(replaced, Ok(5), "an unusable value is replaced");
    }

    #[tokio::test]
    async fn after_a_cancelled_attempt_the_next_caller_tries() {
        let lazy = Lazy::<u32, ()>::new();
        let stuck = lazy.get(|_| true, std::future::pending());
        let next = lazy.get(|_| true, async { Ok(7) });
        let mut stuck = Box::pin(stuck);
        assert!(
            std::future::poll_fn(|context| {
                std::task::Poll::Ready(stuck.as_mut().poll(context).is_pending())
            })
            .await
        );
        drop(stuck);
        assert_eq!(next.await, Ok(7));
    }
}
