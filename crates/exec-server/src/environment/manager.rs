//! The environments of a program, by id.

use std::path::Path;

use exec_server_transport::DialUrlParseError;

use super::file::{EnvironmentsFile, EnvironmentsFileError};
use super::named::Environment;
use super::remote::RemoteServer;
use crate::environment::runtime_paths::ExecServerRuntimePaths;

const URL_ENVIRONMENT_ID: &str = "remote";

/// A set of at least one environment, one of which is the default.
#[derive(Debug, Clone)]
pub struct EnvironmentManager {
    environments: Vec<Environment>,
    /// Index in `environments`.
    default: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown environment {id:?}; known environments: {}; define others in environments.toml",
    quoted(.known)
)]
pub struct UnknownEnvironment {
    pub id: String,
    pub known: Vec<String>,
}

impl EnvironmentManager {
    /// Creates a manager with only this machine.
    #[must_use]
    pub fn local_only(runtime_paths: ExecServerRuntimePaths) -> Self {
        Self { environments: vec![Environment::local(runtime_paths)], default: 0 }
    }

    /// Creates a manager with only one server, as the environment `remote`.
    pub fn from_url(url: impl Into<String>) -> Result<Self, DialUrlParseError> {
        let environment = Environment::remote(URL_ENVIRONMENT_ID, RemoteServer::at(url)?);
        Ok(Self { environments: vec![environment], default: 0 })
    }

    /// Reads the user's `environments.toml`: the file from `EXEC_SERVER_ENVIRONMENTS`, or else the
    /// default file. Without a file, only this machine is available.
    pub fn from_user_file(
        runtime_paths: ExecServerRuntimePaths,
    ) -> Result<Self, EnvironmentsFileError> {
        match EnvironmentsFile::find(|name| std::env::var_os(name))? {
            Some(file) => Ok(Self::from_parsed(file, runtime_paths)),
            None => Ok(Self::local_only(runtime_paths)),
        }
    }

    /// Reads the `environments.toml` at `path`.
    pub fn from_file(
        path: &Path,
        runtime_paths: ExecServerRuntimePaths,
    ) -> Result<Self, EnvironmentsFileError> {
        Ok(Self::from_parsed(EnvironmentsFile::read(path)?, runtime_paths))
    }

    fn from_parsed(file: EnvironmentsFile, runtime_paths: ExecServerRuntimePaths) -> Self {
        let local = file.include_local.then(|| Environment::local(runtime_paths));
        let remote = file.environments.into_iter();
        let remote = remote.map(|(id, server)| Environment::remote(id, server));
        let environments: Vec<_> = local.into_iter().chain(remote).collect();
        let is_default =
            |environment: &Environment| Some(environment.id()) == file.default.as_deref();
        // Another machine is used only on request: the default is this machine unless the file says
        // otherwise.
        let default = environments.iter().position(is_default).unwrap_or(0);
        Self { environments, default }
    }

    #[must_use]
    pub fn default(&self) -> &Environment {
        &self.environments[self.default]
    }

    pub fn get(&self, id: &str) -> Result<&Environment, UnknownEnvironment> {
        self.environments.iter().find(|environment| environment.id() == id).ok_or_else(|| {
            let known = self.ids().map(str::to_owned).collect();
            UnknownEnvironment { id: id.to_owned(), known }
        })
    }

    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.environments.iter().map(Environment::id)
    }
}

fn quoted(ids: &[String]) -> String {
    ids.iter().map(|id| format!("{id:?}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manager(text: &str) -> EnvironmentManager {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("environments.toml");
        std::fs::write(&path, text).unwrap();
        let paths = ExecServerRuntimePaths::without_helpers();
        EnvironmentManager::from_file(&path, paths).unwrap()
    }

    const BOX: &str = "[[environments]]\nid = \"box\"\nurl = \"ws://box:1?token=SESAME\"\n";

    #[test]
    fn the_default_is_the_named_one_then_local_then_the_first() {
        assert_eq!(manager("").default().id(), "local");
        assert_eq!(manager(BOX).default().id(), "local");
        assert_eq!(manager(&format!("default = \"box\"\n{BOX}")).default().id(), "box");
        assert_eq!(manager(&format!("include_local = false\n{BOX}")).default().id(), "box");
        let one = EnvironmentManager::from_url("unix:///run/socket").unwrap();
        assert_eq!(one.default().server().unwrap().url(), Some("unix:///run/socket"));
    }

    #[test]
    fn the_error_for_an_unknown_id_lists_the_known_ones() {
        let manager = manager(BOX);
        assert_eq!(manager.ids().collect::<Vec<_>>(), ["local", "box"]);
        assert_eq!(manager.get("box").unwrap().id(), "box");
        let error = manager.get("bix").unwrap_err().to_string();
        assert_eq!(
            error,
            "unknown environment \"bix\"; known environments: \"local\", \"box\"; define others in environments.toml"
        );
    }

    #[test]
    fn a_query_is_not_shown() {
        assert!(!format!("{:?}", manager(BOX)).contains("SESAME"));
    }
}
