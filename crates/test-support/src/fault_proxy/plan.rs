//! Cuts planned for certain messages.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;

use super::frames::FramePosition;
use super::{Cut, Way};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedCut {
    pub way: Way,
    /// Number of messages to forward in this direction, counted over all connections, since the
    /// previous planned cut or, for the first cut, since
    /// [`plan_cuts`](super::FaultProxy::plan_cuts). The next message does not arrive whole.
    ///
    /// Each frame counts as a message, pings included, and so does the HTTP head of a connection.
    pub after: u64,
    pub how: Cut,
}

/// Pending cuts, in order. `after` of the first one is the number of messages still to forward.
#[derive(Debug, Default)]
pub(super) struct CutPlan {
    coming: Mutex<VecDeque<PlannedCut>>,
    done: watch::Sender<usize>,
}

/// The verdict on bytes that are due.
pub(super) enum Due {
    Forward { len: usize },
    Cut(Cut),
}

impl CutPlan {
    pub(super) fn replace(&self, cuts: impl IntoIterator<Item = PlannedCut>) {
        *self.lock() = cuts.into_iter().collect();
    }

    pub(super) fn done(&self) -> watch::Receiver<usize> {
        self.done.subscribe()
    }

    pub(super) fn judge(&self, way: Way, position: &FramePosition, bytes: &[u8]) -> Due {
        let mut coming = self.lock();
        match coming.front() {
            Some(cut) if cut.way == way => {
                if cut.after > 0 {
                    return Due::Forward { len: position.len_of_frames(bytes, cut.after) };
                }
                let how = cut.how;
                coming.pop_front();
                self.done.send_modify(|done| *done += 1);
                Due::Cut(how)
            }
            _ => Due::Forward { len: bytes.len() },
        }
    }

    pub(super) fn passed(&self, way: Way, frames: u64) {
        if let Some(cut) = self.lock().front_mut().filter(|cut| cut.way == way) {
            cut.after = cut.after.saturating_sub(frames);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<PlannedCut>> {
        self.coming.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
