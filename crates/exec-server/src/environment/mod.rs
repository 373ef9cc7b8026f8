//! Where processes run. A caller holds an [`Environment`] and cannot tell whether it is this machine or another: both
//! keep the same promises, and the same tests hold them to it.
//!
//! ```
//! use exec_server::protocol::{PathUri, StartParams};
//! use exec_server::{Environment, ExecBackend, ExecServerRuntimePaths};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let here = Environment::local(ExecServerRuntimePaths::without_helpers());
//! let cwd = PathUri::from_path("/tmp").ok_or("not absolute")?;
//! let process = here.start(StartParams::new("greeting", ["/bin/echo", "hello"], cwd)).await?;
//! let output = process.output().await?;
//! assert_eq!(output.stdout.complete(), Some(&b"hello\n"[..]));
//! # Ok(())
//! # }
//! ```
//!
//! Files and HTTP are traits only in this version: [`ExecutorFileSystem`] and [`HttpClient`] say what an environment
//! will offer.

mod backend;
mod file;
mod file_system;
mod http;
mod lazy;
mod local;
mod manager;
mod named;
mod remote;

pub use backend::{ExecBackend, ExecProcess};
pub use file::{EnvironmentsFileError, EnvironmentsFileMistake};
pub use file_system::{
    CopyDepth, CreateDirectoryOptions, DirectoryEntry, ExecutorFileSystem, FileBlock, FileMetadata,
    FileWatch, MAX_BLOCK_BYTES, OpenFile, RemoveOptions, Symlinks, Walk, WalkEntry, WalkEntryKind,
    WalkError, WalkOptions, WatchDepth,
};
pub use http::{
    HttpBody, HttpClient, HttpRequest, HttpRequestHeader, HttpResponse, HttpResponseHeader,
    RedirectPolicy, StreamedHttpResponse,
};
pub use local::LocalProcess;
pub use manager::{EnvironmentManager, UnknownEnvironment};
pub use named::{Environment, LOCAL_ENVIRONMENT_ID};
pub use remote::{RemoteProcess, RemoteServer};
