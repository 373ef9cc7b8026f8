//! The program's log. It goes only to standard error, because standard output carries the bound URL
//! or the protocol. This module knows the format of a line and applies a filter; it does not know
//! where the settings come from.

mod lines;

use std::io::{self, Stderr};
use std::str::FromStr;

use thiserror::Error;
use tracing_subscriber::EnvFilter;

use crate::terminal::Paint;
use lines::Lines;

/// Directives for libraries that log the URLs of HTTP requests, which are private to the client. Of
/// two directives for one target the last applies, so these follow the user's.
const HTTP_LIBRARIES: [&str; 4] = ["reqwest=warn", "hyper_util=warn", "hyper=warn", "h2=warn"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogFormat {
    Human,
    Json,
}

impl LogFormat {
    pub(crate) const ALL: [Self; 2] = [Self::Human, Self::Json];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Human => "human",
            Self::Json => "json",
        }
    }
}

impl FromStr for LogFormat {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        let known = Self::ALL.into_iter().find(|format| format.as_str() == name);
        known.ok_or(())
    }
}

#[derive(Debug, Error)]
pub(crate) enum LoggingError {
    #[error("log filter {filter:?} is not valid: {source}")]
    Filter { filter: String, source: FilterError },
    #[error("cannot start logging: {0}")]
    AlreadyStarted(Box<dyn std::error::Error + Send + Sync>),
}

#[derive(Debug, Error)]
pub(crate) enum FilterError {
    #[error("the filter is empty")]
    Empty,
    #[error(transparent)]
    Directive(#[from] tracing_subscriber::filter::ParseError),
}

/// Dropping it waits briefly for the last lines.
#[derive(Debug)]
pub(crate) struct Logging {
    lines: Lines<Stderr>,
}

impl Drop for Logging {
    fn drop(&mut self) {
        self.lines.flush();
    }
}

/// Starts logging to standard error for the whole process, including panics. Succeeds only once per
/// process.
pub(crate) fn init(filter: &str, format: LogFormat) -> Result<Logging, LoggingError> {
    let parsed = parse_filter(filter)
        .map_err(|source| LoggingError::Filter { filter: filter.to_owned(), source })?;
    let lines = Lines::new(io::stderr());
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(parsed)
        .with_writer(lines.clone())
        // Otherwise the subscriber reports write errors to standard error, and panics if that
        // fails.
        .log_internal_errors(false)
        .with_ansi(Paint::for_stream(&io::stderr()).is_wanted());
    match format {
        LogFormat::Human => subscriber.try_init(),
        LogFormat::Json => subscriber.json().flatten_event(true).with_span_list(false).try_init(),
    }
    .map_err(LoggingError::AlreadyStarted)?;
    // The default hook would block on a standard error that is not read.
    std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
    Ok(Logging { lines })
}

/// Parses a filter such as `info` or `info,exec_server=debug`.
pub(crate) fn parse_filter(text: &str) -> Result<EnvFilter, FilterError> {
    if text.trim().is_empty() {
        return Err(FilterError::Empty);
    }
    // The directive parser computes offsets in a trimmed directive and applies them to the
    // untrimmed one: a space after a comma would garble it, or panic inside a multi-byte character.
    let directives: Vec<_> = text.split(',').map(str::trim).chain(HTTP_LIBRARIES).collect();
    // No regular expressions: no span field needs them, and compiling them slows the start.
    Ok(EnvFilter::builder().with_regex(false).parse(directives.join(","))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_checked() {
        for good in [
            "info",
            "off",
            "warn, exec_server=debug",
            "[connection{id=3}]=trace",
            " info , é=debug ",
        ] {
            assert!(parse_filter(good).is_ok(), "{good}");
        }
        for bad in ["", "  ", "exec_server=loud", "=,="] {
            assert!(parse_filter(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn hosts_of_requests_are_never_logged() {
        let filter = parse_filter("trace,hyper_util=debug").unwrap().to_string();
        assert!(
            filter.contains("hyper_util=warn") && !filter.contains("hyper_util=debug"),
            "{filter}"
        );
    }

    #[test]
    fn the_error_for_a_bad_filter_quotes_it() {
        let error = init("exec_server=loud", LogFormat::Human).unwrap_err().to_string();
        assert!(error.starts_with("log filter \"exec_server=loud\" is not valid: "), "{error}");
        assert!(!error.contains('\n'));
    }

    #[test]
    fn formats_have_names() {
        for format in LogFormat::ALL {
            assert_eq!(format.as_str().parse(), Ok(format));
        }
        assert_eq!("pretty".parse::<LogFormat>(), Err(()));
    }
}
