//! Lays the four layers over each other: defaults, then the file, then the environment, then flags. Every value of
//! every layer is checked, also one that a higher layer replaces, so that a mistake does not wait for its day.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::mem;
use std::path::PathBuf;

use exec_server_host::sandbox::WITHOUT_VARIABLE;

use super::Settings;
use super::error::{ConfigError, ConfigWarning, Position, most_similar};
use super::file::{CONFIG_VARIABLE, ConfigFile};
use super::kind::{Mismatch, Raw};
use super::table::{
    ENVIRONMENTS_VARIABLE, Group, SANDBOX_REQUIRE_KEY, SANDBOX_TRUSTED_LINKS_KEY, SECTIONS,
    SERVER_URL_KEY, SERVER_URL_VARIABLE, SETTINGS, Setting, VARIABLE_PREFIX,
};
use crate::program::write_history_files::HISTORY_VARIABLE;
use crate::target::server_url::ServerUrl;

/// What variables about sandboxes have after our prefix.
const SANDBOX_VARIABLES: &str = "SANDBOX";
/// Ours, and of no concern here.
const READ_ELSEWHERE: [&str; 3] = [ENVIRONMENTS_VARIABLE, WITHOUT_VARIABLE, HISTORY_VARIABLE];

/// The settings in force, and where each came from.
#[derive(Debug)]
pub(crate) struct Configuration {
    pub(crate) settings: Settings,
    /// For commands that need a server: where the operator says it is.
    pub(crate) server_url: Option<(ServerUrl, Source)>,
    /// Reported once there is a log. Unknown variables are not errors: other programs of the family read the same prefix.
    pub(crate) warnings: Vec<ConfigWarning>,
    sources: BTreeMap<&'static str, Source>,
}

/// What the command line said about settings.
#[derive(Debug, Default)]
pub(crate) struct Flags {
    pub(crate) config_file: Option<PathBuf>,
    pub(crate) values: Vec<Flag>,
}

#[derive(Debug)]
pub(crate) struct Flag {
    pub(crate) setting: &'static Setting,
    /// As it was given, without the dashes: the current name or the old one.
    pub(crate) name: String,
    /// The values in the order of the command line. Never empty.
    pub(crate) given: Vec<String>,
}

impl Flag {
    /// Of a single value the last counts; lists add up.
    pub(crate) fn value(&self) -> String {
        match self.setting.separator() {
            Some(separator) => self.given.join(&separator.to_string()),
            None => self.given.last().cloned().unwrap_or_default(),
        }
    }
}

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    Default,
    File(Position),
    Variable(String),
    Flag(String),
}

