//! The flags that put a command under a sandbox.

use std::ffi::OsString;

use clap::builder::{OsStringValueParser, TypedValueParser as _};
use clap::{Args, ValueEnum, ValueHint};

use super::hosts::HostFlags;
use crate::environment::sandbox_options::{DenyPatternError, SandboxOptions};

#[derive(Debug, PartialEq, Eq, Args)]
#[command(next_help_heading = "Sandbox")]
pub(crate) struct SandboxFlags {
    /// Only allow it to read files, or also to write in its directory and in temporary directories;
    /// none overrides the environment
    // Without it, the sandbox is that of the environment, if it has one.
    #[arg(long, value_name = "MODE")]
    pub(crate) sandbox: Option<SandboxMode>,
    /// Also allow it to write in this directory (may be repeated)
    #[arg(
        long,
        value_name = "DIR",
        requires = "sandbox",
        value_parser = OsStringValueParser::new().try_map(directory),
        value_hint = ValueHint::DirPath
    )]
    pub(crate) writable: Vec<OsString>,
    /// Deny it this path, or paths that match this pattern (may be repeated)
    #[arg(long, value_name = "GLOB", requires = "sandbox", value_parser = denial)]
    pub(crate) deny: Vec<String>,
    /// Allow it to use the network
    #[arg(long, requires = "sandbox")]
    pub(crate) network: bool,
    #[command(flatten)]
    pub(crate) hosts: HostFlags,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SandboxMode {
    ReadOnly,
    WorkspaceWrite,
    None,
}

impl SandboxFlags {
    pub(super) fn check(&self) -> Result<(), String> {
        if let (true, Some(flag)) = (self.network, self.hosts.first_given()) {
            return Err(format!("--network allows every host; leave it out, or leave out {flag}"));
        }
        let given = [
            ("--writable", !self.writable.is_empty()),
            ("--deny", !self.deny.is_empty()),
            ("--network", self.network),
        ];
        match (self.sandbox, given.iter().find(|(_, is_given)| *is_given)) {
            (Some(SandboxMode::ReadOnly), Some(("--writable", _))) => {
                Err("--writable needs --sandbox workspace-write".to_owned())
            }
            (Some(SandboxMode::None), Some((flag, _))) => {
                Err(format!("{flag} means nothing with --sandbox none"))
            }
            _ => Ok(()),
        }
    }
}

/// A variable that is not set, most likely.
fn directory(name: OsString) -> Result<OsString, &'static str> {
    if name.is_empty() { Err("an empty name is no directory") } else { Ok(name) }
}

fn denial(text: &str) -> Result<String, DenyPatternError> {
    SandboxOptions::check_deny_pattern(text).map(|()| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::client::ClientCommand;
    use super::super::parse;
    use super::*;

    fn parsed(line: &str) -> Result<SandboxFlags, String> {
        let words = line.split_whitespace().map(OsString::from);
        let parsed = parse(std::iter::once("exec-server".into()).chain(words));
        match parsed.map_err(|error| error.to_string())?.command.unwrap().client() {
            ClientCommand::Run(run) => Ok(run.sandbox),
            ClientCommand::Shell(shell) => Ok(shell.sandbox),
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn everything_comes_from_the_flags_once_there_is_one() {
        assert_eq!(parsed("run true").unwrap().sandbox, None);
        let none = parsed("run --sandbox none true").unwrap();
        assert_eq!(none.sandbox, Some(SandboxMode::None));
        let line = "--sandbox workspace-write --writable a --writable /b --deny **/*.pem --network -- true";
        let flags = SandboxFlags {
            sandbox: Some(SandboxMode::WorkspaceWrite),
            writable: vec!["a".into(), "/b".into()],
            deny: vec!["**/*.pem".to_owned()],
            network: true,
            hosts: HostFlags::default(),
        };
        for command in ["run", "run --detach", "shell"] {
            let found = parsed(&format!("{command} {line}")).unwrap();
            assert_eq!(found, flags, "{command}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for (line, expected) in [
            ("run --writable a true", "--sandbox <MODE>"),
            ("run --deny a true", "--sandbox <MODE>"),
            ("run --sandbox read-only --deny ~/.ssh true", "only a shell knows ~"),
            ("run --sandbox read-only --deny **.pem true", "** stands for directories"),
            ("run --sandbox read-only --deny $HOME/.ssh true", "only a shell knows variables"),
            ("run --sandbox read-only --deny file:///etc true", "write the path without file://"),
            ("shell --network", "--sandbox <MODE>"),
            (
                "run --sandbox read-only --writable a true",
                "--writable needs --sandbox workspace-write",
            ),
            ("run --sandbox none --deny a true", "--deny means nothing with --sandbox none"),
            ("run --sandbox none --network true", "--network means nothing with --sandbox none"),
            ("run --sandbox workspace-write --writable= true", "an empty name is no directory"),
            ("run --sandbox full true", "read-only, workspace-write, none"),
        ] {
            let error = parsed(line).unwrap_err();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
