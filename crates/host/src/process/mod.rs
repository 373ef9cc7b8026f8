//! Processes of this machine: start, output, input, limits, and the end of their trees.

mod denial;
mod environment;
mod gate;
mod handle;
pub mod launch;
pub mod limits;
mod location;
mod log;
mod orders;
pub mod origin;
mod output;
mod stdin;
mod supervisor;

pub use denial::Denial;
pub(crate) use environment::OWN_VARIABLES;
pub use environment::{EnvironmentPolicy, Inherit, PatternError};
pub use gate::{Confinement, PlannedGate};
pub use handle::{ConfinementFuture, Process, StartOutcome, TIMEOUT_GRACE, Terminate};
pub use location::{NetworkedTree, ProcessLocation};
pub use log::{
    Budget, Cursor, Delivered, Entry, Event, Log, LogLimits, LogListener, LogTotals, OnFull, Page,
    Progress, Snapshot, Stream, start_spill_thread,
};
pub use stdin::{OfferError, STDIN_QUEUE_BYTES, StdinClosed, Ticket};
