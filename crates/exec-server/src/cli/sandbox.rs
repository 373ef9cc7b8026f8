//! The flags that run a command in a sandbox.

use std::ffi::OsString;

use clap::builder::{OsStringValueParser, TypedValueParser as _};
use clap::{Args, ValueEnum, ValueHint};

use super::hosts::HostFlags;
use crate::environment::sandbox_options::{DenyPatternError, SandboxOptions};

#[derive(Debug, PartialEq, Eq, Args)]
#[command(next_help_heading = "Sandbox")]
pub(crate) struct SandboxFlags {
    /// read-only, workspace-write (the working and temporary directories), or none
    // Without this flag, the environment's sandbox applies, if it has one.
    #[arg(long, value_name = "MODE", hide_possible_values = true)]
    pub(crate) sandbox: Option<SandboxMode>,
    /// Also allow the command to write in this directory (may be repeated)
    #[arg(
        long,
        value_name = "DIR",
        value_parser = OsStringValueParser::new().try_map(directory),
        value_hint = ValueHint::DirPath
    )]
    pub(crate) writable: Vec<OsString>,
    /// Deny the command this path or pattern (may be repeated)
    #[arg(long, value_name = "GLOB", value_parser = denial)]
    pub(crate) deny: Vec<String>,
    /// Allow the network, which a sandbox otherwise denies
    #[arg(long)]
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
            return Err(format!("--network allows every host; omit it, or omit {flag}"));
        }
        let given = [
            ("--writable", !self.writable.is_empty()),
            ("--deny", !self.deny.is_empty()),
            ("--network", self.network),
        ];
        match (self.sandbox, given.iter().find(|(_, is_given)| *is_given)) {
            (None | Some(SandboxMode::ReadOnly), Some(("--writable", _))) => {
                Err("--writable needs --sandbox workspace-write".to_owned())
            }
            (None, Some((flag, _))) => {
                Err(format!("{flag} needs --sandbox read-only or --sandbox workspace-write"))
            }
            (Some(SandboxMode::None), Some((flag, _))) => Err(format!(
                "{flag} has no effect with --sandbox none; omit it, or choose another mode"
            )),
            _ => Ok(()),
        }
    }
}

/// Refuses an empty name, which most likely comes from an unset variable.
fn directory(name: OsString) -> Result<OsString, &'static str> {
    if name.is_empty() {
        Err("the directory name is empty; is a variable unset?")
    } else {
        Ok(name)
    }
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
    fn run_and_shell_take_sandbox_flags() {
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
    fn contradictory_sandbox_flags_are_refused() {
        for (line, expected) in [
            ("run --writable a true", "--writable needs --sandbox workspace-write"),
            ("run --deny a true", "--deny needs --sandbox read-only or"),
            ("run --sandbox read-only --deny ~/.ssh true", "~ is not expanded here"),
            ("run --sandbox read-only --deny **.pem true", "** matches directories"),
            ("run --sandbox read-only --deny $HOME/.ssh true", "variables are not expanded here"),
            ("run --sandbox read-only --deny file:///etc true", "write the path without file://"),
            ("shell --network", "--network needs --sandbox read-only or"),
            (
                "run --sandbox read-only --writable a true",
                "--writable needs --sandbox workspace-write",
            ),
            ("run --sandbox none --deny a true", "--deny has no effect with --sandbox none"),
            ("run --sandbox none --network true", "--network has no effect with --sandbox none"),
            ("run --sandbox workspace-write --writable= true", "the directory name is empty"),
            ("run --sandbox full true", "read-only, workspace-write, none"),
        ] {
            let error = parsed(line).unwrap_err();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
