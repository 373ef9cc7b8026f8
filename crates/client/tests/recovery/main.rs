//! Tests of the client against a real server, over an unreliable network.

#![expect(clippy::unwrap_used, reason = "a failed step fails its test")]

mod calls;
mod connecting;
mod cuts;
mod endings;
mod limits;
mod observing;
mod output;
mod processes;
mod starts;
mod support;
mod tap;
