//! The command line: commands, their options, and rules that clap cannot express.

pub(crate) mod client;
pub(crate) mod cluster;
pub(crate) mod files;
mod help;
pub(crate) mod hosts;
pub(crate) mod http;
pub(crate) mod limits;
pub(crate) mod remote;
pub(crate) mod rendezvous;
pub(crate) mod sandbox;
mod settings;
mod signal;
pub(crate) mod token;
pub(crate) mod values;

use std::ffi::{OsStr, OsString};
use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use clap_complete::Shell;

use client::ClientCommand;
use cluster::ClusterOptions;
use remote::{Forward, Login, Logout};
use rendezvous::RendezvousArguments;
use token::TokenCommand;

use crate::config::Flags;
use crate::program::exit_code::ExitStatus;

/// The exit code for a mistake on the command line or in the configuration, as opposed to a failure
/// at run time.
pub(crate) const USAGE_ERROR: u8 = 2;

const SETTINGS_HELP: &str = "\
Every setting is also an environment variable and a key of the configuration file:
--max-sessions is EXEC_SERVER_MAX_SESSIONS and max_sessions. A flag overrides
a variable, and a variable overrides the file. The file is the one given by --config or
EXEC_SERVER_CONFIG, or else ~/.config/exec-server/config.toml if it exists.

Examples:
  exec-server config                      # show the effective values and where each comes from
  exec-server config --max-sessions 100   # check a flag before you start a server with it";

const SCHEMA_EXAMPLE: &str = "\
Example:
  exec-server schema | jq -r '.methods[].name'";

/// Run processes and work with files, on this machine or another
#[derive(Debug, Parser)]
#[command(name = "exec-server", version)]
pub(crate) struct CommandLine {
    #[command(flatten)]
    pub(crate) flags: Flags,
    // Options of commands. Declared here so that an error can name the right place for them.
    #[arg(long, value_name = "URL", hide = true)]
    connect: Option<String>,
    #[arg(long, value_name = "ENVIRONMENT", hide = true)]
    on: Option<String>,
    /// Without a command, the program is the server.
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    #[command(flatten)]
    Client(Box<ClientCommand>),
    /// Print the effective configuration and where each value comes from
    #[command(after_help = SETTINGS_HELP)]
    Config {
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        flags: Flags,
    },
    /// Check what the server can use on this machine
    Doctor {
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        cluster: Box<ClusterOptions>,
    },
    /// Measure the server against the limits of this machine
    Bench {
        /// Run fewer rounds, for rougher numbers
        #[arg(long)]
        quick: bool,
        /// Run only the measurements with this text in their names, such as "files"
        #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
        only: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    Rendezvous(Box<RendezvousArguments>),
    /// Make, explain and revoke tokens for clients of a server or peers of a rendezvous
    #[command(subcommand)]
    Token(TokenCommand),
    Forward(Box<Forward>),
    Login(Login),
    Logout(Logout),
    /// Print the completion script for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual page of exec-server or of one command; view it with man -l -
    Man {
        /// Only this command
        #[arg(hide_possible_values = true)]
        command: Option<String>,
    },
    /// Print the OpenRPC document of the protocol, for code generators and validators
    #[command(after_help = SCHEMA_EXAMPLE)]
    Schema,
}

/// Parses the command line; the first argument is the program's name. A request for help or the
/// version is also returned as an "error", with exit code 0, and the caller prints its text.
pub(crate) fn parse(
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<CommandLine, clap::Error> {
    let mut program = program();
    let arguments: Vec<_> = arguments.into_iter().collect();
    let command = arguments.get(index_of_command(&arguments)).cloned();
    let matches = program
        .try_get_matches_from_mut(signal::with_signal_flags(arguments))
        .map_err(|error| with_tip_to_run(error, command.as_deref()))?;
    let mut line = CommandLine::from_arg_matches(&matches)?;
    let name = matches.subcommand_name();
    line.refuse_early_options(name)
        .map_err(|message| program.error(ErrorKind::ArgumentConflict, message))?;
    match (&mut line.command, name) {
        (Some(Command::Config { flags, .. }), _) => line.flags.extend(std::mem::take(flags)),
        (Some(command), Some(name)) => {
            if let Command::Client(command) = command {
                command.check().map_err(|message| {
                    let command = program.find_subcommand_mut(name).expect("it was matched");
                    command.error(ErrorKind::ValueValidation, message)
                })?;
                let before = line.flags.config_file.take();
                let server = command.server_mut();
                server.config_file = server.config_file.take().or(before);
            }
            line.refuse_settings(name)
                .map_err(|message| program.error(ErrorKind::ArgumentConflict, message))?;
        }
        _ => {}
    }
    Ok(line)
}

/// Tells users who type `exec-server make` how to run `make`. `exec-server token make` gets no tip.
fn with_tip_to_run(mut error: clap::Error, command: Option<&OsStr>) -> clap::Error {
    if let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand)
        && command == Some(OsStr::new(name))
    {
        let tip = format!("to run a program, use 'exec-server run -- {name}'");
        let tips = ContextValue::StyledStrs(vec![tip.into()]);
        error.insert(ContextKind::Suggested, tips);
    }
    error
}

/// Parsing, help, completions and manual pages are derived from this description.
pub(crate) fn program() -> clap::Command {
    let program = CommandLine::command();
    let commands = program.get_subcommands().map(|command| command.get_name().to_owned());
    let names = PossibleValuesParser::new(commands.collect::<Vec<_>>());
    let program = program
        .mut_subcommand("man", |man| man.mut_arg("command", |name| name.value_parser(names)));
    help::with_examples(help::with_groups(program))
}

impl CommandLine {
    /// Rejects `exec-server --connect URL ps`. Its meaning is clear, but other options before the
    /// command, such as `--listen`, belong to the server.
    fn refuse_early_options(&self, command: Option<&str>) -> Result<(), String> {
        let option = match (&self.connect, &self.on) {
            (Some(_), _) => "--connect",
            (None, Some(_)) => "--on",
            (None, None) => return Ok(()),
        };
        Err(match (&self.command, command) {
            (Some(Command::Client(_)), Some(command)) => {
                format!("{option} must follow the command: exec-server {command} {option} ...")
            }
            (_, Some(command)) => has_no_meaning(option, command),
            (_, None) => {
                format!("{option} must follow a command, as in exec-server ps {option} ...")
            }
        })
    }

