//! The network of a managed process: the hosts that it may reach, and the gate that connects it to
//! them.
//!
//! [`policy`] is pure. [`gate`] accepts the connections of the process, finds the intended host,
//! checks the policy (and perhaps asks the client), resolves and dials.

pub mod gate;
pub mod policy;
