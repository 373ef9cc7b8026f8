//! The operator's configuration. Values only: the binary reads flags, environment variables and
//! files.

use std::path::PathBuf;
use std::time::Duration;

use exec_server_protocol::{LimitValues, SandboxCeiling};

/// Limits and permissions of one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerConfig {
    /// Time between TERM and KILL for processes when the server shuts down. Requests in progress
    /// also get this time to finish.
    pub shutdown_grace_period: Duration,
    /// Maximum number of running processes per session.
    pub max_processes_per_session: usize,
    /// Maximum number of running processes per subject.
    pub max_processes_per_subject: usize,
    /// Maximum number of running processes in all sessions.
    pub max_processes: usize,
    /// Maximum number of file handles per connection.
    pub max_handles_per_connection: usize,
    pub max_watches_per_connection: usize,
    /// Maximum number of sessions, attached and detached.
    pub max_sessions: usize,
    pub max_sessions_per_subject: usize,
    /// Maximum number of requests per second on each connection, and in one burst; 0 disables the
    /// limit. Control requests count but are never refused.
    pub max_requests_per_second: u32,
    /// Closes a connection that sends nothing for this long and has nothing in progress; zero
    /// disables the timeout. Its session survives, as after any lost connection. Does not apply to
    /// stdio.
    pub idle_connection_timeout: Duration,
    /// Bytes of each process's log kept in memory.
    pub retained_output_bytes_per_process: usize,
    /// Bytes of unconfirmed output per process that may go to its spill file; 0 disables the file.
    pub spill_output_bytes_per_process: u64,
    /// Bytes of all logs in memory. Beyond that, each process keeps only a little in memory.
    pub max_retained_output_bytes: u64,
    /// Bytes of all spill files. Beyond that, a process waits for its reader or, with
    /// `onFull: "discard"`, loses its oldest output.
    pub max_spilled_output_bytes: u64,
    /// How long a session survives without a connection, unless its client requests another time.
    pub detached_session_ttl: Duration,
    /// The longest time that a client may request with `detachedTtlMs`. A client that wants its
    /// session kept until the server stops gets this time.
    pub max_detached_session_ttl: Duration,
    /// Whether `process/start` may use mode `direct`.
    pub allow_direct_exec: bool,
    /// Whether `process/start` may use mode `prepared`.
    pub allow_prepared_exec: bool,
    /// Maximum number of ordinary requests that run at once on one connection; 1 means strictly
    /// serial, including requests that wait. Control requests always run.
    pub concurrent_requests: usize,
    /// Memory for unfinished messages, requests and unsent responses of all connections; 0 means a
    /// quarter of the available memory.
    pub max_buffered_bytes: u64,
    /// The most access that any request may have.
    pub sandbox: SandboxCeiling,
    /// The value of each limit that a start does not set.
    pub default_limits: LimitValues,
    /// The most that any process may use.
    pub max_limits: LimitValues,
    /// Variables that `http/request` never puts into headers, in addition to the built-in list:
    /// names, or prefixes that end with `*`.
    pub http_protected_variables: Vec<String>,
    /// Variables that `http/request` may put into headers although the built-in list protects them,
    /// in the same form. The server's own variables stay protected.
    pub http_allowed_variables: Vec<String>,
    /// Paths that no sandbox may change, such as the files by which clients find this server.
    pub protected_paths: Vec<PathBuf>,
    /// Paths that no sandbox may change or read: files that let their reader act as this server or
    /// as another client of it.
    pub secret_paths: Vec<PathBuf>,
    /// Paths of symlinks that may lead to a sandbox grant, wherever the symlinks are.
    pub trusted_links: Vec<PathBuf>,
    /// Directories in which the servers of this user record where sandboxes were allowed to write.
    /// A server uses every directory that is usable; without any, it knows only its own sandboxes.
    /// These directories must also be in [`Self::protected_paths`].
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
