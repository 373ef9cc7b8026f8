//! The decoder returns the same events however the bytes are split, and never buffers more than it
//! was sent.
#![no_main]

use exec_server_transport::fuzzing::decode_in_pieces;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (bool, Vec<u8>, &[u8])| {
    let (masked, cuts, bytes) = input;
    decode_in_pieces(masked, &cuts, bytes);
});
