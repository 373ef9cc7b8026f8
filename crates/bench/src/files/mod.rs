//! Work on files: through our server, and through a minimal server that does the same work.
//!
//! The limit is `limit_server`, a process of its own like the server that is measured, on loopback too: a blocking
//! thread for its connection, `stat`, `read` and `write`, base64, and nothing else. It has no sessions, no checks, no
//! limits, no errors but a closed connection, and its buffers are used again. Both are asked by the same client over
//! the same frames, which writes each request by itself and reads the same JSON and base64 in the answers, so that
//! only the servers differ.
//!
//! The files are in the directory for temporary ones. They stay in the page cache, but it matters all the same
//! whether that is on a disk: `TMPDIR` chooses another.

mod blocks;
mod client;
mod fixture;
mod large;
mod limit_server;
mod limit_work;
mod request;
mod sides;
mod small;
mod trees;

pub(super) use blocks::measure as measure_blocks;
pub(super) use large::measure as measure_large;
pub(super) use limit_server::serve_files_if_asked;
pub(super) use small::measure as measure_small;
pub(super) use trees::{measure_search, measure_walk};

/// What every limit here is, if nothing more is to be said.
const MINIMAL_SERVER: &str = "minimal loopback server";
