//! Frames queued for one socket: bounded in bytes, and closed together with the socket.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use exec_server_transport::CloseCode;
use tokio::sync::{Notify, Semaphore, TryAcquireError, watch};
use tokio::time::sleep;

use crate::quota::ByteBudget;

/// Charged for each frame in addition to its length, which bounds the number of tiny frames.
const ENTRY_BYTES: usize = 64;
/// A received frame shares memory with the frames before and after it. Frames below this size, and
/// all frames of a slow socket, are copied, so that they do not keep that memory alive.
const SMALL_FRAME: usize = 16 << 10;
/// A socket with at least this many queued bytes counts as slow.
const MOST_SHARED: usize = 512 << 10;
/// How long a frame waits before it tries again to charge a budget.
const BUDGET_INTERVAL: Duration = Duration::from_millis(5);
/// A write gets no further frame once it has this many bytes.
const BATCH_BYTES: usize = 256 << 10;

#[derive(Debug)]
pub(crate) struct FrameQueue {
    /// Bytes that still fit. Waiters get room in the order of their requests.
    room: Semaphore,
    waiting: Mutex<Waiting>,
    wake_writer: Notify,
    closing: watch::Sender<Option<Closing>>,
    /// Shared with other queues.
    budgets: Vec<Arc<ByteBudget>>,
    /// Bytes charged to the budgets for this queue.
    charged: AtomicUsize,
}

#[derive(Debug, Default)]
struct Waiting {
    frames: VecDeque<Bytes>,
    bytes: usize,
}

/// The reason for closing a socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Closing {
    pub(crate) code: CloseCode,
    pub(crate) reason: Cow<'static, str>,
}

impl Closing {
    pub(crate) const fn new(code: CloseCode, reason: &'static str) -> Self {
        Self { code, reason: Cow::Borrowed(reason) }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// This queue has no room: its peer reads too slowly.
    Queue,
    /// The queues that share a budget have used it up.
    Budget,
}

impl FrameQueue {
    pub(super) fn new(limit: usize, budgets: Vec<Arc<ByteBudget>>) -> Self {
        Self {
            room: Semaphore::new(limit.min(Semaphore::MAX_PERMITS)),
            waiting: Mutex::default(),
            wake_writer: Notify::new(),
            closing: watch::Sender::new(None),
            budgets,
            charged: AtomicUsize::new(0),
        }
    }

    /// Adds a frame if it fits. A closed queue drops it.
    pub(crate) fn try_push(&self, frame: Bytes) -> Result<(), Full> {
        let cost = cost(&frame);
        match self.room.try_acquire_many(cost as u32) {
            Ok(room) => {
                self.charge(cost)?;
                room.forget();
                self.append(frame);
                Ok(())
            }
            Err(TryAcquireError::NoPermits) => Err(Full::Queue),
            Err(TryAcquireError::Closed) => Ok(()),
        }
    }

    /// Adds a frame once it fits. A closed queue drops it. Cancel-safe.
    pub(super) async fn push(&self, frame: Bytes) {
        let cost = cost(&frame);
        let Ok(room) = self.room.acquire_many(cost as u32).await else { return };
        // Other queues may have used up the shared budget.
        while self.charge(cost).is_err() {
            sleep(BUDGET_INTERVAL).await;
            if self.room.is_closed() {
                return;
            }
        }
        room.forget();
        self.append(frame);
    }

    /// Moves the next frames to `batch`. Returns their cost, for [`written`](Self::written).
    /// Cancel-safe.
    pub(super) async fn next_batch(&self, batch: &mut Vec<Bytes>) -> usize {
        loop {
            let taken = self.take_batch(batch);
            if taken > 0 {
                return taken;
            }
            self.wake_writer.notified().await;
        }
    }

    /// Records that the socket took the frames of a batch with this cost.
    pub(super) fn written(&self, cost: usize) {
        self.room.add_permits(cost);
        self.give_back(cost);
    }

    /// The first reason counts.
    pub(crate) fn close(&self, closing: Closing) {
        self.closing.send_if_modified(|current| {
            let is_first = current.is_none();
            current.get_or_insert(closing);
            is_first
        });
        self.room.close();
        let dropped = std::mem::take(&mut *self.lock());
        self.give_back(dropped.bytes);
    }

    pub(crate) async fn closed(&self) -> Closing {
        let mut closing = self.closing.subscribe();
        let closing = closing.wait_for(Option::is_some).await;
        let closing = closing.ok().and_then(|closing| closing.clone());
        closing.expect("the sender lives as long as this call")
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closing.borrow().is_some()
    }

    /// Returns the close reason, if the queue is closed.
    pub(crate) fn closing(&self) -> Option<Closing> {
        self.closing.borrow().clone()
    }

    fn take_batch(&self, batch: &mut Vec<Bytes>) -> usize {
        let mut waiting = self.lock();
        let mut taken = 0;
        while taken < BATCH_BYTES
            && let Some(frame) = waiting.frames.pop_front()
        {
            taken += cost(&frame);
            batch.push(frame);
        }
        waiting.bytes -= taken;
        if waiting.frames.is_empty() && waiting.frames.capacity() > 64 {
            waiting.frames = VecDeque::new();
        }
        taken
    }

