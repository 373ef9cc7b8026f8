//! `exec-server attach`: connects to a running process, such as one that `run --detach` started.

use std::io::{self, IsTerminal as _};

use anyhow::Context as _;
use exec_server_client::{ExecServerClient, ExecServerClientConnectOptions};
use exec_server_protocol::ErrorKind;

use super::listing::{self, Listed};
use super::run::{NO_RAW_MODE, input_failed, input_refused, options};
use crate::cli::client::Attach;
use crate::foreground::{
    self, Ending, Foreground, OnGap, OnSignal, OnStreamEnd, Report, Signals, Source,
};
use crate::program::exit_code::ExitStatus;
use crate::program::{say, tell};
use crate::target::{Target, TargetError};

const CLIENT_NAME: &str = "exec-server attach";

pub(crate) async fn run(Attach { server, name }: &Attach) -> anyhow::Result<ExitStatus> {
    let target = Target::lasting(server)?;
    let listed = look_up(&target, name).await?;
    let in_use = || {
        anyhow::anyhow!(
            "another client is already attached to {name:?}; follow its output with exec-server logs -f {name}"
        )
    };
    let options = ExecServerClientConnectOptions {
        resume_session_id: Some(listed.session.session_id.clone()),
        ..options(CLIENT_NAME)
    };
    // Closing this session would end the process, so `leave` detaches it instead. Before the server
    // refuses a second client, it checks that the attached one is still alive.
    let session = match target.connect(options).await {
        Err(TargetError::Connect { source, .. })
            if source.kind() == Some(&ErrorKind::SessionAttached) =>
        {
            return Err(in_use());
        }
        session => session?,
    };
    let outcome = stay(&session.client, &listed, name).await;
    session.leave().await;
    outcome
}

async fn stay(
    client: &ExecServerClient,
    listed: &Listed,
    name: &str,
) -> anyhow::Result<ExitStatus> {
    let process =
        client.attach(listed.name()).await.with_context(|| format!("cannot attach to {name:?}"))?;
    let events = process.subscribe_events();
    if listed.process.tty
        && let Some(size) = foreground::terminal_size()
    {
        // Fails if the process has ended; its events will report that.
        let _ = process.resize(size).await;
    }
    let foreground = Foreground {
        stdin: Some(Source::with_escapes(OnStreamEnd::KeepStdinOpen)),
        terminal: listed.process.tty,
        on_signal: if listed.process.tty { OnSignal::Leave } else { OnSignal::ForwardButHangup },
        on_gap: OnGap::Warn,
        report: Report {
            denials: io::stderr().is_terminal(),
            network_use: false,
            names_hosts: true,
        },
        timeout: None,
    };
    let mut signals = Signals::new().context("cannot listen for signals")?;
    let ending = foreground.stay(client, &process, events, &mut signals).await;
    match ending.context(NO_RAW_MODE)? {
        Ending::Exited { code } => Ok(ExitStatus::of_process(code)),
        Ending::Left => {
            tell(&format!("detached; {name} keeps running"));
            Ok(ExitStatus::SUCCESS)
        }
        Ending::InputFailed(error) => Err(input_failed(error)),
        Ending::InputRefused(error) => Err(input_refused(error, name)),
        Ending::OutputFailed(error) => Err(error.into()),
        Ending::Signalled { number } => Ok(ExitStatus::of_signal(number)),
        Ending::GaveUp { number } => {
            say(&format!("gave up waiting for the connection; {name} keeps running"));
            Ok(ExitStatus::of_signal(number))
        }
        Ending::TimedOut(end) => {
            say(&format!("{name} timed out{}", end.in_words()));
            Ok(ExitStatus::TIMED_OUT)
        }
        Ending::Lost(error) => {
            Err(anyhow::Error::new(error).context(format!("lost contact with {name}")))
        }
    }
}

async fn look_up(target: &Target, name: &str) -> anyhow::Result<Listed> {
    let session = target.connect(options(CLIENT_NAME)).await?;
    let listed = listing::list(&session.client).await;
    session.close().await;
    let listed = listed.context("cannot list the processes of the server")?;
    Ok(listing::find(&listed, name)?.clone())
}
