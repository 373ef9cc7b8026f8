//! Helpers for processes: waiting, collecting output, and using streams like pipes.
//!
//! All of them use only [`ExecProcess`](crate::ExecProcess), so they work wherever the process
//! runs. All collections are bounded.

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
