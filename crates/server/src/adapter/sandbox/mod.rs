//! Which policy holds for a request: what it asks for, under what the operator allows at most.
//!
//! A client cannot talk its way out: a request without a sandbox gets the ceiling, and one with a sandbox gets what both
//! allow.

mod recent;
mod wire;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Once, OnceLock};

use exec_server_host::sandbox::{
    Capabilities, DeclaredPolicy, EntryPath, HostNames, LinkTrust, Network, Plan, Policy,
    PolicyContext, SandboxError, WriteHistory, WrittenRoots,
};
use exec_server_protocol::{ErrorCode, ErrorKind, RpcError, SandboxRequest};

use crate::{SandboxCeiling, SandboxLevel, ServerConfig};
use recent::Recent;
use wire::RequestedPolicy;
pub(crate) use wire::own_tmpdir;

/// What the server knows about sandboxes.
#[derive(Debug)]
pub(crate) struct SandboxResolver {
    ceiling: SandboxCeiling,
    /// Read-only in every sandbox.
    protected: Vec<PathBuf>,
    trusted_links: Vec<PathBuf>,
    home: Option<PathBuf>,
    /// A history that cannot be read is reported.
    reported: Once,
    history: WriteHistory,
    /// Made once: symlinks that change later do not move it.
    ceiling_policy: OnceLock<Result<Option<Policy>, Arc<SandboxError>>>,
    /// Runs the probes. Without it nothing is known about this machine, and nothing is promised.
    executable: Option<PathBuf>,
    /// A probe that failed is tried again: it may have been for want of memory or processes.
    capabilities: OnceLock<Capabilities>,
    recent: Recent,
}

/// A request whose sandbox has been understood, and not yet been looked up on this machine.
#[derive(Debug, Clone)]
pub(crate) struct RequestedSandbox {
    requested: Option<RequestedPolicy>,
}

impl SandboxResolver {
    pub(crate) fn new(config: &ServerConfig, executable: Option<PathBuf>) -> Self {
        Self {
            ceiling: config.sandbox.clone(),
            protected: config.protected_paths.clone(),
            trusted_links: config.trusted_links.clone(),
            home: std::env::home_dir(),
            reported: Once::new(),
            history: WriteHistory::new(config.write_history.clone()),
            ceiling_policy: OnceLock::new(),
            executable,
            capabilities: OnceLock::new(),
            recent: Recent::default(),
        }
    }

    /// Reads a sandbox object. `None` when the request may have all that the server has.
    pub(crate) fn read(
        &self,
        sandbox: Option<&SandboxRequest>,
        cwd: Option<&Path>,
    ) -> Result<Option<RequestedSandbox>, RpcError> {
        let requested = match sandbox {
            None => None,
            Some(sandbox) => {
                let invalid = |error: &dyn std::error::Error| {
                    RpcError::invalid_params(error.to_string()).with_kind(ErrorKind::BadSandbox)
                };
                let sandbox = sandbox.parse().map_err(|error| invalid(&error))?;
                Some(wire::read(sandbox, cwd).map_err(|error| invalid(&error))?)
            }
        };
        let is_free = requested.as_ref().is_none_or(|requested| requested.policy.is_none());
        Ok((!is_free || self.ceiling.require.is_some()).then_some(RequestedSandbox { requested }))
    }

    /// Looks at the machine for what the names in a policy mean. Blocks.
    pub(crate) fn policy(&self, asked: &RequestedSandbox) -> Result<Policy, Arc<SandboxError>> {
        let own = match &asked.requested {
            Some(RequestedPolicy { policy: Some(policy), around }) => {
                Some(self.resolve(policy, around)?)
            }
            _ => None,
        };
        let ceiling = self.ceiling_policy()?;
        let policy = match (own, ceiling) {
            (Some(own), Some(ceiling)) => own.intersect(ceiling),
            (Some(only), None) => only,
            (None, Some(only)) => only.clone(),
            (None, None) => Policy::unrestricted(Network::Enabled),
        };
        self.history.add(&policy).map_err(SandboxError::from)?;
        Ok(policy)
    }

