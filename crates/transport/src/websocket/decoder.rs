//! Decodes received bytes into messages and control frames; does no I/O.
//!
//! A frame is judged by its header, before any of its payload is awaited or memory is reserved for
//! it. The payload of an unfragmented message is passed on without a copy.

use std::io::Cursor;

use bytes::{Buf, Bytes, BytesMut};
use tungstenite::protocol::frame::FrameHeader;
use tungstenite::protocol::frame::coding::{CloseCode, Control, Data, OpCode};

use super::Role;
use super::frame::apply_mask;

/// Read space of an idle connection.
const READ_CHUNK: usize = 4 << 10;

/// Read space of a connection whose peer sends a lot at once.
const BUSY_CHUNK: usize = 64 << 10;

/// Memory reserved at once for an announced payload. A peer that announces a lot but sends little
/// gets at most this much, or as much as it has already sent.
const READ_AHEAD: usize = 256 << 10;

const MAX_CONTROL_BYTES: u64 = 125;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    Message(Bytes),
    Ping(Bytes),
    Pong(Bytes),
    /// The peer closes the connection; the code is the one to respond with.
    Close(CloseCode),
}

/// A protocol violation by the peer. The text goes into the close frame.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Violation {
    #[error("message of {len} bytes exceeds the limit of {max}")]
    MessageTooLarge { len: u64, max: usize },
    #[error("reserved opcode")]
    ReservedOpcode,
    #[error("frame has reserved bits set; extensions such as compression are not supported")]
    ReservedBits,
    #[error("client frame is not masked")]
    Unmasked,
    #[error("server frame is masked")]
    Masked,
    #[error("control frame is fragmented or over 125 bytes")]
    OversizedControl,
    #[error("continuation frame without a message")]
    NothingToContinue,
    #[error("new message inside a fragmented one")]
    UnfinishedMessage,
    #[error("close frame with an incomplete status code")]
    TruncatedCloseCode,
}

impl Violation {
    pub(super) fn close_code(&self) -> CloseCode {
        match self {
            Self::MessageTooLarge { .. } => CloseCode::Size,
            _ => CloseCode::Protocol,
        }
    }
}

pub(super) struct Decoder {
    role: Role,
    max_message: usize,
    buffer: BytesMut,
    /// The size of the next reservation. Doubles when it was too small, up to [`BUSY_CHUNK`].
    chunk: usize,
    /// The frame whose header has been read, but not its payload.
    frame: Option<OpenFrame>,
    /// The fragments of an incomplete message.
    fragments: Option<BytesMut>,
    /// Whether the most recently begun message is text.
    is_text: bool,
}

#[derive(Clone, Copy)]
struct OpenFrame {
    opcode: OpCode,
    is_final: bool,
    mask: Option<[u8; 4]>,
    len: usize,
    /// How much of the payload has been unmasked.
    unmasked: usize,
}

impl OpenFrame {
    /// Unmasks the bytes received since the last call, while they are still in the CPU cache and
    /// before the frame is complete. `received` begins with the payload.
    fn unmask(&mut self, received: &mut [u8]) {
        let Some(mut mask) = self.mask else { return };
        let arrived = self.len.min(received.len());
        mask.rotate_left(self.unmasked % 4);
        apply_mask(&mut received[self.unmasked..arrived], mask);
        self.unmasked = arrived;
    }
}

impl Decoder {
    pub(super) fn new(role: Role, max_message: usize, early: &[u8]) -> Self {
        let (buffer, chunk) = (BytesMut::from(early), READ_CHUNK);
        Self { role, max_message, buffer, chunk, frame: None, fragments: None, is_text: false }
    }

    pub(super) fn last_was_text(&self) -> bool {
        self.is_text
    }

    pub(super) fn limit_messages(&mut self, max: usize) {
        self.max_message = max;
    }

    /// The size of the incomplete message and of all bytes after it.
    pub(super) fn held(&self) -> usize {
        self.buffer.len() + self.fragments.as_ref().map_or(0, BytesMut::len)
    }

