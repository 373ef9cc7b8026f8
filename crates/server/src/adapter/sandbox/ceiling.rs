//! The most access that requests may have, as a policy of this machine.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use exec_server_host::sandbox::{
    DeclaredPolicy, EntryPath, Network, Policy, PolicyContext, SandboxError,
};
use exec_server_protocol::{SandboxCeiling, SandboxLevel};

use super::{Machine, wire};

#[derive(Debug)]
pub(super) struct Ceiling {
    level: SandboxLevel,
    writable_roots: Vec<PathBuf>,
    network: Network,
    /// Resolved once, so that later changes of symlinks do not affect it.
    policy: OnceLock<Result<Policy, Arc<SandboxError>>>,
}

impl Ceiling {
    /// Returns `None` if the ceiling requires no sandbox.
    pub(super) fn new(ceiling: &SandboxCeiling) -> Option<Self> {
        let network = if ceiling.network { Network::Enabled } else { Network::Restricted };
        let writable_roots = ceiling.writable_roots.clone();
        let level = ceiling.require?;
        Some(Self { level, writable_roots, network, policy: OnceLock::new() })
    }

    pub(super) fn allows_network(&self) -> bool {
        self.network == Network::Enabled
    }

    /// The first call blocks.
    pub(super) fn policy(&self, machine: &Machine) -> Result<&Policy, Arc<SandboxError>> {
        let resolved = self.policy.get_or_init(|| {
            let around = PolicyContext { tmpdir: wire::own_tmpdir(), ..PolicyContext::default() };
            machine.resolve(&self.declared()?, &around)
        });
        resolved.as_ref().map_err(Arc::clone)
    }

    fn declared(&self) -> Result<DeclaredPolicy, Arc<SandboxError>> {
        Ok(match self.level {
            SandboxLevel::ReadOnly => wire::read_only(self.network),
            SandboxLevel::WorkspaceWrite => {
                let roots = self.roots()?.into_iter().map(EntryPath::Path);
                let temporary = [EntryPath::Tmpdir, EntryPath::SlashTmp];
                wire::workspace_write(roots.chain(temporary), self.network)
            }
        })
    }

    /// Returns where requests may write under the ceiling, in addition to the temporary
    /// directories.
    pub(super) fn roots(&self) -> Result<Vec<PathBuf>, Arc<SandboxError>> {
        if self.level == SandboxLevel::ReadOnly {
            return Ok(Vec::new());
        }
        for missing in self.writable_roots.iter().filter(|root| !root.is_dir()) {
            tracing::warn!(
                root = %missing.display(),
                "a path in sandbox.writable_roots (of the server or of a token) is missing or not a \
                 directory; create the directory, or correct the setting"
            );
        }
        if !self.writable_roots.is_empty() {
            return Ok(self.writable_roots.clone());
        }
        let cwd = std::env::current_dir();
        Ok(vec![cwd.map_err(|source| SandboxError::NoWorkspace { source })?])
    }
}
