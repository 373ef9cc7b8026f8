//! The messages of a relay: their meaning, their encoding, and their validation.
//!
//! A frame passes through a rendezvous in plaintext, and anyone with a socket there can send any
//! bytes. So [`Frame::decode`] bounds every field. It knows nothing of sequences, keys or sockets:
//! whether a valid frame makes sense is decided by [`reliable`](crate::reliable) and the channel
//! above it.
//!
//! A rendezvous needs only [`peek_stream_id`].

mod error;
#[rustfmt::skip]
#[expect(unreachable_pub, reason = "written by prost-build")]
mod generated;
mod peek;
mod reset_reason;
mod stream_id;
mod trace;

use bytes::Bytes;
use prost::Message as _;

pub use error::FrameError;
use generated as wire;
use generated::relay_message_frame::Body as WireBody;
pub use peek::{PeekError, peek_stream_id};
pub use reset_reason::{MAX_RESET_REASON_BYTES, ResetReason};
pub use stream_id::{InvalidStreamId, MAX_STREAM_ID_BYTES, StreamId};
pub use trace::{MAX_TRACESTATE_BYTES, Trace};

/// The only version of the frame format.
pub const VERSION: u32 = 1;
/// The largest frame: one binary WebSocket message.
pub const MAX_FRAME_BYTES: usize = 256 * 1024;
/// The largest Noise message, and so the largest payload of a handshake, a record or a segment.
pub const MAX_PAYLOAD_BYTES: usize = 65_535;
/// The most segments of one record: one for each slot in the peer's window.
pub const MAX_SEGMENTS: u32 = 64;

/// A payload that shares memory with its frame keeps at most this many other bytes alive.
const MAX_SHARED_OVERHEAD: usize = 4096;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    pub stream_id: StreamId,
    /// Every `seq` up to this one was received. Zero may also mean that nothing was received.
    pub ack: u32,
    /// Bit `i` is set if the `seq` `ack + 1 + i` was received.
    pub ack_bits: u32,
    pub body: Body,
    /// Readable by the rendezvous.
    pub trace: Option<Trace>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// An encrypted record, or one of its segments.
    Data {
        seq: u32,
        /// Less than `segment_count`.
        segment_index: u32,
        /// From 1 to [`MAX_SEGMENTS`].
        segment_count: u32,
        /// From 1 to [`MAX_PAYLOAD_BYTES`] bytes.
        payload: Bytes,
    },
    /// Nothing but the acknowledgement that every frame carries.
    Ack,
    /// The sender continues with this `seq`.
    Resume { next_seq: u32 },
    /// The stream has ended.
    Reset { reason: ResetReason },
    /// A request for a sign of life.
    Heartbeat,
    /// A message of the Noise handshake, from 1 to [`MAX_PAYLOAD_BYTES`] bytes.
    Handshake { payload: Bytes },
}

impl Frame {
    /// Encodes one WebSocket message. A debug build panics if the body is outside the bounds of
    /// [`Body`], which [`decode`](Self::decode) enforces at the other end.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        self.to_wire().encode_to_vec().into()
    }

    /// Encodes in two steps, for a caller with its own buffer: passes `append` the length, and a
    /// function that writes the bytes.
    pub fn encode_with<R>(&self, append: impl FnOnce(usize, &dyn Fn(&mut Vec<u8>)) -> R) -> R {
        let frame = self.to_wire();
        append(frame.encoded_len(), &|buffer| frame.encode_raw(buffer))
    }

    fn to_wire(&self) -> wire::RelayMessageFrame {
        debug_assert_eq!(self.body.check(), Ok(()), "the peer would refuse this frame");
        let trace = self.trace.as_ref();
        wire::RelayMessageFrame {
            version: VERSION,
            stream_id: self.stream_id.as_str().to_owned(),
            ack: self.ack,
            ack_bits: self.ack_bits,
            body: Some(self.body.to_wire()),
            traceparent: trace.map(|trace| trace.traceparent().to_owned()),
            tracestate: trace.and_then(Trace::tracestate).map(str::to_owned),
        }
    }

    /// Decodes one WebSocket message. A payload is a slice of `bytes`, not a copy.
    ///
    /// Unknown fields are ignored. A malformed trace is dropped and a long reset reason is
    /// truncated: neither justifies the loss of a stream.
    pub fn decode(bytes: Bytes) -> Result<Self, FrameError> {
        let len = bytes.len();
        if len > MAX_FRAME_BYTES {
            return Err(FrameError::TooLarge { len, max: MAX_FRAME_BYTES });
        }
        // Both ends accept only frames that a rendezvous can route, and assign each to the stream
        // to which the rendezvous routed it.
        peek_stream_id(&bytes)?;
        let frame = wire::RelayMessageFrame::decode(bytes)?;
        if frame.version != VERSION {
            return Err(FrameError::UnsupportedVersion { version: frame.version });
        }
        let stream_id = frame.stream_id.parse()?;
        let body = Body::from_wire(frame.body.ok_or(FrameError::NoBody)?, len)?;
        let trace = frame.traceparent.and_then(|parent| Trace::new(parent, frame.tracestate));
        Ok(Self { stream_id, ack: frame.ack, ack_bits: frame.ack_bits, body, trace })
    }
}

