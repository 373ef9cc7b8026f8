//! Merges the four layers: defaults, file, environment variables, flags. Every value of every layer
//! is checked, even if a higher layer replaces it, so that a mistake surfaces at once. Only a
//! replaced variable that many programs share, such as `RUST_LOG`, is not checked.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::mem;
use std::path::PathBuf;

use exec_server_host::sandbox::WITHOUT_VARIABLE;
use exec_server_protocol::HostRules;
use exec_server_transport::{DialUrlParseError, ListenUrl};

use super::Settings;
use super::error::{ConfigError, ConfigWarning, Position, most_similar};
use super::file::{CONFIG_VARIABLE, ConfigFile};
use super::kind::{Mismatch, Raw};
use super::table::{
    self, LISTEN_KEY, NETWORK_ALLOW_KEY, NETWORK_ASK_KEY, SANDBOX_REQUIRE_KEY,
    SANDBOX_TRUSTED_LINKS_KEY, SECTIONS, SERVER_URL_KEY, SERVER_URL_VARIABLE, SETTINGS, Setting,
    VARIABLE_PREFIX, variable_of,
};
use crate::environment::ENVIRONMENTS_VARIABLE;
use crate::program::write_history_files::HISTORY_VARIABLE;
use crate::registry_credentials::{ACCESS_TOKEN_VARIABLES, API_KEY_VARIABLES};
use crate::target::server_url::ServerUrl;

/// The names of variables that restrict clients begin with one of these, after the common prefix.
const RESTRICTING_VARIABLES: [&str; 2] = ["SANDBOX", "NETWORK"];
/// Variables that are not settings: other modules or other programs of this project read them.
const READ_ELSEWHERE: [&str; 6] = [
    ENVIRONMENTS_VARIABLE,
    // The path of this program, for the Python and TypeScript clients.
    "EXEC_SERVER_BINARY",
    WITHOUT_VARIABLE,
    HISTORY_VARIABLE,
    API_KEY_VARIABLES[0],
    ACCESS_TOKEN_VARIABLES[0],
];

#[derive(Debug)]
pub(crate) struct Configuration {
    pub(crate) settings: Settings,
    /// The configured URL of the server, for commands that need one.
    pub(crate) server_url: Option<(ServerUrl, Source)>,
    /// Reported once logging is initialised. Most unknown variables are only warnings, because
    /// other programs of this project use the same prefix.
    pub(crate) warnings: Vec<ConfigWarning>,
    sources: BTreeMap<&'static str, Source>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Flags {
    pub(crate) config_file: Option<PathBuf>,
    pub(crate) values: Vec<Flag>,
}

#[derive(Debug, Clone)]
pub(crate) struct Flag {
    pub(crate) setting: &'static Setting,
    /// The key of the flag that was given: the current key or the deprecated one.
    pub(crate) key: &'static str,
    /// In the order of the command line. Never empty.
    pub(crate) given: Vec<String>,
}

impl Flag {
    /// Returns the name without dashes.
    pub(crate) fn name(&self) -> String {
        self.setting.flag(self.key)
    }

