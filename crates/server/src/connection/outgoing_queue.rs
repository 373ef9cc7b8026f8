//! Messages on their way to the writer, in order.
//!
//! Most are small, and one thread makes them while another sends them. If one thread frees memory
//! that another allocated, both contend in the allocator. So small messages are copied into one
//! buffer. The writer swaps it for the buffer that it sent last, so the memory is reused.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::feed::SocketFeed;

/// Larger messages are moved instead.
const COPIED_BYTES: usize = 8 << 10;
/// Maximum capacity of the text that is kept for the next messages.
const KEPT_BYTES: usize = 64 << 10;

#[derive(Debug, Default)]
pub(super) struct OutgoingQueue {
    queue: VecDeque<Answer>,
    /// The small messages, one after another.
    text: Vec<u8>,
}

#[derive(Debug)]
struct Answer {
    message: Message,
    events: Option<Events>,
}

#[derive(Debug)]
enum Message {
    /// The next bytes of the text, of this length.
    Copied(usize),
    Whole(Vec<u8>),
}

/// A feed, and the number of its last event in a response.
pub(super) type Events = (Arc<SocketFeed>, u64);

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken<'a> {
    Small(&'a [u8]),
    Large(Vec<u8>),
}

impl OutgoingQueue {
    /// Queues a message. Returns it if it was copied, so that the caller can drop it outside the
    /// lock.
    pub(super) fn push(&mut self, message: Vec<u8>, events: Option<Events>) -> Option<Vec<u8>> {
        if message.len() > COPIED_BYTES {
            self.queue.push_back(Answer { message: Message::Whole(message), events });
            return None;
        }
        self.text.extend_from_slice(&message);
        self.queue.push_back(Answer { message: Message::Copied(message.len()), events });
        Some(message)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Passes every message to `take`, and keeps the memory for later ones.
    pub(super) fn drain(&mut self, mut take: impl FnMut(Taken<'_>, Option<Events>)) {
        let mut rest = &self.text[..];
        for Answer { message, events } in self.queue.drain(..) {
            match message {
                Message::Copied(len) => {
                    let (first, behind) = rest.split_at(len);
                    rest = behind;
                    take(Taken::Small(first), events);
                }
                Message::Whole(message) => take(Taken::Large(message), events),
            }
        }
        self.text.clear();
        if self.text.capacity() > KEPT_BYTES {
            *self = Self::default();
        }
    }

    /// Releases memory that an idle connection does not need.
    pub(super) fn release_idle(&mut self) {
        if self.is_empty() {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_all_sizes_leave_in_order() {
        let mut answers = OutgoingQueue::default();
        let sizes = [0, 1, COPIED_BYTES, COPIED_BYTES + 1, 2, 3 * COPIED_BYTES, 3];
        let message = |number: usize| vec![number as u8; sizes[number]];
        for round in 0..2 {
            for (number, size) in sizes.iter().enumerate() {
                let left = answers.push(message(number), None);
                assert_eq!(left.is_some(), *size <= COPIED_BYTES, "{size} in round {round}");
            }
            let mut left = Vec::new();
            answers.drain(|taken, _| match taken {
                Taken::Small(text) => left.push(text.to_vec()),
                Taken::Large(text) => left.push(text),
            });
            assert_eq!(left, (0..sizes.len()).map(message).collect::<Vec<_>>());
            assert!(answers.is_empty());
        }
    }

    #[test]
    fn memory_is_kept_while_there_is_something_to_send() {
        let mut answers = OutgoingQueue::default();
        answers.push(vec![0; 100], None);
        answers.drain(|_, _| {});
        assert!(answers.text.capacity() >= 100);
        answers.push(vec![0; 100], None);
        answers.release_idle();
        assert!(!answers.is_empty(), "a message was lost");
        answers.drain(|_, _| {});
        answers.release_idle();
        assert_eq!(answers.text.capacity(), 0);

        for _ in 0..=KEPT_BYTES / COPIED_BYTES {
            answers.push(vec![0; COPIED_BYTES], None);
        }
        answers.drain(|_, _| {});
        assert_eq!(answers.text.capacity(), 0, "the memory of a burst is kept");
    }
}
