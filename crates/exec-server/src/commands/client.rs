//! The commands that need a server, from their options to an exit code.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use exec_server_client::ExecServerClient;
use serde_json::json;
use tokio::time::{Instant, timeout_at};

use super::listing::{self, Listed};
use super::run::options;
use super::servers::Servers;
use super::wait::Waited;
use super::wording::{UsageError, one_line};
use super::{
    attach, cat, cp, forget, grep, http, kill, logs, ls, mkdir, ps, rm, run, shell, wait, watch,
};
use crate::cli::client::{Action, ClientCommand, ServerChoice};
use crate::cli::files::FileAction;
use crate::program::exit_code::ExitStatus;
use crate::program::say;
use crate::target::{Target, TargetError};
use crate::terminal::json_line;

pub(crate) fn main(command: &ClientCommand) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            say(&format!("cannot start the runtime: {error}"));
            return failure_of(&command.action).into();
        }
    };
    let outcome = runtime.block_on(perform(command));
    // A read of our standard input cannot be cancelled; it must not hold us.
    runtime.shutdown_background();
    let status = outcome.unwrap_or_else(|error| {
        say(&one_line(&error));
        match failure_of(&command.action) {
            ExitStatus::FAILURE if is_usage_error(&error) => ExitStatus::USAGE_ERROR,
            failure => failure,
        }
    });
    status.into()
}

/// The command line is wrong, or a file that it relies on.
fn is_usage_error(error: &anyhow::Error) -> bool {
    error.is::<UsageError>() || error.downcast_ref().is_some_and(TargetError::is_usage_error)
}

/// Where the exit code is a process's, ours must be told from it.
fn failure_of(action: &Action) -> ExitStatus {
    match action {
        Action::Run(_) | Action::Shell { .. } | Action::Attach { .. } | Action::Wait { .. } => {
            ExitStatus::CLIENT_FAILURE
        }
        Action::Files(FileAction::Grep(_)) => ExitStatus::NOT_ALL_SEARCHED,
        Action::Ps { .. }
        | Action::Logs(_)
        | Action::Kill { .. }
        | Action::Forget { .. }
        | Action::Files(_)
        | Action::Http(_) => ExitStatus::FAILURE,
    }
}

async fn perform(command: &ClientCommand) -> anyhow::Result<ExitStatus> {
    let server = &command.server;
    match &command.action {
        Action::Run(run) => Box::pin(run::run(server, run)).await,
        Action::Shell { command, sandbox, server_env } => {
            Box::pin(shell::run(server, command, sandbox, *server_env)).await
        }
        Action::Attach { name } => Box::pin(attach::run(server, name)).await,
        Action::Ps { all, json } => {
            with_listing(server, "exec-server ps", async |_, listed| {
                ps::print(&listed, *all, *json)?;
                Ok(ExitStatus::SUCCESS)
            })
            .await
        }
        Action::Logs(logs) => {
            let act = async |client: &_, listed: Vec<Listed>| {
                logs::run(client, listing::find(&listed, &logs.name)?, logs).await
            };
            with_listing_within(server, "exec-server logs", logs.since, act).await
        }
        Action::Kill { names, signal } => {
            with_listing(server, "exec-server kill", async |client, listed| {
                for_each(names, &listed, async |listed| kill::run(client, listed, *signal).await)
                    .await
            })
            .await
        }
        Action::Forget { names, force } => {
            with_listing(server, "exec-server forget", async |client, listed| {
                if names.is_empty() {
                    return forget::all(client, &listed).await;
                }
                for_each(names, &listed, async |listed| forget::run(client, listed, *force).await)
                    .await
            })
            .await
        }
        Action::Files(action) => Box::pin(with_files(server, action)).await,
        Action::Http(request) => {
            let work = async |servers: &Servers<'_>| http::run(servers, request).await;
            Box::pin(Servers::work(server, "http", work)).await
        }
        Action::Wait { names, timeout, json } => {
            with_listing(server, "exec-server wait", async |client, listed| {
                wait_for(client, &listed, names, *timeout, *json).await
            })
            .await
        }
    }
}

