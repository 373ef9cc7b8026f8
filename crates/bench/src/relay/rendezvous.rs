//! A rendezvous to measure: this executable, with its own data directory and tokens.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use exec_server_relay::registry::{BearerToken, RegistryClient};
use exec_server_transport::TlsOptions;
use tempfile::TempDir;

use crate::program::KilledOnDrop;
use crate::server::{listen, this_program};

/// A running rendezvous. Dropping it kills the process and removes its data.
#[derive(Debug)]
pub(super) struct BenchRendezvous {
    child: KilledOnDrop,
    url: String,
    environment_token: String,
    harness_token: String,
    data: TempDir,
}

impl BenchRendezvous {
    /// Starts a rendezvous with tokens for these environments.
    pub(super) fn start(environments: &[&str]) -> anyhow::Result<Self> {
        let data = tempfile::tempdir().context("cannot create a temporary directory")?;
        let mut command = this_program()?;
        command.args(["rendezvous", "--listen", "http://127.0.0.1:0", "--data"]).arg(data.path());
        let (child, address) = listen(command, "http://")?;
        let path = data
            .path()
            .to_str()
            .with_context(|| format!("{:?} is not UTF-8; change TMPDIR", data.path()))?;
        let token = |role| create_token(&["--data", path], role, environments);
        Ok(Self {
            child,
            url: format!("http://{address}"),
            environment_token: token("environment")?,
            harness_token: token("harness")?,
            data,
        })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.0.id()
    }

    /// Returns the path of a file with the token of all environments, for a server.
    pub(super) fn environment_token_file(&self) -> anyhow::Result<String> {
        let path: PathBuf = self.data.path().join("environment.token");
        std::fs::write(&path, &self.environment_token)
            .with_context(|| format!("cannot write {}", path.display()))?;
        path.into_os_string().into_string().ok().context("the path of the token is not UTF-8")
    }

    pub(super) fn environment(&self, environment: &str) -> anyhow::Result<RegistryClient> {
        self.registry(environment, &self.environment_token)
    }

    /// Returns the registry client of the environment's clients.
    pub(super) fn harness(&self, environment: &str) -> anyhow::Result<RegistryClient> {
        self.registry(environment, &self.harness_token)
    }

    fn registry(&self, environment: &str, token: &str) -> anyhow::Result<RegistryClient> {
        let token = Arc::new(BearerToken::Value(token.to_owned()));
        Ok(RegistryClient::new(&self.url, environment, token, &TlsOptions::default())?)
    }
}

/// Creates a token for these environments in the store that the flags select.
pub(super) fn create_token<S: AsRef<OsStr>>(
    store: &[S],
    role: &str,
    environments: &[S],
) -> anyhow::Result<String> {
    let mut command = this_program()?;
    command.args(["token", "create", "--role", role]).args(store);
    for environment in environments {
        command.arg("--environment").arg(environment);
    }
    let output = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output();
    let output = output.context("cannot start `token create`")?;
    ensure!(
        output.status.success(),
        "`token create` exited with {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let token = String::from_utf8(output.stdout).context("the token is not UTF-8")?;
    Ok(token.trim_end().to_owned())
}
