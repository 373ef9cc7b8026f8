//! What callers do with a process again and again: wait for it, collect its output, talk to it as one talks over pipes.
//!
//! Everything here stands on [`ExecProcess`](crate::ExecProcess) alone, so it works wherever the process runs. All
//! collections are bounded.

mod collect;
mod head_tail;
pub(crate) mod pieces;
mod reader;
mod window;
mod writer;

pub use collect::ProcessOutput;
pub use head_tail::{CollectedOutput, DEFAULT_OUTPUT_BOUND, HeadTail};
pub use reader::StdoutReader;
pub use window::{Snapshot, WindowEnd, WindowOptions, WindowedOutput};
pub use writer::StdinWriter;

#[cfg(test)]
mod fake;
#[cfg(test)]
pub(crate) use fake::FakeProcess;
