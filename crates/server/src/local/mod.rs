//! Wire types in, host actions out: the only place that knows both vocabularies.

mod environment;
mod follow;
mod list;
mod names;
mod process;
mod start;

pub(crate) use environment::environment_info;
pub use follow::{Followed, FollowedEvent, Follower};
pub(crate) use list::list;
pub(crate) use names::check_name;
pub use process::LocalProcess;
pub(crate) use process::{Started, Vocabulary, Written};
pub(crate) use process::{exit_details, wire_stream};
pub(crate) use start::start_error;