    /// The policy of a request about files, from memory if the same was asked a moment ago. `None`: no
    /// restriction. May block.
    pub(crate) fn file_policy(
        &self,
        sandbox: Option<&SandboxRequest>,
    ) -> Result<Option<Policy>, RpcError> {
        if let Some(known) = self.known_file_policy(sandbox) {
            return Ok(known);
        }
        let policy = match self.read(sandbox, None)? {
            None => None,
            Some(asked) => {
                // Methods of files have -32602 only for what does not decode.
                let code = ErrorCode::InvalidRequest.value();
                let policy = self.policy(&asked);
                let policy = policy.map_err(|error| RpcError { code, ..to_rpc_error(&error) })?;
                policy.restricts_files().then_some(policy)
            }
        };
        self.recent.remember(sandbox, policy.clone());
        Ok(policy)
    }

    /// Never blocks. `None` when it has to be looked up.
    pub(crate) fn known_file_policy(
        &self,
        sandbox: Option<&SandboxRequest>,
    ) -> Option<Option<Policy>> {
        if sandbox.is_none() && self.ceiling.require.is_none() {
            return Some(None);
        }
        self.recent.find(sandbox)
    }

    /// How to enforce a policy on a process of this machine. Blocks, for long when first called.
    pub(crate) fn plan(
        &self,
        policy: &Policy,
        cwd: Option<&Path>,
    ) -> Result<Plan, Arc<SandboxError>> {
        let plan = Plan::starting_in(cwd, policy, self.capabilities()?, &HostNames);
        plan.map_err(|error| Arc::new(error.into()))
    }

    fn capabilities(&self) -> Result<&Capabilities, Arc<SandboxError>> {
        if let Some(known) = self.capabilities.get() {
            return Ok(known);
        }
        let executable = self.executable.as_deref().ok_or(SandboxError::NoProbe)?;
        let findings =
            Capabilities::ask(executable).map_err(|source| SandboxError::Probe { source })?;
        Ok(self.capabilities.get_or_init(|| findings.capabilities()))
    }

    /// Whether the ceiling, if there is one, can be enforced. Blocks.
    pub(crate) fn check_ceiling(&self) -> Result<(), Arc<SandboxError>> {
        match self.ceiling_policy()? {
            Some(policy) => self.plan(policy, None).map(drop),
            None => Ok(()),
        }
    }

    /// Whether requests that the server itself carries out may use the network.
    pub(crate) fn allows_network(&self) -> bool {
        self.ceiling.require.is_none() || self.ceiling.network
    }

    fn ceiling_policy(&self) -> Result<Option<&Policy>, Arc<SandboxError>> {
        let resolved = self.ceiling_policy.get_or_init(|| {
            let Some(level) = self.ceiling.require else { return Ok(None) };
            let network = if self.ceiling.network { Network::Enabled } else { Network::Restricted };
            let policy = match level {
                SandboxLevel::ReadOnly => wire::read_only(network),
                SandboxLevel::WorkspaceWrite => {
                    let roots = self.ceiling_roots()?.into_iter().map(EntryPath::Path);
                    let temporary = [EntryPath::Tmpdir, EntryPath::SlashTmp];
                    wire::workspace_write(roots.chain(temporary), network)
                }
            };
            let around = PolicyContext { tmpdir: wire::own_tmpdir(), ..PolicyContext::default() };
            self.resolve(&policy, &around).map(Some)
        });
        resolved.as_ref().map(Option::as_ref).map_err(Arc::clone)
    }

    fn resolve(
        &self,
        policy: &DeclaredPolicy,
        around: &PolicyContext,
    ) -> Result<Policy, Arc<SandboxError>> {
        let (trusted, home) = (self.trusted_links.clone(), self.home.clone());
        let mut around = PolicyContext {
            protected_paths: self.protected.clone(),
            link_trust: LinkTrust { written: self.written_roots(), trusted, home },
            ..around.clone()
        };
        loop {
            let policy = Policy::resolve(policy, &around, &HostNames)
                .map_err(|error| Arc::new(error.into()))?;
            // A sandbox that began meanwhile could have made a symlink before it was looked at.
            let written = self.written_roots();
            if written == around.link_trust.written {
                return Ok(policy);
            }
            around.link_trust.written = written;
        }
    }

    fn written_roots(&self) -> WrittenRoots {
        self.history.roots().unwrap_or_else(|error| {
            self.reported.call_once(|| {
                tracing::warn!(
                    "it is unknown what earlier sandboxes could write, so no symlink is trusted: {error}"
                );
            });
            WrittenRoots::Unknown
        })
    }

