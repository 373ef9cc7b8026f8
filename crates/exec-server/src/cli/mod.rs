//! The command line: commands, their own options, and one flag for each row of the table of settings. Values of
//! settings pass through as text; checking them is the configuration's work, as it is for the other channels.

pub(crate) mod client;
pub(crate) mod files;
pub(crate) mod http;
pub(crate) mod sandbox;
mod signal;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, ValueHint, value_parser};
use clap_complete::Shell;

use client::ClientCommand;

use crate::config::{
    CONFIG_VARIABLE, Flag, Flags, SERVER_URL_VARIABLE, SETTINGS, Setting, Settings,
};
use crate::program::exit_code::ExitStatus;

/// What the program was asked to do.
#[derive(Debug)]
pub(crate) enum Command {
    Serve { flags: Flags },
    Config { flags: Flags, json: bool },
    Doctor { json: bool },
    Bench { quick: bool, json: bool, only: String },
    Client(Box<ClientCommand>),
    Completions { shell: Shell },
    Man { command: Option<String> },
}

const CONFIG_FILE: &str = "config";
/// Options of commands. Before a command they are known only so that it can be said where they belong.
const OF_COMMANDS: [&str; 2] = ["connect", "on"];
/// A mistake of the caller, as opposed to a failure of the machine.
pub(crate) const USAGE_ERROR: u8 = 2;

/// Reads the command line, the program's name included. A request for help or the version is an "error" too, with
/// exit code 0; the caller prints either.
pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Command, clap::Error> {
    let mut program = program().args(OF_COMMANDS.map(|name| Arg::new(name).long(name).hide(true)));
    let matches = program.try_get_matches_from_mut(signal::with_signal_flags(arguments))?;
    refuse_early_options(&mut program, &matches)?;
    let command = match matches.subcommand() {
        None => Command::Serve { flags: flags_of(&[&matches]) },
        Some(("config", of_command)) => Command::Config {
            flags: flags_of(&[&matches, of_command]),
            json: of_command.get_flag("json"),
        },
        Some((name, of_command)) => {
            let of_client = client::parse(name, of_command)
                .map_err(|message| bad_value(&mut program, name, message))?;
            let mut flags = flags_of(&[&matches]);
            if let Some(mut command) = of_client {
                let before = flags.config_file.take();
                refuse_settings(&mut program, &flags, name)?;
                command.server.config_file = command.server.config_file.or(before);
                return Ok(Command::Client(Box::new(command)));
            }
            refuse_settings(&mut program, &flags, name)?;
            match name {
                "doctor" => Command::Doctor { json: of_command.get_flag("json") },
                "bench" => Command::Bench {
                    quick: of_command.get_flag("quick"),
                    json: of_command.get_flag("json"),
                    only: of_command.get_one("only").cloned().unwrap_or_default(),
                },
                "completions" => Command::Completions {
                    shell: *of_command.get_one("shell").expect("clap requires it"),
                },
                _ => Command::Man { command: of_command.get_one("of").cloned() },
            }
        }
    };
    Ok(command)
}

/// Where the command is if there is one: only `--config` may stand before it.
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

/// What a request for help or a mistake ends with. Where the code is that of a process, our own mistakes have another.
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

/// The description from which parsing, help, completions and manual pages are made.
pub(crate) fn program() -> clap::Command {
    let mut commands: Vec<_> = client::commands().into_iter().chain(own_commands()).collect();
    commands.push(man(&commands));
    clap::Command::new("exec-server")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Run processes and work with files, on this machine or another")
        .after_help(format!(
            "Without a command it runs the server. The first line on standard output is the URL it listens on.\n\n\
             Every setting is also an environment variable and a key of the configuration file:\n\
             --max-sessions is EXEC_SERVER_MAX_SESSIONS and max_sessions. A flag overrides\n\
             a variable, and a variable overrides the file. The file is the one that --config or\n\
             {CONFIG_VARIABLE} names, or else ~/.config/exec-server/config.toml if it exists.\n\n\
             Commands that need a server look for one in this order: --connect, --on, {SERVER_URL_VARIABLE}, the key url\n\
             of [exec_server] in the file, the default of environments.toml, a running server of this user.\n\
             If there is none, run, shell, http and the file commands start their own for as long as they run."
        ))
        .args_override_self(true)
        .args(setting_arguments())
        .subcommands(commands)
}

