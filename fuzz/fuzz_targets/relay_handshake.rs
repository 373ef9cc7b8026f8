//! Neither end of a handshake panics or accepts an altered message.
#![no_main]

use std::sync::OnceLock;

use exec_server_relay::noise::{EnvironmentHandshake, HarnessHandshake, Identity, OsRng, Prologue};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;

#[derive(Debug, Arbitrary)]
enum Input<'a> {
    /// Any bytes as message 1.
    First(&'a [u8]),
    /// Any bytes as message 2.
    Second(&'a [u8]),
    /// A valid message 1, partly overwritten with these bytes.
    AlteredFirst {
        at: u16,
        bytes: &'a [u8],
    },
    AlteredSecond {
        at: u16,
        bytes: &'a [u8],
    },
}

const PROLOGUE: Prologue<'static> =
    Prologue { environment_id: "box", registration_id: "registration", stream_id: "stream" };

struct Ends {
    harness: Identity,
    environment: Identity,
}

fn ends() -> &'static Ends {
    static ENDS: OnceLock<Ends> = OnceLock::new();
    ENDS.get_or_init(|| Ends {
        harness: Identity::generate(&mut OsRng),
        environment: Identity::generate(&mut OsRng),
    })
}

fn start() -> (HarnessHandshake, Vec<u8>) {
    let Ends { harness, environment } = ends();
    let key = environment.public_key();
    let (handshake, message) =
        HarnessHandshake::start(harness, key, &PROLOGUE, "authorization").expect("a valid key");
    (handshake, message.to_vec())
}

fn read(message: &[u8]) -> Option<EnvironmentHandshake> {
    EnvironmentHandshake::read(&ends().environment, &PROLOGUE, message).ok()
}

/// Overwrites a part of a message. Returns whether it has changed.
fn alter(message: &mut [u8], at: u16, bytes: &[u8]) -> bool {
    let before = message.to_vec();
    let at = usize::from(at) % message.len();
    for (byte, new) in message[at..].iter_mut().zip(bytes) {
        *byte = *new;
    }
    before != message
}

fuzz_target!(|input: Input<'_>| match input {
    Input::First(message) => {
        // Only the owner of a harness key can create a valid message 1, so any bytes are refused.
        assert!(read(message).is_none());
    }
    Input::Second(message) => assert!(start().0.finish(message).is_err()),
    Input::AlteredFirst { at, bytes } => {
        let (_, mut message) = start();
        let is_altered = alter(&mut message, at, bytes);
        assert_eq!(read(&message).is_none(), is_altered);
    }
    Input::AlteredSecond { at, bytes } => {
        let (handshake, message) = start();
        let read = read(&message).expect("message 1 is valid");
        let (answer, _) = read.accept().expect("message 1 is valid");
        let mut answer = answer.to_vec();
        let is_altered = alter(&mut answer, at, bytes);
        assert_eq!(handshake.finish(&answer).is_err(), is_altered);
    }
});
