//! `exec-server shell`: an interactive shell on the server's machine.

use std::ffi::OsString;

use anyhow::Context as _;
use exec_server_client::ExecServerClient;
use exec_server_protocol::{Empty, OnFull};

use super::run::{in_foreground, options, size};
use super::start_network;
use super::starting::{StartSpec, generated_name, words};
use crate::cli::client::Shell;
use crate::foreground::{Foreground, OnGap, OnSignal, OnStreamEnd, Report, Signals, Source};
use crate::program::exit_code::ExitStatus;
use crate::target::Target;

pub(crate) async fn run(shell: &Shell) -> anyhow::Result<ExitStatus> {
    let target = Target::find(&shell.server)?;
    let mut hosts = start_network::hosts(&shell.sandbox, &target, false)?;
    hosts.ask = false;
    let mut signals = Signals::new().context("cannot listen for signals")?;
    let prepared = signals.until_asked_to_end(async {
        let session = target.connect(options("exec-server shell")).await?;
        let program = program(&session.client, &shell.command).await?;
        anyhow::Ok((session, program))
    });
    let (session, (argv, arg0)) = match prepared.await {
        Ok(prepared) => prepared?,
        // No process has started yet.
        Err(number) => return Ok(ExitStatus::of_signal(number)),
    };
    let names_hosts = hosts.has_rules();
    let spec = StartSpec {
        process_id: generated_name(),
        argv,
        arg0,
        cwd: None,
        variables: &[],
        server_env: shell.server_env,
        stdin: true,
        terminal: Some(size()),
        on_full: OnFull::Block,
        sandbox: &shell.sandbox,
        hosts,
        timeout: None,
        limits: shell.limits.request(),
        claim_name: false,
    };
    let report = Report { denials: true, network_use: false, names_hosts };
    let foreground = Foreground {
        stdin: Some(Source::with_escapes(OnStreamEnd::CloseStdin)),
        terminal: true,
        on_signal: OnSignal::Leave,
        on_gap: OnGap::Fail,
        report,
        timeout: None,
    };
    in_foreground(&target, session, spec, foreground, signals).await
}

/// Returns the command line, and the name under which it starts (`argv[0]`) if that differs.
async fn program(
    client: &ExecServerClient,
    command: &[OsString],
) -> anyhow::Result<(Vec<String>, Option<String>)> {
    if !command.is_empty() {
        return Ok((words(command)?, None));
    }
    let info = client.environment_info(Empty {}).await;
    let shell = info.context("cannot get the login shell from the server")?.shell;
    // The dash makes it a login shell.
    Ok((vec![shell.path], Some(format!("-{}", shell.name))))
}
