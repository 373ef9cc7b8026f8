//! `exec-server run`: runs a command with local streams, signals and exit code, or detached from
//! this client.

use std::cell::Cell;
use std::future::ready;
use std::io::{self, IsTerminal as _};
use std::time::Duration;

use anyhow::Context as _;
use exec_server_client::{ExecServerClient, ExecServerClientConnectOptions, ExecServerError};
use exec_server_protocol::{ErrorKind, OnFull, TerminalSize};
use serde_json::json;

use super::starting::{StartSpec, generated_name, not_started, words};
use super::{listing, start_network};
use crate::cli::client::Run;
use crate::cli::values::limit;
use crate::foreground::{
    self, Ending, Foreground, OnGap, OnSignal, OnStreamEnd, Report, Signals, Source,
};
use crate::program::exit_code::ExitStatus;
use crate::program::say;
use crate::target::{Target, TargetSession};
use crate::terminal::{is_stdin_a_terminal, json_line};

/// The size of the command's terminal if there is no local one.
const DEFAULT_SIZE: TerminalSize = TerminalSize { rows: 24, cols: 80 };

/// Identifies the sessions of detached processes.
pub(super) const DETACHED_CLIENT_NAME: &str = "exec-server run --detach";

/// The context of an error of [`Foreground::stay`], which fails only in entering raw mode.
pub(super) const NO_RAW_MODE: &str = "cannot put the local terminal into raw mode";

pub(crate) async fn run(run: &Run) -> anyhow::Result<ExitStatus> {
    if run.detach {
        return run_detached(run).await;
    }
    let target = Target::find(&run.server)?;
    let argv = words(&run.command)?;
    let mut hosts = start_network::hosts(&run.sandbox, &target, !run.terminal)?;
    hosts.ask &= !run.terminal;
    let on_network_request =
        start_network::asking(&mut hosts, run.sandbox.hosts.ask_network, &argv)?;
    // If the user is asked about hosts, typed lines are answers, and not input of the command.
    let no_stdin = run.no_stdin || (on_network_request.is_some() && is_stdin_a_terminal());
    let mut signals = Signals::new().context("cannot listen for signals")?;
    let options =
        ExecServerClientConnectOptions { on_network_request, ..options("exec-server run") };
    let connecting = target.connect(options);
    let session = match signals.until_asked_to_end(connecting).await {
        Ok(session) => session?,
        Err(number) => return Ok(ExitStatus::of_signal(number)),
    };
    let spec = StartSpec {
        process_id: run.name.clone().unwrap_or_else(generated_name),
        argv,
        arg0: None,
        cwd: run.cwd.as_deref(),
        variables: &run.env,
        server_env: run.server_env,
        stdin: !no_stdin,
        terminal: run.terminal.then(size),
        on_full: OnFull::Block,
        sandbox: &run.sandbox,
        hosts: hosts.clone(),
        timeout: limit(run.timeout),
        limits: run.limits.request(),
        claim_name: false,
    };
    let report = Report {
        denials: run.verbose || io::stderr().is_terminal(),
        network_use: run.verbose,
        names_hosts: hosts.has_rules(),
    };
    let foreground = Foreground {
        stdin: match (no_stdin, run.terminal) {
            (true, _) => None,
            (false, true) => Some(Source::with_escapes(OnStreamEnd::CloseStdin)),
            (false, false) => Some(Source::Stream(OnStreamEnd::CloseStdin)),
        },
        terminal: run.terminal,
        on_signal: OnSignal::Forward,
        on_gap: OnGap::Fail,
        report,
        timeout: limit(run.timeout),
    };
    in_foreground(&target, session, spec, foreground, signals).await
}

/// Starts the process, stays with it until it ends or the user leaves, and ends the session. If the
/// user stops waiting for a lost connection to the running process, warns that it keeps running.
pub(super) async fn in_foreground(
    target: &Target,
    session: TargetSession,
    spec: StartSpec<'_>,
    foreground: Foreground,
    mut signals: Signals,
) -> anyhow::Result<ExitStatus> {
    let client = &session.client;
    let program = spec.argv.first().cloned().unwrap_or_default();
    let starting = async {
        let params = spec.params(target, client).await.map_err(Err)?;
        client.start(params).await.map_err(|error| not_started(&program, error))
    };
    let process = match signals.until_asked_to_end(starting).await {
        Ok(Ok(process)) => process,
        Ok(Err(outcome)) => {
            session.close_before(signals.asked_to_end()).await;
            return outcome;
        }
        Err(number) => {
            // The process may already be running; closing the session ends it.
            session.close_before(ready(())).await;
            return Ok(ExitStatus::of_signal(number));
        }
    };
    let events = process.subscribe_events();
    let ending = foreground.stay(client, &process, events, &mut signals).await;
    match &ending {
        Ok(Ending::GaveUp { .. }) => {}
        Ok(Ending::Left | Ending::Signalled { .. }) => session.close_before(ready(())).await,
        Ok(Ending::InputFailed(_) | Ending::InputRefused(_) | Ending::OutputFailed(_)) => {
            // Ends the command, as SIGPIPE would, but gracefully; a signal cuts the wait short.
            let _ = signals.until_asked_to_end(foreground::end(client, &process)).await;
            session.close_before(signals.asked_to_end()).await;
        }
        _ => session.close_before(signals.asked_to_end()).await,
    }
    match ending.context(NO_RAW_MODE)? {
        Ending::Exited { code } => Ok(ExitStatus::of_process(code)),
        Ending::TimedOut(end) => {
            say(&format!("{program} timed out{}", end.in_words()));
            Ok(ExitStatus::TIMED_OUT)
        }
        Ending::InputFailed(error) => Err(input_failed(error)),
        Ending::InputRefused(error) => Err(input_refused(error, &program)),
        Ending::OutputFailed(error) => Err(error.into()),
        Ending::Left => Ok(ExitStatus::LEFT),
        Ending::Signalled { number } => Ok(ExitStatus::of_signal(number)),
        Ending::GaveUp { number } => {
            say(&format!(
                "gave up waiting for the connection; {program} keeps running until the server ends \
                 the session"
            ));
            Ok(ExitStatus::of_signal(number))
        }
        // The error says how much of the output is missing.
        Ending::Lost(error @ ExecServerError::Gap { .. }) => Err(error.into()),
        Ending::Lost(error) => Err(anyhow::Error::new(error).context(format!(
            "lost contact with {program}; it ends when the server ends its session"
        ))),
    }
}

