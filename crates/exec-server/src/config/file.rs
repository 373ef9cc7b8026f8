//! The configuration file: its location, and its entries with their lines. Knows TOML and the usual
//! directories; the settings table defines the meaning of the keys.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::error::{ConfigError, Position};
use super::kind::Raw;
use super::location::Location;
use super::table::SECTIONS;

/// The variable with the path of the file, used without `--config`.
pub(crate) const CONFIG_VARIABLE: &str = "EXEC_SERVER_CONFIG";

#[derive(Debug)]
pub(super) struct ConfigFile {
    pub(super) path: PathBuf,
    pub(super) text: String,
}

impl ConfigFile {
    /// Reads the named file, or else the default file if it exists.
    pub(super) fn find(
        flag: Option<&Path>,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Option<Self>, ConfigError> {
        let Some(location) = locate(flag, variable) else { return Ok(None) };
        let path = location.path().to_owned();
        match location.read() {
            Ok(text) => Ok(text.map(|text| Self { path, text })),
            Err(source) => Err(ConfigError::Unreadable { path, source }),
        }
    }

    /// Calls `take` with the key, value and position of each entry, in file order. Entries of a
    /// known table have dotted keys.
    pub(super) fn for_each_entry(
        &self,
        mut take: impl FnMut(&str, Raw<'_>, Position) -> Result<(), ConfigError>,
    ) -> Result<(), ConfigError> {
        let document = DeTable::parse(&self.text).map_err(|error| ConfigError::Syntax {
            at: self.position(error.span().map_or(0, |span| span.start)),
            message: error.message().replace('\n', ", "),
        })?;
        let mut entries = Vec::new();
        for (key, value) in document.get_ref() {
            match value.get_ref() {
                DeValue::Table(section) if SECTIONS.contains(&&**key.get_ref()) => {
                    entries.extend(section.iter().map(|(inner, value)| {
                        let dotted = format!("{}.{}", key.get_ref(), inner.get_ref());
                        (inner.span().start, dotted, value)
                    }));
                }
                _ => entries.push((key.span().start, key.get_ref().to_string(), value)),
            }
        }
        entries.sort_by_key(|(start, _, _)| *start);
        for (start, key, value) in entries {
            take(&key, Raw::Toml(value.get_ref()), self.position(start))?;
        }
        Ok(())
    }

    fn position(&self, offset: usize) -> Position {
        let before = self.text.bytes().take(offset);
        Position { path: self.path.clone(), line: 1 + before.filter(|byte| *byte == b'\n').count() }
    }
}

fn locate(flag: Option<&Path>, variable: impl Fn(&str) -> Option<OsString>) -> Option<Location> {
    let named = flag.map(Path::to_owned).or_else(|| variable(CONFIG_VARIABLE).map(PathBuf::from));
    Location::new(named, "config.toml", variable)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn located(flag: Option<&str>, variables: &[(&str, &str)]) -> Option<Location> {
        locate(flag.map(Path::new), |wanted| {
            let found = variables.iter().find(|(name, _)| *name == wanted);
            found.map(|(_, value)| value.into())
        })
    }

    #[test]
    fn the_file_is_searched_in_order() {
        let home = ("HOME", "/home/me");
        let xdg = ("XDG_CONFIG_HOME", "/etc/xdg");
        let named = (CONFIG_VARIABLE, "mine.toml");
        let customary = |path: &str| Some(Location::Customary(path.into()));
        assert_eq!(
            located(Some("flag.toml"), &[home, xdg, named]),
            Some(Location::Named("flag.toml".into()))
        );
        assert_eq!(located(None, &[home, xdg, named]), Some(Location::Named("mine.toml".into())));
        assert_eq!(located(None, &[home, xdg]), customary("/etc/xdg/exec-server/config.toml"));
        assert_eq!(
            located(None, &[home, ("XDG_CONFIG_HOME", "relative")]),
            customary("/home/me/.config/exec-server/config.toml")
        );
        assert_eq!(located(None, &[]), None);
    }

    #[test]
    fn only_the_default_file_may_be_missing() {
        let directory = tempfile::tempdir().unwrap();
        let missing = directory.path().join("missing.toml");
        let home = |name: &str| (name == "HOME").then(|| directory.path().into());
        assert!(ConfigFile::find(None, home).unwrap().is_none());

        let error = ConfigFile::find(Some(&missing), home).unwrap_err().to_string();
        let start = format!("{}: cannot read the configuration file: ", missing.display());
        assert!(error.starts_with(&start), "{error}");
    }

    #[test]
    fn a_directory_in_place_of_the_default_file_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(directory.path().join("exec-server/config.toml")).unwrap();
        let xdg = |name: &str| (name == "XDG_CONFIG_HOME").then(|| directory.path().into());
        assert!(ConfigFile::find(None, xdg).is_err());
    }
}
