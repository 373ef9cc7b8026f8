//! Sessions: who owns processes, and whose they are now.

mod registry;
mod session;

pub(crate) use registry::SessionRegistry;
pub(crate) use session::{Resume, Session, SessionSettings};