/// The commands that need no server.
fn own_commands() -> Vec<clap::Command> {
    let json = || switch("json", "Print JSON");
    vec![
        clap::Command::new("config")
            .about("Print the effective configuration and where each value comes from")
            .args_override_self(true)
            .arg(json())
            .args(setting_arguments()),
        clap::Command::new("doctor")
            .about("Check what the server can use on this machine")
            .arg(json()),
        clap::Command::new("bench")
            .about("Measure the server against the limits of this machine")
            .arg(switch("quick", "Fewer rounds, rougher numbers"))
            .arg(
                Arg::new("only").long("only").value_name("TEXT").help(
                    "Run only the measurements with this text in their names, such as \"files\"",
                ),
            )
            .arg(json()),
        clap::Command::new("completions").about("Print the completion script for a shell").arg(
            Arg::new("shell")
                .value_name("SHELL")
                .required(true)
                .value_parser(value_parser!(Shell))
                .help("The shell"),
        ),
    ]
}

fn man(commands: &[clap::Command]) -> clap::Command {
    let names = commands.iter().map(|command| command.get_name().to_owned());
    clap::Command::new("man")
        .about("Print the manual page of exec-server or of one command; view it with man -l -")
        .arg(
            Arg::new("of")
                .value_name("COMMAND")
                .value_parser(PossibleValuesParser::new(names.chain(["man".to_owned()])))
                .hide_possible_values(true)
                .help("Only this command"),
        )
}

fn setting_arguments() -> impl Iterator<Item = Arg> {
    let config_file = config_argument().help("Read settings from this TOML file");
    let defaults = Settings::default();
    let of_settings = SETTINGS.iter().map(move |setting| {
        Arg::new(setting.key)
            .long(setting.flag())
            .value_name(setting.value_name)
            .help_heading(setting.group.title())
            .help(help(setting, &defaults))
            // A number below zero is a bad value, not an unknown flag.
            .allow_negative_numbers(true)
            .action(action(setting))
    });
    let deprecated = SETTINGS.iter().filter_map(|setting| {
        let argument = Arg::new(setting.old_key?).long(setting.old_flag()?).hide(true);
        Some(argument.allow_negative_numbers(true).action(action(setting)))
    });
    std::iter::once(config_file).chain(of_settings).chain(deprecated)
}

fn action(setting: &Setting) -> ArgAction {
    if setting.is_list() { ArgAction::Append } else { ArgAction::Set }
}

fn config_argument() -> Arg {
    Arg::new(CONFIG_FILE)
        .long(CONFIG_FILE)
        .value_name("PATH")
        .value_parser(value_parser!(PathBuf))
        .value_hint(ValueHint::FilePath)
}

fn help(setting: &Setting, defaults: &Settings) -> String {
    if setting.is_list() {
        return format!("{} (may be repeated)", setting.help);
    }
    let default = match setting.show(defaults) {
        toml::Value::String(text) => text,
        other => other.to_string(),
    };
    format!("{} [default: {default}]", setting.help)
}

fn switch(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).help(help).action(ArgAction::SetTrue)
}

/// The flags before the command and those after it, as one: of a single value the last counts, lists add up.
fn flags_of(levels: &[&ArgMatches]) -> Flags {
    let config_file =
        levels.iter().rev().find_map(|matches| matches.get_one::<PathBuf>(CONFIG_FILE).cloned());
    let names = SETTINGS.iter().flat_map(|setting| {
        let old = setting.old_key.zip(setting.old_flag());
        [Some((setting.key, setting.flag())), old]
            .into_iter()
            .flatten()
            .map(move |(key, name)| (setting, key, name))
    });
    let values = names.filter_map(|(setting, key, name)| {
        let given: Vec<&str> = levels
            .iter()
            .filter_map(|matches| matches.get_many::<String>(key))
            .flatten()
            .map(String::as_str)
            .collect();
        let last = *given.last()?;
        let value = match setting.separator() {
            Some(separator) => given.join(&separator.to_string()),
            None => last.to_owned(),
        };
        Some(Flag { setting, name, value })
    });
    Flags { values: values.collect(), config_file }
}

/// `exec-server --connect URL ps` could mean only one thing, but `--listen` in the same place is the server's.
fn refuse_early_options(
    program: &mut clap::Command,
    matches: &ArgMatches,
) -> Result<(), clap::Error> {
    let Some(option) = OF_COMMANDS.iter().find(|option| matches.contains_id(option)) else {
        return Ok(());
    };
    let command = matches.subcommand_name();
    let takes_it = |name: &&str| {
        let command = program.find_subcommand(name);
        command
            .is_some_and(|command| command.get_arguments().any(|known| known.get_id() == *option))
    };
    let message = match (command, command.filter(takes_it)) {
        (_, Some(command)) => {
            format!("--{option} belongs behind the command: exec-server {command} --{option} ...")
        }
        (Some(command), None) => format!("--{option} has no meaning for the command '{command}'"),
        (None, None) => {
            format!("--{option} belongs behind a command, as in exec-server ps --{option} ...")
        }
    };
    Err(program.error(ErrorKind::ArgumentConflict, message))
}

