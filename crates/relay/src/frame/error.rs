use thiserror::Error;

use super::{InvalidStreamId, MAX_SEGMENTS, PeekError, VERSION};

/// Why a message is not a frame. An environment drops such a message; a harness ends its stream.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FrameError {
    #[error("frame of {len} bytes exceeds the limit of {max}")]
    TooLarge { len: usize, max: usize },
    /// No rendezvous routes this message.
    #[error("cannot find the stream id of the frame")]
    Unroutable(#[from] PeekError),
    #[error("cannot decode the frame")]
    Malformed(#[from] prost::DecodeError),
    /// The peer is newer than this program, or not a relay.
    #[error("unsupported frame version {version}; expected {VERSION}")]
    UnsupportedVersion { version: u32 },
    #[error("frame has an invalid stream id")]
    StreamId(#[from] InvalidStreamId),
    /// The body is missing, or of a kind that this program does not know.
    #[error("frame has no known body")]
    NoBody,
    #[error("frame has an empty payload")]
    NoPayload,
    #[error("payload of {len} bytes exceeds the limit of {max}")]
    PayloadTooLarge { len: usize, max: usize },
    #[error(
        "invalid segment {index} of {count}; expected 1 to {MAX_SEGMENTS} segments, numbered from 0"
    )]
    InvalidSegment { index: u32, count: u32 },
    #[error("reset frame has no reason")]
    NoResetReason,
}
