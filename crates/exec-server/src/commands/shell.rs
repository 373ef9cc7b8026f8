//! `exec-server shell`: a person at a terminal of the server.

use std::ffi::OsString;

use anyhow::Context as _;
use exec_server_protocol::{Empty, OnFull};

use super::run::{in_foreground, options, size};
use super::starting::{Wanted, generated_name, words};
use crate::cli::client::ServerChoice;
use crate::exit_code::ExitStatus;
use crate::foreground::{Foreground, OnGap, OnSignal, Source};
use crate::reach::Target;

pub(crate) async fn run(choice: &ServerChoice, command: &[OsString]) -> anyhow::Result<ExitStatus> {
    let target = Target::find(choice)?;
    let reached = target.connect(options("exec-server shell")).await?;
    let (argv, arg0) = if command.is_empty() {
        let info = reached.client.environment_info(Empty {}).await;
        let shell = info.context("cannot ask the server for its shell")?.shell;
        // The dash makes it a login shell.
        (vec![shell.path], Some(format!("-{}", shell.name)))
    } else {
        (words(command)?, None)
    };
    let wanted = Wanted {
        process_id: generated_name(),
        argv,
        arg0,
        cwd: None,
        variables: &[],
        stdin: true,
        terminal: Some(size()),
        on_full: OnFull::Block,
    };
    let foreground = Foreground {
        stdin: Some(Source::with_escapes()),
        terminal: true,
        on_signal: OnSignal::Leave,
        gaps: OnGap::Fail,
        timeout: None,
    };
    in_foreground(&target, reached, wanted, foreground).await
}
