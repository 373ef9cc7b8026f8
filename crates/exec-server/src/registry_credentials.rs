//! Finds this program's credentials for a registry of remote mode, and stores logins.

use std::fmt;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use exec_server_relay::registry::{
    AgentIdentity, BearerToken, CredentialsError, RegistryClient, RegistryCredentials,
};
use exec_server_transport::sha256;

use crate::program::write_history_files::own_state_directories;

/// The variables that may hold a token, in order of precedence.
pub(crate) const API_KEY_VARIABLES: [&str; 2] = ["EXEC_SERVER_API_KEY", "CODEX_API_KEY"];
/// The variables that may hold the access token of an agent identity, in order of precedence.
pub(crate) const ACCESS_TOKEN_VARIABLES: [&str; 2] =
    ["EXEC_SERVER_ACCESS_TOKEN", "CODEX_ACCESS_TOKEN"];

/// The credentials chosen by the user. Without any, [`find`](Self::find) tries the defaults.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CredentialChoice {
    pub(crate) token_file: Option<PathBuf>,
    pub(crate) token_variable: Option<String>,
    pub(crate) use_agent_identity: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum NoCredentials {
    #[error(
        "no token for {registry}: run `exec-server login --remote {registry}`, or set \
         EXEC_SERVER_API_KEY"
    )]
    Nothing { registry: String },
    #[error("no token for {registry}: the variable {name} is unset or empty; set it to the token")]
    Variable { registry: String, name: String },
    #[error("use_agent_identity_auth needs an access token; set EXEC_SERVER_ACCESS_TOKEN")]
    NoAccessToken,
    #[error(transparent)]
    Identity(#[from] CredentialsError),
}

pub(crate) struct Found {
    pub(crate) credentials: Arc<dyn RegistryCredentials>,
    pub(crate) secret_file: Option<PathBuf>,
}

impl CredentialChoice {
    /// Takes the credentials that the user chose: the file, the variable or the agent identity.
    /// Without a choice: the default variables or, if they are unset, the login.
    pub(crate) fn find(&self, registry: &str) -> Result<Found, NoCredentials> {
        // For errors: without the query, which may hold a secret.
        let shown = || RegistryClient::normalize_url(registry).unwrap_or_default();
        if let Some(file) = &self.token_file {
            return Ok(Found::file(file.clone()));
        }
        if let Some(name) = &self.token_variable {
            let missing = || NoCredentials::Variable { registry: shown(), name: name.clone() };
            let token = variable(name).ok_or_else(missing)?;
            return Ok(Found::value(BearerToken::Value(token)));
        }
        if self.use_agent_identity {
            let token = ACCESS_TOKEN_VARIABLES.into_iter().find_map(variable);
            let token = token.ok_or(NoCredentials::NoAccessToken)?;
            return Ok(Found::value(AgentIdentity::from_access_token(&token)?));
        }
        if let Some(token) = API_KEY_VARIABLES.into_iter().find_map(variable) {
            return Ok(Found::value(BearerToken::Value(token)));
        }
        match login_file(registry).filter(|file| file.exists()) {
            Some(file) => Ok(Found::file(file)),
            None => Err(NoCredentials::Nothing { registry: shown() }),
        }
    }
}

impl Found {
    fn file(path: PathBuf) -> Self {
        let credentials = Arc::new(BearerToken::File(path.clone()));
        Self { credentials, secret_file: Some(path) }
    }

    fn value(credentials: impl RegistryCredentials + 'static) -> Self {
        Self { credentials: Arc::new(credentials), secret_file: None }
    }
}

impl fmt::Debug for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Found").field(&self.credentials).finish()
    }
}

fn variable(name: impl AsRef<str>) -> Option<String> {
    std::env::var(name.as_ref()).ok().filter(|value| !value.is_empty())
}

/// Returns the file for the token of a login; `None` without a state directory, or if the URL is
/// invalid. All spellings of a URL share one login.
pub(crate) fn login_file(registry: &str) -> Option<PathBuf> {
    let registry = RegistryClient::normalize_url(registry).ok()?;
    let name: String =
        sha256(registry.as_bytes())[..16].iter().map(|b| format!("{b:02x}")).collect();
    Some(own_state_directories().first()?.join("registry-tokens").join(name))
}

/// Stores a token, readable only by this user. On failure the previous login remains.
pub(crate) fn save_login(file: &Path, token: &str) -> io::Result<()> {
    let directory = file.parent().ok_or(io::ErrorKind::InvalidInput)?;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o700))?;
    let mut temporary = tempfile::Builder::new()
        .permissions(std::fs::Permissions::from_mode(0o600))
        .tempfile_in(directory)?;
    writeln!(temporary, "{token}")?;
    temporary.as_file().sync_all()?;
    temporary.persist(file).map_err(|error| error.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_readable_only_by_its_user_and_can_be_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("state/registry-tokens/file");
        for token in ["one", "two"] {
            save_login(&file, token).unwrap();
            assert_eq!(std::fs::read_to_string(&file).unwrap(), format!("{token}\n"));
        }
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&file), 0o600);
        assert_eq!(mode(file.parent().unwrap()), 0o700);
        let names = std::fs::read_dir(file.parent().unwrap()).unwrap().count();
        assert_eq!(names, 1, "no temporary file is left");
    }

    #[test]
    fn spellings_of_a_url_share_a_login() {
        let one = login_file("https://relay.example");
        assert!(one.is_some());
        for same in
            ["https://relay.example/", "https://Relay.example:443", "https://relay.example//"]
        {
            assert_eq!(one, login_file(same), "{same}");
        }
        assert_ne!(one, login_file("https://relay.example:8443"));
    }

    #[test]
    fn the_error_for_missing_credentials_names_the_variable() {
        let choice = CredentialChoice {
            token_variable: Some("NO_SUCH_VARIABLE".into()),
            ..CredentialChoice::default()
        };
        let error = choice.find("https://relay.example?token=SESAME").unwrap_err().to_string();
        assert!(error.starts_with("no token for https://relay.example: "), "{error}");
        assert!(error.contains("NO_SUCH_VARIABLE is unset or empty"), "{error}");
    }
}
