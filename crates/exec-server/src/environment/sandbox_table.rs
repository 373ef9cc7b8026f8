//! The table `sandbox` of an environment in `environments.toml`.

use exec_server_protocol::PathUri;
use exec_server_server::SandboxLevel;
use serde::Deserialize;
use toml::Spanned;

use crate::environment::sandbox_options::{DenyPatternError, SandboxOptions};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SandboxTable {
    mode: Mode,
    #[serde(default)]
    writable: Vec<Spanned<String>>,
    #[serde(default)]
    deny: Vec<Spanned<String>>,
    #[serde(default)]
    network: bool,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
enum Mode {
    ReadOnly,
    WorkspaceWrite,
}

/// What is wrong with a table.
#[derive(Debug, thiserror::Error)]
pub enum SandboxTableMistake {
    #[error("{path:?} is not an absolute path")]
    RelativeWritable { path: String },
    #[error("writable needs mode = \"workspace-write\"")]
    NothingWritable,
    #[error("deny: {pattern:?}: {source}")]
    Denial { pattern: String, source: DenyPatternError },
}

impl SandboxTable {
    /// A mistake comes with its place in the text.
    pub(super) fn check(&self) -> Result<SandboxOptions, (usize, SandboxTableMistake)> {
        if let (Mode::ReadOnly, Some(first)) = (self.mode, self.writable.first()) {
            return Err((first.span().start, SandboxTableMistake::NothingWritable));
        }
        // Not relative to the directory of the file: these are paths of another machine.
        let writable = self.writable.iter().map(|path| {
            PathUri::from_path(path.get_ref()).ok_or_else(|| {
                let mistake =
                    SandboxTableMistake::RelativeWritable { path: path.get_ref().clone() };
                (path.span().start, mistake)
            })
        });
        let deny = self.deny.iter().map(|pattern| {
            let text = pattern.get_ref();
            SandboxOptions::check_deny_pattern(text).map(|()| text.clone()).map_err(|source| {
                let mistake = SandboxTableMistake::Denial { pattern: text.clone(), source };
                (pattern.span().start, mistake)
            })
        });
        Ok(SandboxOptions {
            level: match self.mode {
                Mode::ReadOnly => SandboxLevel::ReadOnly,
                Mode::WorkspaceWrite => SandboxLevel::WorkspaceWrite,
            },
            writable: writable.collect::<Result<_, _>>()?,
            deny: deny.collect::<Result<_, _>>()?,
            network: self.network,
        })
    }
}
