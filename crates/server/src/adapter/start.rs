//! From `process/start` to a command of the host: parses the request, checks permissions, and
//! explains failures.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use exec_server_host::process::launch::{Command, Io, LaunchError, Launcher, PtySize};
use exec_server_host::process::{
    Confinement, EnvironmentPolicy, Inherit, LogLimits, LogTotals, OnFull, PatternError,
};
use exec_server_host::sandbox::{
    Access, HostNames, Network, Plan, Policy, SandboxError, StartFacts,
};
use exec_server_protocol::{
    EnvInherit, EnvPolicy, ErrorCode, ErrorKind, ErrorSubject, ExecMode, ExecParams, LimitValues,
    PathUri, RpcError, StartParams, is_proxy_variable,
};

use super::files::FilePool;
use super::limits::GrantedLimits;
use super::names::check_name;
use super::network::{NetworkClient, RequestedNetwork};
use super::process::{ManagedProcess, NotificationDialect, Started, pty_size};
use super::sandbox::{RequestedSandbox, SandboxResolver, to_rpc_error as sandbox_refusal};
use crate::ServerConfig;
use crate::sandboxed_peers::SandboxedPeers;

const DEFAULT_SIZE: PtySize = PtySize { rows: 24, cols: 80 };

#[derive(Debug, Clone, Copy)]
pub(crate) struct StartContext<'a> {
    pub(crate) launcher: &'a Launcher,
    pub(crate) config: &'a ServerConfig,
    pub(crate) sandboxes: &'a Arc<SandboxResolver>,
    pub(crate) sandboxed_peers: &'a Arc<SandboxedPeers>,
    pub(crate) log_totals: &'a Arc<LogTotals>,
    /// For blocking work.
    pub(crate) pool: &'a FilePool,
    pub(crate) network_client: &'a Arc<dyn NetworkClient>,
    /// Upper bounds for each process of the session's owner.
    pub(crate) token_limits: LimitValues,
}

impl ManagedProcess {
    pub(crate) fn start(
        context: StartContext<'_>,
        params: StartParams,
    ) -> Result<Started, RpcError> {
        let config = context.config;
        check_permitted(config, &params)?;
        let asked = context
            .sandboxes
            .read(params.sandbox.as_ref(), Some(params.cwd.as_path()))
            .map_err(|error| error.about(ErrorSubject::Process(params.process_id.clone())))?;
        let network = RequestedNetwork::read(&params, context.sandboxes.hosts())
            .map_err(|error| error.about(ErrorSubject::Process(params.process_id.clone())))?;
        let granted = GrantedLimits::grant(context, params.limits.as_deref(), params.timeout_ms)
            .map_err(|error| error.about(ErrorSubject::Process(params.process_id.clone())))?;
        let asked = confinement(asked, network, &params.cwd);
        let env = match &params.env_policy {
            Some(policy) => {
                let env = environment(policy, &params.env).map_err(|error| {
                    let subject = ErrorSubject::Process(params.process_id.clone());
                    RpcError::invalid_params(error.to_string()).about(subject)
                })?;
                let is_managed = asked.as_ref().is_some_and(|asked| asked.network.is_some());
                if is_managed { without_inherited_proxies(env, policy, &params.env) } else { env }
            }
            None => pairs(&params.env),
        };
        let on_full = match params.on_full {
            exec_server_protocol::OnFull::Block => OnFull::Block,
            exec_server_protocol::OnFull::Discard => OnFull::Discard,
        };
        let command = Command {
            argv: params.argv.iter().map(OsString::from).collect(),
            arg0: params.arg0.map(OsString::from),
            cwd: params.cwd.into_path(),
            env,
            io: match params.tty {
                true => Io::Pty(params.size.map_or(DEFAULT_SIZE, pty_size)),
                false => Io::Pipes { stdin: params.pipe_stdin },
            },
            kill_on_exit: params.kill_on_exit,
            sandbox: None,
            limits: granted.of_host(),
        };
        let limits = LogLimits {
            memory_bytes: config.retained_output_bytes_per_process,
            spill_bytes: config.spill_output_bytes_per_process,
            on_full,
            totals: Arc::clone(context.log_totals),
        };
        let identity = (params.process_id, params.argv, NotificationDialect::Current);
        Ok(Self::spawn(context, command, asked, limits, granted, identity))
    }

