//! Something that is made at its first use, and made again when it has become useless.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Mutex;

/// A value that takes time to make and may fail to be made, with the error `E`.
///
/// Those who come at the same time share one attempt, also when it fails. A failure is not remembered: who comes later
/// tries again.
#[derive(Debug)]
pub(super) struct Lazy<T, E> {
    failures: AtomicU64,
    /// Held during an attempt. If whoever makes it gives up, the next in line tries.
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
            // It failed while we waited for it.
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
    async fn one_attempt_serves_all_who_wait_for_it() {
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
        assert_eq!(get(Ok(3)).await, Ok(3), "a failure is not remembered");
        assert_eq!(get(Ok(4)).await, Ok(3));
        assert_eq!(attempts.get(), 2);

        gate.notify_one();
        let replaced = lazy.get(|value| *value != 3, make(Ok(5))).await;
        assert_eq!(replaced, Ok(5), "what is useless is replaced");
    }

    #[tokio::test]
    async fn who_gives_up_leaves_the_attempt_to_the_next() {
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
