//! An accepted sandbox object means the same after a round trip.
#![no_main]

use exec_server_protocol::{Sandbox, SandboxRequest};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| {
    let Ok(request) = serde_json::from_slice::<SandboxRequest>(text) else { return };
    let asks_for_nothing = request.asks_for_nothing();
    let Ok(sandbox) = request.parse() else {
        assert!(!asks_for_nothing, "an invalid object asks for a restriction");
        return;
    };
    let written = match &sandbox {
        Sandbox::Mode(mode) => SandboxRequest::mode(mode),
        Sandbox::Profile(profile) => SandboxRequest::profile(profile),
    };
    assert_eq!(written.asks_for_nothing(), asks_for_nothing);
    let again = written.parse().expect("a serialized object can be parsed");
    assert_eq!(format!("{again:?}"), format!("{sandbox:?}"));
});
