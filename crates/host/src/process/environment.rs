//! Derives a child's environment from the server's.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

/// Variables that most programs need and that reveal little.
const CORE: &[&str] = &[
    "PATH", "SHELL", "TMPDIR", "TEMP", "TMP", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME",
    "USER",
];
/// Patterns of variables that usually hold secrets.
const DEFAULT_EXCLUDES: &[&str] = &["*KEY*", "*SECRET*", "*TOKEN*"];
/// Variables with the server's own settings, which may be secrets or point to secrets. Children
/// never inherit these variables. A trailing `*` matches any suffix.
pub(crate) const OWN_VARIABLES: [&str; 5] =
    ["EXEC_SERVER_*", "OTEL_*", "CODEX_EXEC_SERVER_*", "CODEX_API_KEY", "CODEX_ACCESS_TOKEN"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inherit {
    Core,
    All,
    None,
}

/// The variables that a child inherits, and the ones added to them. Patterns ignore case.
#[derive(Debug, Clone)]
pub struct EnvironmentPolicy {
    pub inherit: Inherit,
    pub ignore_default_excludes: bool,
    pub exclude: Vec<String>,
    pub set: BTreeMap<String, String>,
    /// If not empty, only variables that match one of these patterns remain.
    pub include_only: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
#[error("invalid environment variable pattern {pattern:?}: {}", source.kind())]
pub struct PatternError {
    pattern: String,
    source: globset::Error,
}

impl EnvironmentPolicy {
    /// Applies the policy to the server's environment.
    pub fn apply(
        &self,
        own: impl Iterator<Item = (OsString, OsString)>,
    ) -> Result<BTreeMap<OsString, OsString>, PatternError> {
        let mut excluded = OWN_VARIABLES.map(str::to_owned).to_vec();
        if !self.ignore_default_excludes {
            excluded.extend(DEFAULT_EXCLUDES.iter().map(|&pattern| pattern.to_owned()));
        }
        excluded.extend_from_slice(&self.exclude);
        let excluded = patterns(&excluded)?;
        let included = patterns(&self.include_only)?;

        let mut environment: BTreeMap<OsString, OsString> = own
            .filter(|(name, _)| match self.inherit {
                Inherit::All => true,
                Inherit::Core => is_core(name),
                Inherit::None => false,
            })
            .filter(|(name, _)| !excluded.is_match(name))
            .collect();
        environment.extend(self.set.iter().map(|(name, value)| (name.into(), value.into())));
        if !self.include_only.is_empty() {
            environment.retain(|name, _| included.is_match(name));
        }
        Ok(environment)
    }
}

fn is_core(name: &OsStr) -> bool {
    CORE.iter().any(|core| name.eq_ignore_ascii_case(core))
}

fn patterns(patterns: &[String]) -> Result<GlobSet, PatternError> {
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        let glob = GlobBuilder::new(pattern).case_insensitive(true).build();
        set.add(glob.map_err(|source| PatternError { pattern: pattern.clone(), source })?);
    }
    set.build().map_err(|source| PatternError { pattern: patterns.join(", "), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &[(&str, &str)] = &[
        ("PATH", "/bin"),
        ("HOME", "/root"),
        ("EDITOR", "vi"),
        ("AWS_SECRET_ACCESS", "s"),
        ("api_key", "k"),
        ("EXEC_SERVER_LISTEN", "ws://127.0.0.1:1"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=x"),
    ];

    fn names(policy: &EnvironmentPolicy) -> Vec<String> {
        let own = OWN.iter().map(|(name, value)| (name.into(), value.into()));
        let names = policy.apply(own).unwrap().into_keys();
        names.map(|name| name.into_string().unwrap()).collect()
    }

    fn policy(inherit: Inherit) -> EnvironmentPolicy {
        EnvironmentPolicy {
            inherit,
            ignore_default_excludes: false,
            exclude: Vec::new(),
            set: BTreeMap::new(),
            include_only: Vec::new(),
        }
    }

    #[test]
    fn each_mode_inherits_its_variables() {
        assert_eq!(names(&policy(Inherit::All)), ["EDITOR", "HOME", "PATH"]);
        assert_eq!(names(&policy(Inherit::Core)), ["HOME", "PATH"]);
        assert!(names(&policy(Inherit::None)).is_empty());
    }

    #[test]
    fn default_excludes_can_be_ignored_but_server_settings_never_leak() {
        let policy = EnvironmentPolicy { ignore_default_excludes: true, ..policy(Inherit::All) };
        assert_eq!(names(&policy), ["AWS_SECRET_ACCESS", "EDITOR", "HOME", "PATH", "api_key"]);
    }

    #[test]
    fn exclude_set_and_include_only_apply_in_this_order() {
        let policy = EnvironmentPolicy {
            exclude: vec!["ed*".into()],
            set: [("EDITOR".to_owned(), "nano".to_owned()), ("X".to_owned(), "1".to_owned())]
                .into(),
            include_only: vec!["path".into(), "e*".into()],
            ..policy(Inherit::All)
        };
        assert_eq!(names(&policy), ["EDITOR", "PATH"]);
    }

    #[test]
    fn a_bad_pattern_is_named() {
        let policy = EnvironmentPolicy { exclude: vec!["[".into()], ..policy(Inherit::All) };
        let error = policy.apply(std::iter::empty()).unwrap_err().to_string();
        let expected = "invalid environment variable pattern \"[\": unclosed character class";
        assert!(error.starts_with(expected), "{error}");
    }
}