    /// Returns the value: of a list all items, of any other setting the last value.
    pub(crate) fn value(&self) -> String {
        match self.setting.separator() {
            Some(separator) => self.given.join(&separator.to_string()),
            None => self.given.last().cloned().unwrap_or_default(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    Default,
    File(Position),
    Variable(String),
    Flag(String),
}

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

/// Pure: does not access the environment or files.
fn resolve(
    flags: &Flags,
    variables: &BTreeMap<String, String>,
    file: Option<&ConfigFile>,
) -> Result<Configuration, ConfigError> {
    let mut configuration = lay_over(flags, variables, file)?;
    configuration.check_ceiling()?;
    configuration.set_host_rules()?;
    // In remote mode the server listens only if `listen` is set.
    if !configuration.settings.remote.is_empty() && !configuration.sources.contains_key(LISTEN_KEY)
    {
        configuration.settings.listen = vec![ListenUrl::Off.to_string()];
    }
    configuration.settings.check_exposure()?;
    configuration.settings.remote_options()?;
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
            if let Some((setting, key)) = table::keys().find(|(_, known)| *known == key) {
                return self.assign(setting, key, raw, Source::File(at));
            }
            if key == SERVER_URL_KEY {
                return self.assign_server_url(raw, Source::File(at));
            }
            if let Some(section) = SECTIONS.iter().find(|section| **section == key) {
                let expected = format!("a table such as [{section}]");
                let mismatch = Mismatch::Unexpected { expected, found: raw.to_string() };
                return Err(ConfigError::Value {
                    origin: Source::File(at),
                    key: section,
                    mismatch,
                });
            }
            let known = SETTINGS.iter().map(|setting| setting.key).chain([SERVER_URL_KEY]);
            let similar = most_similar(key, known.map(str::to_owned));
            Err(ConfigError::UnknownKey { at, key: key.to_owned(), similar })
        })
    }

    fn apply_variables(&mut self, variables: &BTreeMap<String, String>) -> Result<(), ConfigError> {
        for (name, value) in variables {
            let (raw, source) = (Raw::Text(value), Source::Variable(name.clone()));
            if let Some((setting, key)) = table::keys().find(|(_, key)| variable_of(key) == *name) {
                self.assign(setting, key, raw, source)?;
            } else if name == SERVER_URL_VARIABLE {
                self.assign_server_url(raw, source)?;
            } else if let Some(suffix) = name.strip_prefix(VARIABLE_PREFIX) {
                let (name, similar) = (name.clone(), similar_variable(suffix));
                // The operator believes that this variable restricts clients.
                if RESTRICTING_VARIABLES.iter().any(|prefix| suffix.starts_with(prefix)) {
                    return Err(ConfigError::UnknownVariable { variable: name, similar });
                }
                self.warnings.push(ConfigWarning::UnknownVariable { name, similar });
            }
        }
        Ok(())
    }

    fn apply_flags(&mut self, flags: &Flags) -> Result<(), ConfigError> {
        for flag in &flags.values {
            let source = Source::Flag(flag.name());
            self.assign(flag.setting, flag.key, Raw::Text(&flag.value()), source)?;
        }
        Ok(())
    }

    /// Applies variables shared by many programs. They have the lowest precedence above the
    /// default, and an empty one is ignored.
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
                    let source = Source::Variable(name.to_owned());
                    self.assign(setting, setting.key, Raw::Text(value), source)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Rejects `sandbox.*` without `sandbox.require`: the operator believes that they apply. Only
    /// `sandbox.trusted_links` applies without it.
    fn check_ceiling(&self) -> Result<(), ConfigError> {
        if self.sources.contains_key(SANDBOX_REQUIRE_KEY) {
            return Ok(());
        }
        let mut limits = SETTINGS.iter().filter(|setting| {
            setting.key.starts_with("sandbox.") && setting.key != SANDBOX_TRUSTED_LINKS_KEY
        });
        match limits.find_map(|setting| Some((setting.key, self.sources.get(setting.key)?))) {
            Some((key, origin)) => Err(ConfigError::NoCeiling { key, origin: origin.clone() }),
            None => Ok(()),
        }
    }