    fn ceiling_roots(&self) -> Result<Vec<PathBuf>, Arc<SandboxError>> {
        for missing in self.ceiling.writable_roots.iter().filter(|root| !root.is_dir()) {
            tracing::warn!(root = %missing.display(), "a writable root of the sandbox is no directory");
        }
        if !self.ceiling.writable_roots.is_empty() {
            return Ok(self.ceiling.writable_roots.clone());
        }
        let cwd = std::env::current_dir();
        Ok(vec![cwd.map_err(|source| SandboxError::NoWorkspace { source })?])
    }
}

/// Why a sandbox cannot be had, in the words and codes of the protocol.
pub(crate) fn to_rpc_error(error: &SandboxError) -> RpcError {
    match error {
        SandboxError::Policy(error) => {
            RpcError::invalid_params(error.to_string()).with_kind(ErrorKind::BadSandbox)
        }
        SandboxError::WorkingDirectory { .. } => {
            RpcError::invalid_request(error.to_string()).with_kind(ErrorKind::SandboxDenied)
        }
        SandboxError::NoThread => {
            RpcError::internal(error.to_string()).with_kind(ErrorKind::OutOfResources)
        }
        _ => RpcError::invalid_request(error.to_string()).with_kind(ErrorKind::SandboxUnavailable),
    }
}

#[cfg(test)]
mod tests {
    use exec_server_host::sandbox::Access;

    use super::*;

    fn request(text: &str) -> SandboxRequest {
        serde_json::from_str(text).unwrap()
    }

    fn under(ceiling: SandboxCeiling) -> SandboxResolver {
        SandboxResolver::new(&ServerConfig { sandbox: ceiling, ..ServerConfig::default() }, None)
    }

    fn policy(sandboxes: &SandboxResolver, sandbox: Option<&str>, cwd: &Path) -> Option<Policy> {
        let sandbox = sandbox.map(request);
        let asked = sandboxes.read(sandbox.as_ref(), Some(cwd)).unwrap()?;
        Some(sandboxes.policy(&asked).unwrap())
    }

    #[test]
    fn without_a_ceiling_a_request_has_what_it_asks_for() {
        let workspace = tempfile::tempdir().unwrap();
        let root = workspace.path().canonicalize().unwrap();
        let free = under(SandboxCeiling::default());
        assert_eq!(policy(&free, None, &root), None);
        let nothing = r#"{"type":"danger-full-access"}"#;
        assert_eq!(policy(&free, Some(nothing), &root), None);

        let workspace_write =
            r#"{"type":"workspace-write","exclude_slash_tmp":true,"exclude_tmpdir_env_var":true}"#;
        let policy = policy(&free, Some(workspace_write), &root).unwrap();
        assert_eq!(policy.network(), Network::Restricted);
        assert_eq!(policy.access(&root.join("src")), Access::Write);
        assert_eq!(policy.access(&root.join(".git/hooks")), Access::Read);
        assert_eq!(policy.access(Path::new("/etc/passwd")), Access::Read);
    }

