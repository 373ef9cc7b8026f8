//! Frames that the reader of a connection asks its writer to send.
//!
//! At most one of each kind is pending: a newer pong replaces an older one (RFC 6455, section 5.5.3
//! allows it), an unsent ping serves every request for a ping, and only the first close counts.
//! So a peer that floods the connection with pings and reads nothing occupies at most 125 bytes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;
use tungstenite::protocol::frame::coding::{CloseCode, Control as Opcode, OpCode};

use super::Role;
use super::frame;

const MAX_REASON_BYTES: usize = 123;

#[derive(Debug, Default)]
pub(super) struct Control {
    waiting: Mutex<Waiting>,
    wake_writer: Notify,
    writer_is_busy: AtomicBool,
    written: AtomicU64,
}

#[derive(Debug, Default)]
struct Waiting {
    pong: Option<Bytes>,
    ping: Option<u64>,
    /// The newest ping between messages in the writer's buffer, while it is still there.
    buffered_ping: Option<u64>,
    /// The number of the newest ping. Invariant: pings are sent in the order of their numbers, so
    /// that the pong of one answers all earlier ones.
    pings: u64,
    close: Close,
}

#[derive(Debug, Default)]
enum Close {
    #[default]
    Unasked,
    Waiting(Vec<u8>),
    Sent,
}

impl Control {
    /// Asks for a ping and returns its number; a pong with that number or a higher one answers it.
    /// A pending ping is reused if its number is above `answered`, the highest answered ping:
    /// otherwise its pong would prove nothing new.
    pub(super) fn ask_for_ping(&self, answered: u64) -> u64 {
        let mut waiting = self.lock();
        let on_its_way = waiting.ping.or(waiting.buffered_ping);
        if let Some(number) = on_its_way.filter(|number| *number > answered) {
            return number;
        }
        waiting.pings += 1;
        let number = waiting.pings;
        waiting.ping = Some(number);
        drop(waiting);
        self.wake_writer.notify_one();
        number
    }

    /// Numbers a ping that the writer puts between messages. Its pong also answers pending requests
    /// for a ping.
    pub(super) fn number_buffered_ping(&self) -> u64 {
        let mut waiting = self.lock();
        waiting.ping = None;
        waiting.pings += 1;
        waiting.buffered_ping = Some(waiting.pings);
        waiting.pings
    }

    /// Called when the writer's buffer is empty.
    pub(super) fn buffer_was_written(&self) {
        self.lock().buffered_ping = None;
    }

    /// Returns the number of the ping that this pong answers, if any.
    pub(super) fn recognise_pong(&self, payload: &[u8]) -> Option<u64> {
        let number = u64::from_be_bytes(payload.try_into().ok()?);
        (number <= self.lock().pings).then_some(number)
    }

    pub(super) fn answer_ping(&self, payload: Bytes) {
        self.lock().pong = Some(payload);
        self.wake_writer.notify_one();
    }

    pub(super) fn ask_for_close(&self, code: CloseCode, reason: &str) {
        let mut waiting = self.lock();
        if let Close::Unasked = waiting.close {
            let reason = &reason[..reason.floor_char_boundary(MAX_REASON_BYTES)];
            let code = u16::from(code).to_be_bytes();
            waiting.close = Close::Waiting([&code, reason.as_bytes()].concat());
        }
        drop(waiting);
        self.wake_writer.notify_one();
    }

    /// Moves the pending frames to the end of `buffer`; a close is always the last.
    pub(super) fn take_frames(&self, buffer: &mut Vec<u8>, sender: Role) {
        let mut waiting = self.lock();
        let mut append = |opcode, payload: &[u8]| {
            let fill = |buffer: &mut Vec<u8>| buffer.extend_from_slice(payload);
            frame::append(buffer, sender, OpCode::Control(opcode), true, payload.len(), fill);
        };
        if let Some(payload) = waiting.pong.take() {
            append(Opcode::Pong, &payload);
        }
        if let Some(number) = waiting.ping.take() {
            append(Opcode::Ping, &number.to_be_bytes());
        }
        if let Close::Waiting(payload) = &waiting.close {
            append(Opcode::Close, payload);
            waiting.close = Close::Sent;
        }
    }

