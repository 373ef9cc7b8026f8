//! Builds the request that starts a process from the command line.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Component, Path};
use std::time::Duration;

use anyhow::Context as _;
use exec_server_client::{ExecServerClient, ExecServerError};
use exec_server_protocol::{
    EnvPolicy, ErrorKind, FsCanonicalizeParams, FsGetMetadataParams, LimitsRequest, OnFull,
    PathUri, SandboxRequest, StartParams, TerminalSize, is_proxy_variable,
};
use exec_server_server::SandboxLevel;
use uuid::Uuid;

use super::servers::absolute;
use super::wording::{one_line, without_id, without_path};
use crate::cli::client::Variable;
use crate::cli::sandbox::{SandboxFlags, SandboxMode};
use crate::environment::host_options::HostOptions;
use crate::environment::sandbox_options::SandboxOptions;
use crate::program::exit_code::ExitStatus;
use crate::program::say;
use crate::target::Target;

#[derive(Debug)]
pub(crate) struct StartSpec<'a> {
    pub(crate) process_id: String,
    pub(crate) argv: Vec<String>,
    pub(crate) arg0: Option<String>,
    pub(crate) cwd: Option<&'a OsStr>,
    pub(crate) variables: &'a [Variable],
    /// Use the server's environment even where this command's environment could be passed.
    pub(crate) server_env: bool,
    pub(crate) stdin: bool,
    pub(crate) terminal: Option<TerminalSize>,
    pub(crate) on_full: OnFull,
    pub(crate) sandbox: &'a SandboxFlags,
    pub(crate) hosts: HostOptions,
    pub(crate) timeout: Option<Duration>,
    pub(crate) limits: Option<Box<LimitsRequest>>,
    /// Whether the name must be unique on the server.
    pub(crate) claim_name: bool,
}

impl StartSpec<'_> {
    pub(crate) async fn params(
        self,
        target: &Target,
        client: &ExecServerClient,
    ) -> anyhow::Result<StartParams> {
        let cwd = absolute(self.cwd.map_or(Path::new(""), Path::new), target, client).await?;
        // A server of the same user on the same machine gets the environment of this command. Any
        // other server uses its own, and receives only TERM and the variables that --env names.
        let passes_ours = target.shares_files() && !self.server_env;
        let mut env = if passes_ours { our_environment() } else { BTreeMap::new() };
        if self.hosts.has_rules() {
            // The server sets these variables to the proxies of the managed network.
            env.retain(|name, _| !is_proxy_variable(name));
        }
        let env_policy = (!passes_ours).then(EnvPolicy::default);
        if self.terminal.is_some() {
            copy_variable(&mut env, "TERM");
        }
        for variable in self.variables {
            match variable {
                Variable::Set { name, value } => drop(env.insert(name.clone(), value.clone())),
                Variable::Copied { name } => copy_variable(&mut env, name),
            }
        }
        let (cwd, sandbox) = sandboxed(self.sandbox, &self.hosts, cwd, target, client).await?;
        let network = self.hosts.rules().map(Box::new);
        Ok(StartParams {
            env,
            sandbox,
            env_policy,
            tty: self.terminal.is_some(),
            size: self.terminal,
            pipe_stdin: self.stdin && self.terminal.is_none(),
            arg0: self.arg0,
            on_full: self.on_full,
            timeout_ms: self.timeout.map(milliseconds),
            limits: self.limits,
            claim_name: self.claim_name,
            // Makes a server that does not know `network` refuse the start.
            enforce_managed_network: network.is_some().then_some(true),
            network,
            ..StartParams::new(self.process_id, self.argv, cwd)
        })
    }
}

/// Returns the working directory, as the sandbox sees it, and the sandbox.
async fn sandboxed(
    flags: &SandboxFlags,
    hosts: &HostOptions,
    cwd: PathUri,
    target: &Target,
    client: &ExecServerClient,
) -> anyhow::Result<(PathUri, Option<SandboxRequest>)> {
    let level = match flags.sandbox {
        Some(SandboxMode::ReadOnly) => Some(SandboxLevel::ReadOnly),
        Some(SandboxMode::WorkspaceWrite) => Some(SandboxLevel::WorkspaceWrite),
        Some(SandboxMode::None) | None => None,
    };
    let options = match (level, flags.sandbox) {
        (Some(level), _) => Some(sandbox_options(level, flags, &cwd, target, client).await?),
        (None, Some(_)) => None,
        (None, None) => target.default_sandbox().cloned(),
    };
    let Some(mut options) = options else { return Ok((cwd, None)) };
    options.network &= !hosts.has_rules();
    let cwd = without_parents(cwd, client).await?;
    let request = options.request(&cwd);
    Ok((cwd, Some(request)))
}

