//! Reads the stream id of an encoded frame without decoding it. A rendezvous reads nothing else.
//!
//! A frame must not mean one stream to the rendezvous and another to the ends. So this module
//! follows the rules of protobuf and of `prost` to the letter: every field is walked, the last of
//! several stream ids counts, and a message that ends inside a field is refused.

use std::str::Utf8Error;

use thiserror::Error;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum PeekError {
    #[error("frame ends inside a field")]
    Truncated,
    #[error("frame has a varint of more than 64 bits")]
    VarintOverflow,
    #[error("frame has an invalid field key {key:#x}")]
    InvalidKey { key: u64 },
    /// Groups were deprecated before proto3, and no peer sends them. They nest, so skipping one
    /// needs a stack, which an attacker could fill.
    #[error("frame has a group as field {field}")]
    Group { field: u32 },
    #[error("stream id is not a string: its wire type is {wire_type}")]
    NotString { wire_type: u32 },
    #[error("stream id is not UTF-8")]
    NotUtf8(#[from] Utf8Error),
}

const STREAM_ID: u32 = 2;

const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const LENGTH_DELIMITED: u32 = 2;
const END_GROUP: u32 = 4;
const FIXED32: u32 = 5;

/// Finds the stream id of an encoded frame; an empty string if the frame has none. Its length and
/// characters are not checked: parse it as a [`StreamId`](super::StreamId) before you keep it.
///
/// Allocates nothing. The time grows with the length of the frame, which the caller bounds.
pub fn peek_stream_id(frame: &[u8]) -> Result<&str, PeekError> {
    let mut rest = frame;
    let mut stream_id = "";
    while !rest.is_empty() {
        let (field, wire_type) = read_key(&mut rest)?;
        match (field, wire_type) {
            (STREAM_ID, LENGTH_DELIMITED) => stream_id = str::from_utf8(read_value(&mut rest)?)?,
            (STREAM_ID, _) => return Err(PeekError::NotString { wire_type }),
            (_, LENGTH_DELIMITED) => _ = read_value(&mut rest)?,
            (_, VARINT) => _ = read_varint(&mut rest)?,
            (_, FIXED64) => _ = take(&mut rest, 8)?,
            (_, FIXED32) => _ = take(&mut rest, 4)?,
            // Start or end of a group: `read_key` refuses wire types that do not exist.
            (_, _) => return Err(PeekError::Group { field }),
        }
    }
    Ok(stream_id)
}

/// Reads the number and the wire type of a field.
fn read_key(rest: &mut &[u8]) -> Result<(u32, u32), PeekError> {
    let long = read_varint(rest)?;
    let invalid = PeekError::InvalidKey { key: long };
    let key = u32::try_from(long).map_err(|_| invalid)?;
    match (key >> 3, key & 7) {
        (0, _) => Err(invalid),
        (field, wire_type @ (VARINT..=END_GROUP | FIXED32)) => Ok((field, wire_type)),
        _ => Err(invalid),
    }
}

fn read_value<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], PeekError> {
    let len = read_varint(rest)?;
    take(rest, usize::try_from(len).map_err(|_| PeekError::Truncated)?)
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> Result<&'a [u8], PeekError> {
    rest.split_off(..len).ok_or(PeekError::Truncated)
}

/// Reads a varint: seven bits per byte, the lowest first; the top bit announces another byte.
/// Overlong forms are valid.
fn read_varint(rest: &mut &[u8]) -> Result<u64, PeekError> {
    let mut value = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let byte = *rest.split_off_first().ok_or(PeekError::Truncated)?;
        // The tenth byte has room for one bit.
        if shift == 63 && byte > 1 {
            return Err(PeekError::VarintOverflow);
        }
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(PeekError::VarintOverflow)
}

#[cfg(test)]
mod tests;
