//! Processes of this machine: how they start, what they write, how their trees end.

mod control;
mod denial;
mod environment;
pub mod launch;
mod log;
pub mod origin;
mod output;
mod owner;
mod running;
mod stdin;
mod whereabouts;

pub use denial::Denial;
pub use environment::{EnvironmentPolicy, Inherit, PatternError};
pub use log::{
    Budget, Cursor, Delivered, Entry, Event, Log, LogLimits, OnFull, Page, Progress, Snapshot,
    Stream, Watcher, start_spill_thread,
};
pub use running::{Process, SandboxPlan, StartOutcome, TIMEOUT_GRACE, Terminate};
pub use stdin::{OfferError, STDIN_QUEUE_BYTES, StdinClosed, Ticket};
pub use whereabouts::{Guest, Whereabouts};