async fn sandbox_options(
    level: SandboxLevel,
    flags: &SandboxFlags,
    cwd: &PathUri,
    target: &Target,
    client: &ExecServerClient,
) -> anyhow::Result<SandboxOptions> {
    let SandboxFlags { writable, deny, network, .. } = flags;
    let mut directories = Vec::new();
    for directory in writable {
        let directory = absolute(Path::new(directory), target, client).await?;
        let directory = without_parents(directory, client).await?;
        if !directory.as_path().starts_with(cwd.as_path()) {
            find(&directory, client).await?;
        }
        directories.push(directory);
    }
    Ok(SandboxOptions {
        level,
        writable: directories,
        deny: deny.clone(),
        network: *network,
        hosts: HostOptions::default(),
    })
}

/// Checks that a `--writable` directory outside the working directory exists: a grant of a missing
/// one could silently have no effect. Below the working directory, the server creates missing ones.
async fn find(directory: &PathUri, client: &ExecServerClient) -> anyhow::Result<()> {
    let path = directory.clone();
    let params = FsGetMetadataParams { path, follow_symlinks: None, sandbox: None };
    match client.fs_get_metadata(params).await {
        Err(error) if error.kind() == Some(&ErrorKind::NotFound) => {
            anyhow::bail!(
                "--writable {}: no such directory; create it first",
                directory.as_path().display()
            )
        }
        // The server decides whether it is writable.
        _ => Ok(()),
    }
}

/// Resolves `..` on the server: a policy must not contain it, and only the server knows the
/// symlinks.
async fn without_parents(path: PathUri, client: &ExecServerClient) -> anyhow::Result<PathUri> {
    if !path.as_path().components().any(|component| component == Component::ParentDir) {
        return Ok(path);
    }
    let params = FsCanonicalizeParams { path: path.clone(), sandbox: None };
    let real = client.fs_canonicalize(params).await.map_err(|error| without_path(&path, error));
    Ok(real.with_context(|| format!("cannot find {}", path.as_path().display()))?.path)
}

/// Generates a name that is short enough to type.
pub(crate) fn generated_name() -> String {
    Uuid::new_v4().simple().to_string()[..8].to_owned()
}

/// Converts a command line to UTF-8 for the protocol.
pub(crate) fn words(command: &[OsString]) -> anyhow::Result<Vec<String>> {
    let word = |word: &OsString| {
        word.to_str()
            .map(str::to_owned)
            .with_context(|| format!("{word:?} is not valid UTF-8 and cannot be sent to a server"))
    };
    command.iter().map(word).collect()
}

/// Reports why a command could not be started. Uses a shell's exit codes if the program is missing
/// or not executable.
pub(crate) fn not_started(program: &str, error: ExecServerError) -> anyhow::Result<ExitStatus> {
    let status = match error.kind() {
        Some(ErrorKind::ProgramNotFound) => ExitStatus::NOT_FOUND,
        Some(ErrorKind::NotExecutable) => ExitStatus::NOT_EXECUTABLE,
        _ => {
            let error = anyhow::Error::new(without_id(error));
            return Err(error.context(format!("cannot start {program}")));
        }
    };
    say(&one_line(&without_id(error).into()));
    Ok(status)
}

fn our_environment() -> BTreeMap<String, String> {
    let mut environment = BTreeMap::new();
    for (name, value) in std::env::vars_os() {
        match (name.into_string(), value.into_string()) {
            (Ok(name), Ok(value)) => drop(environment.insert(name, value)),
            (name, _) => {
                let name = name.unwrap_or_else(|name| name.to_string_lossy().into_owned());
                say(&format!("the variable {name:?} is not valid UTF-8 and is not passed on"));
            }
        }
    }
    environment
}

/// Rounds up, because a server refuses a timeout of 0.
fn milliseconds(timeout: Duration) -> u64 {
    u64::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// As in docker, a variable that is not set locally stays unset.
fn copy_variable(environment: &mut BTreeMap<String, String>, name: &str) {
    if let Ok(value) = std::env::var(name) {
        environment.insert(name.to_owned(), value);
    }
}
