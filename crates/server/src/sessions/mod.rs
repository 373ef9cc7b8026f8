//! Sessions: which session owns a process, and which connection has the session.

mod attachment;
mod client_requests;
mod registry;
mod session;

pub(crate) use attachment::Resume;
pub(crate) use registry::SessionRegistry;
pub(crate) use session::{Session, SessionSettings};
