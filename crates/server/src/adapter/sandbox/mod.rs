//! Chooses the policy of a request: the requested access, limited by the ceilings of the operator
//! and of the client's token.
//!
//! A client cannot bypass the ceilings: a request without a sandbox runs under the ceilings alone,
//! and one with a sandbox gets only what the sandbox and all ceilings allow.

mod ceiling;
mod recent;
mod secrets;
mod wire;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Once, OnceLock};

use exec_server_host::sandbox::{
    Capabilities, DeclaredPolicy, GateRequest, HostNames, LinkTrust, Network, Plan, Policy,
    PolicyContext, SandboxError, StartFacts, WriteHistory, WrittenRoots,
};
use exec_server_protocol::{
    ErrorCode, ErrorKind, HostRules, Principal, Role, RpcError, SandboxCeiling, SandboxLevel,
    SandboxRequest,
};

use crate::ServerConfig;
use ceiling::Ceiling;
use recent::Recent;
use wire::RequestedPolicy;
pub(crate) use wire::own_tmpdir;

/// Resolves the policies of requests under the same ceilings.
#[derive(Debug)]
pub(crate) struct SandboxResolver {
    machine: Arc<Machine>,
    /// Ceilings of the operator and of a principal. All of them apply.
    ceilings: Vec<Arc<Ceiling>>,
    /// Host rules of the operator and of a token. All of them apply.
    hosts: Vec<Arc<HostRules>>,
    recent: Recent,
}

/// The state that all requests share.
#[derive(Debug)]
struct Machine {
    /// Read-only in every sandbox.
    protected: Vec<PathBuf>,
    /// Neither readable nor writable in any sandbox.
    secret: Vec<PathBuf>,
    trusted_links: Vec<PathBuf>,
    home: Option<PathBuf>,
    /// An unreadable history is logged once.
    reported: Once,
    history: WriteHistory,
    /// Runs the probes. Without it, nothing is known about this machine, and every plan fails.
    executable: Option<PathBuf>,
    /// A failed probe is repeated: it may have lacked memory or processes.
    capabilities: OnceLock<Capabilities>,
}

/// A parsed sandbox request that is not yet resolved on this machine.
#[derive(Debug, Clone)]
pub(crate) struct RequestedSandbox {
    requested: Option<RequestedPolicy>,
    cwd: Option<PathBuf>,
}

impl RequestedSandbox {
    /// Requests no sandbox, for a process that is confined for other reasons.
    pub(crate) fn unrestricted(cwd: &Path) -> Self {
        Self { requested: None, cwd: Some(cwd.to_owned()) }
    }
}

impl SandboxResolver {
    pub(crate) fn new(config: &ServerConfig, executable: Option<PathBuf>) -> Self {
        let machine = Machine {
            protected: config.protected_paths.clone(),
            secret: config.secret_paths.clone(),
            trusted_links: config.trusted_links.clone(),
            home: std::env::home_dir(),
            reported: Once::new(),
            history: WriteHistory::new(config.write_history.clone()),
            executable,
            capabilities: OnceLock::new(),
        };
        let ceilings = Ceiling::new(&config.sandbox).map(Arc::new).into_iter().collect();
        let hosts = config.sandbox.hosts.iter().cloned().map(Arc::new).collect();
        Self { machine: Arc::new(machine), ceilings, hosts, recent: Recent::default() }
    }

    /// Adds the ceilings of a principal. The file methods of an observer only read, but they must
    /// not read the secrets of the server, so observers get a read-only ceiling.
    pub(crate) fn under(self: &Arc<Self>, principal: &Principal) -> Arc<Self> {
        let require = Some(SandboxLevel::ReadOnly);
        let read_only = SandboxCeiling { require, ..SandboxCeiling::default() };
        let of_role = (principal.role == Role::Observer).then_some(&read_only);
        let added = [Some(&principal.ceiling), of_role].into_iter().flatten();
        let added: Vec<_> = added.filter_map(Ceiling::new).map(Arc::new).collect();
        if added.is_empty() && principal.ceiling.hosts.is_none() {
            return Arc::clone(self);
        }
        let ceilings = self.ceilings.iter().cloned().chain(added).collect();
        let added = principal.ceiling.hosts.iter().cloned().map(Arc::new);
        let hosts = self.hosts.iter().cloned().chain(added).collect();
        let machine = Arc::clone(&self.machine);
        Arc::new(Self { machine, ceilings, hosts, recent: Recent::default() })
    }

