//! Wire types in, host actions out: translates between the vocabularies of protocol and host.

mod environment;
mod files;
mod http;
mod limits;
mod list;
mod names;
mod network;
mod process;
mod sandbox;
mod start;

pub(crate) use environment::environment_info;
pub(crate) use files::{
    ChangeWatch, FileCall, FileExecutors, FilePool, LargeFile, LargeFileCall, PolicyScoped,
    Reading, Searching, Upload, Watches, check_block_len, open, read_block,
};
pub(crate) use http::{MAX_BODY_BYTES, head, host_request, to_rpc_error as http_rpc_error};
pub(crate) use limits::{limits_support, wire_tier};
pub(crate) use list::Counted;
pub(crate) use names::check_name;
pub(crate) use network::NetworkClient;
pub(crate) use process::{
    ManagedProcess, NotificationDialect, Started, Written, event_notification, wire_stream,
};
pub(crate) use sandbox::SandboxResolver;
pub(crate) use start::{StartContext, start_error};
