//! Parsers for option values, and their errors.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::time::Duration;

use clap::builder::{OsStringValueParser, StringValueParser, TypedValueParser};
use clap::error::ErrorKind;

use crate::target::remote_path::PathError;

/// Parses a value that must not appear in an error, because it may hold a secret.
pub(super) fn secret<T: Clone + Send + Sync + 'static>(
    parse: fn(&str) -> Result<T, String>,
) -> impl TypedValueParser<Value = T> {
    Concealing { values: StringValueParser::new(), parse: move |text: String| parse(&text) }
}

/// Parses a path. Omits the value from errors, because a [`PathError`] is clear without it.
pub(super) fn path<T: Clone + Send + Sync + 'static>(
    parse: fn(&OsStr) -> Result<T, PathError>,
) -> impl TypedValueParser<Value = T> {
    Concealing { values: OsStringValueParser::new(), parse: move |path: OsString| parse(&path) }
}

/// A parser whose errors omit the value, unlike those of clap's own parsers.
#[derive(Clone)]
struct Concealing<P, F> {
    values: P,
    parse: F,
}

impl<P, F, T, E> TypedValueParser for Concealing<P, F>
where
    P: TypedValueParser,
    F: Fn(P::Value) -> Result<T, E> + Clone + Send + Sync + 'static,
    T: Clone + Send + Sync + 'static,
    E: fmt::Display,
{
    type Value = T;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<T, clap::Error> {
        let value = self.values.parse_ref(command, argument, value)?;
        (self.parse)(value).map_err(|problem| {
            let argument = argument.map(ToString::to_string).unwrap_or_default();
            let name = argument.trim_end_matches("...");
            let message = format!("invalid value for '{name}': {problem}");
            command.clone().error(ErrorKind::ValueValidation, message)
        })
    }
}

/// Parses a duration. A bare number is in seconds, as for `timeout` and `sleep`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let whole = text.parse().ok().map(Duration::from_secs);
    let fraction = || Duration::try_from_secs_f64(text.parse().ok()?).ok();
    whole
        .or_else(fraction)
        .or_else(|| humantime::parse_duration(text).ok())
        .ok_or_else(|| "expected seconds, or a duration such as 500ms, 30s or 1h 30m".to_owned())
}

pub(super) fn parse_lifetime(text: &str) -> Result<Duration, String> {
    let lifetime = parse_duration(text)?;
    if lifetime.is_zero() {
        return Err(
            "must be more than 0; to end the command with its client, omit --detach".to_owned()
        );
    }
    Ok(lifetime)
}

/// As in timeout(1), zero means no limit.
pub(crate) fn limit(timeout: Option<Duration>) -> Option<Duration> {
    timeout.filter(|timeout| !timeout.is_zero())
}

const LONGEST_NAME: usize = 128;

/// Docker's rule for names. A slash is not allowed because it separates a session from a name.
pub(crate) fn is_plain_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    text.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
        && text.bytes().all(allowed)
        && text.len() <= LONGEST_NAME
}

pub(super) fn parse_name(text: &str) -> Result<String, String> {
    is_plain_name(text).then(|| text.to_owned()).ok_or_else(|| {
        format!(
            "expected at most {LONGEST_NAME} letters, digits, '_', '.' or '-', starting with a \
             letter or digit"
        )
    })
}
