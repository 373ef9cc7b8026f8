//! The flags that put a command under a sandbox.

use std::ffi::OsString;

use clap::builder::{OsStringValueParser, TypedValueParser as _};
use clap::{Arg, ArgAction, ArgMatches, ValueHint};
use exec_server_server::SandboxLevel;

use super::switch;
use crate::environment::sandbox_terms::{DenialMistake, SandboxTerms};

/// What the command line says about the sandbox.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SandboxChoice {
    /// That of the environment, if it has one.
    Unsaid,
    None,
    Flags(SandboxFlags),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SandboxFlags {
    pub(crate) level: SandboxLevel,
    /// As they were written.
    pub(crate) writable: Vec<OsString>,
    pub(crate) deny: Vec<String>,
    pub(crate) network: bool,
}

const READ_ONLY: &str = "read-only";
const WORKSPACE_WRITE: &str = "workspace-write";
const NONE: &str = "none";

pub(super) fn arguments() -> [Arg; 4] {
    const HEADING: &str = "Sandbox";
    [
        Arg::new("sandbox")
            .long("sandbox")
            .value_name("MODE")
            .value_parser([READ_ONLY, WORKSPACE_WRITE, NONE])
            .help(
                "Only allow it to read files, or also to write in its directory and in temporary directories; \
                 none overrides the environment",
            ),
        Arg::new("writable")
            .long("writable")
            .value_name("DIR")
            .value_parser(OsStringValueParser::new().try_map(directory))
            .value_hint(ValueHint::DirPath)
            .action(ArgAction::Append)
            .requires("sandbox")
            .help("Also allow it to write in this directory (may be repeated)"),
        Arg::new("deny")
            .long("deny")
            .value_name("GLOB")
            .value_parser(denial)
            .action(ArgAction::Append)
            .requires("sandbox")
            .help("Deny it this path, or paths that match this pattern (may be repeated)"),
        switch("network", "Allow it to use the network").requires("sandbox"),
    ]
    .map(|argument| argument.help_heading(HEADING))
}

/// A variable that is not set, most likely.
fn directory(name: OsString) -> Result<OsString, &'static str> {
    if name.is_empty() { Err("an empty name is no directory") } else { Ok(name) }
}

fn denial(text: &str) -> Result<String, DenialMistake> {
    SandboxTerms::check_denial(text).map(|()| text.to_owned())
}

pub(super) fn parse(matches: &ArgMatches) -> Result<SandboxChoice, String> {
    let Some(mode) = matches.get_one::<String>("sandbox") else {
        return Ok(SandboxChoice::Unsaid);
    };
    let flags = |level| SandboxFlags {
        level,
        writable: matches.get_many("writable").into_iter().flatten().cloned().collect(),
        deny: matches.get_many("deny").into_iter().flatten().cloned().collect(),
        network: matches.get_flag("network"),
    };
    match &**mode {
        WORKSPACE_WRITE => Ok(SandboxChoice::Flags(flags(SandboxLevel::WorkspaceWrite))),
        READ_ONLY if matches.contains_id("writable") => {
            Err(format!("--writable needs --sandbox {WORKSPACE_WRITE}"))
        }
        READ_ONLY => Ok(SandboxChoice::Flags(flags(SandboxLevel::ReadOnly))),
        _ => {
            let given = ["writable", "deny"].iter().find(|id| matches.contains_id(id));
            match given.or(matches.get_flag("network").then_some(&"network")) {
                Some(flag) => Err(format!("--{flag} means nothing with --sandbox {NONE}")),
                None => Ok(SandboxChoice::None),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::client::{Action, ClientCommand};
    use super::super::{Command, parse};
    use super::*;

    fn parsed(line: &str) -> Result<SandboxChoice, String> {
        let words = line.split_whitespace().map(OsString::from);
        match parse(std::iter::once("exec-server".into()).chain(words)) {
            Ok(Command::Client(command)) => match *command {
                ClientCommand { action: Action::Run(run), .. } => Ok(run.sandbox),
                ClientCommand { action: Action::Shell { sandbox, .. }, .. } => Ok(sandbox),
                other => panic!("{line}: {other:?}"),
            },
            Ok(other) => panic!("{line}: {other:?}"),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn everything_comes_from_the_flags_once_there_is_one() {
        assert_eq!(parsed("run true").unwrap(), SandboxChoice::Unsaid);
        assert_eq!(parsed("run --sandbox none true").unwrap(), SandboxChoice::None);
        let line = "--sandbox workspace-write --writable a --writable /b --deny **/*.pem --network -- true";
        let flags = SandboxFlags {
            level: SandboxLevel::WorkspaceWrite,
            writable: vec!["a".into(), "/b".into()],
            deny: vec!["**/*.pem".to_owned()],
            network: true,
        };
        for command in ["run", "run --detach", "shell"] {
            let SandboxChoice::Flags(found) = parsed(&format!("{command} {line}")).unwrap() else {
                panic!("{command}");
            };
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
