//! A server to measure, or to compare with: this same executable, listening on loopback.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use anyhow::{Context as _, ensure};

use super::program::{KilledOnDrop, command};
use super::usage;

/// A running server; dropping it kills it, and with it everything it started.
#[derive(Debug)]
pub(super) struct BenchServer {
    child: KilledOnDrop,
    address: String,
}

impl BenchServer {
    /// The server that is measured, with default settings.
    pub(super) fn start() -> anyhow::Result<Self> {
        Self::launch(&["--listen", "ws://127.0.0.1:0", "--discoverable", "false"])
    }

    /// Returns when the server has said where it listens.
    pub(super) fn launch(arguments: &[&str]) -> anyhow::Result<Self> {
        let executable = std::env::current_exe().context("cannot find this program")?;
        let mut command = command(&executable);
        command.args(arguments).stdout(Stdio::piped());
        let mut child = KilledOnDrop(command.spawn().context("cannot start a server")?);
        let stdout = child.0.stdout.take().context("the server has no standard output")?;
        let mut url = String::new();
        BufReader::new(stdout).read_line(&mut url).context("cannot read the server's URL")?;
        let address = url.trim_end().strip_prefix("ws://").unwrap_or_default();
        ensure!(!address.is_empty(), "the server ended before it listened");
        Ok(Self { child, address: address.to_owned() })
    }

    /// `IP:PORT`.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.0.id()
    }

    /// Processor time of the server and its spawner so far. What they started is not counted.
    pub(super) fn cpu_seconds(&self) -> anyhow::Result<f64> {
        let mut seconds = usage::cpu_seconds(self.pid())?;
        for child in usage::children(self.pid())? {
            seconds += usage::cpu_seconds(child)?;
        }
        Ok(seconds)
    }
}
