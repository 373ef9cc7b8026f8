//! Where the program's own log goes: standard error, and nowhere else, because standard output carries the
//! bound URL or the protocol. Knows how a line looks and which lines are wanted, not where those wishes come from.

mod lines;

use std::io::{self, Stderr};
use std::str::FromStr;

use thiserror::Error;
use tracing_subscriber::EnvFilter;

use crate::terminal::Paint;
use lines::Lines;

/// These libraries log the URLs of HTTP requests, which are private to the client. Of two directives for the same target
/// the last counts.
const HTTP_LIBRARIES: [&str; 4] = ["reqwest=warn", "hyper_util=warn", "hyper=warn", "h2=warn"];

/// How a log line looks.
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
    #[error("it is empty")]
    Empty,
    #[error(transparent)]
    Directive(#[from] tracing_subscriber::filter::ParseError),
}

/// The log of this process. Dropping it gives the last lines a moment.
#[derive(Debug)]
pub(crate) struct Logging {
    lines: Lines<Stderr>,
}

impl Drop for Logging {
    fn drop(&mut self) {
        self.lines.flush();
    }
}

/// Sends the log of this whole process, panics included, to standard error. Succeeds once per process.
pub(crate) fn init(filter: &str, format: LogFormat) -> Result<Logging, LoggingError> {
    let parsed = parse_filter(filter)
        .map_err(|source| LoggingError::Filter { filter: filter.to_owned(), source })?;
    let lines = Lines::new(io::stderr());
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(parsed)
        .with_writer(lines.clone())
        // It would report what it cannot write to standard error, and panic if that fails.
        .log_internal_errors(false)
        .with_ansi(Paint::for_stream(&io::stderr()).is_wanted());
    match format {
        LogFormat::Human => subscriber.try_init(),
        LogFormat::Json => subscriber.json().flatten_event(true).with_span_list(false).try_init(),
    }
    .map_err(LoggingError::AlreadyStarted)?;
    // The default would wait for a standard error that is not read.
    std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
    Ok(Logging { lines })
}

/// Reads a filter such as `info` or `info,exec_server=debug`.
pub(crate) fn parse_filter(text: &str) -> Result<EnvFilter, FilterError> {
    if text.trim().is_empty() {
        return Err(FilterError::Empty);
    }
    // The directive parser takes offsets from a trimmed directive and cuts the untrimmed one with them: a space
    // after a comma would garble it, or panic inside a multi-byte character.
    let directives: Vec<_> = text.split(',').map(str::trim).chain(HTTP_LIBRARIES).collect();
    // No regular expressions: none of our span fields needs one, and compiling them costs start-up time.
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
    fn hosts_of_requests_are_never_wanted() {
        let filter = parse_filter("trace,hyper_util=debug").unwrap().to_string();
        assert!(
            filter.contains("hyper_util=warn") && !filter.contains("hyper_util=debug"),
            "{filter}"
        );
    }

    #[test]
    fn a_bad_filter_says_what_it_was() {
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