    #[test]
    fn nobody_talks_his_way_out_of_the_ceiling() {
        let workspace = tempfile::tempdir().unwrap();
        let root = workspace.path().canonicalize().unwrap();
        let (inside, outside) = (root.join("inside"), root.join("outside"));
        std::fs::create_dir(&inside).unwrap();
        std::fs::create_dir(&outside).unwrap();
        let read_only = under(SandboxCeiling {
            require: Some(SandboxLevel::ReadOnly),
            ..SandboxCeiling::default()
        });
        let writable = under(SandboxCeiling {
            require: Some(SandboxLevel::WorkspaceWrite),
            writable_roots: vec![inside.clone()],
            network: false,
        });
        let greedy = format!(
            r#"{{"type":"workspace-write","writable_roots":["/",{root:?}],"network_access":true}}"#
        );
        for sandbox in [
            None,
            Some(r#"{"type":"danger-full-access"}"#),
            Some(r#"{"type":"external-sandbox","network_access":"enabled"}"#),
            Some(r#"{"permissions":{"type":"disabled"}}"#),
            Some(greedy.as_str()),
        ] {
            let narrow = policy(&read_only, sandbox, &inside).unwrap();
            assert_eq!(narrow.network(), Network::Restricted, "{sandbox:?}");
            assert_eq!(narrow.access(&inside), Access::Read, "{sandbox:?}");
            let wide = policy(&writable, sandbox, &outside).unwrap();
            assert_eq!(wide.access(&inside.join("file")), Access::Write, "{sandbox:?}");
            assert_eq!(wide.access(&inside.join(".git")), Access::Read, "{sandbox:?}");
            assert_eq!(wide.access(Path::new("/etc/passwd")), Access::Read, "{sandbox:?}");
        }
        assert!(!writable.allows_network());
        let files = writable.file_policy(None).unwrap().unwrap();
        assert_eq!(files.access(&inside.join("file")), Access::Write);
    }

    #[test]
    fn the_same_question_is_answered_from_memory() {
        let sandboxes = under(SandboxCeiling::default());
        let sandbox = request(r#"{"type":"read-only"}"#);
        assert_eq!(sandboxes.known_file_policy(None), Some(None));
        assert_eq!(sandboxes.known_file_policy(Some(&sandbox)), None);
        let policy = sandboxes.file_policy(Some(&sandbox)).unwrap();
        assert_eq!(sandboxes.known_file_policy(Some(&sandbox)), Some(policy));
    }

    #[test]
    fn what_only_restricts_the_network_leaves_files_alone() {
        let sandboxes = under(SandboxCeiling::default());
        let external = request(r#"{"type":"external-sandbox"}"#);
        assert_eq!(sandboxes.file_policy(Some(&external)).unwrap(), None);
        let asked = sandboxes.read(Some(&external), None).unwrap().unwrap();
        assert_eq!(sandboxes.policy(&asked).unwrap().network(), Network::Restricted);
    }

    #[test]
    fn an_unknown_place_may_be_granted_in_vain_but_not_denied() {
        let sandboxes = under(SandboxCeiling::default());
        let with = |access: &str| {
            let entry = format!(
                r#"{{"path":{{"type":"special","value":{{"kind":"moon"}}}},"access":"{access}"}}"#
            );
            request(&format!(
                r#"{{"permissions":{{"type":"managed","network":"restricted","file_system":{{"type":"restricted","entries":[{entry}]}}}}}}"#
            ))
        };
        let error = sandboxes.read(Some(&with("deny")), None).unwrap_err();
        assert!(error.message.contains("moon"), "{}", error.message);
        let granted = sandboxes.file_policy(Some(&with("write"))).unwrap().unwrap();
        assert_eq!(granted.access(Path::new("/etc/passwd")), Access::Deny);
    }

    #[test]
    fn a_part_of_a_special_path_is_not_taken_for_all_of_it() {
        let sandboxes = under(SandboxCeiling::default());
        for (value, member) in [
            (r#"{"kind":"tmpdir","subpath":"mine"}"#, "subpath"),
            (r#"{"kind":"project_roots","sub_path":"docs"}"#, "sub_path"),
        ] {
            let sandbox = request(&format!(
                r#"{{"permissions":{{"type":"managed","network":"restricted","file_system":{{"type":"restricted","entries":[{{"path":{{"type":"special","value":{value}}},"access":"write"}}]}}}}}}"#
            ));
            let error = sandboxes.read(Some(&sandbox), None).unwrap_err();
            assert!(error.message.contains(member), "{}", error.message);
        }
    }

    #[test]
    fn how_others_find_the_server_is_not_for_sandboxes_to_change() {
        let workspace = tempfile::tempdir().unwrap();
        let root = workspace.path().canonicalize().unwrap();
        let runtime = root.join("runtime");
        std::fs::create_dir(&runtime).unwrap();
        let config =
            ServerConfig { protected_paths: vec![runtime.clone()], ..ServerConfig::default() };
        let sandboxes = SandboxResolver::new(&config, None);
        let policy = policy(&sandboxes, Some(r#"{"type":"workspace-write"}"#), &root).unwrap();
        assert_eq!(policy.access(&root.join("file")), Access::Write);
        assert_eq!(policy.access(&runtime.join("server.json")), Access::Read);
    }

    #[test]
    fn a_machine_that_was_never_asked_enforces_nothing() {
        let sandboxes = under(SandboxCeiling {
            require: Some(SandboxLevel::ReadOnly),
            ..SandboxCeiling::default()
        });
        let error = sandboxes.check_ceiling().unwrap_err();
        assert_eq!(to_rpc_error(&error).kind(), Some(&ErrorKind::SandboxUnavailable));
    }
}