    /// Returns `None` if the request may have the same access as the server.
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
        let is_restricted = !is_free || !self.ceilings.is_empty();
        let cwd = cwd.map(Path::to_owned);
        Ok(is_restricted.then_some(RequestedSandbox { requested, cwd }))
    }

    /// Resolves a policy on this machine. Blocks.
    pub(crate) fn policy(&self, asked: &RequestedSandbox) -> Result<Policy, Arc<SandboxError>> {
        let mut policy = match &asked.requested {
            Some(RequestedPolicy { policy: Some(policy), around }) => {
                Some(self.machine.resolve(policy, around)?)
            }
            _ => None,
        };
        for ceiling in &self.ceilings {
            let most = ceiling.policy(&self.machine)?;
            policy = Some(policy.map_or_else(|| most.clone(), |policy| policy.intersect(most)));
        }
        let policy = policy.unwrap_or_else(|| Policy::unrestricted(Network::Enabled));
        let policy = self.machine.hide_secrets(policy, self.used_paths(asked))?;
        self.machine.history.add(&policy).map_err(SandboxError::from)?;
        Ok(policy)
    }

    /// Returns the paths in use: a directory that contains one of them is not hidden along with the
    /// secrets in it. Under a ceiling, the client's own paths do not count: a client could name a
    /// path in such a directory in order to see the directory.
    fn used_paths(&self, asked: &RequestedSandbox) -> Vec<PathBuf> {
        if !self.ceilings.is_empty() {
            return self.ceilings.iter().flat_map(|ceiling| ceiling.roots()).flatten().collect();
        }
        let requested = asked.requested.iter();
        let roots = requested.flat_map(|requested| requested.around.workspace_roots.clone());
        roots.chain(asked.cwd.clone()).collect()
    }

    /// Returns the policy of a file request, from the cache if the same sandbox was requested a
    /// moment ago. `None`: no restriction of files. May block.
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
                // File methods return -32602 only for params that do not decode.
                let code = ErrorCode::InvalidRequest.value();
                let policy = self.policy(&asked);
                let policy = policy.map_err(|error| RpcError { code, ..to_rpc_error(&error) })?;
                policy.restricts_files().then_some(policy)
            }
        };
        self.recent.remember(sandbox, policy.clone());
        Ok(policy)
    }

    /// Returns the policy of a file request if it needs no resolving; an inner `None` means no
    /// restriction of files. Never blocks.
    pub(crate) fn known_file_policy(
        &self,
        sandbox: Option<&SandboxRequest>,
    ) -> Option<Option<Policy>> {
        if sandbox.is_none() && self.ceilings.is_empty() {
            return Some(None);
        }
        self.recent.find(sandbox)
    }

    /// Blocks; the first call takes long.
    pub(crate) fn plan(
        &self,
        policy: &Policy,
        start: StartFacts<'_>,
    ) -> Result<Plan, Arc<SandboxError>> {
        let plan = Plan::for_start(start, policy, self.machine.capabilities()?, &HostNames);
        plan.map_err(|error| Arc::new(error.into()))
    }

    /// Blocks.
    pub(crate) fn check_ceilings(&self) -> Result<(), Arc<SandboxError>> {
        for ceiling in &self.ceilings {
            self.plan(ceiling.policy(&self.machine)?, StartFacts::default())?;
        }
        Ok(())
    }

    /// Returns whether the machine has been probed or cannot be probed. If so, no method of the
    /// resolver blocks for long.
    pub(crate) fn is_machine_probed(&self) -> bool {
        self.machine.capabilities.get().is_some() || self.machine.executable.is_none()
    }

    /// The first call blocks.
    pub(crate) fn can_manage_network(&self) -> bool {
        let gate = GateRequest::default();
        let start = StartFacts { cwd: None, gate: Some(&gate) };
        self.plan(&Policy::unrestricted(Network::Managed), start).is_ok()
    }

    pub(crate) fn hosts(&self) -> &[Arc<HostRules>] {
        &self.hosts
    }

    /// Returns the policy with a managed network, or without a network if the ceilings deny it. If
    /// the policy denies the network, only a start that requests a managed network gets one.
    pub(crate) fn with_managed_network(&self, policy: &Policy, is_requested: bool) -> Policy {
        let allowed = if self.allows_network() { Network::Managed } else { Network::Restricted };
        let asked = if is_requested { Network::Managed } else { policy.network() };
        policy.with_network(allowed.min(asked))
    }

    pub(crate) fn allows_network(&self) -> bool {
        self.ceilings.iter().all(|ceiling| ceiling.allows_network())
    }
}

