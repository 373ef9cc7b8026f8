//! The machines on which processes run and files live. A caller holds an [`Environment`], which
//! behaves the same for this machine and for others: both pass the same tests.
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
//! An environment also provides files and HTTP: it is an [`ExecutorFileSystem`] and an
//! [`HttpClient`].
//!
//! ```
//! use exec_server::protocol::{FsReadFileParams, FsWriteFileParams, PathUri};
//! use exec_server::{Environment, ExecServerRuntimePaths, ExecutorFileSystem};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! let here = Environment::local(ExecServerRuntimePaths::without_helpers());
//! let path = PathUri::from_path(directory.path().join("note")).ok_or("not absolute")?;
//! here.write_file(FsWriteFileParams::new(path.clone(), "hello")).await?;
//! assert_eq!(here.read_file(FsReadFileParams::new(path)).await?, "hello");
//! # Ok(())
//! # }
//! ```

mod access;
mod backend;
pub(crate) mod blocks;
mod client_files;
mod file;
mod file_reader;
mod file_system;
mod file_writer;
pub(crate) mod host_options;
mod http;
mod lazy;
pub(crate) mod limit_options;
mod manager;
mod named;
mod remote;
pub(crate) mod runtime_paths;
pub(crate) mod sandbox_options;
mod sandbox_table;

pub use backend::{ExecBackend, ExecProcess};
pub(crate) use file::ENVIRONMENTS_VARIABLE;
pub use file::{EnvironmentsFileError, EnvironmentsFileMistake};
pub use file_reader::FileReader;
pub use file_system::ExecutorFileSystem;
pub use file_writer::FileWriter;
pub use http::HttpClient;
pub use manager::{EnvironmentManager, UnknownEnvironment};
pub use named::{Environment, LOCAL_ENVIRONMENT_ID};
pub use remote::RemoteServer;
pub use sandbox_table::SandboxTableMistake;

/// A process on this machine. Local and remote processes have the same type.
pub type LocalProcess = exec_server_client::ExecServerProcess;
/// A process on another machine.
pub type RemoteProcess = exec_server_client::ExecServerProcess;
/// The files of this machine. Local and remote files have the same type, the client that accesses
/// them.
pub type LocalFileSystem = exec_server_client::ExecServerClient;
/// The files of another machine.
pub type RemoteFileSystem = exec_server_client::ExecServerClient;
