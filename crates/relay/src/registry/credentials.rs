//! How a caller authenticates to the registry. Errors and debug output contain no secret.

use std::fmt;
use std::path::PathBuf;
use std::pin::Pin;

use exec_server_transport::{AuthError, read_token_file};

use super::client::RegistryClient;

/// The value of an `Authorization` header that is being created.
pub type Authorization<'a> =
    Pin<Box<dyn Future<Output = Result<String, CredentialsError>> + Send + 'a>>;

/// Creates the `Authorization` header of each call.
pub trait RegistryCredentials: fmt::Debug + Send + Sync {
    fn authorization<'a>(&'a self, registry: &'a RegistryClient) -> Authorization<'a>;
}

#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    #[error(transparent)]
    TokenFile(#[from] AuthError),
    #[error("the token contains characters that are not allowed in an HTTP header")]
    NotAHeader,
    #[error("the access token is not an agent identity: {why}")]
    InvalidIdentity { why: &'static str },
    #[error("cannot register a task for the agent identity")]
    Task(#[source] Box<super::RegistryError>),
    #[error("cannot read the token file: the program is shutting down")]
    ShuttingDown,
}

impl CredentialsError {
    pub(super) fn is_temporary(&self) -> bool {
        match self {
            Self::Task(error) => error.is_temporary(),
            Self::TokenFile(_)
            | Self::NotAHeader
            | Self::InvalidIdentity { .. }
            | Self::ShuttingDown => false,
        }
    }
}

/// A token that is sent as `Bearer`.
#[derive(Clone)]
pub enum BearerToken {
    Value(String),
    /// Read for each call, so that it can be renewed.
    File(PathBuf),
}

impl RegistryCredentials for BearerToken {
    fn authorization<'a>(&'a self, _: &'a RegistryClient) -> Authorization<'a> {
        Box::pin(async move {
            let token = match self {
                Self::Value(token) => token.clone(),
                Self::File(path) => {
                    let path = path.clone();
                    // The file may be on a slow network file system.
                    let read = tokio::task::spawn_blocking(move || read_token_file(&path)).await;
                    read.map_err(|_| CredentialsError::ShuttingDown)??
                }
            };
            Ok(format!("Bearer {token}"))
        })
    }
}

impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(_) => f.write_str("BearerToken(hidden)"),
            Self::File(path) => f.debug_tuple("BearerToken").field(path).finish(),
        }
    }
}
