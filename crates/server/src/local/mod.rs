//! Wire types in, host actions out: the only place that knows both vocabularies.

mod environment;
mod files;
mod follow;
mod http;
mod list;
mod names;
mod process;
mod sandbox;
mod start;

pub(crate) use environment::environment_info;
pub(crate) use files::{
    Admitted, FileCall, FilePool, FileWork, LargeFileCall, NoThread, Reading, Searching, Upload,
    Watches, check_block_len, no_thread, open, read_block,
};
pub use files::{LocalChanges, LocalFile, LocalFileSystem, LocalNewFile, LocalSearch, LocalWatch};
pub use follow::{Followed, FollowedEvent, Follower};
pub use http::{LocalBody, LocalHttp};
pub(crate) use http::{MAX_BODY_BYTES, head, host_request, refusal as http_refusal};
pub(crate) use list::Counted;
pub(crate) use names::check_name;
pub use process::LocalProcess;
pub(crate) use process::{Started, Vocabulary, Written};
pub(crate) use process::{exit_details, wire_stream};
pub(crate) use sandbox::Sandboxes;
pub(crate) use start::{StartContext, start_error};