    /// Starts a process without a keeper, for tests of a running process.
    #[cfg(test)]
    pub(crate) fn start_plain(config: &ServerConfig, params: StartParams) -> Started {
        let sandboxes = Arc::new(SandboxResolver::new(config, None));
        let (launcher, pool) = (&Launcher::plain(), &FilePool::default());
        let (sandboxes, sandboxed_peers) = (&sandboxes, &Arc::default());
        let network_client = &(Arc::new(super::network::NoClient) as Arc<dyn NetworkClient>);
        let log_totals = &Arc::default();
        let context = StartContext {
            launcher,
            config,
            sandboxes,
            sandboxed_peers,
            log_totals,
            pool,
            network_client,
            token_limits: LimitValues::default(),
        };
        Self::start(context, params).unwrap()
    }

    /// Like `start`, for the v0 method `command/exec`.
    pub(crate) fn start_legacy(
        context: StartContext<'_>,
        params: ExecParams,
    ) -> Result<Started, RpcError> {
        let config = context.config;
        check_argv(&params.process_id, &params.argv)?;
        check_mode(config, &params.process_id, ExecMode::Direct)?;
        // The request has no limits, but those of the operator and the token apply.
        let granted = GrantedLimits::grant(context, None, None)?;
        let retained = config.retained_output_bytes_per_process;
        let cap = params.output_bytes_cap.and_then(|cap| usize::try_from(cap).ok());
        let command = Command {
            argv: params.argv.iter().map(OsString::from).collect(),
            arg0: params.arg0.map(OsString::from),
            cwd: params.cwd.as_path().to_owned(),
            env: pairs(&params.env),
            io: if params.tty { Io::Pty(DEFAULT_SIZE) } else { Io::Pipes { stdin: false } },
            kill_on_exit: false,
            sandbox: None,
            limits: granted.of_host(),
        };
        let limits = LogLimits {
            memory_bytes: cap.map_or(retained, |cap| cap.min(retained)),
            spill_bytes: config.spill_output_bytes_per_process,
            on_full: OnFull::Block,
            totals: Arc::clone(context.log_totals),
        };
        let identity = (params.process_id, params.argv, NotificationDialect::Legacy);
        // The request has no sandbox, but the ceilings apply.
        let start = StartParams::new(&identity.0, [""; 0], params.cwd);
        let network = RequestedNetwork::read(&start, context.sandboxes.hosts())?;
        let asked = confinement(context.sandboxes.read(None, None)?, network, &start.cwd);
        Ok(Self::spawn(context, command, asked, limits, granted, identity))
    }
}

pub(crate) fn start_error(process_id: &str, error: &LaunchError) -> RpcError {
    let (code, kind) = match error {
        LaunchError::WorkingDirectory { source, .. } => match source.kind() {
            io::ErrorKind::NotFound => (ErrorCode::NotFound, ErrorKind::CwdNotFound),
            _ => (ErrorCode::InvalidParams, ErrorKind::BadCwd),
        },
        LaunchError::NotFound { .. } => (ErrorCode::InvalidRequest, ErrorKind::ProgramNotFound),
        LaunchError::NotExecutable { .. } | LaunchError::NoInterpreter { .. } => {
            (ErrorCode::InvalidRequest, ErrorKind::NotExecutable)
        }
        LaunchError::NoProgram
        | LaunchError::ArgumentsTooLong { .. }
        | LaunchError::NulByte { .. }
        | LaunchError::EnvironmentName { .. } => (ErrorCode::InvalidParams, ErrorKind::BadCommand),
        LaunchError::Resources { .. } => (ErrorCode::InternalError, ErrorKind::OutOfResources),
        LaunchError::NoSandbox(error) => {
            return sandbox_refusal(error).about(ErrorSubject::Process(process_id.to_owned()));
        }
        LaunchError::Sandbox { .. } | LaunchError::SandboxWithoutKeeper => {
            (ErrorCode::InvalidRequest, ErrorKind::SandboxUnavailable)
        }
        LaunchError::Limits { .. } => (ErrorCode::InternalError, ErrorKind::LimitsUnavailable),
        LaunchError::SpawnerUnavailable { .. }
        | LaunchError::KeeperLost { .. }
        | LaunchError::Terminated { .. }
        | LaunchError::Panicked { .. }
        | LaunchError::Setup { .. } => (ErrorCode::InternalError, ErrorKind::CannotStart),
    };
    RpcError::new(code, error.to_string())
        .with_kind(kind)
        .about(ErrorSubject::Process(process_id.to_owned()))
}