/// Finds and reads the file, then decides.
pub(crate) fn load(
    flags: &Flags,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Configuration, ConfigError> {
    let environment: BTreeMap<_, _> = environment.into_iter().collect();
    let file = ConfigFile::find(flags.config_file.as_deref(), |name| {
        environment.get(OsStr::new(name)).cloned()
    })?;
    resolve(flags, &relevant_variables(environment)?, file.as_ref())
}

/// The whole decision, without a look at the machine around it.
fn resolve(
    flags: &Flags,
    variables: &BTreeMap<String, String>,
    file: Option<&ConfigFile>,
) -> Result<Configuration, ConfigError> {
    let configuration = lay_over(flags, variables, file)?;
    configuration.check_ceiling()?;
    Ok(configuration)
}

fn lay_over(
    flags: &Flags,
    variables: &BTreeMap<String, String>,
    file: Option<&ConfigFile>,
) -> Result<Configuration, ConfigError> {
    let mut configuration = Configuration {
        settings: Settings::default(),
        server_url: None,
        warnings: Vec::new(),
        sources: BTreeMap::new(),
    };
    if let Some(file) = file {
        configuration.apply_file(file)?;
    }
    configuration.apply_variables(variables)?;
    configuration.apply_flags(flags)?;
    configuration.apply_customary_variables(variables)?;
    Ok(configuration)
}

impl Configuration {
    pub(crate) fn source(&self, setting: &Setting) -> &Source {
        self.sources.get(setting.key).unwrap_or(&Source::Default)
    }

    fn apply_file(&mut self, file: &ConfigFile) -> Result<(), ConfigError> {
        file.for_each_entry(|key, raw, at| {
            let source = Source::File(at.clone());
            let place = at.clone();
            let wrong = |key| move |mismatch| ConfigError::FileValue { at: place, key, mismatch };
            let named = |setting: &'static Setting| {
                let keys = [Some(setting.key), setting.old_key];
                keys.into_iter().flatten().find(|known| *known == key).map(|key| (setting, key))
            };
            match SETTINGS.iter().find_map(named) {
                Some((setting, key)) => {
                    self.accept_name(setting, &source, key != setting.key)?;
                    self.assign(setting, raw, source).map_err(wrong(key))
                }
                None if key == SERVER_URL_KEY => {
                    self.assign_server_url(raw, source).map_err(wrong(SERVER_URL_KEY))
                }
                None => {
                    if let Some(section) = SECTIONS.iter().find(|section| **section == key) {
                        let expected = format!("a table such as [{section}]");
                        let found = raw.to_string();
                        return Err(wrong(section)(Mismatch::Unexpected { expected, found }));
                    }
                    let known = SETTINGS.iter().map(|setting| setting.key);
                    let known = known.chain([SERVER_URL_KEY]).map(str::to_owned);
                    let similar = most_similar(key, known);
                    Err(ConfigError::UnknownKey { at, key: key.to_owned(), similar })
                }
            }
        })
    }

    fn apply_variables(&mut self, variables: &BTreeMap<String, String>) -> Result<(), ConfigError> {
        for (name, value) in variables {
            let is_of = |setting: &&Setting| {
                setting.variable() == *name || setting.old_variable().as_ref() == Some(name)
            };
            if let Some(setting) = SETTINGS.iter().find(is_of) {
                let is_old = setting.variable() != *name;
                self.accept_name(setting, &Source::Variable(name.clone()), is_old)?;
                self.assign_variable(setting, name, value)?;
            } else if name == SERVER_URL_VARIABLE {
                self.assign_server_url(Raw::Text(value), Source::Variable(name.clone())).map_err(
                    |mismatch| ConfigError::VariableValue { variable: name.clone(), mismatch },
                )?;
            } else if let Some(suffix) = name.strip_prefix(VARIABLE_PREFIX) {
                let (name, similar) = (name.clone(), similar_variable(suffix));
                // Whoever wrote it believes that there is a sandbox.
                if suffix.starts_with(SANDBOX_VARIABLES) {
                    return Err(ConfigError::UnknownVariable { variable: name, similar });
                }
                self.warnings.push(ConfigWarning::UnknownVariable { name, similar });
            }
        }
        Ok(())
    }

    fn apply_flags(&mut self, flags: &Flags) -> Result<(), ConfigError> {
        for flag in &flags.values {
            let Flag { setting, name, .. } = flag;
            let source = Source::Flag(name.clone());
            self.accept_name(setting, &source, *name != setting.flag())?;
            self.assign(setting, Raw::Text(&flag.value()), source)
                .map_err(|mismatch| ConfigError::FlagValue { flag: name.clone(), mismatch })?;
        }
        Ok(())
    }

    /// Warns of a setting that is given by its old name. Both names in one layer are an error, because neither takes
    /// precedence.
    fn accept_name(
        &mut self,
        setting: &Setting,
        source: &Source,
        is_old: bool,
    ) -> Result<(), ConfigError> {
        let Some(old_key) = setting.old_key else { return Ok(()) };
        let (old, current) = match source {
            Source::File(at) => (format!("{at}: {old_key}"), setting.key.to_owned()),
            Source::Variable(_) => (setting.old_variable().unwrap_or_default(), setting.variable()),
            Source::Flag(_) => {
                let old = setting.old_flag().unwrap_or_default();
                (format!("--{old}"), format!("--{}", setting.flag()))
            }
            Source::Default => return Ok(()),
        };
        let before = self.sources.get(setting.key).map(mem::discriminant);
        if before == Some(mem::discriminant(source)) {
            return Err(ConfigError::TwoNames { old, current });
        }
        if is_old {
            self.warnings.push(ConfigWarning::Deprecated { old, current });
        }
        Ok(())
    }

    /// Such a variable is set for many programs at once: it counts only where nobody spoke to us, and one that
    /// is set but empty says nothing.
    fn apply_customary_variables(
        &mut self,
        variables: &BTreeMap<String, String>,
    ) -> Result<(), ConfigError> {
        for setting in SETTINGS {
            let Some(name) = setting.customary_variable else {
                continue;
            };
            match variables.get(name) {
                Some(value) if !value.is_empty() && *self.source(setting) == Source::Default => {
                    self.assign_variable(setting, name, value)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Whoever limits what a sandbox may do believes that there is one.
    fn check_ceiling(&self) -> Result<(), ConfigError> {
        if self.sources.contains_key(SANDBOX_REQUIRE_KEY) {
            return Ok(());
        }
        let mut limits = SETTINGS.iter().filter(|setting| {
            setting.group == Group::Sandbox && setting.key != SANDBOX_TRUSTED_LINKS_KEY
        });
        match limits.find_map(|setting| Some((setting.key, self.sources.get(setting.key)?))) {
            Some((key, origin)) => Err(ConfigError::NoCeiling { key, origin: origin.clone() }),
            None => Ok(()),
        }
    }

    fn assign_variable(
        &mut self,
        setting: &'static Setting,
        name: &str,
        value: &str,
    ) -> Result<(), ConfigError> {
        self.assign(setting, Raw::Text(value), Source::Variable(name.to_owned()))
            .map_err(|mismatch| ConfigError::VariableValue { variable: name.to_owned(), mismatch })
    }

    /// An empty URL is none: so a variable can be unset where only its value can be changed.
    fn assign_server_url(&mut self, raw: Raw<'_>, source: Source) -> Result<(), Mismatch> {
        let Some(text) = raw.text() else {
            let expected = "a URL such as \"ws://127.0.0.1:7777\" or \"unix:///path\"".to_owned();
            return Err(Mismatch::Unexpected { expected, found: raw.to_string() });
        };
        if !text.is_empty() {
            let url = text.parse::<ServerUrl>();
            let url = url.map_err(|error| Mismatch::Refused(error.to_string()))?;
            self.server_url = Some((url, source));
        }
        Ok(())
    }

    fn assign(
        &mut self,
        setting: &'static Setting,
        raw: Raw<'_>,
        source: Source,
    ) -> Result<(), Mismatch> {
        setting.kind().assign(&mut self.settings, raw)?;
        self.sources.insert(setting.key, source);
        Ok(())
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(position) => position.fmt(f),
            Self::Variable(name) => f.write_str(name),
            Self::Flag(name) => write!(f, "--{name}"),
        }
    }
}

/// The prefix is left out of the comparison: alike in it are all.
fn similar_variable(suffix: &str) -> Option<String> {
    let known = SETTINGS.iter().map(Setting::variable);
    let known = known
        .chain([CONFIG_VARIABLE, SERVER_URL_VARIABLE].map(str::to_owned))
        .chain(READ_ELSEWHERE.map(str::to_owned));
    let suffixes = known.filter_map(|name| name.strip_prefix(VARIABLE_PREFIX).map(str::to_owned));
    most_similar(suffix, suffixes).map(|similar| format!("{VARIABLE_PREFIX}{similar}"))
}

/// Those that are ours by prefix or by custom. Only these must be text: the rest of the environment, and the path
/// of the file, may hold any bytes.
fn relevant_variables(
    environment: BTreeMap<OsString, OsString>,
) -> Result<BTreeMap<String, String>, ConfigError> {
    let is_customary =
        |name: &str| SETTINGS.iter().any(|setting| setting.customary_variable == Some(name));
    environment
        .into_iter()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
        .filter(|(name, _)| name.starts_with(VARIABLE_PREFIX) || is_customary(name))
        .filter(|(name, _)| name != CONFIG_VARIABLE && !READ_ELSEWHERE.contains(&&**name))
        .map(|(name, value)| match value.into_string() {
            Ok(value) => Ok((name, value)),
            Err(_) => Err(ConfigError::VariableNotUnicode { variable: name }),
        })
        .collect()
}

#[cfg(test)]
mod tests;