impl Machine {
    fn capabilities(&self) -> Result<&Capabilities, Arc<SandboxError>> {
        if let Some(known) = self.capabilities.get() {
            return Ok(known);
        }
        let executable = self.executable.as_deref().ok_or(SandboxError::NoProbe)?;
        let findings =
            Capabilities::ask(executable).map_err(|source| SandboxError::Probe { source })?;
        Ok(self.capabilities.get_or_init(|| findings.capabilities()))
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
            // A sandbox that started in the meantime could have created a symlink before the check
            // above.
            let written = self.written_roots();
            if written == around.link_trust.written {
                return Ok(policy);
            }
            around.link_trust.written = written;
        }
    }

    /// Hides the secrets of the server. A client that reads the token signing key could make a
    /// token without a ceiling. The paths are resolved each time: a secret may be replaced by a
    /// symlink to another file.
    fn hide_secrets(
        &self,
        policy: Policy,
        mut used: Vec<PathBuf>,
    ) -> Result<Policy, Arc<SandboxError>> {
        if self.secret.is_empty() || !policy.restricts_files() {
            return Ok(policy);
        }
        used.extend(self.home.clone());
        let hidden = secrets::hidden_places(&self.secret, &used);
        let hiding = Policy::hiding(&hidden, &HostNames).map_err(|error| Arc::new(error.into()))?;
        Ok(policy.intersect(&hiding))
    }

    fn written_roots(&self) -> WrittenRoots {
        self.history.roots().unwrap_or_else(|error| {
            self.reported.call_once(|| {
                tracing::warn!(
                    %error,
                    "cannot read the record of writable directories; until it is repaired, requests \
                     may be refused if their paths lead through symlinks that are not in trusted_links"
                );
            });
            WrittenRoots::Unknown
        })
    }
}

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
    fn without_a_ceiling_a_request_gets_the_access_it_asks_for() {
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
    fn no_request_escapes_the_ceiling() {
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
            hosts: None,
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
    fn the_lower_of_two_ceilings_applies() {
        let workspace = tempfile::tempdir().unwrap();
        let root = workspace.path().canonicalize().unwrap();
        let [both, operators, tokens] = ["both", "operators", "tokens"].map(|name| {
            let directory = root.join(name);
            std::fs::create_dir(&directory).unwrap();
            directory
        });
        let ceiling = |root: &PathBuf, network| SandboxCeiling {
            require: Some(SandboxLevel::WorkspaceWrite),
            writable_roots: vec![both.clone(), root.clone()],
            network,
            hosts: None,
        };
        let operator = Arc::new(under(ceiling(&operators, true)));
        let principal = Principal { ceiling: ceiling(&tokens, false), ..Principal::local() };
        let agent = operator.under(&principal);
        let policy = agent.file_policy(None).unwrap().unwrap();
        assert_eq!(policy.access(&both.join("file")), Access::Write);
        assert_eq!(policy.network(), Network::Restricted);
        assert!(operator.allows_network() && !agent.allows_network());
        assert!(Arc::ptr_eq(&operator, &operator.under(&Principal::local())));

        let observer = Principal { role: Role::Observer, ..Principal::local() };
        let policy = operator.under(&observer).file_policy(None).unwrap().unwrap();
        assert_eq!(policy.access(&both.join("file")), Access::Read);
    }

    #[test]
    fn secrets_are_hidden_from_every_sandbox() {
        let workspace = tempfile::tempdir().unwrap();
        let root = workspace.path().canonicalize().unwrap();
        let secret = root.join("secret");
        std::fs::write(&secret, "s").unwrap();
        let config = ServerConfig { secret_paths: vec![secret.clone()], ..ServerConfig::default() };
        let sandboxes = SandboxResolver::new(&config, None);
        let exactly = format!(
            r#"{{"permissions":{{"type":"managed","network":"enabled","file_system":{{
                "type":"restricted","entries":[{{"path":{{"type":"path","path":{:?}}},
                "access":"write"}}]}}}}}}"#,
            format!("file://{}", secret.display())
        );
        for sandbox in [r#"{"type":"read-only"}"#, r#"{"type":"workspace-write"}"#, &exactly] {
            let policy = policy(&sandboxes, Some(sandbox), &root).unwrap();
            assert_eq!(policy.access(&secret), Access::Deny, "{sandbox}");
        }
        // The same holds under a ceiling that was resolved before the file was replaced.
        let read_only =
            SandboxCeiling { require: Some(SandboxLevel::ReadOnly), ..SandboxCeiling::default() };
        let sandboxes = SandboxResolver::new(&ServerConfig { sandbox: read_only, ..config }, None);
        let asked = sandboxes.read(None, None).unwrap().unwrap();
        assert_eq!(sandboxes.policy(&asked).unwrap().access(&secret), Access::Deny);
        let renewed = root.join("renewed");
        std::fs::rename(&secret, &renewed).unwrap();
        std::os::unix::fs::symlink(&renewed, &secret).unwrap();
        assert_eq!(sandboxes.policy(&asked).unwrap().access(&renewed), Access::Deny);
    }

    #[test]
    fn a_repeated_request_gets_the_cached_policy() {
        let sandboxes = under(SandboxCeiling::default());
        let sandbox = request(r#"{"type":"read-only"}"#);
        assert_eq!(sandboxes.known_file_policy(None), Some(None));
        assert_eq!(sandboxes.known_file_policy(Some(&sandbox)), None);
        let policy = sandboxes.file_policy(Some(&sandbox)).unwrap();
        assert_eq!(sandboxes.known_file_policy(Some(&sandbox)), Some(policy));
    }

    #[test]
    fn a_network_restriction_leaves_files_alone() {
        let sandboxes = under(SandboxCeiling::default());
        let external = request(r#"{"type":"external-sandbox"}"#);
        assert_eq!(sandboxes.file_policy(Some(&external)).unwrap(), None);
        let asked = sandboxes.read(Some(&external), None).unwrap().unwrap();
        assert_eq!(sandboxes.policy(&asked).unwrap().network(), Network::Restricted);
    }

    #[test]
    fn an_unknown_special_path_can_be_granted_but_not_denied() {
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
    fn a_special_path_with_an_unsupported_member_is_refused() {
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
    fn no_sandbox_may_change_the_server_discovery_files() {
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
    fn a_machine_that_cannot_be_probed_fails_the_ceiling_check() {
        let sandboxes = under(SandboxCeiling {
            require: Some(SandboxLevel::ReadOnly),
            ..SandboxCeiling::default()
        });
        let error = sandboxes.check_ceilings().unwrap_err();
        assert_eq!(to_rpc_error(&error).kind(), Some(&ErrorKind::SandboxUnavailable));
    }
}
