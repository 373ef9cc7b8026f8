//! Information about the server's machine.

use serde::{Deserialize, Serialize};

use crate::PathUri;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct EnvironmentInfo {
    pub shell: ShellInfo,
    pub cwd: PathUri,
    pub temporary_directories: Vec<PathUri>,
    pub temp_dir: PathUri,
    pub capabilities: Capabilities,
    /// How process trees are terminated on this machine (extension). A server that omits this
    /// promises nothing.
    #[serde(default)]
    pub process_teardown: ProcessTeardown,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ShellInfo {
    pub name: String,
    /// A native path, not a `file:` URI.
    pub path: String,
}

/// A flag is true only if the feature works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Capabilities {
    pub network_proxy_launch: bool,
    pub capability_discovery_sandbox: bool,
    pub environment_config_read: bool,
    pub http_header_env_vars: bool,
    pub sandboxed_file_streaming: bool,
    pub shell_snapshot_v2: bool,
}

/// The active mechanisms for terminating process trees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ProcessTeardown {
    /// Signals go to the whole process group.
    pub process_group: bool,
    /// A keeper adopts orphans, so that `setsid` and double forks do not escape, and kills the tree
    /// when the server dies.
    pub keeper: bool,
    /// Processes are signalled through descriptors, so that a signal cannot hit a reused pid.
    pub pidfd: bool,
    /// Each process tree has a cgroup that can be killed as a whole.
    pub cgroup: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EnvironmentStatus {
    pub status: Status,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Status {
    Ready,
}