fn check_permitted(config: &ServerConfig, params: &StartParams) -> Result<(), RpcError> {
    let id = &params.process_id;
    let subject = || ErrorSubject::Process(id.clone());
    check_name("processId", id)?;
    check_argv(id, &params.argv)?;
    check_mode(config, id, params.mode)?;
    if params.mode == ExecMode::Prepared
        && (params.env_policy.is_some() || params.sandbox.is_some())
    {
        let message = "mode \"prepared\" takes neither envPolicy nor sandbox";
        return Err(RpcError::invalid_params(message).about(subject()));
    }
    if params.size.is_some() && !params.tty {
        return Err(RpcError::invalid_params("size requires a terminal; set tty").about(subject()));
    }
    if params.timeout_ms == Some(0) {
        return Err(RpcError::invalid_params("timeoutMs must be at least 1").about(subject()));
    }
    Ok(())
}

/// The requested access of a process: files, and the network if it is managed.
#[derive(Debug, Clone)]
pub(super) struct RequestedConfinement {
    sandbox: RequestedSandbox,
    network: Option<RequestedNetwork>,
}

/// Returns `None` if the process may have the same access as the server.
fn confinement(
    sandbox: Option<RequestedSandbox>,
    network: Option<RequestedNetwork>,
    cwd: &PathUri,
) -> Option<RequestedConfinement> {
    let sandbox = match (sandbox, &network) {
        (None, Some(_)) => Some(RequestedSandbox::unrestricted(cwd.as_path())),
        (sandbox, _) => sandbox,
    };
    sandbox.map(|sandbox| RequestedConfinement { sandbox, network })
}

/// Plans the enforcement on a thread that may block, and stores the plan in `sandbox`, where the
/// process finds it.
pub(super) fn planned(
    context: StartContext<'_>,
    asked: RequestedConfinement,
    process_id: String,
    cwd: PathBuf,
    sandbox: Arc<OnceLock<Arc<Plan>>>,
) -> impl Future<Output = Result<Confinement, Arc<SandboxError>>> + Send + use<> {
    let sandboxes = Arc::clone(context.sandboxes);
    let client = Arc::clone(context.network_client);
    let planned = context.pool.compute(move || {
        let mut policy = sandboxes.policy(&asked.sandbox)?;
        if let Some(network) = &asked.network {
            policy = sandboxes.with_managed_network(&policy, network.is_requested);
        }
        check_cwd(&policy, &cwd)?;
        let gate = asked.network.as_ref().map(|network| &network.gate);
        let mut plan = sandboxes.plan(&policy, StartFacts { cwd: Some(&cwd), gate })?;
        let gate = match asked.network.filter(|_| plan.network == Network::Managed) {
            Some(network) => Some(network.plan_gate(&mut plan, &process_id, client)?),
            None => None,
        };
        let plan = Arc::new(plan);
        let _ = sandbox.set(Arc::clone(&plan));
        Ok(Confinement { plan, gate })
    });
    // No result means that no thread could be started, or that the job panicked.
    async { planned.await.unwrap_or_else(|| Err(Arc::new(SandboxError::NoThread))) }
}

/// Fails if the policy hides `cwd`. Landlock lets a process enter any directory, and success would
/// reveal that it exists.
fn check_cwd(policy: &Policy, cwd: &Path) -> Result<(), SandboxError> {
    let is_readable = |path: &Path| policy.access(path) >= Access::Read;
    let allowed = match std::fs::canonicalize(cwd) {
        Ok(real) => is_readable(&real),
        Err(_) => policy.access_through(cwd, &HostNames) >= Access::Read,
    };
    let refused = || SandboxError::WorkingDirectory { path: cwd.to_owned() };
    if allowed || !policy.restricts_files() { Ok(()) } else { Err(refused()) }
}

