//! `process/*`: params, results and notifications.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{Base64Bytes, Denial, Enforcement, PathUri, SandboxRequest, nullable};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StartParams {
    /// Chosen by the client, unique in its session; not an OS pid.
    pub process_id: String,
    pub argv: Vec<String>,
    pub cwd: PathUri,
    /// The child's whole environment, or what is applied on top of `env_policy`.
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub env: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub tty: bool,
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub pipe_stdin: bool,
    #[serde(default)]
    pub arg0: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env_policy: Option<EnvPolicy>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxRequest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforce_managed_network: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed_network: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_proxy: Option<Box<RawValue>>,
    #[serde(
        default,
        deserialize_with = "nullable::or_default",
        skip_serializing_if = "is_default"
    )]
    pub on_full: OnFull,
    #[serde(
        default,
        deserialize_with = "nullable::or_default",
        skip_serializing_if = "is_default"
    )]
    pub kill_on_exit: bool,
    /// Terminals only; 24 × 80 when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<TerminalSize>,
    #[serde(
        default,
        deserialize_with = "nullable::or_default",
        skip_serializing_if = "is_default"
    )]
    pub mode: ExecMode,
}

impl StartParams {
    /// A process with pipes, no stdin and an empty environment; the fields say the rest.
    #[must_use]
    pub fn new(
        process_id: impl Into<String>,
        argv: impl IntoIterator<Item = impl Into<String>>,
        cwd: PathUri,
    ) -> Self {
        Self {
            process_id: process_id.into(),
            argv: argv.into_iter().map(Into::into).collect(),
            cwd,
            env: BTreeMap::new(),
            tty: false,
            pipe_stdin: false,
            arg0: None,
            env_policy: None,
            sandbox: None,
            enforce_managed_network: None,
            managed_network: None,
            network_proxy: None,
            on_full: OnFull::default(),
            kill_on_exit: false,
            size: None,
            mode: ExecMode::default(),
        }
    }

    /// Whether the client wants its traffic to go through a managed network.
    #[must_use]
    pub fn asks_for_managed_network(&self) -> bool {
        self.enforce_managed_network == Some(true)
            || self.managed_network.is_some()
            || self.network_proxy.is_some()
    }
}

/// How the child's environment is made from the server's.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EnvPolicy {
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub inherit: EnvInherit,
    /// Keep names that contain KEY, SECRET or TOKEN.
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub ignore_default_excludes: bool,
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub exclude: Vec<String>,
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub set: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub include_only: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum EnvInherit {
    Core,
    #[default]
    All,
    None,
}

/// What happens when the log can hold no more unconfirmed output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OnFull {
    /// The child blocks on its next write.
    #[default]
    Block,
    /// The oldest output is dropped and the gap declared.
    Discard,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ExecMode {
    #[default]
    Direct,
    /// Spawn exactly this: no `envPolicy`, no sandbox of its own.
    Prepared,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    pub rows: u16,
    pub cols: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StartResponse {
    pub process_id: String,
    pub sandbox_type: SandboxType,
    /// What is active; absent without a sandbox (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforcement: Option<Enforcement>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SandboxType {
    None,
    MacosSeatbelt,
    LinuxSeccomp,
    WindowsRestrictedToken,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReadParams {
    pub process_id: String,
    #[serde(default)]
    pub after_seq: Option<u64>,
    #[serde(default)]
    pub max_bytes: Option<u64>,
    #[serde(default)]
    pub wait_ms: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReadResponse {
    pub chunks: Vec<OutputChunk>,
    pub next_seq: u64,
    pub exited: bool,
    pub exit_code: Option<i32>,
    pub closed: bool,
    /// Why the server lost track of the process.
    pub failure: Option<String>,
    pub sandbox_denied: bool,
    /// What seems to have been denied (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub denied: Option<Denial>,
    /// Size of the gap between `afterSeq` and what is returned.
    #[serde(default, skip_serializing_if = "is_default")]
    pub dropped_bytes: u64,
    #[serde(flatten)]
    pub exit: Option<ExitDetails>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputChunk {
    pub seq: u64,
    pub stream: OutputStream,
    pub chunk: Base64Bytes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OutputStream {
    Stdout,
    Stderr,
    Pty,
}

impl OutputStream {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::Pty => "pty",
        }
    }
}

/// How a process ended and what it used (ours).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExitDetails {
    /// The signal that killed it.
    pub signal: Option<i32>,
    pub duration_ms: u64,
    pub cpu_ms: u64,
    pub max_rss_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WriteParams {
    pub process_id: String,
    pub chunk: Base64Bytes,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_id: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteResponse {
    pub status: WriteStatus,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WriteStatus {
    Accepted,
    UnknownProcess,
    StdinClosed,
    Starting,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloseStdinResponse {
    pub status: WriteStatus,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessIdParams {
    pub process_id: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResizeParams {
    pub process_id: String,
    pub rows: u16,
    pub cols: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SignalParams {
    pub process_id: String,
    pub signal: SignalName,
    /// Another session of the same user (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SignalName {
    Interrupt,
    Terminate,
    Kill,
    Hangup,
    Quit,
    User1,
    User2,
    Stop,
    Continue,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TerminateParams {
    pub process_id: String,
    #[serde(
        default,
        deserialize_with = "nullable::or_default",
        skip_serializing_if = "is_default"
    )]
    pub mode: TerminateMode,
    /// Another session of the same user (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum TerminateMode {
    #[default]
    Force,
    /// TERM, then KILL.
    Graceful { timeout_ms: u64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminateResponse {
    pub running: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitParams {
    pub process_id: String,
    #[serde(default)]
    pub timeout_ms: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitResponse {
    pub exited: bool,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub closed: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotResponse {
    pub stdout: Base64Bytes,
    pub stderr: Base64Bytes,
    pub terminal: Base64Bytes,
    /// Something between the head and the tail of a stream is left out.
    pub truncated: bool,
    pub exit_code: Option<i32>,
    pub running: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListParams {
    /// Another session of the same user (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListResponse {
    pub processes: Vec<ProcessSummary>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessSummary {
    pub process_id: String,
    pub argv: Vec<String>,
    pub tty: bool,
    pub running: bool,
    pub exit_code: Option<i32>,
    pub started_at_ms: u64,
    pub next_seq: u64,
    /// Processes that this one started and that still live (ours).
    pub descendants: u64,
}

/// `process/output`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OutputNotification {
    pub process_id: String,
    /// Present for an observer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    pub seq: u64,
    pub stream: OutputStream,
    pub chunk: Base64Bytes,
    /// Size of the gap just before this chunk.
    #[serde(default, skip_serializing_if = "is_default")]
    pub dropped_bytes: u64,
}

/// `process/exited`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExitedNotification {
    pub process_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    pub seq: u64,
    pub exit_code: i32,
    #[serde(default)]
    pub sandbox_denied: bool,
    /// What seems to have been denied (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub denied: Option<Denial>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub dropped_bytes: u64,
    #[serde(flatten)]
    pub exit: Option<ExitDetails>,
}

/// `process/closed`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClosedNotification {
    pub process_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    pub seq: u64,
    #[serde(default, skip_serializing_if = "is_default")]
    pub dropped_bytes: u64,
}

/// `process/ack`, from client to server (ours).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AckParams {
    pub process_id: String,
    pub seq: u64,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