async fn with_files(server: &ServerChoice, action: &FileAction) -> anyhow::Result<ExitStatus> {
    let name = match action {
        FileAction::Cp(_) => "cp",
        FileAction::Ls(_) => "ls",
        FileAction::Cat { .. } => "cat",
        FileAction::Mkdir { .. } => "mkdir",
        FileAction::Rm { .. } => "rm",
        FileAction::Watch { .. } => "watch",
        FileAction::Grep(_) => "grep",
    };
    Servers::work(server, name, async |servers| {
        servers.prepare(&action.environments()).await?;
        match action {
            FileAction::Cp(cp) => cp::run(servers, cp).await,
            FileAction::Ls(ls) => ls::run(servers, ls).await,
            FileAction::Cat { paths } => cat::run(servers, paths).await,
            FileAction::Mkdir { paths, parents } => mkdir::run(servers, paths, *parents).await,
            FileAction::Rm { paths, recursive, force } => {
                rm::run(servers, paths, *recursive, *force).await
            }
            FileAction::Watch { path, recursive, json } => {
                watch::run(servers, path, *recursive, *json).await
            }
            FileAction::Grep(grep) => grep::run(servers, grep).await,
        }
    })
    .await
}

/// For commands about processes that are there already.
async fn with_listing(
    server: &ServerChoice,
    client_name: &str,
    act: impl AsyncFnOnce(&ExecServerClient, Vec<Listed>) -> anyhow::Result<ExitStatus>,
) -> anyhow::Result<ExitStatus> {
    with_listing_within(server, client_name, None, act).await
}

async fn with_listing_within(
    server: &ServerChoice,
    client_name: &str,
    within: Option<Duration>,
    act: impl AsyncFnOnce(&ExecServerClient, Vec<Listed>) -> anyhow::Result<ExitStatus>,
) -> anyhow::Result<ExitStatus> {
    let session = Target::lasting(server)?.connect(options(client_name)).await?;
    let listed = listing::list_within(&session.client, within).await;
    let listed = listed.context("cannot list what the server runs");
    let outcome = match listed {
        Ok(listed) => act(&session.client, listed).await,
        Err(error) => Err(error),
    };
    session.close().await;
    outcome
}

/// One that fails does not keep the others from their turn.
async fn for_each(
    names: &[String],
    listed: &[Listed],
    act: impl AsyncFn(&Listed) -> anyhow::Result<()>,
) -> anyhow::Result<ExitStatus> {
    let mut status = ExitStatus::SUCCESS;
    for name in names {
        let outcome = match listing::find(listed, name) {
            Ok(found) => act(found).await,
            Err(error) => Err(error.into()),
        };
        if let Err(error) = outcome {
            say(&one_line(&error));
            status = ExitStatus::FAILURE;
        }
    }
    Ok(status)
}

async fn wait_for(
    client: &ExecServerClient,
    listed: &[Listed],
    names: &[String],
    timeout: Option<Duration>,
    json: bool,
) -> anyhow::Result<ExitStatus> {
    // One that no clock can hold is none.
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    // All names first: a mistake is not worth waiting for.
    let found = names.iter().map(|name| listing::find(listed, name));
    let found = found.collect::<Result<Vec<_>, _>>()?;
    let mut last = 0;
    for process in found {
        let waiting = wait::run(client, process);
        let Waited { exit_code, timed_out } = match deadline {
            None => waiting.await?,
            Some(deadline) => match timeout_at(deadline, waiting).await {
                Ok(waited) => waited?,
                Err(_) => {
                    let after = timeout.unwrap_or_default();
                    say(&format!("{:?} is still running after {after:?}", process.name()));
                    return Ok(ExitStatus::TIMED_OUT);
                }
            },
        };
        last = exit_code;
        let line = if json {
            let (session_id, process_id) = (&process.session.session_id, process.name());
            json_line(&json!({
                "processId": process_id, "sessionId": session_id, "exitCode": exit_code,
                "timedOut": timed_out,
            }))
        } else {
            format!("{exit_code}\n")
        };
        super::print(line.as_bytes(), &mut std::io::stdout())?;
    }
    Ok(ExitStatus::of_process(last))
}