/// `exec-server --listen off doctor` would do nothing with `--listen`: say so rather than ignore it.
fn refuse_settings(
    program: &mut clap::Command,
    flags: &Flags,
    command: &str,
) -> Result<(), clap::Error> {
    let given = flags.values.first().map(|flag| flag.name.clone());
    let config_file = || flags.config_file.as_ref().map(|_| CONFIG_FILE.to_owned());
    let Some(flag) = given.or_else(config_file) else { return Ok(()) };
    let message = format!("--{flag} has no meaning for the command '{command}'");
    Err(program.error(ErrorKind::ArgumentConflict, message))
}

/// Told with the usage of the command.
fn bad_value(program: &mut clap::Command, command: &str, message: String) -> clap::Error {
    let command = program.find_subcommand_mut(command).expect("it was matched");
    command.error(ErrorKind::ValueValidation, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, clap::Error> {
        let words = line.split_whitespace().map(OsString::from);
        parse(std::iter::once("exec-server".into()).chain(words))
    }

    fn values(flags: &Flags) -> Vec<(&str, &str)> {
        let values = flags.values.iter();
        values.map(|flag| (flag.setting.key, flag.value.as_str())).collect()
    }

    #[test]
    fn the_description_is_consistent() {
        program().debug_assert();
    }

    #[test]
    fn an_option_before_its_command_is_told_where_it_belongs() {
        for (line, expected) in [
            ("--connect ws://a:1 ps", "belongs behind the command: exec-server ps --connect"),
            ("--on box run true", "belongs behind the command: exec-server run --on"),
            ("--on box doctor", "--on has no meaning for the command 'doctor'"),
            ("--connect ws://a:1", "belongs behind a command"),
        ] {
            let error = parsed(line).unwrap_err().to_string();
            assert!(error.contains(expected), "{line}: {error}");
        }
        let help = program().render_help().to_string();
        assert!(!help.contains("--connect "), "{help}");
    }

    #[test]
    fn serving_needs_no_command() {
        let Ok(Command::Serve { flags }) = parsed("--listen off --config a.toml") else {
            panic!("not serving");
        };
        assert_eq!(values(&flags), [("listen", "off")]);
        assert_eq!(flags.config_file, Some("a.toml".into()));
    }

    #[test]
    fn settings_stand_before_or_after_config() {
        let line = "--listen off --allow-host a --config a config --json \
                    --listen stdio --allow-host b --allow-host c --config b";
        let Ok(Command::Config { flags, json: true }) = parsed(line) else {
            panic!("not config");
        };
        assert_eq!(values(&flags), [("listen", "stdio"), ("allow_host", "a,b,c")]);
        assert_eq!(flags.config_file, Some("b".into()));
    }

    #[test]
    fn a_later_flag_replaces_an_earlier_one() {
        let Ok(Command::Serve { flags }) =
            parsed("--log warn --allow-origin a --log=debug --allow-origin b")
        else {
            panic!("not serving");
        };
        assert_eq!(values(&flags), [("allow_origin", "a,b"), ("log", "debug")]);
    }

    #[test]
    fn other_commands_refuse_settings() {
        assert!(matches!(parsed("doctor --json"), Ok(Command::Doctor { json: true })));
        assert!(matches!(
            parsed("bench --quick"),
            Ok(Command::Bench { quick: true, json: false, .. })
        ));
        for line in
            ["--listen off doctor", "doctor --listen off", "--config a bench", "bench --log warn"]
        {
            assert_eq!(parsed(line).unwrap_err().exit_code(), 2, "{line}");
        }
        let error = parsed("--listen off doctor").unwrap_err().to_string();
        assert!(error.contains("--listen has no meaning for the command 'doctor'"), "{error}");
    }

    #[test]
    fn a_configuration_file_may_name_the_server_of_a_command() {
        for line in ["--config c.toml ps", "ps --config c.toml", "--config a ps --config c.toml"] {
            let Ok(Command::Client(command)) = parsed(line) else { panic!("{line}") };
            assert_eq!(command.server.config_file, Some("c.toml".into()), "{line}");
        }
        let error = parsed("--max-sessions 3 ps").unwrap_err().to_string();
        assert!(error.contains("--max-sessions has no meaning for the command 'ps'"), "{error}");
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
    fn mistakes_are_told_from_the_codes_of_processes() {
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
        let help = parsed("--help").unwrap_err().to_string();
        for setting in SETTINGS {
            assert!(help.contains(&format!("--{} <", setting.flag())), "{help}");
            assert!(help.contains(setting.group.title()), "{help}");
        }
    }
}
