//! The writing half: frames messages into a buffer, and sends pending control frames between them.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::AsyncWriteExt;
use tokio::sync::watch;
use tokio::time::timeout;
use tungstenite::protocol::frame::coding::{CloseCode, Control as Opcode, Data, OpCode};

use super::control::Control;
use super::{MAX_FRAME_BYTES, Role, frame};
use crate::connection::filled;
use crate::write_buffer::{ByteSink, WriteBuffer};

/// Below this size, a copy costs less than a separate slice of a write.
const SMALL_MESSAGE: usize = 16 << 10;

pub(crate) struct WebSocketWriter {
    sink: ByteSink,
    role: Role,
    control: Arc<Control>,
    /// The highest answered ping.
    answers: watch::Receiver<u64>,
    close_timeout: Duration,
    control_frames: WriteBuffer,
    messages: WriteBuffer,
    /// Whether the sink may hold unflushed data: it may buffer, as TLS does, and a flush may be
    /// dropped.
    unflushed: bool,
    /// The opcode of messages.
    data: Data,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// The close frame is written; nothing may follow it.
    Closed,
}

impl WebSocketWriter {
    pub(super) fn new(
        sink: ByteSink,
        role: Role,
        control: Arc<Control>,
        answers: watch::Receiver<u64>,
        close_timeout: Duration,
    ) -> Self {
        Self {
            sink,
            role,
            control,
            answers,
            close_timeout,
            control_frames: WriteBuffer::default(),
            messages: WriteBuffer::default(),
            unflushed: false,
            data: Data::Text,
            state: State::Open,
        }
    }

    pub(crate) fn send_binary(&mut self) {
        self.data = Data::Binary;
    }

    pub(crate) fn push(&mut self, message: &[u8]) {
        let mut opcode = OpCode::Data(self.data);
        let mut rest = message;
        loop {
            let (fragment, after) = rest.split_at(rest.len().min(MAX_FRAME_BYTES));
            let fill = |buffer: &mut Vec<u8>| buffer.extend_from_slice(fragment);
            let end = self.messages.end();
            frame::append(end, self.role, opcode, after.is_empty(), fragment.len(), fill);
            if after.is_empty() {
                return;
            }
            opcode = OpCode::Data(Data::Continue);
            rest = after;
        }
    }

    /// Like [`push`](Self::push), but without a copy for a large message that needs no mask.
    pub(crate) fn push_owned(&mut self, message: Bytes) {
        if self.role == Role::Client || message.len() < SMALL_MESSAGE {
            return self.push(&message);
        }
        let mut opcode = OpCode::Data(self.data);
        let mut rest = message;
        while !rest.is_empty() {
            let fragment = rest.split_to(rest.len().min(MAX_FRAME_BYTES));
            let end = self.messages.end();
            frame::append_header(end, opcode, rest.is_empty(), fragment.len());
            self.messages.append_segment(fragment);
            opcode = OpCode::Data(Data::Continue);
        }
    }

    pub(crate) fn push_with(&mut self, len: usize, fill: impl FnOnce(&mut Vec<u8>)) {
        if len > MAX_FRAME_BYTES {
            return self.push(&filled(len, fill));
        }
        frame::append(self.messages.end(), self.role, OpCode::Data(self.data), true, len, fill);
    }

    /// Appends a ping to the pushed messages: its pong proves that the peer has read that far.
    pub(crate) fn push_receipt_request(&mut self) -> u64 {
        let number = self.control.number_buffered_ping();
        let payload = number.to_be_bytes();
        let fill = |buffer: &mut Vec<u8>| buffer.extend_from_slice(&payload);
        let opcode = OpCode::Control(Opcode::Ping);
        frame::append(self.messages.end(), self.role, opcode, true, payload.len(), fill);
        number
    }

    pub(crate) fn receipts(&self) -> watch::Receiver<u64> {
        self.answers.clone()
    }

    /// Includes the control frames that a dropped flush has left here.
    pub(crate) fn buffered(&self) -> usize {
        self.messages.len() + self.control_frames.len()
    }

    pub(crate) async fn flush(&mut self) -> io::Result<()> {
        if self.state == State::Closed {
            let unsent = !self.messages.is_empty();
            self.messages.clear();
            return if unsent { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(()) };
        }
        // Even an idle connection flushes often, for its pings.
        self.messages.release_idle();
        self.control.set_writer_busy(true);
        self.unflushed = true;
        self.write_all().await?;
        self.sink.flush().await?;
        self.unflushed = false;
        self.control.set_writer_busy(false);
        Ok(())
    }

    async fn write_all(&mut self) -> io::Result<()> {
        loop {
            // Invariant: control frames are taken and written only while no message is half
            // written.
            if !self.messages.is_started() {
                self.control.take_frames(self.control_frames.end(), self.role);
            }
            self.control_frames.write_to(&mut self.sink).await?;
            if self.control.close_was_taken() {
                self.messages.clear();
                self.sink.shutdown().await?;
                self.state = State::Closed;
                return Ok(());
            }
            self.messages.write_to(&mut self.sink).await?;
            self.control.buffer_was_written();
            if !self.control.is_waiting() {
                return Ok(());
            }
        }
    }

    /// Also resolves if a dropped flush has left data in the sink.
    pub(crate) async fn control_pending(&self) {
        if !self.unflushed {
            self.control.pending().await;
        }
    }

    pub(crate) async fn close(&mut self, code: CloseCode, reason: &str) {
        let limit = self.close_timeout;
        let closing = async {
            self.flush().await?;
            self.control.ask_for_close(code, reason);
            self.flush().await
        };
        // After a timeout or an error, nothing more can be done for a peer that does not read.
        let _ = timeout(limit, closing).await;
    }
}
