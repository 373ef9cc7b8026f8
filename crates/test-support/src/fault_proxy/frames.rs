//! Finds the ends of frames in one direction of a WebSocket connection.
//!
//! The HTTP head before the first frame counts as a frame. A stream that is not HTTP counts as a
//! head without an end, so it can be cut anywhere.

const END_OF_HEAD: &[u8; 4] = b"\r\n\r\n";

const MASK_BYTES: u64 = 4;

/// The position of a stream within its current frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FramePosition {
    /// In the HTTP head. Its last `matched` bytes match the beginning of [`END_OF_HEAD`].
    Head {
        matched: usize,
    },
    BetweenFrames,
    /// The first byte has passed; the next one announces the length.
    Length,
    ExtendedLength {
        missing: usize,
        so_far: u64,
        mask: u64,
    },
    /// Remaining bytes of the mask and the payload.
    Payload {
        missing: u64,
    },
}

impl Default for FramePosition {
    fn default() -> Self {
        Self::Head { matched: 0 }
    }
}

impl FramePosition {
    /// Returns how many frames these bytes complete.
    pub(super) fn advance(&mut self, mut bytes: &[u8]) -> u64 {
        let mut completed = 0;
        while let Some((&byte, rest)) = bytes.split_first() {
            if let Self::Payload { missing } = self {
                let passed = usize::try_from(*missing).map_or(bytes.len(), |n| n.min(bytes.len()));
                *self = payload(*missing - passed as u64);
                bytes = &bytes[passed..];
            } else {
                self.advance_by(byte);
                bytes = rest;
            }
            completed += u64::from(*self == Self::BetweenFrames);
        }
        completed
    }

    /// Returns how many of the following bytes belong to `frames` frames, including the current
    /// one.
    pub(super) fn len_of_frames(&self, following: &[u8], frames: u64) -> usize {
        let mut position = self.clone();
        let (mut completed, mut len) = (0, 0);
        while completed < frames && len < following.len() {
            completed += position.advance(&following[len..=len]);
            len += 1;
        }
        len
    }

    /// Returns how many of the following bytes can pass without completing a frame.
    pub(super) fn len_within_frame(&self, following: &[u8]) -> usize {
        let mut position = self.clone();
        following
            .iter()
            .take_while(|byte| {
                position.advance(std::slice::from_ref(byte));
                position != Self::BetweenFrames
            })
            .count()
    }

    fn advance_by(&mut self, byte: u8) {
        *self = match *self {
            Self::Head { matched } => match matched_by(matched, byte) {
                matched if matched == END_OF_HEAD.len() => Self::BetweenFrames,
                matched => Self::Head { matched },
            },
            Self::BetweenFrames => Self::Length,
            Self::Length => {
                let mask = if byte & 0x80 == 0 { 0 } else { MASK_BYTES };
                match byte & 0x7f {
                    126 => Self::ExtendedLength { missing: 2, so_far: 0, mask },
                    127 => Self::ExtendedLength { missing: 8, so_far: 0, mask },
                    len => payload(mask + u64::from(len)),
                }
            }
            Self::ExtendedLength { missing, so_far, mask } => {
                let so_far = so_far << 8 | u64::from(byte);
                match missing {
                    1 => payload(so_far.saturating_add(mask)),
                    _ => Self::ExtendedLength { missing: missing - 1, so_far, mask },
                }
            }
            Self::Payload { missing } => payload(missing - 1),
        };
    }
}

fn payload(missing: u64) -> FramePosition {
    match missing {
        0 => FramePosition::BetweenFrames,
        missing => FramePosition::Payload { missing },
    }
}

/// Returns how many bytes of [`END_OF_HEAD`] are matched after one more byte.
fn matched_by(matched: usize, byte: u8) -> usize {
    if byte == END_OF_HEAD[matched] { matched + 1 } else { usize::from(byte == END_OF_HEAD[0]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a head and frames with every form of length, with and without a mask.
    fn stream() -> (Vec<u8>, Vec<usize>) {
        let frames = [
            b"GET / HTTP/1.1\r\nA: \r\r\n\r\r\n\r\n".to_vec(),
            b"\x81\x00".to_vec(),
            b"\x81\x03one".to_vec(),
            b"\x81\x83\0\0\0\0two".to_vec(),
            [b"\x81\xfe\x01\x00\0\0\0\0".as_slice(), &[b'x'; 256]].concat(),
            [b"\x81\x7f\0\0\0\0\0\x01\0\0".as_slice(), &[b'x'; 1 << 16]].concat(),
            b"\x89\x80\0\0\0\0".to_vec(),
        ];
        let mut ends = Vec::new();
        let mut bytes = Vec::new();
        for frame in frames {
            bytes.extend(frame);
            ends.push(bytes.len());
        }
        (bytes, ends)
    }

    #[test]
    fn the_ends_of_frames_are_found_for_every_piece_size() {
        let (bytes, ends) = stream();
        for piece in [1, 2, 3, 7] {
            let mut position = FramePosition::default();
            let mut found = Vec::new();
            let mut passed = 0;
            while passed < bytes.len() {
                let next_end = ends.iter().find(|end| **end > passed).unwrap();
                let len = piece.min(next_end - passed);
                position.advance(&bytes[passed..passed + len]);
                passed += len;
                if position == FramePosition::BetweenFrames {
                    found.push(passed);
                }
            }
            assert_eq!(found, ends, "pieces of {piece}");
        }
        let mut position = FramePosition::default();
        position.advance(&bytes);
        assert_eq!(position, FramePosition::BetweenFrames, "all at once");
    }

    #[test]
    fn frames_are_counted() {
        let (bytes, ends) = stream();
        let start = FramePosition::default();
        for (frames, end) in (1..).zip(&ends) {
            assert_eq!(start.len_of_frames(&bytes, frames), *end);
            assert_eq!(start.clone().advance(&bytes[..*end]), frames);
        }
        assert_eq!(start.len_of_frames(&bytes, 100), bytes.len());
    }

    #[test]
    fn a_partial_forward_never_completes_a_frame() {
        let (bytes, ends) = stream();
        for start in [0, ends[0] - 1, ends[0], ends[1], ends[2] + 1, ends[4] + 5, ends[5]] {
            let mut position = FramePosition::default();
            position.advance(&bytes[..start]);
            let end = ends.iter().find(|end| **end > start).unwrap();
            assert_eq!(position.len_within_frame(&bytes[start..]), end - start - 1);
        }
        let plain = FramePosition::default();
        assert_eq!(plain.len_within_frame(b"no WebSocket at all"), 19);
        assert_eq!(plain.len_within_frame(b""), 0);
    }
}
