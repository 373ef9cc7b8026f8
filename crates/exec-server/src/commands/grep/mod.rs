//! `exec-server grep`: searches on the server and prints matches as they arrive.

mod print;

use std::io;
use std::path::PathBuf;

use anyhow::Context as _;
use exec_server_client::ExecServerError;
use exec_server_protocol::{
    ErrorCode, ErrorKind, FsGetMetadataParams, FsSearchParams, FsSearchResponse, OutputStream,
    PathUri,
};

use super::failures::{self, Failures};
use super::servers::{Located, Servers};
use super::wording::without_path;
use crate::cli::files::{Grep, GrepOutput};
use crate::foreground::{OutputError, Outputs};
use crate::program::exit_code::ExitStatus;
use crate::program::say;
use crate::target::remote_path::ServerPath;
use crate::terminal::{Names, Paint};
use print::{Printer, SearchRoot};

pub(super) async fn run(servers: &Servers<'_>, grep: &Grep) -> anyhow::Result<ExitStatus> {
    let mut outputs = Outputs::open();
    let (mut failures, mut matches) = (Failures::default(), 0);
    let roots = grep.roots();
    for path in &roots {
        match search(servers, grep, path, roots.len() == 1, &mut outputs).await {
            Ok(summary) => {
                matches += summary.matches;
                if let Some(problem) = unreadable(&summary) {
                    failures.tell(&path.written, &problem);
                }
                if summary.truncated {
                    let stopped = stopped(grep.max_matches, summary.matches);
                    say(&failures::line(&path.written, &anyhow::Error::msg(stopped)));
                }
            }
            Err(error) if error.is::<OutputError>() || is_of_the_pattern(&error) => {
                return Err(error);
            }
            Err(error) => failures.tell(&path.written, &error),
        }
    }
    outputs.finish().await?;
    Ok(match (failures.status(), matches) {
        (ExitStatus::SUCCESS, 0) => ExitStatus::FAILURE,
        (ExitStatus::SUCCESS, _) => ExitStatus::SUCCESS,
        _ => ExitStatus::NOT_ALL_SEARCHED,
    })
}

/// Whether the error is about the pattern or a glob. The search then stops, because every path
/// would fail for the same reason.
fn is_of_the_pattern(error: &anyhow::Error) -> bool {
    let Some(ExecServerError::Server(error)) = error.downcast_ref() else { return false };
    // Older servers report a bad pattern only by the code.
    error.kind() == Some(&ErrorKind::BadPattern) || error.code == ErrorCode::InvalidParams.value()
}

async fn search(
    servers: &Servers<'_>,
    grep: &Grep,
    written: &ServerPath,
    is_only: bool,
    outputs: &mut Outputs,
) -> anyhow::Result<FsSearchResponse> {
    let Located { client, path } = servers.locate(written).await?;
    let params = FsGetMetadataParams { path: path.clone(), follow_symlinks: None, sandbox: None };
    let found = client.fs_get_metadata(params).await;
    let is_lone_file = found.map_err(|error| without_path(&path, error))?.is_file && is_only;
    let root = SearchRoot {
        path: path.as_path().to_owned(),
        written: PathBuf::from(&written.written),
        is_named: !is_lone_file || grep.output() == GrepOutput::Files,
    };
    let stdout = io::stdout();
    let (names, paint) = (Names::for_stream(&stdout), Paint::for_stream(&stdout));
    let has_context = grep.lines_before() + grep.lines_after() > 0;
    let mut printer = Printer::new(root, grep.output(), has_context, names, paint);
    let mut results = client.search(params_of(grep, path)).await?;
    loop {
        let batch = tokio::select! {
            batch = results.next() => batch,
            error = outputs.failed() => return Err(error.into()),
        };
        let (text, is_over) = match batch {
            Some(batch) => (printer.matches(batch?), false),
            None => (printer.end(), true),
        };
        if !text.is_empty() {
            outputs.write(OutputStream::Stdout, text.into()).await?;
        }
        if is_over {
            return results.summary().context("the server did not report how the search ended");
        }
    }
}

fn params_of(grep: &Grep, path: PathUri) -> FsSearchParams {
    FsSearchParams {
        literal: grep.literal,
        ignore_case: grep.ignore_case,
        word: grep.word,
        globs: grep.globs.clone(),
        hidden: grep.hidden,
        ignored: grep.no_ignore,
        before: grep.lines_before(),
        after: grep.lines_after(),
        max_matches: grep.max_matches,
        ..FsSearchParams::new(path, grep.pattern.clone())
    }
}

/// Explains a truncated search. The server limits the number of lines and also the size of the
/// results.
fn stopped(max_matches: Option<u64>, matches: u64) -> String {
    let lines = if matches == 1 { "line" } else { "lines" };
    if matches < max_matches.unwrap_or(FsSearchParams::DEFAULT_MATCHES) {
        return format!(
            "stopped after {matches} {lines}, the most that the server sends; narrow the search"
        );
    }
    format!("stopped after {matches} {lines}; see --max-matches")
}

fn unreadable(summary: &FsSearchResponse) -> Option<anyhow::Error> {
    match summary.unreadable {
        0 => None,
        1 => Some(anyhow::anyhow!("a file or directory cannot be read")),
        several => Some(anyhow::anyhow!("{several} files or directories cannot be read")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reached_limit_is_named() {
        assert_eq!(stopped(Some(1), 1), "stopped after 1 line; see --max-matches");
        assert_eq!(stopped(None, 10_000), "stopped after 10000 lines; see --max-matches");
        let other = "stopped after 7 lines, the most that the server sends; narrow the search";
        assert_eq!(stopped(None, 7), other);
    }
}
