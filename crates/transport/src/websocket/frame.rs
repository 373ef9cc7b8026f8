//! Encodes frames into a byte buffer, and applies the mask of a client's frames.

use tungstenite::protocol::frame::FrameHeader;
use tungstenite::protocol::frame::coding::OpCode;

use super::Role;

/// Appends a frame. `fill` appends its payload of `len` bytes.
pub(super) fn append(
    buffer: &mut Vec<u8>,
    sender: Role,
    opcode: OpCode,
    is_final: bool,
    len: usize,
    fill: impl FnOnce(&mut Vec<u8>),
) {
    let mask = (sender == Role::Client).then(rand::random);
    let header = FrameHeader { is_final, opcode, mask, ..FrameHeader::default() };
    buffer.reserve(header.len(len as u64) + len);
    header.format(len as u64, buffer).expect("a Vec takes every write");
    let start = buffer.len();
    fill(buffer);
    assert_eq!(buffer.len() - start, len, "the payload has the announced length");
    if let Some(mask) = mask {
        apply_mask(&mut buffer[start..], mask);
    }
}

/// Appends the header of a server's frame. The caller sends the payload of `len` bytes after it.
pub(super) fn append_header(buffer: &mut Vec<u8>, opcode: OpCode, is_final: bool, len: usize) {
    let header = FrameHeader { is_final, opcode, mask: None, ..FrameHeader::default() };
    header.format(len as u64, buffer).expect("a Vec takes every write");
}

pub(super) fn apply_mask(payload: &mut [u8], mask: [u8; 4]) {
    // Whole words, so that the compiler can use vector instructions.
    let word = u64::from(u32::from_ne_bytes(mask)) * 0x0000_0001_0000_0001;
    let (words, rest) = payload.as_chunks_mut::<8>();
    for bytes in words {
        *bytes = (u64::from_ne_bytes(*bytes) ^ word).to_ne_bytes();
    }
    for (byte, mask) in rest.iter_mut().zip(mask.iter().cycle()) {
        *byte ^= mask;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_masked_by_its_position() {
        let mask = [1, 2, 4, 8];
        for len in 0..40 {
            let mut payload = vec![0x30; len];
            apply_mask(&mut payload, mask);
            for (position, byte) in payload.iter().enumerate() {
                assert_eq!(*byte, 0x30 ^ mask[position % 4]);
            }
        }
    }
}
