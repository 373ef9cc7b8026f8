//! The OpenRPC document: that it is current, and that it allows what the decoder allows.
#![expect(clippy::unwrap_used, reason = "a step that fails fails its test")]

mod document;
