//! One handshake: reads the harness's message, asks the registry, and responds.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use exec_server_protocol::MAX_SUBJECT_BYTES;
use tokio::time::timeout;

use crate::frame::StreamId;
use crate::noise::{Channel, EnvironmentHandshake, HandshakeError, Identity, Prologue};
use crate::registry::{RegistryClient, RegistryError};

const VALIDATION_TIMEOUT: Duration = Duration::from_secs(10);

/// The context of all handshakes of one registration.
#[derive(Debug, Clone)]
pub(super) struct Registration {
    pub(super) registry: Arc<RegistryClient>,
    pub(super) identity: Arc<Identity>,
    pub(super) id: String,
}

/// A harness that the registry has authorized.
pub(super) struct Authorized {
    /// Message 2.
    pub(super) answer: Bytes,
    pub(super) channel: Channel,
    /// The name of the harness's credential, if the registry reports a usable one.
    pub(super) subject: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error("cannot validate the harness")]
    Registry(#[from] RegistryError),
    #[error("the registry did not answer within {}s", VALIDATION_TIMEOUT.as_secs())]
    TimedOut,
    #[error(
        "the registry refused the authorization of the harness; it may have expired or been used \
         before"
    )]
    Unauthorized,
}

impl Refusal {
    /// Returns whether the registry could not decide: it is overloaded, or the environment cannot
    /// reach it or read its own credentials, for example because file descriptors are exhausted.
    /// That is not the fault of the harness, and a new socket would not help. A registry that is
    /// reached but does not answer in time counts as a refusal.
    pub(super) fn is_undecided(&self) -> bool {
        match self {
            Self::Registry(RegistryError::Refused { status, .. }) => {
                matches!(status.as_u16(), 429 | 503)
            }
            Self::Registry(error) => {
                matches!(error, RegistryError::Credentials(_) | RegistryError::Unreachable { .. })
            }
            _ => false,
        }
    }
}

impl Registration {
    /// Writes message 2 only if the registry authorizes the harness.
    pub(super) async fn shake_hands(
        &self,
        stream_id: &StreamId,
        message: &[u8],
    ) -> Result<Authorized, Refusal> {
        let prologue = Prologue {
            environment_id: self.registry.environment_id(),
            registration_id: &self.id,
            stream_id: stream_id.as_str(),
        };
        let handshake = <EnvironmentHandshake>::read(&self.identity, &prologue, message)?;
        let (harness, authorization) = (handshake.harness(), handshake.authorization());
        let validating = self.registry.validate(&self.id, harness, authorization);
        let response = timeout(VALIDATION_TIMEOUT, validating).await;
        let response = response.map_err(|_| Refusal::TimedOut)??;
        if !response.valid {
            return Err(Refusal::Unauthorized);
        }
        let (answer, channel) = handshake.accept()?;
        let is_usable = |subject: &String| {
            (1..=MAX_SUBJECT_BYTES).contains(&subject.len())
                && !subject.chars().any(char::is_control)
        };
        Ok(Authorized { answer, channel, subject: response.subject.filter(is_usable) })
    }
}
