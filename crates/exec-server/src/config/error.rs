//! Errors in a configuration. Each message is one line that names the place to correct.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::exposure::ExposureError;
use super::kind::Mismatch;
use super::remote::RemoteOptionsError;
use super::resolve::Source;

#[derive(Debug, Error)]
pub(crate) enum ConfigError {
    #[error("{}: cannot read the configuration file: {source}", OneLine(.path))]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{at}: {message}")]
    Syntax { at: Position, message: String },
    #[error("{at}: unknown key {key:?}{}", suggestion(.similar.as_deref()))]
    UnknownKey { at: Position, key: String, similar: Option<String> },
    #[error("{origin}: {}{mismatch}", key_in_file(.origin, .key))]
    Value { origin: Source, key: &'static str, mismatch: Mismatch },
    #[error("unknown environment variable {variable:?}{}", suggestion(.similar.as_deref()))]
    UnknownVariable { variable: String, similar: Option<String> },
    #[error("{variable}: the value is not valid UTF-8")]
    VariableNotUnicode { variable: String },
    #[error("{old} and {current} are the same setting; give only {current}")]
    TwoNames { old: String, current: String },
    #[error(
        "{origin}: {key} has no effect without sandbox.require; set sandbox.require to \"workspace-write\", \"read-only\" or \"none\""
    )]
    NoCeiling { key: &'static str, origin: Source },
    #[error("{origin}: {key} has no effect without a network; set sandbox.network to true")]
    NoNetwork { key: &'static str, origin: Source },
    #[error(transparent)]
    Exposure(#[from] ExposureError),
    #[error(transparent)]
    Remote(#[from] RemoteOptionsError),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) path: PathBuf,
    pub(crate) line: usize,
}

/// A suspicious setting or variable that is not an error.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ConfigWarning {
    /// A variable with this program's prefix that is not a setting. Its value is not kept, because
    /// it may be a secret.
    UnknownVariable { name: String, similar: Option<String> },
    /// A setting given under its deprecated name.
    Deprecated { old: String, current: String },
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", OneLine(&self.path), self.line)
    }
}

impl fmt::Display for ConfigWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownVariable { name, similar } => {
                let suggestion = suggestion(similar.as_deref());
                write!(f, "unknown environment variable {name:?} is ignored{suggestion}")
            }
            Self::Deprecated { old, current } => write!(f, "{old} is deprecated; use {current}"),
        }
    }
}

pub(super) fn most_similar(name: &str, known: impl Iterator<Item = String>) -> Option<String> {
    const SIMILAR_ENOUGH: f64 = 0.8;
    known
        .map(|candidate| (strsim::jaro_winkler(name, &candidate), candidate))
        .filter(|(similarity, _)| *similarity > SIMILAR_ENOUGH)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, candidate)| candidate)
}

fn suggestion(similar: Option<&str>) -> String {
    similar.map_or_else(String::new, |name| format!(" (did you mean {name:?}?)"))
}

/// Returns the key for an error in the file. The name of a variable or flag already identifies its
/// setting.
fn key_in_file(origin: &Source, key: &str) -> String {
    match origin {
        Source::File(_) => format!("{key}: "),
        Source::Default | Source::Variable(_) | Source::Flag(_) => String::new(),
    }
}

/// Replaces control characters. A line break in a path must not break an error line or the comment
/// on a printed setting.
struct OneLine<'a>(&'a Path);

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.0.to_string_lossy();
        f.write_str(&path.replace(char::is_control, "\u{fffd}"))
    }
}
