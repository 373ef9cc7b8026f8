//! The service over loopback, with raw frames and raw HTTP.

#![expect(clippy::unwrap_used, reason = "a failed step fails its test")]

mod bus;
mod cluster;
mod credentials;
mod frames;
mod lifetime;
mod nats_access;
mod outages;
mod registry;
mod support;
