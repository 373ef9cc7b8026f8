//! The flags of the server: `--config`, one for each row of the settings table, and hidden ones for
//! deprecated keys. Values pass through as text; the configuration checks them, like those of
//! variables and of the file.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Args, FromArgMatches, ValueHint, value_parser};

use crate::config::{self, Flag, Flags, Setting, Settings};

const CONFIG_FILE: &str = "config";

impl Args for Flags {
    fn augment_args(command: clap::Command) -> clap::Command {
        let config_file = Arg::new(CONFIG_FILE)
            .long(CONFIG_FILE)
            .value_name("PATH")
            .value_parser(value_parser!(PathBuf))
            .value_hint(ValueHint::FilePath)
            .help("Read settings from this TOML file");
        let defaults = Settings::default();
        let flags = config::keys().map(|(setting, key)| {
            let action = if setting.is_list() { ArgAction::Append } else { ArgAction::Set };
            let flag = Arg::new(key).long(setting.flag(key));
            let flag = match setting.is_switch() {
                true => flag.num_args(0..=1).default_missing_value("true"),
                false => flag,
            };
            flag.value_name(setting.value_name)
                .help_heading(setting.group)
                .help(help(setting, &defaults))
                .hide(key != setting.key)
                // A negative number is a bad value, not an unknown flag.
                .allow_negative_numbers(true)
                .action(action)
        });
        command.args_override_self(true).arg(config_file).args(flags)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

fn help(setting: &Setting, defaults: &Settings) -> String {
    let mut help = setting.help.to_owned();
    if setting.is_list() {
        help += " (may be repeated)";
    }
    match setting.show(defaults) {
        toml::Value::String(text) if text.is_empty() => help,
        toml::Value::String(text) => format!("{help} [default: {text}]"),
        toml::Value::Array(items) if items.is_empty() => help,
        other => format!("{help} [default: {other}]"),
    }
}

impl FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let values = config::keys().filter_map(|(setting, key)| {
            let given = matches.get_many::<String>(key)?.cloned().collect();
            Some(Flag { setting, key, given })
        });
        Ok(Self { values: values.collect(), config_file: matches.get_one(CONFIG_FILE).cloned() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.extend(Self::from_arg_matches(matches)?);
        Ok(())
    }
}

impl Flags {
    /// Adds the flags that follow on the command line. Lists are concatenated; for any other
    /// setting the last value wins.
    pub(super) fn extend(&mut self, later: Self) {
        for flag in later.values {
            match self.values.iter_mut().find(|earlier| earlier.key == flag.key) {
                Some(earlier) => earlier.given.extend(flag.given),
                None => self.values.push(flag),
            }
        }
        self.config_file = later.config_file.or(self.config_file.take());
    }
}
