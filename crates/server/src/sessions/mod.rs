//! Sessions: who owns processes, and which connection is theirs now.

mod registry;
mod session;

pub(crate) use registry::Sessions;
pub(crate) use session::{Resume, Session, SessionSettings};
