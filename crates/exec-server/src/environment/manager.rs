//! The environments that a program can use, by name.

use std::path::Path;

use exec_server_transport::DialUrlParseError;

use super::file::{EnvironmentsFile, EnvironmentsFileError};
use super::named::Environment;
use super::remote::RemoteServer;
use crate::environment::runtime_paths::ExecServerRuntimePaths;

/// The id of an environment that is only known by its URL.
const URL_ENVIRONMENT_ID: &str = "remote";

/// All environments, one of which is the default. Holds at least one.
#[derive(Debug, Clone)]
pub struct EnvironmentManager {
    environments: Vec<Environment>,
    /// Its place in `environments`.
    default: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no environment {id:?} is defined; there are {}", quoted(.known))]
pub struct UnknownEnvironment {
    pub id: String,
    pub known: Vec<String>,
}

impl EnvironmentManager {
    /// This machine and no other.
    #[must_use]
    pub fn local_only(runtime_paths: ExecServerRuntimePaths) -> Self {
        Self { environments: vec![Environment::local(runtime_paths)], default: 0 }
    }

    /// One server and no other.
    pub fn from_url(url: impl Into<String>) -> Result<Self, DialUrlParseError> {
        let environment = Environment::remote(URL_ENVIRONMENT_ID, RemoteServer::at(url)?);
        Ok(Self { environments: vec![environment], default: 0 })
    }

    /// What the user's `environments.toml` says: the one that `EXEC_SERVER_ENVIRONMENTS` names, else the customary
    /// one. Without a file there is this machine only.
    pub fn from_user_file(
        runtime_paths: ExecServerRuntimePaths,
    ) -> Result<Self, EnvironmentsFileError> {
        match EnvironmentsFile::find(|name| std::env::var_os(name))? {
            Some(file) => Ok(Self::from_parsed(file, runtime_paths)),
            None => Ok(Self::local_only(runtime_paths)),
        }
    }

    /// What this file says.
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
        // Nothing goes to another machine unless somebody said so: without a default it is this one, if it is there.
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
    fn the_default_is_named_or_here_or_the_first() {
        assert_eq!(manager("").default().id(), "local");
        assert_eq!(manager(BOX).default().id(), "local");
        assert_eq!(manager(&format!("default = \"box\"\n{BOX}")).default().id(), "box");
        assert_eq!(manager(&format!("include_local = false\n{BOX}")).default().id(), "box");
        let one = EnvironmentManager::from_url("unix:///run/socket").unwrap();
        assert_eq!(one.default().server().unwrap().url(), Some("unix:///run/socket"));
    }

    #[test]
    fn who_asks_for_another_one_is_told_which_there_are() {
        let manager = manager(BOX);
        assert_eq!(manager.ids().collect::<Vec<_>>(), ["local", "box"]);
        assert_eq!(manager.get("box").unwrap().id(), "box");
        let error = manager.get("bix").unwrap_err().to_string();
        assert_eq!(error, "no environment \"bix\" is defined; there are \"local\", \"box\"");
    }

    #[test]
    fn a_query_is_not_shown() {
        assert!(!format!("{:?}", manager(BOX)).contains("SESAME"));
    }
}
