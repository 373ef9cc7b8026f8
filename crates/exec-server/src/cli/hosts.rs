//! The flags that select the hosts that a command may reach.

use clap::Args;
use exec_server_host::network::policy::PatternError;

use crate::environment::host_options::HostOptions;

#[derive(Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Network")]
pub(crate) struct HostFlags {
    /// Allow only this host (may be repeated): HOST, *.HOST, **.HOST[:PORT]
    #[arg(long, value_name = "PATTERN", value_parser = parse_pattern)]
    pub(crate) allow_host: Vec<String>,
    /// Deny this host even if another flag allows it (may be repeated)
    #[arg(long, value_name = "PATTERN", value_parser = parse_pattern)]
    pub(crate) deny_host: Vec<String>,
    /// Ask you about other hosts; the command then cannot read the terminal
    #[arg(long)]
    pub(crate) ask_network: bool,
    /// Fail if only programs that use a proxy could reach the hosts
    #[arg(long)]
    pub(crate) require_transparent: bool,
}

impl HostFlags {
    pub(crate) fn options(&self) -> HostOptions {
        HostOptions {
            allow: self.allow_host.clone(),
            deny: self.deny_host.clone(),
            ask: self.ask_network,
            require_transparent: self.require_transparent,
        }
    }

    pub(super) fn first_given(&self) -> Option<&'static str> {
        let given = [
            ("--allow-host", !self.allow_host.is_empty()),
            ("--deny-host", !self.deny_host.is_empty()),
            ("--ask-network", self.ask_network),
            ("--require-transparent", self.require_transparent),
        ];
        given.into_iter().find_map(|(flag, is_given)| is_given.then_some(flag))
    }

    /// Refuses `--ask-network` for a program on a terminal, which reads every key, and for a
    /// detached one, which has no terminal for questions.
    pub(super) fn check_asking(&self, has_terminal: bool, detach: bool) -> Result<(), String> {
        let reason = match (self.ask_network, has_terminal, detach) {
            (true, _, true) => "--detach: there is no terminal to ask on",
            (true, true, _) => "a command that uses the terminal: it reads all keys",
            _ => return Ok(()),
        };
        Err(format!("--ask-network cannot be used with {reason}; name the hosts with --allow-host"))
    }
}

pub(super) fn parse_pattern(text: &str) -> Result<String, PatternError> {
    HostOptions::check_pattern(text).map(|()| text.to_owned())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::super::client::ClientCommand;
    use super::super::parse;
    use super::*;

    fn parsed(line: &str) -> Result<HostFlags, String> {
        let words = line.split_whitespace().map(OsString::from);
        let parsed = parse(std::iter::once("exec-server".into()).chain(words));
        match parsed.map_err(|error| error.to_string())?.command.unwrap().client() {
            ClientCommand::Run(run) => Ok(run.sandbox.hosts),
            ClientCommand::Shell(shell) => Ok(shell.sandbox.hosts),
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn hosts_can_be_given_with_and_without_a_sandbox() {
        let flags = "--allow-host a.example --allow-host *.b.example:443 --deny-host x.b.example \
                     --require-transparent";
        let expected = HostOptions {
            allow: vec!["a.example".to_owned(), "*.b.example:443".to_owned()],
            deny: vec!["x.b.example".to_owned()],
            ask: false,
            require_transparent: true,
        };
        for command in ["run", "run --sandbox workspace-write", "run --sandbox none", "shell"] {
            let found = parsed(&format!("{command} {flags} -- npm install")).unwrap();
            assert_eq!(found.options(), expected, "{command}");
        }
        assert!(!parsed("run true").unwrap().options().has_rules());
        assert!(parsed("run --ask-network true").unwrap().options().ask);
    }

    #[test]
    fn contradictions_and_bad_patterns_are_refused() {
        for (line, expected) in [
            ("run --allow-host * true", "\"*\" matches every host"),
            ("run --allow-host https://a.example true", "contains a slash"),
            ("run --deny-host a.example:0 true", "has an invalid port"),
            ("run --allow-host= true", "a host pattern is empty"),
            (
                "run --sandbox read-only --network --allow-host a.example true",
                "--network allows every host; omit it, or omit --allow-host",
            ),
            ("shell --ask-network", "it reads all keys; name the hosts with --allow-host"),
            ("run -t --ask-network true", "a command that uses the terminal"),
            ("run -d --ask-network true", "--ask-network cannot be used with --detach"),
        ] {
            let error = parsed(line).unwrap_err();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
