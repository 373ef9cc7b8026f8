//! Measures work on files: through the server, and through a minimal server that does the same
//! work.
//!
//! The limit is `limit_server`, a separate process on loopback like the measured server: a blocking
//! thread for its connection, which calls the kernel directly, base64, and nothing else. It has no
//! sessions, no checks, no limits, no errors except a closed connection, and it reuses its buffers.
//! The same client sends requests to both in the same WebSocket frames. It encodes requests by
//! hand, in a simpler form for the minimal server, and reads the same JSON and base64 in the
//! responses.
//!
//! The files are in the directory for temporary files. They stay in the page cache, but whether the
//! directory is on a disk still matters: `TMPDIR` selects another.

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

const MINIMAL_SERVER: &str = "minimal loopback server";
