//! The registry says who may talk to whom, and where.
//!
//! The bodies of its calls are also for a rendezvous; the rest is the side of the caller.

#[cfg(feature = "noise")]
mod agent_identity;
#[cfg(feature = "noise")]
mod client;
#[cfg(feature = "noise")]
mod credentials;
mod messages;

#[cfg(feature = "noise")]
pub use agent_identity::AgentIdentity;
#[cfg(feature = "noise")]
pub(crate) use client::is_loopback;
#[cfg(feature = "noise")]
pub use client::{RegistryClient, RegistryError};
#[cfg(feature = "noise")]
pub use credentials::{Authorization, BearerToken, CredentialsError, RegistryCredentials};
pub use messages::{
    ConnectRequest, ConnectResponse, ENVIRONMENT_OFFLINE, ErrorBody, ErrorResponse,
    RegisterRequest, RegisterResponse, SECURITY_PROFILE, ValidateRequest, ValidateResponse,
};
