//! Processes of this machine: how they start, what they write, how their trees end.

mod environment;
pub mod launch;
mod log;
mod output;
mod running;
mod stdin;

pub use environment::{EnvironmentPolicy, Inherit, PatternError};
pub use log::{
    Budget, Cursor, Delivered, Entry, Event, Log, LogLimits, OnFull, Page, Progress, Snapshot,
    Stream, Watcher,
};
pub use running::{Process, StartOutcome, Terminate};
pub use stdin::{OfferError, STDIN_QUEUE_BYTES, StdinClosed, Ticket};
