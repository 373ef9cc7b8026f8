//! Wire types in, host actions out: the only place that knows both vocabularies.

mod environment;
mod process;

pub(crate) use environment::environment_info;
pub use process::LocalProcess;
pub(crate) use process::{Started, Vocabulary, Written};
pub(crate) use process::{exit_details, start_error, wire_stream};
