//! The bodies of the registry's calls, in wire form.
//!
//! `Key` is the public key object: [`PublicKey`](crate::noise::PublicKey) at the two ends, and
//! opaque data at a rendezvous, which cannot read keys.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The only security profile.
pub const SECURITY_PROFILE: &str = "noise_hybrid_ik_v1";

/// `POST {base}/cloud/environment/{id}/register`, by an environment.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RegisterRequest<Key> {
    pub security_profile: String,
    pub executor_public_key: Key,
}

#[derive(Clone, Serialize, Deserialize)]
pub struct RegisterResponse {
    pub environment_id: String,
    /// A WebSocket URL that carries its own credential.
    pub url: String,
    pub security_profile: String,
    pub executor_registration_id: String,
}

/// `POST {base}/cloud/environment/{id}/connect`, by a harness.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ConnectRequest<Key> {
    pub harness_public_key: Key,
}

/// Valid for one physical connection.
#[derive(Clone, Serialize, Deserialize)]
pub struct ConnectResponse<Key> {
    pub environment_id: String,
    /// A WebSocket URL that carries its own credential.
    pub url: String,
    pub security_profile: String,
    pub executor_registration_id: String,
    pub executor_public_key: Key,
    /// Sent to the environment inside the handshake; the environment asks the registry whether it
    /// is valid.
    pub harness_key_authorization: String,
}

/// `POST {base}/cloud/environment/{id}/validate`, by an environment.
#[derive(Clone, Serialize, Deserialize)]
pub struct ValidateRequest<Key> {
    pub executor_registration_id: String,
    pub harness_public_key: Key,
    pub harness_key_authorization: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ValidateResponse {
    pub valid: bool,
    /// The name of the harness's credential. Some deployed registries omit it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
}

/// The body of every refusal.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ErrorResponse {
    pub error: ErrorBody,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ErrorBody {
    pub code: String,
    pub message: String,
}

/// The code of a refusal that is worth a retry: the environment is not connected.
pub const ENVIRONMENT_OFFLINE: &str = "environment_offline";

/// Omits the URL, which is a credential.
impl fmt::Debug for RegisterResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisterResponse")
            .field("environment_id", &self.environment_id)
            .field("executor_registration_id", &self.executor_registration_id)
            .finish_non_exhaustive()
    }
}

/// Omits the URL and the authorization, which are credentials.
impl<Key: fmt::Debug> fmt::Debug for ConnectResponse<Key> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectResponse")
            .field("environment_id", &self.environment_id)
            .field("executor_registration_id", &self.executor_registration_id)
            .field("executor_public_key", &self.executor_public_key)
            .finish_non_exhaustive()
    }
}

/// Omits the authorization, which is a credential.
impl<Key: fmt::Debug> fmt::Debug for ValidateRequest<Key> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ValidateRequest")
            .field("executor_registration_id", &self.executor_registration_id)
            .field("harness_public_key", &self.harness_public_key)
            .finish_non_exhaustive()
    }
}
