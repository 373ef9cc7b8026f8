//! Sessions: who owns processes, and whose they are now.

mod holder;
mod local;
mod registry;
mod session;

pub(crate) use holder::Holder;
pub use local::LocalSession;
pub(crate) use registry::Sessions;
pub(crate) use session::{Resume, Session, SessionSettings};