impl Body {
    fn to_wire(&self) -> WireBody {
        match self {
            Self::Data { seq, segment_index, segment_count, payload } => {
                WireBody::Data(wire::RelayData {
                    seq: *seq,
                    segment_index: *segment_index,
                    segment_count: *segment_count,
                    payload: payload.clone(),
                })
            }
            Self::Ack => WireBody::AckFrame(wire::RelayAck {}),
            Self::Resume { next_seq } => {
                WireBody::Resume(wire::RelayResume { next_seq: *next_seq })
            }
            Self::Reset { reason } => {
                WireBody::Reset(wire::RelayReset { reason: reason.raw().to_owned() })
            }
            Self::Heartbeat => WireBody::Heartbeat(wire::RelayHeartbeat {}),
            Self::Handshake { payload } => {
                WireBody::Handshake(wire::RelayHandshake { payload: payload.clone() })
            }
        }
    }

    fn from_wire(body: WireBody, frame_len: usize) -> Result<Self, FrameError> {
        let body = match body {
            WireBody::Data(wire::RelayData { seq, segment_index, segment_count, payload }) => {
                let payload = bound_overhead(payload, frame_len);
                Self::Data { seq, segment_index, segment_count, payload }
            }
            WireBody::AckFrame(wire::RelayAck {}) => Self::Ack,
            WireBody::Resume(wire::RelayResume { next_seq }) => Self::Resume { next_seq },
            WireBody::Reset(wire::RelayReset { reason }) => {
                Self::Reset { reason: ResetReason::new(&reason).ok_or(FrameError::NoResetReason)? }
            }
            WireBody::Heartbeat(wire::RelayHeartbeat {}) => Self::Heartbeat,
            WireBody::Handshake(wire::RelayHandshake { payload }) => {
                Self::Handshake { payload: bound_overhead(payload, frame_len) }
            }
        };
        body.check()?;
        Ok(body)
    }

    /// Checks the bounds that the types of the fields do not enforce.
    fn check(&self) -> Result<(), FrameError> {
        match self {
            Self::Data { segment_index, segment_count, payload, .. } => {
                let (index, count) = (*segment_index, *segment_count);
                if count > MAX_SEGMENTS || index >= count {
                    return Err(FrameError::InvalidSegment { index, count });
                }
                check_payload(payload)
            }
            Self::Handshake { payload } => check_payload(payload),
            Self::Ack | Self::Resume { .. } | Self::Reset { .. } | Self::Heartbeat => Ok(()),
        }
    }
}

fn check_payload(payload: &Bytes) -> Result<(), FrameError> {
    match payload.len() {
        0 => Err(FrameError::NoPayload),
        1..=MAX_PAYLOAD_BYTES => Ok(()),
        len => Err(FrameError::PayloadTooLarge { len, max: MAX_PAYLOAD_BYTES }),
    }
}

/// Copies the payload if its frame is much larger. Otherwise a peer that pads small payloads with
/// unknown fields could make a receiver hold many times more memory than it counts.
fn bound_overhead(payload: Bytes, frame_len: usize) -> Bytes {
    match frame_len - payload.len() > MAX_SHARED_OVERHEAD {
        true => Bytes::copy_from_slice(&payload),
        false => payload,
    }
}