pub(super) fn input_failed(error: io::Error) -> anyhow::Error {
    anyhow::Error::new(error).context("cannot read standard input")
}

pub(super) fn input_refused(error: ExecServerError, process: &str) -> anyhow::Error {
    anyhow::Error::new(error).context(format!("cannot write to {process}"))
}

pub(super) fn size() -> TerminalSize {
    foreground::terminal_size().unwrap_or(DEFAULT_SIZE)
}

pub(super) fn options(client_name: &str) -> ExecServerClientConnectOptions {
    ExecServerClientConnectOptions {
        client_name: client_name.to_owned(),
        ..ExecServerClientConnectOptions::default()
    }
}

async fn run_detached(run: &Run) -> anyhow::Result<ExitStatus> {
    let target = Target::lasting(&run.server)?;
    let ttl = run.ttl.unwrap_or(Duration::from_millis(u64::MAX));
    let options =
        ExecServerClientConnectOptions { detached_ttl: Some(ttl), ..options(DETACHED_CLIENT_NAME) };
    let mut signals = Signals::new().context("cannot listen for signals")?;
    let session = match signals.until_asked_to_end(target.connect(options)).await {
        Ok(session) => session?,
        Err(number) => return Ok(ExitStatus::of_signal(number)),
    };
    let name = run.name.clone().unwrap_or_else(generated_name);
    let may_run = Cell::new(false);
    let starting = start_detached(&target, &session.client, run, &name, &may_run);
    let (outcome, is_signalled) = match signals.until_asked_to_end(starting).await {
        // Leaving keeps the session; closing it would end the command.
        Ok(Ok(None)) => {
            session.leave().await;
            return Ok(ExitStatus::SUCCESS);
        }
        Ok(Ok(Some(status))) => (Ok(status), false),
        Ok(Err(error)) => (Err(error), false),
        Err(number) => (Ok(ExitStatus::of_signal(number)), true),
    };
    let hurry = async {
        if !is_signalled {
            signals.asked_to_end().await;
        }
    };
    if !session.close_when_back(hurry).await && may_run.get() {
        say(&format!(
            "cannot tell the server to end {name:?}, which may be running; check with exec-server ps, and end it \
             with exec-server forget -f {name}"
        ));
    }
    outcome
}

fn name_taken(name: &str) -> anyhow::Error {
    anyhow::anyhow!(
        "the name {name:?} is taken (see exec-server ps -a); choose another, or free it with \
         exec-server forget {name} (-f if it still runs)"
    )
}

/// Returns `None` if the command was started. Otherwise, `may_run` tells whether it may be running
/// despite the status or error that is returned.
async fn start_detached(
    target: &Target,
    client: &ExecServerClient,
    run: &Run,
    name: &str,
    may_run: &Cell<bool>,
) -> anyhow::Result<Option<ExitStatus>> {
    let listed = listing::list(client).await.context("cannot list the processes of the server")?;
    // A server without `claimName` does not refuse a name that is taken.
    if listed.iter().any(|listed| listed.name() == name) {
        return Err(name_taken(name));
    }
    let mut hosts = start_network::hosts(&run.sandbox, target, false)?;
    hosts.ask = false;
    let argv = words(&run.command)?;
    let program = argv.first().cloned().unwrap_or_default();
    let spec = StartSpec {
        process_id: name.to_owned(),
        argv,
        arg0: None,
        cwd: run.cwd.as_deref(),
        variables: &run.env,
        server_env: run.server_env,
        stdin: run.interactive,
        terminal: run.terminal.then(size),
        on_full: OnFull::Discard,
        sandbox: &run.sandbox,
        hosts,
        timeout: limit(run.timeout),
        limits: run.limits.request(),
        claim_name: true,
    };
    let params = spec.params(target, client).await?;
    may_run.set(true);
    let started = client.start_unread(params).await;
    // An error response from the server is definite: the command does not run.
    may_run.set(!matches!(started, Err(ExecServerError::Server(_))));
    match started {
        Err(error) if error.kind() == Some(&ErrorKind::NameTaken) => return Err(name_taken(name)),
        Err(ExecServerError::Interrupted { .. }) => {
            anyhow::bail!("cannot start {program}: the connection was lost during the start");
        }
        Err(error) => return not_started(&program, error).map(Some),
        Ok(()) => {}
    }
    let text = if run.json {
        let ttl = client.detached_ttl().and_then(|ttl| u64::try_from(ttl.as_millis()).ok());
        let session_id = client.session_id();
        json_line(&json!({"processId": name, "sessionId": session_id, "detachedTtlMs": ttl}))
    } else {
        format!("{name}\n")
    };
    super::print(text.as_bytes(), &mut io::stdout())?;
    Ok(None)
}
