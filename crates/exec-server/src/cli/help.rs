//! The help of the program, with commands grouped by purpose, and examples for each command.

use std::fmt::Write as _;

const GROUPS: [(&str, &[&str]); 4] = [
    ("Run things", &["run", "shell", "ps", "logs", "attach", "kill", "wait", "forget"]),
    ("Files and HTTP", &["cp", "ls", "cat", "mkdir", "rm", "watch", "grep", "http"]),
    ("Servers", &["rendezvous", "forward", "token", "login", "logout"]),
    ("Operate", &["status", "config", "doctor", "bench", "schema", "completions", "man", "help"]),
];

const OPTIONS: &str = "\
\x20     --listen <URL>   Where the server listens: ws://IP:PORT, wss://IP:PORT, unix:///PATH, stdio
      --config <PATH>  Read settings from this TOML file
  -h, --help           Print help; for a command: exec-server run --help
  -V, --version        Print version

Commands find your running server. exec-server run --help shows how to name another.
Without a command the program is the server. exec-server config --help lists all its settings.";

const EXAMPLES: [(&str, &[&str]); 25] = [
    (
        "run",
        &["exec-server run -- make -j4", "exec-server run --sandbox workspace-write -- npm ci"],
    ),
    ("shell", &["exec-server shell", "exec-server shell --on box -- vim notes.md"]),
    ("ps", &["exec-server ps --all"]),
    ("logs", &["exec-server logs --follow build"]),
    ("attach", &["exec-server attach build"]),
    ("kill", &["exec-server kill build", "exec-server kill --signal INT build"]),
    ("wait", &["exec-server wait build"]),
    ("forget", &["exec-server forget --all"]),
    ("cp", &["exec-server cp -r src :/srv/src", "exec-server cp :/srv/result.json ."]),
    ("ls", &["exec-server ls -l /srv"]),
    ("cat", &["exec-server cat /etc/os-release"]),
    ("mkdir", &["exec-server mkdir --parents /srv/a/b"]),
    ("rm", &["exec-server rm --recursive /srv/old"]),
    ("watch", &["exec-server watch --recursive /srv/src"]),
    ("grep", &["exec-server grep -n TODO /srv/src"]),
    ("http", &["exec-server http https://example.org/"]),
    ("rendezvous", &["exec-server rendezvous --listen http://127.0.0.1:8080 --data data"]),
    (
        "forward",
        &["exec-server forward --connect ws://127.0.0.1:7777 --remote https://r.example \
                   --environment-id box"],
    ),
    ("token", &["exec-server token new"]),
    ("login", &["exec-server login --remote https://rendezvous.example.org"]),
    ("logout", &["exec-server logout --remote https://rendezvous.example.org"]),
    ("doctor", &["exec-server doctor --json"]),
    ("bench", &["exec-server bench --quick --only files"]),
    ("completions", &["exec-server completions bash > /etc/bash_completion.d/exec-server"]),
    ("man", &["exec-server man run | man -l -"]),
];

const HELP: &str = "Print this message or the help of a command";

/// Replaces clap's flat list of all commands and settings with a help text that fits a screen.
pub(super) fn with_groups(program: clap::Command) -> clap::Command {
    let header = *program.get_styles().get_header();
    let literal = *program.get_styles().get_literal();
    let mut template = "{about}\n\n{usage-heading} {usage}\n".to_owned();
    for (group, commands) in GROUPS {
        let _ = writeln!(template, "\n{header}{group}:{header:#}");
        for name in commands {
            let command = program.find_subcommand(name);
            let about = command.and_then(clap::Command::get_about).map(ToString::to_string);
            let about = about.unwrap_or_else(|| HELP.to_owned());
            let _ = writeln!(template, "  {literal}{name:<11}{literal:#}  {about}");
        }
    }
    let _ = write!(template, "\n{header}Options:{header:#}\n{OPTIONS}");
    program.help_template(template)
}

pub(super) fn with_examples(program: clap::Command) -> clap::Command {
    EXAMPLES.into_iter().fold(program, |program, (name, examples)| {
        program.mut_subcommand(name, |command| {
            let before = command.get_after_help().map(|text| format!("{text}\n\n"));
            let title = if examples.len() == 1 { "Example" } else { "Examples" };
            let lines: String = examples.iter().map(|line| format!("\n  {line}")).collect();
            command.after_help(format!("{}{title}:{lines}", before.unwrap_or_default()))
        })
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::ffi::OsString;

    use super::*;
    use crate::cli::{parse, program};

    #[test]
    fn each_command_is_in_one_group() {
        let program = program();
        let mut grouped: Vec<_> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        let count = grouped.len();
        let known = program.get_subcommands().map(clap::Command::get_name);
        let known: BTreeSet<_> = known.chain(["help"]).collect();
        assert_eq!(grouped.drain(..).collect::<BTreeSet<_>>(), known);
        assert_eq!(count, known.len());
    }

    #[test]
    fn each_command_has_an_example_and_examples_are_valid() {
        let mut program = program();
        for command in program.get_subcommands_mut() {
            let help = command.render_help().to_string();
            let (_, examples) = help.split_once("Example").unwrap_or_else(|| panic!("{help}"));
            for line in examples.lines().filter_map(|line| line.strip_prefix("  exec-server ")) {
                let words =
                    line.split_whitespace().take_while(|word| !["|", ">", "#"].contains(word));
                let words = ["exec-server"].into_iter().chain(words).map(OsString::from);
                let parsed = parse(words);
                assert!(parsed.is_ok(), "{line}: {parsed:?}");
            }
        }
    }

    /// `config` is the exception: it lists every setting of the server.
    #[test]
    fn each_help_fits_a_screen() {
        let mut program = program();
        program.build();
        let commands = program.get_subcommands().filter(|command| command.get_name() != "config");
        for command in std::iter::once(&program).chain(commands) {
            let help = command.clone().render_help().to_string();
            let most = if command.get_name() == program.get_name() { 50 } else { 57 };
            assert!(help.lines().count() <= most, "{help}");
            let longest = help.lines().max_by_key(|line| line.chars().count()).unwrap();
            assert!(longest.chars().count() <= 100, "{longest}");
        }
    }
}