fn check_argv(id: &str, argv: &[String]) -> Result<(), RpcError> {
    if argv.is_empty() {
        let subject = ErrorSubject::Process(id.to_owned());
        return Err(RpcError::invalid_params("argv is empty; name a program").about(subject));
    }
    Ok(())
}

fn check_mode(config: &ServerConfig, id: &str, mode: ExecMode) -> Result<(), RpcError> {
    let (allowed, name) = match mode {
        ExecMode::Direct => (config.allow_direct_exec, "direct"),
        ExecMode::Prepared => (config.allow_prepared_exec, "prepared"),
    };
    if allowed {
        return Ok(());
    }
    let message = format!("the operator does not allow mode {name:?} (allow_{name}_exec)");
    let error = RpcError::invalid_request(message);
    Err(error.with_kind(ErrorKind::ModeForbidden).about(ErrorSubject::Process(id.to_owned())))
}

fn environment(
    policy: &EnvPolicy,
    on_top: &BTreeMap<String, String>,
) -> Result<Vec<(OsString, OsString)>, PatternError> {
    let policy = EnvironmentPolicy {
        inherit: match policy.inherit {
            EnvInherit::Core => Inherit::Core,
            EnvInherit::All => Inherit::All,
            EnvInherit::None => Inherit::None,
        },
        ignore_default_excludes: policy.ignore_default_excludes,
        exclude: policy.exclude.clone(),
        set: policy.set.clone(),
        include_only: policy.include_only.clone(),
    };
    let mut environment = policy.apply(std::env::vars_os())?;
    environment.extend(pairs(on_top));
    Ok(environment.into_iter().collect())
}

/// Removes the server's proxy variables, which do not name the proxies of the gate.
fn without_inherited_proxies(
    env: Vec<(OsString, OsString)>,
    policy: &EnvPolicy,
    on_top: &BTreeMap<String, String>,
) -> Vec<(OsString, OsString)> {
    let is_set = |name: &str| on_top.contains_key(name) || policy.set.contains_key(name);
    let is_kept = |name: &OsString| match name.to_str() {
        Some(name) => !is_proxy_variable(name) || is_set(name),
        None => true,
    };
    env.into_iter().filter(|(name, _)| is_kept(name)).collect()
}

fn pairs(env: &BTreeMap<String, String>) -> Vec<(OsString, OsString)> {
    env.iter().map(|(name, value)| (name.into(), value.into())).collect()
}

#[cfg(test)]
mod tests {
    use exec_server_host::sandbox::{
        DeclaredFiles, DeclaredPolicy, Entry, EntryPath, Network, PolicyContext,
    };

    use super::*;

    #[test]
    fn a_working_directory_reveals_nothing_outside_the_sandbox() {
        let scene = tempfile::tempdir().unwrap();
        let root = scene.path().canonicalize().unwrap();
        for name in ["work", "outside/there"] {
            std::fs::create_dir_all(root.join(name)).unwrap();
        }
        for (link, target) in [("a", "../outside/there"), ("b", "../outside/gone"), ("c", "gone")] {
            std::os::unix::fs::symlink(target, root.join("work").join(link)).unwrap();
        }
        let path = EntryPath::Path(root.join("work"));
        let entries = vec![Entry { path, access: Access::Read, skip_missing: false }];
        let files = DeclaredFiles::Restricted { entries, glob_scan_max_depth: None };
        let declared = DeclaredPolicy { files, network: Network::Restricted };
        let policy = Policy::resolve(&declared, &PolicyContext::default(), &HostNames).unwrap();
        let is_allowed = |name: &str| check_cwd(&policy, &root.join(name)).is_ok();
        for name in ["outside/there", "outside/gone", "work/a", "work/b", "work/b/below"] {
            assert!(!is_allowed(name), "{name}");
        }
        for name in ["work", "work/gone", "work/c"] {
            assert!(is_allowed(name), "{name}");
        }
    }
}
