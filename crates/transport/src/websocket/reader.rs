//! The reading half: yields messages, answers control frames through [`Control`], watches the
//! timers.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use tokio::io::AsyncReadExt;
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep_until};
use tungstenite::protocol::frame::coding::CloseCode;

use super::control::Control;
use super::decoder::{Decoder, Event};
use super::liveness::{Liveness, Verdict};
use super::{KeepAlive, Role};
use crate::MAX_MESSAGE_BYTES;
use crate::budget::Holding;
use crate::connection::{MalformedMessage, Received};
use crate::socket::ByteSource;

pub(crate) struct WebSocketReader {
    source: ByteSource,
    decoder: Decoder,
    /// Memory of the incomplete message.
    pub(crate) held: Holding,
    control: Arc<Control>,
    answered: watch::Sender<u64>,
    keep_alive: KeepAlive,
    liveness: Liveness,
    timer: Pin<Box<Sleep>>,
    phase: Phase,
    binary_only: bool,
    peer_close: Option<CloseCode>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    /// A close frame was received, or asked for. Input is discarded, but still read: a socket
    /// closed with unread bytes is reset, and a reset overtakes the close frame.
    Closing,
    Over,
}

enum Progress {
    Read,
    Over,
}

impl WebSocketReader {
    pub(super) fn new(
        source: ByteSource,
        role: Role,
        early: &[u8],
        control: Arc<Control>,
        answered: watch::Sender<u64>,
        keep_alive: KeepAlive,
    ) -> Self {
        let liveness = Liveness::new(keep_alive, Instant::now());
        Self {
            source,
            decoder: Decoder::new(role, MAX_MESSAGE_BYTES, early),
            held: Holding::default(),
            control,
            answered,
            keep_alive,
            timer: Box::pin(sleep_until(liveness.next_timeout())),
            liveness,
            phase: Phase::Open,
            binary_only: false,
            peer_close: None,
        }
    }

    pub(crate) fn expect_binary(&mut self) {
        self.binary_only = true;
    }

    pub(crate) async fn recv(&mut self) -> Option<Received> {
        loop {
            match self.phase {
                Phase::Open => {
                    if let Some(message) = self.decode() {
                        self.held.set(self.decoder.held());
                        return Some(match self.binary_only && self.decoder.last_was_text() {
                            true => Received::Malformed(MalformedMessage::Text),
                            false => Received::Message(message),
                        });
                    }
                    self.held.grow_to(self.decoder.held()).await;
                }
                Phase::Closing => self.decoder.discard(),
                Phase::Over => return None,
            }
            if let Progress::Over = self.read().await {
                self.phase = Phase::Over;
            }
        }
    }

    pub(crate) fn limit_messages(&mut self, max: usize) {
        self.decoder.limit_messages(max);
    }

    pub(crate) fn peer_close(&self) -> Option<CloseCode> {
        self.peer_close
    }

    pub(crate) fn close(&mut self, code: CloseCode, reason: &str) {
        self.control.ask_for_close(code, reason);
        self.start_closing();
    }

    /// Returns the next complete message. Handles control frames before it.
    fn decode(&mut self) -> Option<Bytes> {
        while self.phase == Phase::Open {
            match self.decoder.next_event() {
                Ok(None) => return None,
                Ok(Some(Event::Message(message))) => return Some(message),
                Ok(Some(Event::Ping(payload))) => self.control.answer_ping(payload),
                Ok(Some(Event::Pong(payload))) => self.note_pong(&payload),
                Ok(Some(Event::Close(code))) => {
                    self.peer_close = Some(code);
                    self.close(code, "");
                }
                Err(violation) => {
                    tracing::debug!(%violation, "closing a WebSocket: protocol violation");
                    self.close(violation.close_code(), &violation.to_string());
                }
            }
        }
        None
    }

    fn note_pong(&mut self, payload: &[u8]) {
        if let Some(number) = self.control.recognise_pong(payload) {
            self.liveness.answered(Instant::now());
            self.answered.send_if_modified(|newest| {
                let is_newer = number > *newest;
                *newest = number.max(*newest);
                is_newer
            });
        }
    }

    fn start_closing(&mut self) {
        self.phase = Phase::Closing;
        self.decoder.discard();
        self.held.set(0);
        self.timer.as_mut().reset(Instant::now() + self.keep_alive.close_timeout);
    }

    async fn read(&mut self) -> Progress {
        tokio::select! {
            // Bytes first: after a suspension, they may be available together with an expired
            // timer.
            biased;
            read = self.source.read_buf(self.decoder.space()) => match read {
                Ok(0) | Err(_) => Progress::Over,
                Ok(bytes) => {
                    self.decoder.received(bytes);
                    self.liveness.heard(bytes, Instant::now());
                    Progress::Read
                }
            },
            () = self.timer.as_mut() => self.handle_timeout(),
        }
    }

    fn handle_timeout(&mut self) -> Progress {
        if self.phase != Phase::Open {
            return Progress::Over;
        }
        self.decoder.release_idle();
        let (is_busy, written) = (self.control.writer_is_busy(), self.control.written());
        match self.liveness.handle_timeout(Instant::now(), is_busy, written) {
            Verdict::Dead => return Progress::Over,
            Verdict::Ping => {
                self.control.ask_for_ping(*self.answered.borrow());
            }
            Verdict::Wait => {}
        }
        self.timer.as_mut().reset(self.liveness.next_timeout());
        Progress::Read
    }
}
