//! The source of the bundles with which harnesses connect.

use std::fmt;
use std::pin::Pin;

use crate::noise::PublicKey;
use crate::registry::{ConnectResponse, RegistryClient, RegistryError};

/// The URL, ids, key and authorization for one physical connection. Valid once.
#[derive(Clone)]
pub struct NoiseRendezvousConnectBundle {
    /// Contains its own credential.
    pub websocket_url: String,
    pub environment_id: String,
    pub executor_registration_id: String,
    pub executor_public_key: PublicKey,
    pub harness_key_authorization: String,
}

impl fmt::Debug for NoiseRendezvousConnectBundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NoiseRendezvousConnectBundle")
            .field("environment_id", &self.environment_id)
            .field("executor_public_key", &self.executor_public_key)
            .finish_non_exhaustive()
    }
}

/// A bundle that is being fetched.
pub type Providing<'a> =
    Pin<Box<dyn Future<Output = Result<NoiseRendezvousConnectBundle, ProviderError>> + Send + 'a>>;

/// Provides a fresh bundle for each attempt to connect.
pub trait NoiseRendezvousConnectProvider: fmt::Debug + Send + Sync {
    fn connect_bundle<'a>(&'a self, harness: &'a PublicKey) -> Providing<'a>;
}

#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// An error of a provider outside this crate.
    #[error("{message}")]
    Other { message: String, is_temporary: bool },
}

impl ProviderError {
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Registry(error) => error.is_temporary(),
            Self::Other { is_temporary, .. } => *is_temporary,
        }
    }
}

/// Gets the bundles from a registry.
#[derive(Debug, Clone)]
pub struct RegistryProvider(RegistryClient);

impl RegistryProvider {
    #[must_use]
    pub fn new(registry: RegistryClient) -> Self {
        Self(registry)
    }
}

impl NoiseRendezvousConnectProvider for RegistryProvider {
    fn connect_bundle<'a>(&'a self, harness: &'a PublicKey) -> Providing<'a> {
        Box::pin(async move {
            let ConnectResponse {
                environment_id,
                url: websocket_url,
                executor_registration_id,
                executor_public_key,
                harness_key_authorization,
                ..
            } = self.0.connect(harness).await?;
            Ok(NoiseRendezvousConnectBundle {
                websocket_url,
                environment_id,
                executor_registration_id,
                executor_public_key,
                harness_key_authorization,
            })
        })
    }
}
