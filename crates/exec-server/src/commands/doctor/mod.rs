//! `exec-server doctor`: checks the machine's capabilities by using them.

mod checks;
mod cluster;
mod network;
mod sandbox;
mod table;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use anyhow::Context as _;
use exec_server_rendezvous::NatsOptions;
use serde::Serialize;

use crate::terminal::Paint;
use checks::Check;
use sandbox::SandboxReport;

/// The output of `--json`. Fields may be added.
#[derive(Debug, Serialize)]
struct Report {
    /// Whether everything works, including the strongest sandbox.
    healthy: bool,
    checks: Vec<Check>,
    sandbox: SandboxReport,
    /// Empty without `--cluster`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cluster: Vec<Check>,
}

/// Returns exit code 0 if everything works, 1 otherwise.
pub(crate) fn run(
    json: bool,
    cluster: Option<&NatsOptions>,
    out: &mut (impl Write + IsTerminal),
) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot create the event loop")?;
    let report = runtime.block_on(examine(cluster));
    let text = if json {
        serde_json::to_string(&report)? + "\n"
    } else {
        table::text(&report, Paint::for_stream(out))
    };
    super::print(text.as_bytes(), out)?;
    Ok(if report.healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn examine(cluster: Option<&NatsOptions>) -> Report {
    let checks = checks::checks().await;
    let sandbox = sandbox::examine().await;
    let cluster = match cluster {
        Some(options) => cluster::checks(options).await,
        None => Vec::new(),
    };
    let works = checks.iter().chain(&cluster).all(|check| check.works);
    let healthy = works && sandbox.tier.is_strongest();
    Report { healthy, checks, sandbox, cluster }
}
