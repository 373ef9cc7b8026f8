//! The table `sandbox` of an environment in `environments.toml`.

use exec_server_host::network::policy::PatternError;
use exec_server_protocol::PathUri;
use exec_server_server::SandboxLevel;
use serde::Deserialize;
use toml::Spanned;

use crate::environment::host_options::HostOptions;
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
    #[serde(default)]
    allow_hosts: Vec<Spanned<String>>,
    #[serde(default)]
    deny_hosts: Vec<Spanned<String>>,
    ask_network: Option<Spanned<bool>>,
    require_transparent: Option<Spanned<bool>>,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
enum Mode {
    ReadOnly,
    WorkspaceWrite,
}

/// The mistakes in a table.
#[derive(Debug, thiserror::Error)]
pub enum SandboxTableMistake {
    #[error("writable: {path:?} is not an absolute path")]
    RelativeWritable { path: String },
    #[error("writable needs mode = \"workspace-write\"")]
    NothingWritable,
    #[error("deny: {pattern:?}: {source}")]
    Denial { pattern: String, source: DenyPatternError },
    #[error("{key}: {source}")]
    Host { key: &'static str, source: PatternError },
    #[error("network = true allows every host; omit it, or omit {key}")]
    HostsAndNetwork { key: &'static str },
    #[error("{key} needs allow_hosts or ask_network = true")]
    NoHosts { key: &'static str },
}

impl SandboxTable {
    /// An error includes its position in the text.
    pub(super) fn check(&self) -> Result<SandboxOptions, (usize, SandboxTableMistake)> {
        if let (Mode::ReadOnly, Some(first)) = (self.mode, self.writable.first()) {
            return Err((first.span().start, SandboxTableMistake::NothingWritable));
        }
        // Not relative to the directory of the file, because these are paths on another machine.
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
            hosts: self.check_hosts()?,
        })
    }

    fn check_hosts(&self) -> Result<HostOptions, (usize, SandboxTableMistake)> {
        let patterns = |key: &'static str, patterns: &[Spanned<String>]| {
            let checked = patterns.iter().map(|pattern| {
                let text = pattern.get_ref();
                HostOptions::check_pattern(text).map(|()| text.clone()).map_err(|source| {
                    (pattern.span().start, SandboxTableMistake::Host { key, source })
                })
            });
            checked.collect::<Result<Vec<_>, _>>()
        };
        let is_on =
            |flag: &Option<Spanned<bool>>| flag.as_ref().is_some_and(|flag| *flag.get_ref());
        let hosts = HostOptions {
            allow: patterns("allow_hosts", &self.allow_hosts)?,
            deny: patterns("deny_hosts", &self.deny_hosts)?,
            ask: is_on(&self.ask_network),
            require_transparent: is_on(&self.require_transparent),
        };
        match self.first_host_key() {
            Some((key, at)) if self.network => {
                Err((at, SandboxTableMistake::HostsAndNetwork { key }))
            }
            Some((key, at)) if !hosts.can_reach_any() => {
                Err((at, SandboxTableMistake::NoHosts { key }))
            }
            _ => Ok(hosts),
        }
    }

    /// Returns the first key that sets a host rule, and its position in the text.
    fn first_host_key(&self) -> Option<(&'static str, usize)> {
        let of_list = |key, patterns: &[Spanned<String>]| {
            patterns.first().map(|pattern| (key, pattern.span().start))
        };
        let of_flag = |key, flag: &Option<Spanned<bool>>| {
            flag.as_ref().filter(|flag| *flag.get_ref()).map(|flag| (key, flag.span().start))
        };
        of_list("allow_hosts", &self.allow_hosts)
            .or_else(|| of_list("deny_hosts", &self.deny_hosts))
            .or_else(|| of_flag("ask_network", &self.ask_network))
            .or_else(|| of_flag("require_transparent", &self.require_transparent))
    }
}
