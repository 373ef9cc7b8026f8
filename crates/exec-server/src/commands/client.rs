//! Runs the commands that need a server, from options to exit code.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use exec_server_client::ExecServerClient;

use super::listing::{self, Listed};
use super::run::options;
use super::servers::Servers;
use super::wording::{UsageError, one_line};
use super::{
    attach, cat, cp, forget, grep, http, kill, logs, ls, mkdir, ps, rm, run, shell, status, wait,
    watch,
};
use crate::cli::client::{ClientCommand, Forget, Kill, Ps, ServerChoice};
use crate::cli::files::FileCommand;
use crate::foreground::OutputError;
use crate::program::exit_code::ExitStatus;
use crate::program::say;
use crate::target::{Target, TargetError};

pub(crate) fn main(command: &ClientCommand) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            say(&format!("cannot create the event loop: {error}"));
            return failure_of(command).into();
        }
    };
    let outcome = runtime.block_on(perform(command));
    // A blocking read of standard input cannot be cancelled; do not wait for it.
    runtime.shutdown_background();
    let status = outcome.unwrap_or_else(|error| {
        if error.downcast_ref().is_some_and(OutputError::is_broken_pipe) {
            return ExitStatus::BROKEN_PIPE;
        }
        say(&one_line(&error));
        match failure_of(command) {
            ExitStatus::FAILURE if is_usage_error(&error) => ExitStatus::USAGE_ERROR,
            failure => failure,
        }
    });
    status.into()
}

/// Whether the command line, or a file that it relies on, is wrong.
fn is_usage_error(error: &anyhow::Error) -> bool {
    error.is::<UsageError>() || error.downcast_ref().is_some_and(TargetError::is_usage_error)
}

/// Returns the exit code for a failure of the command itself. Commands that exit with the code of a
/// process use a separate one.
fn failure_of(command: &ClientCommand) -> ExitStatus {
    match command {
        ClientCommand::Run(_)
        | ClientCommand::Shell(_)
        | ClientCommand::Attach(_)
        | ClientCommand::Wait(_) => ExitStatus::CLIENT_FAILURE,
        ClientCommand::Files(FileCommand::Grep(_)) => ExitStatus::NOT_ALL_SEARCHED,
        ClientCommand::Ps(_)
        | ClientCommand::Logs(_)
        | ClientCommand::Kill(_)
        | ClientCommand::Forget(_)
        | ClientCommand::Status(_)
        | ClientCommand::Files(_)
        | ClientCommand::Http(_) => ExitStatus::FAILURE,
    }
}

async fn perform(command: &ClientCommand) -> anyhow::Result<ExitStatus> {
    match command {
        ClientCommand::Run(run) => Box::pin(run::run(run)).await,
        ClientCommand::Shell(shell) => Box::pin(shell::run(shell)).await,
        ClientCommand::Attach(attach) => Box::pin(attach::run(attach)).await,
        ClientCommand::Ps(Ps { server, all, json }) => {
            with_listing(server, "exec-server ps", async |_, listed| {
                ps::print(&listed, *all, *json)?;
                Ok(ExitStatus::SUCCESS)
            })
            .await
        }
        ClientCommand::Status(status) => status::run(status).await,
        ClientCommand::Logs(logs) => {
            let act = async |client: &_, listed: Vec<Listed>| {
                logs::run(client, listing::find(&listed, &logs.name)?, logs).await
            };
            with_listing_within(&logs.server, "exec-server logs", logs.since, act).await
        }
        ClientCommand::Kill(Kill { server, names, signal }) => {
            with_listing(server, "exec-server kill", async |client, listed| {
                for_each(names, &listed, async |listed| kill::run(client, listed, *signal).await)
                    .await
            })
            .await
        }
        ClientCommand::Wait(wait) => {
            with_listing(&wait.server, "exec-server wait", async |client, listed| {
                wait::run(client, &listed, wait).await
            })
            .await
        }
        ClientCommand::Forget(Forget { server, names, force, all }) => {
            with_listing(server, "exec-server forget", async |client, listed| {
                if *all {
                    return forget::all(client, &listed).await;
                }
                for_each(names, &listed, async |listed| forget::run(client, listed, *force).await)
                    .await
            })
            .await
        }
        ClientCommand::Files(command) => Box::pin(with_files(command)).await,
        ClientCommand::Http(http) => {
            let work = async |servers: &Servers<'_>| http::run(servers, http).await;
            Box::pin(Servers::work(&http.server, "http", work)).await
        }
    }
}

async fn with_files(command: &FileCommand) -> anyhow::Result<ExitStatus> {
    let (name, server) = match command {
        FileCommand::Cp(cp) => ("cp", &cp.server),
        FileCommand::Ls(ls) => ("ls", &ls.server),
        FileCommand::Cat(cat) => ("cat", &cat.server),
        FileCommand::Mkdir(mkdir) => ("mkdir", &mkdir.server),
        FileCommand::Rm(rm) => ("rm", &rm.server),
        FileCommand::Watch(watch) => ("watch", &watch.server),
        FileCommand::Grep(grep) => ("grep", &grep.server),
    };
    Servers::work(server, name, async |servers| {
        servers.prepare(&command.environments()).await?;
        match command {
            FileCommand::Cp(cp) => cp::run(servers, cp).await,
            FileCommand::Ls(ls) => ls::run(servers, ls).await,
            FileCommand::Cat(cat) => cat::run(servers, cat).await,
            FileCommand::Mkdir(mkdir) => mkdir::run(servers, mkdir).await,
            FileCommand::Rm(rm) => rm::run(servers, rm).await,
            FileCommand::Watch(watch) => watch::run(servers, watch).await,
            FileCommand::Grep(grep) => grep::run(servers, grep).await,
        }
    })
    .await
}

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
    let listed = listed.context("cannot list the processes of the server");
    let outcome = match listed {
        Ok(listed) => act(&session.client, listed).await,
        Err(error) => Err(error),
    };
    session.close().await;
    outcome
}

/// Calls `act` for each name. Continues with the next name after a failure.
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
