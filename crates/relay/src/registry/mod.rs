//! The registry decides which ends may talk, and names the rendezvous where they meet.
//!
//! A rendezvous uses only the message bodies; the rest is for callers.

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