    pub(super) fn close_was_taken(&self) -> bool {
        matches!(self.lock().close, Close::Sent)
    }

    pub(super) fn is_waiting(&self) -> bool {
        let waiting = self.lock();
        match waiting.close {
            Close::Unasked => waiting.pong.is_some() || waiting.ping.is_some(),
            Close::Waiting(_) => true,
            // No frame may follow a close.
            Close::Sent => false,
        }
    }

    /// Resolves when frames are pending. Supports one waiter, the writer.
    pub(super) async fn pending(&self) {
        while !self.is_waiting() {
            self.wake_writer.notified().await;
        }
    }

    /// Whether the writer has bytes that the socket has not accepted yet.
    pub(super) fn writer_is_busy(&self) -> bool {
        self.writer_is_busy.load(Ordering::Relaxed)
    }

    pub(super) fn set_writer_busy(&self, busy: bool) {
        self.writer_is_busy.store(busy, Ordering::Relaxed);
    }

    /// The number of bytes that the socket has accepted.
    pub(super) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    pub(super) fn count_written(&self, bytes: usize) {
        self.written.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().expect("no code panics while it holds the lock")
    }
}

/// Asks for pings and waits for their pongs.
#[derive(Debug, Clone)]
pub(crate) struct WebSocketProber {
    control: Arc<Control>,
    /// The highest answered ping. Closed when the reader is gone.
    answers: watch::Receiver<u64>,
}

impl WebSocketProber {
    pub(super) fn new(control: Arc<Control>, answers: watch::Receiver<u64>) -> Self {
        Self { control, answers }
    }

    pub(crate) async fn probe(&self, limit: Duration) -> bool {
        let asked = self.control.ask_for_ping(*self.answers.borrow());
        let mut answers = self.answers.clone();
        let answered = timeout(limit, answers.wait_for(|newest| *newest >= asked)).await;
        matches!(answered, Ok(Ok(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_frame_of_each_kind_is_pending() {
        let control = Control::default();
        control.answer_ping(Bytes::from("old"));
        control.answer_ping(Bytes::from("new"));
        assert_eq!(control.ask_for_ping(0), 1);
        assert_eq!(control.ask_for_ping(0), 1, "an unsent ping serves every prober");
        control.ask_for_close(CloseCode::Size, &"ü".repeat(100));
        control.ask_for_close(CloseCode::Normal, "too late");

        let mut frames = Vec::new();
        control.take_frames(&mut frames, Role::Server);
        assert_eq!(frames[..5], *b"\x8a\x03new");
        assert_eq!(frames[5..15], *b"\x89\x08\0\0\0\0\0\0\0\x01");
        assert_eq!(frames[15..19], [0x88, 124, 0x03, 0xf1], "1009, truncated between characters");
        assert_eq!(frames.len(), 15 + 2 + 124);
        assert!(!control.is_waiting() && control.close_was_taken());
        assert_eq!(control.ask_for_ping(0), 2);
    }

    #[test]
    fn an_answered_ping_is_not_reused() {
        let control = Control::default();
        let buffered = control.number_buffered_ping();
        assert_eq!(control.ask_for_ping(0), buffered, "the buffered ping serves");
        assert_eq!(control.ask_for_ping(buffered), buffered + 1);
    }

    #[test]
    fn only_pongs_to_sent_pings_count() {
        let control = Control::default();
        let number = control.ask_for_ping(0);
        assert_eq!(control.recognise_pong(&number.to_be_bytes()), Some(1));
        assert_eq!(control.recognise_pong(&u64::MAX.to_be_bytes()), None);
        assert_eq!(control.recognise_pong(b"hello"), None);
    }
}