    /// Returns space to read into, never empty.
    pub(super) fn space(&mut self) -> &mut BytesMut {
        let have = self.buffer.len();
        let missing = self.frame.map_or(0, |frame| frame.len.saturating_sub(have));
        let room = self.buffer.capacity() - have;
        // An empty buffer starts over at its beginning, which costs nothing.
        let least = if have == 0 { self.chunk } else { missing.max(self.chunk / 4) };
        if room < self.chunk.min(least) {
            self.buffer.reserve(missing.clamp(self.chunk, have.max(READ_AHEAD)));
        }
        &mut self.buffer
    }

    /// Releases memory that an idle connection does not need.
    pub(super) fn release_idle(&mut self) {
        if self.buffer.is_empty() && self.frame.is_none() {
            self.buffer = BytesMut::new();
            self.chunk = READ_CHUNK;
        }
    }

    /// Records the number of bytes that were read into the space.
    pub(super) fn received(&mut self, bytes: usize) {
        if bytes >= self.chunk {
            self.chunk = (2 * self.chunk).min(BUSY_CHUNK);
        }
    }

    /// Discards received data, for a peer that is ignored from now on.
    pub(super) fn discard(&mut self) {
        if self.held() > 0 {
            (self.buffer, self.fragments) = (BytesMut::new(), None);
        }
        self.frame = None;
    }

    /// Returns the next event, or `None` until more bytes are read.
    pub(super) fn next_event(&mut self) -> Result<Option<Event>, Violation> {
        loop {
            if self.frame.is_none() {
                self.frame = self.read_header()?;
            }
            if let Some(frame) = &mut self.frame {
                frame.unmask(&mut self.buffer);
            }
            let Some(frame) = self.frame.take_if(|frame| frame.len <= self.buffer.len()) else {
                return Ok(None);
            };
            let payload = self.buffer.split_to(frame.len);
            if let Some(event) = self.complete(frame, payload)? {
                return Ok(Some(event));
            }
        }
    }

    fn read_header(&mut self) -> Result<Option<OpenFrame>, Violation> {
        let mut cursor = Cursor::new(&self.buffer[..]);
        // The parser reads from memory, so only an invalid opcode causes an error.
        let parsed = FrameHeader::parse(&mut cursor).map_err(|_| Violation::ReservedOpcode)?;
        let Some((header, len)) = parsed else {
            return Ok(None);
        };
        let header_len = cursor.position() as usize;
        let frame = self.judge(&header, len)?;
        self.buffer.advance(header_len);
        Ok(Some(frame))
    }

    fn judge(&self, header: &FrameHeader, len: u64) -> Result<OpenFrame, Violation> {
        if header.rsv1 || header.rsv2 || header.rsv3 {
            return Err(Violation::ReservedBits);
        }
        match (self.role, header.mask) {
            (Role::Server, None) => return Err(Violation::Unmasked),
            (Role::Client, Some(_)) => return Err(Violation::Masked),
            _ => {}
        }
        match (header.opcode, &self.fragments) {
            (OpCode::Control(_), _) if !header.is_final || len > MAX_CONTROL_BYTES => {
                return Err(Violation::OversizedControl);
            }
            (OpCode::Data(Data::Continue), None) => return Err(Violation::NothingToContinue),
            (OpCode::Data(Data::Text | Data::Binary), Some(_)) => {
                return Err(Violation::UnfinishedMessage);
            }
            _ => {}
        }
        let so_far = self.fragments.as_ref().map_or(0, BytesMut::len) as u64;
        let whole = so_far.saturating_add(len);
        let too_large = Violation::MessageTooLarge { len: whole, max: self.max_message };
        if matches!(header.opcode, OpCode::Data(_)) && whole > self.max_message as u64 {
            return Err(too_large);
        }
        Ok(OpenFrame {
            opcode: header.opcode,
            is_final: header.is_final,
            mask: header.mask,
            len: usize::try_from(len).map_err(|_| too_large)?,
            unmasked: 0,
        })
    }

    fn complete(
        &mut self,
        frame: OpenFrame,
        payload: BytesMut,
    ) -> Result<Option<Event>, Violation> {
        match frame.opcode {
            OpCode::Control(Control::Ping) => Ok(Some(Event::Ping(payload.freeze()))),
            OpCode::Control(Control::Pong) => Ok(Some(Event::Pong(payload.freeze()))),
            OpCode::Control(Control::Close) => {
                answer_to_close(&payload).map(|code| Some(Event::Close(code)))
            }
            OpCode::Control(Control::Reserved(_)) | OpCode::Data(Data::Reserved(_)) => {
                Err(Violation::ReservedOpcode)
            }
            OpCode::Data(kind @ (Data::Continue | Data::Text | Data::Binary)) => {
                if kind != Data::Continue {
                    self.is_text = kind == Data::Text;
                }
                let message = match self.fragments.take() {
                    None => payload,
                    Some(mut fragments) => {
                        fragments.extend_from_slice(&payload);
                        fragments
                    }
                };
                if frame.is_final {
                    return Ok(Some(Event::Message(message.freeze())));
                }
                self.fragments = Some(message);
                Ok(None)
            }
        }
    }
}

