//! The flags that limit the resources of a command.

use clap::Args;
use exec_server_protocol::{LimitValues, LimitsRequest};

use crate::environment::limit_options;

#[derive(Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Limits")]
pub(crate) struct LimitFlags {
    /// Limit the command with all its descendants (may be repeated): memory=512M, pids=100,
    /// cpu-time=10s, cpus=1.5, wall-time=1m; each process: open-files=64, file-size=1G, core-size=0
    #[arg(long = "limit", value_name = "NAME=VALUE", value_parser = limit_options::parse_limit)]
    pub(crate) given: Vec<LimitValues>,
    /// Refuse to start unless the kernel bounds the whole tree (cgroup v2)
    #[arg(long = "require-limits")]
    pub(crate) required: bool,
}

impl LimitFlags {
    /// Returns `None` if no limit was given, and `--require-limits` neither.
    pub(crate) fn request(&self) -> Option<Box<LimitsRequest>> {
        limit_options::request(&self.given, self.required)
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::super::client::ClientCommand;
    use super::super::parse;
    use super::*;

    fn parsed(line: &str) -> Result<LimitFlags, String> {
        let words = line.split_whitespace().map(OsString::from);
        let parsed = parse(std::iter::once("exec-server".into()).chain(words));
        match parsed.map_err(|error| error.to_string())?.command.unwrap().client() {
            ClientCommand::Run(run) => Ok(run.limits),
            ClientCommand::Shell(shell) => Ok(shell.limits),
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn run_and_shell_take_limits() {
        assert_eq!(parsed("run true").unwrap().request(), None);
        let line = "--limit memory=1M --limit pids=7 --limit memory=2M --require-limits -- true";
        for command in ["run", "run --detach", "shell"] {
            let request = parsed(&format!("{command} {line}")).unwrap().request().unwrap();
            let expected = (Some(2 << 20), Some(7), true);
            let found = (request.memory_bytes, request.pids, request.required.is_some());
            assert_eq!(found, expected, "{command}");
        }
        assert!(parsed("run --limit ram=1 true").unwrap_err().contains("unknown limit"));
    }
}
