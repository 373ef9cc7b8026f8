//! `exec-server doctor`: what this machine offers, found out by using it.

mod checks;
mod network;
mod sandbox;
mod table;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use anyhow::Context as _;
use serde::Serialize;

use crate::terminal::Paint;
use checks::Check;
use sandbox::SandboxReport;

/// What `--json` prints. Fields may be added.
#[derive(Debug, Serialize)]
struct Report {
    /// Everything works, with the strongest sandbox there is.
    healthy: bool,
    checks: Vec<Check>,
    sandbox: SandboxReport,
}

/// Exit code 0 when everything works, 1 otherwise.
pub(crate) fn run(json: bool, out: &mut (impl Write + IsTerminal)) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let report = runtime.block_on(examine());
    let text = if json {
        serde_json::to_string(&report)? + "\n"
    } else {
        table::text(&report, Paint::for_stream(out))
    };
    super::print(text.as_bytes(), out)?;
    Ok(if report.healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn examine() -> Report {
    let checks = checks::checks().await;
    let sandbox = sandbox::examine().await;
    let healthy = checks.iter().all(|check| check.works) && sandbox.tier.is_strongest();
    Report { healthy, checks, sandbox }
}
