//! What the operator decides. Values only: reading flags, environment and files is the binary's work.

use std::path::PathBuf;
use std::time::Duration;

use exec_server_protocol::{LimitValues, SandboxCeiling};

/// Limits and permissions of one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerConfig {
    /// How long processes have between TERM and KILL when the server shuts down.
    pub shutdown_grace_period: Duration,
    /// Processes of one session that may run at once.
    pub max_processes_per_session: usize,
    /// Processes of one subject that may run at once.
    pub max_processes_per_subject: usize,
    /// Processes of all sessions that may run at once.
    pub max_processes: usize,
    /// File handles of one connection.
    pub max_handles_per_connection: usize,
    /// Watches of one connection.
    pub max_watches_per_connection: usize,
    /// Sessions, attached and detached, that the server keeps at once.
    pub max_sessions: usize,
    /// Those of one subject.
    pub max_sessions_per_subject: usize,
    /// Requests of one connection in a second; 0 for no limit. As many may come at once. Control requests
    /// are counted and never refused.
    pub max_requests_per_second: u32,
    /// A connection that sends nothing for this long is closed; zero for never. Its session stays as
    /// after any lost connection.
    pub idle_connection_timeout: Duration,
    /// Bytes of each process's log kept in memory.
    pub retained_output_bytes_per_process: usize,
    /// Bytes of unconfirmed output of each process that may go to its spill file; 0 means no file.
    pub spill_output_bytes_per_process: u64,
    /// Bytes of all logs in memory. Beyond it each process keeps little there.
    pub max_retained_output_bytes: u64,
    /// Bytes of all spill files. Beyond it processes wait for their readers.
    pub max_spilled_output_bytes: u64,
    /// How long a session survives without a connection when its client did not ask otherwise.
    pub detached_session_ttl: Duration,
    /// The most that a client may ask for with `detachedTtlMs`. One that wants its session kept until the
    /// server stops asks for all of it.
    pub max_detached_session_ttl: Duration,
    /// Whether `process/start` may use mode `direct`.
    pub allow_direct_exec: bool,
    /// Whether `process/start` may use mode `prepared`.
    pub allow_prepared_exec: bool,
    /// Ordinary requests of one connection that run at once; 1 is strictly serial, also for requests that
    /// wait. Control requests always run.
    pub concurrent_requests: usize,
    /// Memory for unfinished messages, requests and unsent responses of all connections; 0 for a quarter
    /// of the memory available.
    pub max_buffered_bytes: u64,
    /// The most that any request may have.
    pub sandbox: SandboxCeiling,
    /// The limits of a process whose start names none.
    pub default_limits: LimitValues,
    /// The most that any process may use.
    pub max_limits: LimitValues,
    /// Variables that `http/request` does not put into headers, besides those that no server does: names, or beginnings
    /// with a `*` behind them.
    pub http_protected_variables: Vec<String>,
    /// Variables that it does, though they are among those that no server does.
    pub http_allowed_variables: Vec<String>,
    /// What no sandbox may change, such as the files by which others find this server.
    pub protected_paths: Vec<PathBuf>,
    /// What no sandbox may read either: files that let their reader act as this server or as another
    /// client of it.
    pub secret_paths: Vec<PathBuf>,
    /// Symlinks through which a sandbox may be granted something wherever they are, by their own
    /// paths.
    pub trusted_links: Vec<PathBuf>,
    /// Where servers of this user remember what sandboxes were allowed to write: each that can be
    /// used. Without any, a server knows only of its own sandboxes. Their directories belong to
    /// [`Self::protected_paths`].
    pub write_history: Vec<PathBuf>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            shutdown_grace_period: Duration::from_secs(3),
            max_processes_per_session: 4096,
            max_processes_per_subject: 8192,
            max_processes: 16_384,
            max_handles_per_connection: 128,
            max_watches_per_connection: 1000,
            max_sessions: 4096,
            max_sessions_per_subject: 1024,
            max_requests_per_second: 0,
            idle_connection_timeout: Duration::ZERO,
            retained_output_bytes_per_process: 1 << 20,
            spill_output_bytes_per_process: 256 << 20,
            max_retained_output_bytes: 1 << 30,
            max_spilled_output_bytes: 64 << 30,
            detached_session_ttl: Duration::from_secs(30),
            max_detached_session_ttl: Duration::from_secs(365 * 24 * 60 * 60),
            allow_direct_exec: true,
            allow_prepared_exec: true,
            concurrent_requests: 64,
            max_buffered_bytes: 0,
            sandbox: SandboxCeiling::default(),
            default_limits: LimitValues::default(),
            max_limits: LimitValues::default(),
            http_protected_variables: Vec::new(),
            http_allowed_variables: Vec::new(),
            protected_paths: Vec::new(),
            secret_paths: Vec::new(),
            trusted_links: Vec::new(),
            write_history: Vec::new(),
        }
    }
}
