//! Runs commands and terminals on a machine, reads, writes, watches and searches files, and makes
//! HTTP requests. Commands and file operations may have a sandbox, which the server enforces. No
//! output is lost when the connection drops.
//!
//! This is the facade of the project: the API for embedders and the whole `exec-server` program. An
//! embedder whose `main` begins with [`run_spawner_if_asked`] gets supervised process trees, so
//! that every descendant dies with its tree. An embedder that cannot do that passes
//! [`ExecServerRuntimePaths::without_helpers`] and gets process groups.

mod cli;
mod commands;
mod config;
pub mod environment;
mod foreground;
pub mod process;
mod program;
mod registry_credentials;
mod target;
mod terminal;
pub mod unified_exec;

pub use environment::host_options::HostOptions;
pub use environment::runtime_paths::{ExecServerRuntimePaths, run_spawner_if_asked};
pub use environment::sandbox_options::{DenyPatternError, SandboxOptions};
pub use environment::{
    Environment, EnvironmentManager, ExecBackend, ExecProcess, ExecutorFileSystem, HttpClient,
    LocalFileSystem, LocalProcess, RemoteFileSystem, RemoteProcess,
};
pub use exec_server_client::{
    Changes, ClientIdentity, ConnectError, ConnectionState, Connector, DialUrl, DisconnectReason,
    ExecProcessEvent, ExecServerClient, ExecServerClientConnectOptions, ExecServerError,
    ExecServerLaunchCommand, ExecServerProcess, Fingerprint, HttpBody, KeepAlive,
    NetworkDecisionHandler, NetworkRequestHandler, NewFile, NoiseRendezvousConnectArgs,
    NoiseRendezvousConnectBundle, NoiseRendezvousConnectProvider, OpenFile, ProcessEvents,
    ProcessExit, ProviderError, RecoveryPolicy, RegistryProvider, RemoteExecServerConnectArgs,
    SavedProcess, SearchResults, ServerTrust, TlsOptions, WatchEvents,
};
pub use exec_server_protocol as protocol;
pub use exec_server_relay::environment::RemoteEnvironmentConfig;
pub use exec_server_relay::registry::{
    AgentIdentity, BearerToken, RegistryClient, RegistryCredentials, RegistryError,
};
pub use exec_server_server::{SandboxCeiling, SandboxLevel, Server, ServerConfig};
pub use exec_server_transport::{
    Connection, DEFAULT_LISTEN_URL, ExecServerListenUrlParseError, ListenUrl,
};
pub use program::main;
pub use program::remote::{run_remote_environment, run_remote_environment_until_shutdown};
pub use program::serve::{ServeError, run_main};
pub use registry_credentials::NoCredentials;

/// Compiles the examples of the guides.
#[cfg(doctest)]
mod guides {
    #[doc = include_str!("../../../docs/client.md")]
    mod client {}

    #[doc = include_str!("../../../docs/environments.md")]
    mod environments {}
}