fn answer_to_close(payload: &[u8]) -> Result<CloseCode, Violation> {
    match payload {
        [] => Ok(CloseCode::Normal),
        [_] => Err(Violation::TruncatedCloseCode),
        [high, low, ..] => {
            let code = CloseCode::from(u16::from_be_bytes([*high, *low]));
            Ok(if code.is_allowed() { code } else { CloseCode::Protocol })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::websocket::frame;

    const MAX: usize = 1000;
    const TEXT: OpCode = OpCode::Data(Data::Text);
    const CONTINUE: OpCode = OpCode::Data(Data::Continue);
    const PING: OpCode = OpCode::Control(Control::Ping);
    const CLOSE: OpCode = OpCode::Control(Control::Close);

    fn from_client(opcode: OpCode, is_final: bool, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let fill = |buffer: &mut Vec<u8>| buffer.extend_from_slice(payload);
        frame::append(&mut bytes, Role::Client, opcode, is_final, payload.len(), fill);
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Vec<Event>, Violation> {
        let mut decoder = Decoder::new(Role::Server, MAX, bytes);
        let mut events = Vec::new();
        while let Some(event) = decoder.next_event()? {
            events.push(event);
        }
        Ok(events)
    }

    #[test]
    fn control_frames_may_come_between_fragments() {
        let stream = [
            from_client(TEXT, false, b"one "),
            from_client(PING, true, b"?"),
            from_client(CONTINUE, false, b""),
            from_client(CONTINUE, true, b"message"),
            from_client(OpCode::Data(Data::Binary), true, b"\xff"),
            from_client(CLOSE, true, &4000_u16.to_be_bytes()),
        ]
        .concat();
        let expected = [
            Event::Ping(Bytes::from("?")),
            Event::Message(Bytes::from("one message")),
            Event::Message(Bytes::from_static(b"\xff")),
            Event::Close(CloseCode::from(4000)),
        ];
        assert_eq!(decode(&stream).unwrap(), expected);

        let mut decoder = Decoder::new(Role::Server, MAX, b"");
        let mut events = Vec::new();
        for byte in stream {
            decoder.space().extend_from_slice(&[byte]);
            events.extend(decoder.next_event().unwrap());
        }
        assert_eq!(events, expected, "byte by byte");
    }

    #[test]
    fn unmasking_works_for_every_piece_size() {
        let payload: Vec<u8> = (0..=255).cycle().take(MAX).collect();
        let stream = [
            from_client(TEXT, false, &payload[..37]),
            from_client(PING, true, b"?"),
            from_client(CONTINUE, true, &payload[37..]),
            from_client(OpCode::Data(Data::Binary), true, &payload),
        ]
        .concat();
        let expected = [
            Event::Ping(Bytes::from("?")),
            Event::Message(Bytes::from(payload.clone())),
            Event::Message(Bytes::from(payload)),
        ];
        for size in 1..=80 {
            let mut decoder = Decoder::new(Role::Server, MAX, b"");
            let mut events = Vec::new();
            for piece in stream.chunks(size) {
                decoder.space().extend_from_slice(piece);
                while let Some(event) = decoder.next_event().unwrap() {
                    events.push(event);
                }
                assert_eq!(decoder.next_event(), Ok(None), "a repeated call changes nothing");
            }
            assert!(events == expected, "in pieces of {size}");
        }
    }

    #[test]
    fn violations_are_detected_before_the_payload() {
        use Violation::{
            Masked, NothingToContinue, OversizedControl, ReservedBits, ReservedOpcode,
            UnfinishedMessage, Unmasked,
        };
        let huge = MAX as u16 + 1;
        let [high, low] = huge.to_be_bytes();
        let too_large = |len| Violation::MessageTooLarge { len, max: MAX };
        for (bytes, expected) in [
            (&[0x81, 0xff, 0x80, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4][..], too_large(1 << 63)),
            (&[0x81, 0xfe, high, low, 1, 2, 3, 4], too_large(huge.into())),
            (&[0x81, 0x05], Unmasked),
            (&[0xc1, 0x85, 1, 2, 3, 4], ReservedBits),
            (&[0x83, 0x85, 1, 2, 3, 4], ReservedOpcode),
            (&[0x8b, 0x85, 1, 2, 3, 4], ReservedOpcode),
            (&[0x09, 0x85, 1, 2, 3, 4], OversizedControl),
            (&[0x89, 0xfe, 0, 126, 1, 2, 3, 4], OversizedControl),
            (&[0x80, 0x85, 1, 2, 3, 4], NothingToContinue),
            (&[0x01, 0x80, 1, 2, 3, 4, 0x81, 0x85, 1, 2, 3, 4], UnfinishedMessage),
        ] {
            let violation = decode(bytes).unwrap_err();
            assert_eq!(violation, expected);
            let code =
                if matches!(expected, Violation::MessageTooLarge { .. }) { 1009 } else { 1002 };
            assert_eq!(u16::from(violation.close_code()), code);
        }
        assert_eq!(
            Decoder::new(Role::Client, MAX, &[0x81, 0x80, 1, 2, 3, 4]).next_event(),
            Err(Masked)
        );
        let half_a_code = decode(&from_client(CLOSE, true, b"x")).unwrap_err();
        assert_eq!(half_a_code, Violation::TruncatedCloseCode);
    }

    #[test]
    fn the_limit_applies_to_the_sum_of_fragments() {
        let stream = [
            from_client(TEXT, false, &[b'x'; MAX]),
            from_client(CONTINUE, true, b""),
            from_client(TEXT, false, &[b'x'; MAX]),
        ]
        .concat();
        assert_eq!(decode(&stream).unwrap().len(), 1);
        let over = [stream, from_client(CONTINUE, true, b"x")].concat();
        assert_eq!(
            decode(&over),
            Err(Violation::MessageTooLarge { len: MAX as u64 + 1, max: MAX })
        );
    }

    #[test]
    fn memory_is_reserved_for_received_not_for_announced_bytes() {
        const LEN: usize = 32 << 20;
        let message = from_client(TEXT, true, &vec![b'x'; LEN]);
        let mut decoder = Decoder::new(Role::Server, LEN, &message[..14]);
        assert_eq!(decoder.next_event(), Ok(None));
        assert!(decoder.space().capacity() <= 2 * READ_AHEAD);

        let mut sent = 14;
        while sent < message.len() {
            let space = decoder.space();
            let room = space.capacity() - space.len();
            assert!(room > 0);
            let piece = &message[sent..message.len().min(sent + room)];
            space.extend_from_slice(piece);
            sent += piece.len();
            if sent < message.len() {
                assert_eq!(decoder.next_event(), Ok(None));
            }
        }
        let Ok(Some(Event::Message(received))) = decoder.next_event() else { panic!("no message") };
        assert!(received.len() == LEN && received.iter().all(|byte| *byte == b'x'));
        assert!(decoder.space().capacity() <= READ_CHUNK, "the large buffer is released");
    }

    #[test]
    fn a_busy_peer_gets_more_space_until_it_is_idle() {
        let mut decoder = Decoder::new(Role::Server, MAX, b"");
        let message = from_client(TEXT, true, b"x");
        while decoder.chunk < BUSY_CHUNK {
            let room = decoder.space().capacity();
            assert!(room < BUSY_CHUNK, "the space is bounded");
            let received: Vec<u8> = message.iter().copied().cycle().take(room).collect();
            decoder.space().extend_from_slice(&received);
            decoder.received(room);
            while decoder.next_event().unwrap().is_some() {}
            // Adds the rest of the truncated message.
            decoder.space().extend_from_slice(&message[room % message.len()..]);
            while decoder.next_event().unwrap().is_some() {}
        }
        decoder.received(BUSY_CHUNK);
        assert_eq!(decoder.chunk, BUSY_CHUNK);
        decoder.release_idle();
        assert_eq!((decoder.buffer.capacity(), decoder.chunk), (0, READ_CHUNK));
    }
}