    /// Rejects `exec-server --listen off doctor`: the command would ignore `--listen`.
    fn refuse_settings(&self, command: &str) -> Result<(), String> {
        match (self.flags.values.first(), &self.flags.config_file) {
            (Some(flag), _) => Err(has_no_meaning(&format!("--{}", flag.name()), command)),
            (None, Some(_)) => Err(has_no_meaning("--config", command)),
            (None, None) => Ok(()),
        }
    }
}

fn has_no_meaning(option: &str, command: &str) -> String {
    format!("{option} does not apply to the command '{command}'")
}

/// Returns the exit code for an error or a request for help. Commands that exit with the code of a
/// process use a separate code for their own errors.
pub(crate) fn exit_code(
    error: &clap::Error,
    arguments: impl Iterator<Item = OsString>,
) -> ExitCode {
    let arguments: Vec<_> = arguments.collect();
    let ends_as_a_process = arguments.get(index_of_command(&arguments)).is_some_and(|command| {
        ["run", "shell", "attach", "wait"].iter().any(|name| command == *name)
    });
    match u8::try_from(error.exit_code()).unwrap_or(USAGE_ERROR) {
        USAGE_ERROR if ends_as_a_process => ExitStatus::CLIENT_FAILURE.into(),
        code => code.into(),
    }
}

/// Returns the index of the command or, without a command, the index at which it would stand. Skips
/// only `--config`, the one option that may precede a client command.
fn index_of_command(arguments: &[OsString]) -> usize {
    let mut index = 1;
    while let Some(argument) = arguments.get(index) {
        match argument.as_encoded_bytes() {
            b"--config" => index += 2,
            argument if argument.starts_with(b"--config=") => index += 1,
            _ => break,
        }
    }
    index
}

#[cfg(test)]
impl Command {
    fn client(self) -> ClientCommand {
        match self {
            Self::Client(command) => *command,
            other => panic!("{other:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SETTINGS;

    fn parsed(line: &str) -> Result<CommandLine, clap::Error> {
        let words = line.split_whitespace().map(OsString::from);
        parse(std::iter::once("exec-server".into()).chain(words))
    }

    fn assert_values(flags: &Flags, expected: &[(&str, &str)]) {
        let values = flags.values.iter().map(|flag| (flag.setting.key, flag.value()));
        let expected = expected.iter().map(|(key, value)| (*key, (*value).to_owned()));
        assert_eq!(values.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    }

    #[test]
    fn the_description_passes_the_checks_of_clap() {
        program().debug_assert();
    }

    #[test]
    fn the_error_for_an_option_before_its_command_names_the_right_place() {
        for (line, expected) in [
            ("--connect ws://a:1 ps", "must follow the command: exec-server ps --connect"),
            ("--on box run true", "must follow the command: exec-server run --on"),
            ("--on box doctor", "--on does not apply to the command 'doctor'"),
            ("--connect ws://a:1", "must follow a command"),
        ] {
            let error = parsed(line).unwrap_err().to_string();
            assert!(error.contains(expected), "{line}: {error}");
        }
        let help = program().render_help().to_string();
        assert!(!help.contains("--connect "), "{help}");
    }

    #[test]
    fn the_error_for_an_unknown_command_says_how_to_run_a_program() {
        for line in ["make -j4", "--config a make"] {
            let error = parsed(line).unwrap_err().to_string();
            assert!(error.contains("use 'exec-server run -- make'"), "{error}");
        }
        let error = parsed("token make").unwrap_err().to_string();
        assert!(!error.contains("exec-server run"), "{error}");
    }

    #[test]
    fn serving_needs_no_command() {
        let CommandLine { flags, command: None, .. } =
            parsed("--listen off --config a.toml").unwrap()
        else {
            panic!("not serving");
        };
        assert_values(&flags, &[("listen", "off")]);
        assert_eq!(flags.config_file, Some("a.toml".into()));
    }

    #[test]
    fn settings_may_precede_or_follow_config() {
        let line = "--listen off --allow-host a --config a config --json \
                    --listen stdio --allow-host b --allow-host c --config b";
        let CommandLine { flags, command, .. } = parsed(line).unwrap();
        assert!(matches!(command, Some(Command::Config { json: true, .. })));
        assert_values(&flags, &[("listen", "off,stdio"), ("allow_host", "a,b,c")]);
        assert_eq!(flags.config_file, Some("b".into()));
    }

    #[test]
    fn a_later_flag_replaces_an_earlier_one_and_lists_add_up() {
        let line = parsed("--log warn --allow-origin a --log=debug --allow-origin b").unwrap();
        assert_values(&line.flags, &[("allow_origin", "a,b"), ("log", "debug")]);
    }

    #[test]
    fn other_commands_refuse_settings() {
        let command = |line| parsed(line).unwrap().command.unwrap();
        assert!(matches!(command("doctor --json"), Command::Doctor { json: true, .. }));
        let bench = command("bench --quick");
        assert!(matches!(bench, Command::Bench { quick: true, json: false, .. }));
        for line in
            ["--listen off doctor", "doctor --listen off", "--config a bench", "bench --log warn"]
        {
            assert_eq!(parsed(line).unwrap_err().exit_code(), 2, "{line}");
        }
        let error = parsed("--listen off doctor").unwrap_err().to_string();
        assert!(error.contains("--listen does not apply to the command 'doctor'"), "{error}");
    }

    #[test]
    fn a_configuration_file_may_name_the_server_of_a_command() {
        for line in ["--config c.toml ps", "ps --config c.toml", "--config a ps --config c.toml"] {
            let ClientCommand::Ps(command) = parsed(line).unwrap().command.unwrap().client() else {
                panic!("{line}")
            };
            assert_eq!(command.server.config_file, Some("c.toml".into()), "{line}");
        }
        let error = parsed("--max-sessions 3 ps").unwrap_err().to_string();
        assert!(error.contains("--max-sessions does not apply to the command 'ps'"), "{error}");
    }

    #[test]
    fn help_is_a_command_too() {
        for line in ["help", "help run", "help man"] {
            assert_eq!(parsed(line).unwrap_err().exit_code(), 0, "{line}");
        }
        let help = |line: &str| parsed(line).unwrap_err().to_string();
        assert_eq!(help("help logs"), help("logs --help"));
        for line in ["help fly", "man fly"] {
            assert_eq!(parsed(line).unwrap_err().exit_code(), 2, "{line}");
        }
    }

    #[test]
    fn usage_errors_differ_from_exit_codes_of_processes() {
        let code = |line: &str| {
            let words = || line.split_whitespace().map(OsString::from);
            exit_code(&parse(words()).unwrap_err(), words())
        };
        for command in ["run", "shell", "attach", "wait"] {
            let line = format!("exec-server {command} --no-such-flag");
            assert_eq!(code(&line), ExitStatus::CLIENT_FAILURE.into(), "{line}");
            assert_eq!(code(&format!("exec-server {command} --help")), ExitCode::SUCCESS);
            let line = format!("exec-server --config c.toml {command} --no-such-flag");
            assert_eq!(code(&line), ExitStatus::CLIENT_FAILURE.into(), "{line}");
        }
        for command in ["ps", "logs", "kill", "forget", "cp", "grep", "http", "doctor"] {
            let line = format!("exec-server {command} --no-such-flag");
            assert_eq!(code(&line), USAGE_ERROR.into(), "{line}");
        }
        let line = "exec-server wait --connect nowhere a";
        assert_eq!(code(line), ExitStatus::CLIENT_FAILURE.into());
    }

    #[test]
    fn help_and_version_are_not_failures() {
        for line in ["--help", "-h", "--version", "config --help"] {
            assert_eq!(parsed(line).unwrap_err().exit_code(), 0, "{line}");
        }
        let help = parsed("config --help").unwrap_err().to_string();
        for setting in SETTINGS {
            let value = if setting.is_switch() { "[<" } else { "<" };
            assert!(help.contains(&format!("--{} {value}", setting.flag(setting.key))), "{help}");
            assert!(help.contains(setting.group), "{help}");
        }
    }
}