    /// Builds the host rules, which apply as soon as one is set; `ask = false` and `deny = []` set
    /// none.
    fn set_host_rules(&mut self) -> Result<(), ConfigError> {
        let Settings { network_allow, network_deny, network_ask, .. } = &self.settings;
        if network_allow.is_none() && network_deny.is_empty() && !network_ask {
            return Ok(());
        }
        let allow = network_allow.clone().unwrap_or_default();
        let needs_network = match (allow.is_empty(), network_ask) {
            (false, _) => Some(NETWORK_ALLOW_KEY),
            (true, true) => Some(NETWORK_ASK_KEY),
            (true, false) => None,
        };
        let ceiling = &self.settings.server.sandbox;
        if let (Some(key), true, false) =
            (needs_network, ceiling.require.is_some(), ceiling.network)
            && let Some(origin) = self.sources.get(key)
        {
            return Err(ConfigError::NoNetwork { key, origin: origin.clone() });
        }
        // Without `allow`, rules with `deny` allow all other hosts. But an explicitly empty `allow`
        // allows none, so the denials are dropped.
        let allows_none = network_allow.as_ref().is_some_and(Vec::is_empty) && !network_ask;
        let deny = if allows_none { Vec::new() } else { network_deny.clone() };
        self.settings.server.sandbox.hosts = Some(HostRules { allow, deny, ask: *network_ask });
        Ok(())
    }

    /// Stores the server's URL. An empty URL counts as unset, for callers that can change the value
    /// of a variable but not remove it.
    fn assign_server_url(&mut self, raw: Raw<'_>, source: Source) -> Result<(), ConfigError> {
        let url = match raw.text() {
            Some("") => return Ok(()),
            Some(text) => text
                .parse()
                .map_err(|error: DialUrlParseError| Mismatch::Refused(error.to_string())),
            None => Err(Mismatch::Unexpected {
                expected: "a URL such as \"ws://127.0.0.1:7777\" or \"unix:///path\"".to_owned(),
                found: raw.to_string(),
            }),
        };
        match url {
            Ok(url) => self.server_url = Some((url, source)),
            Err(mismatch) => {
                return Err(ConfigError::Value { origin: source, key: SERVER_URL_KEY, mismatch });
            }
        }
        Ok(())
    }

    /// Stores a value that was given under the current or the deprecated key.
    fn assign(
        &mut self,
        setting: &'static Setting,
        key: &'static str,
        raw: Raw<'_>,
        source: Source,
    ) -> Result<(), ConfigError> {
        self.check_name(setting, key, &source)?;
        if let Err(mismatch) = setting.kind().assign(&mut self.settings, raw) {
            return Err(ConfigError::Value { origin: source, key, mismatch });
        }
        self.sources.insert(setting.key, source);
        Ok(())
    }

    /// Warns of a deprecated name. Both names in one layer are an error, because neither takes
    /// precedence.
    fn check_name(
        &mut self,
        setting: &Setting,
        key: &str,
        source: &Source,
    ) -> Result<(), ConfigError> {
        let Some(old_key) = setting.keys().nth(1) else { return Ok(()) };
        let names = |name: &dyn Fn(&str) -> String| (name(old_key), name(setting.key));
        let (old, current) = match source {
            Source::File(at) => (format!("{at}: {old_key}"), setting.key.to_owned()),
            Source::Variable(_) => names(&variable_of),
            Source::Flag(_) => names(&|key| format!("--{}", setting.flag(key))),
            Source::Default => return Ok(()),
        };
        let before = self.sources.get(setting.key).map(mem::discriminant);
        if before == Some(mem::discriminant(source)) {
            return Err(ConfigError::TwoNames { old, current });
        }
        if key == old_key {
            self.warnings.push(ConfigWarning::Deprecated { old, current });
        }
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

/// Compares names without the prefix, which all of them share.
fn similar_variable(suffix: &str) -> Option<String> {
    let known = SETTINGS.iter().map(|setting| variable_of(setting.key));
    let known = known
        .chain([CONFIG_VARIABLE, SERVER_URL_VARIABLE].map(str::to_owned))
        .chain(READ_ELSEWHERE.map(str::to_owned));
    let suffixes = known.filter_map(|name| name.strip_prefix(VARIABLE_PREFIX).map(str::to_owned));
    most_similar(suffix, suffixes).map(|similar| format!("{VARIABLE_PREFIX}{similar}"))
}

/// Selects the variables of settings: those with this program's prefix, and customary ones. Only
/// these must be valid UTF-8; all others, such as the path of the configuration file, may hold any
/// bytes.
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