    fn append(&self, frame: Bytes) {
        let mut waiting = self.lock();
        // Includes the frames that are being written.
        let charged = self.charged.load(Ordering::Relaxed);
        let is_shared = frame.len() >= SMALL_FRAME && charged < MOST_SHARED;
        waiting.bytes += cost(&frame);
        waiting.frames.push_back(match is_shared {
            true => frame,
            false => Bytes::copy_from_slice(&frame),
        });
        drop(waiting);
        self.wake_writer.notify_one();
    }

    fn charge(&self, cost: usize) -> Result<(), Full> {
        for (index, budget) in self.budgets.iter().enumerate() {
            if !budget.try_add(cost) {
                self.budgets[..index].iter().for_each(|budget| budget.remove(cost));
                return Err(Full::Budget);
            }
        }
        self.charged.fetch_add(cost, Ordering::Relaxed);
        Ok(())
    }

    fn give_back(&self, cost: usize) {
        self.charged.fetch_sub(cost, Ordering::Relaxed);
        self.budgets.iter().for_each(|budget| budget.remove(cost));
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().expect("no code panics while it holds the queue")
    }
}

/// Returns the cost of a frame: at most a little more than the largest frame, so it fits into 32
/// bits.
fn cost(frame: &Bytes) -> usize {
    frame.len() + ENTRY_BYTES
}

impl Drop for FrameQueue {
    fn drop(&mut self) {
        let charged = *self.charged.get_mut();
        self.give_back(charged);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GONE: Closing = Closing::new(CloseCode::Away, "gone");

    fn frame(len: usize) -> Bytes {
        vec![7; len].into()
    }

    #[tokio::test]
    async fn a_full_queue_refuses_until_frames_are_written() {
        let queue = FrameQueue::new(2 * cost(&frame(100)), Vec::new());
        assert_eq!(queue.try_push(frame(100)), Ok(()));
        assert_eq!(queue.try_push(frame(100)), Ok(()));
        assert_eq!(queue.try_push(frame(1)), Err(Full::Queue));
        let mut batch = Vec::new();
        let taken = queue.next_batch(&mut batch).await;
        assert_eq!(batch.len(), 2);
        assert_eq!(queue.try_push(frame(1)), Err(Full::Queue), "the socket did not take them yet");
        queue.written(taken);
        assert_eq!(queue.try_push(frame(1)), Ok(()));
    }

    #[tokio::test]
    async fn waiters_get_room_in_order() {
        let queue = Arc::new(FrameQueue::new(cost(&frame(10)), Vec::new()));
        queue.try_push(frame(10)).unwrap();
        let mut waiters = tokio::task::JoinSet::new();
        let order = Arc::new(Mutex::new(Vec::new()));
        for number in 0..3 {
            let (queue, order) = (Arc::clone(&queue), Arc::clone(&order));
            waiters.spawn(async move {
                queue.push(frame(10)).await;
                order.lock().unwrap().push(number);
            });
            tokio::task::yield_now().await;
        }
        for _ in 0..3 {
            let taken = queue.next_batch(&mut Vec::new()).await;
            queue.written(taken);
            waiters.join_next().await.unwrap().unwrap();
        }
        assert_eq!(*order.lock().unwrap(), [0, 1, 2]);
    }

    #[tokio::test]
    async fn closing_wakes_all_waiters_and_drops_queued_frames() {
        let queue = FrameQueue::new(cost(&frame(10)), Vec::new());
        queue.try_push(frame(10)).unwrap();
        let ((), closing, ()) = tokio::join!(queue.push(frame(10)), queue.closed(), async {
            queue.close(GONE);
            queue.close(Closing::new(CloseCode::Normal, "late"));
        });
        assert_eq!(closing, GONE);
        assert_eq!(queue.try_push(frame(10)), Ok(()), "dropped");
        assert_eq!(queue.take_batch(&mut Vec::new()), 0);
    }

    #[test]
    fn budgets_are_shared_and_released() {
        let budget = Arc::new(ByteBudget::new(cost(&frame(100))));
        let queue = || FrameQueue::new(1000, vec![Arc::clone(&budget)]);
        let (one, other) = (queue(), queue());
        one.try_push(frame(100)).unwrap();
        assert_eq!(other.try_push(frame(1)), Err(Full::Budget));
        drop(one);
        assert_eq!(other.try_push(frame(100)), Ok(()));
    }

    #[tokio::test]
    async fn a_frame_waits_until_another_queue_releases_its_bytes() {
        let budget = Arc::new(ByteBudget::new(cost(&frame(10))));
        let [one, other] = [(), ()].map(|()| FrameQueue::new(1000, vec![Arc::clone(&budget)]));
        one.try_push(frame(10)).unwrap();
        assert_eq!(other.try_push(frame(10)), Err(Full::Budget));
        tokio::join!(other.push(frame(10)), async { one.close(GONE) });
        assert_eq!(other.take_batch(&mut Vec::new()), cost(&frame(10)));
    }
}
