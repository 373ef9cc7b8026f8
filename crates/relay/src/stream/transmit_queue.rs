//! The queue of streams with frames to send, for the task that writes to the socket.
//!
//! A stream is in the queue at most once, and gives one frame each time it is taken. So streams
//! share the socket evenly, and no frame waits outside the window of its stream.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;

use super::Stream;
use crate::counters::RelayCounters;
use crate::frame::{Body, Frame};

/// Maximum number of queued frames that no [`Stream`] sends: handshakes and resets.
const MAX_LOOSE_FRAMES: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct TransmitQueue {
    waiting: Mutex<Waiting>,
    filled: Notify,
    counters: Arc<RelayCounters>,
}

#[derive(Debug, Default)]
struct Waiting {
    frames: VecDeque<Frame>,
    streams: VecDeque<Arc<Stream>>,
    /// Streams whose resets are being written.
    ending: Vec<Arc<Stream>>,
}

impl TransmitQueue {
    pub(crate) fn counters(&self) -> &Arc<RelayCounters> {
        &self.counters
    }

    pub(super) fn push_stream(&self, stream: Arc<Stream>) {
        self.lock().streams.push_back(stream);
        self.filled.notify_one();
    }

    /// Drops the frame if there is no room: the peer then times out.
    pub(crate) fn push_frame(&self, frame: Frame) {
        let mut waiting = self.lock();
        if waiting.frames.len() < MAX_LOOSE_FRAMES {
            waiting.frames.push_back(frame);
            drop(waiting);
            self.filled.notify_one();
        }
    }

    pub(crate) fn next_frame(&self) -> Option<Frame> {
        let frame = self.take_frame()?;
        self.counters.sent.fetch_add(1, Ordering::Relaxed);
        Some(frame)
    }

    /// Returns the next frame that no [`Stream`] sends: a handshake or a reset.
    pub(crate) fn next_loose_frame(&self) -> Option<Frame> {
        let frame = self.lock().frames.pop_front()?;
        self.counters.sent.fetch_add(1, Ordering::Relaxed);
        Some(frame)
    }

    fn take_frame(&self) -> Option<Frame> {
        loop {
            let stream = {
                let mut waiting = self.lock();
                if let Some(frame) = waiting.frames.pop_front() {
                    return Some(frame);
                }
                waiting.streams.pop_front()?
            };
            if let Some(frame) = stream.poll_frame() {
                if let Body::Reset { .. } = frame.body {
                    self.lock().ending.push(stream);
                }
                return Some(frame);
            }
        }
    }

    /// Notes that the socket has taken all frames so far.
    pub(crate) fn note_flushed(&self) {
        let ending = std::mem::take(&mut self.lock().ending);
        for stream in ending {
            stream.note_reset_sent();
        }
    }

    /// Drops all entries, because their socket is lost. Streams are queued again for the next
    /// socket.
    pub(crate) fn clear(&self) {
        *self.lock() = Waiting::default();
    }

    /// Resolves when there may be frames. Supports one waiter: the socket's task.
    pub(crate) async fn filled(&self) {
        self.filled.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().expect("no code panics while it holds the lock")
    }
}
