//! A server to measure or to compare with: this executable, listening on loopback.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use tempfile::TempDir;

use super::endpoint::{Endpoint, Security};
use super::program::{KilledOnDrop, command};
use super::usage;

/// Any text works: only servers on loopback accept it, and only during a measurement.
const TOKEN: &str = "bench-0123456789abcdefghijklmnopqrstuvwxyz-";

/// A running server. Dropping it kills the server and everything that it started.
#[derive(Debug)]
pub(super) struct BenchServer {
    child: KilledOnDrop,
    endpoint: Endpoint,
    /// The directory with the token and the certificate of a secured server, or with an audit log.
    _state: Option<TempDir>,
}

impl BenchServer {
    pub(super) fn start() -> anyhow::Result<Self> {
        Self::launch(&["--listen", "ws://127.0.0.1:0", "--discoverable", "false"])
    }

    /// Starts a server with TLS, for clients with a token. Its certificate is self-signed.
    pub(super) fn start_secured() -> anyhow::Result<Self> {
        let state = tempfile::tempdir().context("cannot create a temporary directory")?;
        let token_file = state.path().join("token");
        std::fs::write(&token_file, TOKEN)
            .with_context(|| format!("cannot write {}", token_file.display()))?;
        let mut command = this_program()?;
        command
            .args(["--listen", "wss://127.0.0.1:0", "--discoverable", "false"])
            .args(["--tls-self-signed", "--ws-auth", "capability-token", "--ws-token-file"])
            .arg(token_file)
            .env("XDG_STATE_HOME", state.path());
        let (child, address) = listen(command, "wss://")?;
        let certificate = state.path().join("exec-server/tls/self-signed.pem");
        let security = Security::new(&certificate, TOKEN.to_owned())?;
        Ok(Self { child, endpoint: Endpoint::secured(address, security), _state: Some(state) })
    }

    /// Starts a server with metrics, an audit log, and limits for each process.
    pub(super) fn start_operated() -> anyhow::Result<Self> {
        let state = tempfile::tempdir().context("cannot create a temporary directory")?;
        let mut command = this_program()?;
        command
            .args(["--listen", "ws://127.0.0.1:0", "--discoverable", "false", "--metrics"])
            .args(["--audit-commands", "--audit-log"])
            .arg(state.path().join("audit.jsonl"))
            .args(["--limits-default-memory", "1G", "--limits-default-pids", "1000"])
            .args(["--limits-default-cpu-time", "1h"]);
        let (child, address) = listen(command, "ws://")?;
        Ok(Self { child, endpoint: Endpoint::plain(address), _state: Some(state) })
    }

    pub(super) fn launch(arguments: &[&str]) -> anyhow::Result<Self> {
        let mut command = this_program()?;
        command.args(arguments);
        let (child, address) = listen(command, "ws://")?;
        Ok(Self { child, endpoint: Endpoint::plain(address), _state: None })
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.0.id()
    }

    /// Returns the CPU time of the server and its spawner so far, without the programs that they
    /// started.
    pub(super) fn cpu_seconds(&self) -> anyhow::Result<f64> {
        let mut seconds = usage::cpu_seconds(self.pid())?;
        for child in usage::children(self.pid())? {
            seconds += usage::cpu_seconds(child)?;
        }
        Ok(seconds)
    }
}

pub(super) fn this_program() -> anyhow::Result<Command> {
    Ok(command(&std::env::current_exe().context("cannot find this program")?))
}

/// Starts a server and waits for its URL, which it prints as soon as it listens.
pub(super) fn listen(
    mut command: Command,
    scheme: &str,
) -> anyhow::Result<(KilledOnDrop, SocketAddr)> {
    command.stdout(Stdio::piped());
    let child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
    let mut child = KilledOnDrop(child);
    let stdout = child.0.stdout.take().context("the server has no stdout")?;
    let mut url = String::new();
    BufReader::new(stdout).read_line(&mut url).context("cannot read the server's URL")?;
    if url.is_empty() {
        bail!("{command:?} exited with {} before it listened", child.0.wait()?);
    }
    let address = url.trim_end().strip_prefix(scheme).and_then(|address| address.parse().ok());
    let address = address
        .with_context(|| format!("{command:?} printed {url:?} instead of a URL with {scheme}"))?;
    Ok((child, address))
}
