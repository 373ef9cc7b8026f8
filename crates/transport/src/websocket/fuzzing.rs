//! Gives the target in `fuzz/` access to the decoder, which is otherwise private.

use super::Role;
use super::decoder::{Decoder, Event, Violation};

const MAX_MESSAGE: usize = 4096;

/// Asserts that the events of a stream do not depend on how it is cut into pieces, and that the
/// decoder never holds more than it was sent.
pub fn decode_in_pieces(masked: bool, cuts: &[u8], bytes: &[u8]) {
    let role = if masked { Role::Server } else { Role::Client };
    let mut at_once = Vec::new();
    let ended = decode(&mut Decoder::new(role, MAX_MESSAGE, bytes), &mut at_once);

    let mut decoder = Decoder::new(role, MAX_MESSAGE, &[]);
    let (mut events, mut rest, mut sent) = (Vec::new(), bytes, 0);
    let mut cuts = cuts.iter().map(|cut| usize::from(*cut)).chain(std::iter::repeat(usize::MAX));
    let mut violation = Ok(());
    while violation.is_ok() && !rest.is_empty() {
        let piece;
        (piece, rest) =
            rest.split_at(cuts.next().expect("the cuts are endless").clamp(1, rest.len()));
        decoder.space().extend_from_slice(piece);
        decoder.received(piece.len());
        sent += piece.len();
        violation = decode(&mut decoder, &mut events);
        assert!(decoder.held() <= sent);
        decoder.release_idle();
    }
    assert_eq!((events, violation), (at_once, ended));
}

fn decode(decoder: &mut Decoder, events: &mut Vec<Event>) -> Result<(), Violation> {
    while let Some(event) = decoder.next_event()? {
        events.push(event);
    }
    Ok(())
}
