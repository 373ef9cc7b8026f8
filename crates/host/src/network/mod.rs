//! The network of a managed process: which hosts it may reach, and the gate that connects it to
//! them.
//!
//! [`policy`] is pure. [`gate`] accepts what the process connects to, finds out which host is
//! meant, asks the policy (and perhaps the client), resolves and dials.

pub mod gate;
pub mod policy;
