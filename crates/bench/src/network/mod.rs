//! Measures managed networks: the cost of starting a process with a managed network, of reaching a
//! host through its gate, and of running many such processes at once. They are compared with the
//! same sandbox without rules, and with the same bytes without a gate.

mod connections;
mod memory;
mod peer;
mod plain_copy;
mod starts;
mod streams;

use std::net::SocketAddr;

use anyhow::Context as _;
use exec_server_protocol::{NetworkRules, PathUri, SandboxRequest};
use serde_json::json;
use tempfile::TempDir;

use super::client::Surroundings;
use super::sandbox::{sandbox, workspace};
pub(super) use connections::measure as measure_connections;
pub(super) use memory::measure as measure_memory;
pub(super) use peer::connect_if_asked;
pub(super) use plain_copy::copy_if_asked;
pub(super) use starts::measure as measure_starts;
pub(super) use streams::measure as measure_streams;

/// An ordinary workspace, and rules that allow its processes to reach one host.
#[derive(Debug)]
struct Workspace {
    _directory: TempDir,
    cwd: PathUri,
    sandbox: SandboxRequest,
    rules: NetworkRules,
}

impl Workspace {
    /// Creates a workspace whose processes can reach only `host`.
    fn new(host: &str) -> anyhow::Result<Self> {
        let directory = workspace()?;
        std::fs::create_dir(directory.path().join(".git"))?;
        Ok(Self {
            cwd: PathUri::from_path(directory.path()).with_context(|| {
                format!("the workspace {} is not a valid path", directory.path().display())
            })?,
            sandbox: sandbox(&json!({"type": "workspace-write"}))?,
            rules: NetworkRules { allow: vec![host.to_owned()], ..NetworkRules::default() },
            _directory: directory,
        })
    }

    fn reaching(host: SocketAddr) -> anyhow::Result<Self> {
        Self::new(&host.to_string())
    }

    fn managed(&self) -> Surroundings<'_> {
        Surroundings { network: Some(&self.rules), ..self.sandboxed() }
    }

    /// Returns the same sandbox without any network.
    fn sandboxed(&self) -> Surroundings<'_> {
        Surroundings { cwd: &self.cwd, sandbox: Some(&self.sandbox), network: None }
    }
}
