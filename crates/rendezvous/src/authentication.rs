//! Authenticates requests: finds the credential for an `Authorization` header.

use std::sync::Arc;
use std::time::SystemTime;

use base64_simd::STANDARD;
use exec_server_transport::sha256;
use hyper::header::{AUTHORIZATION, HeaderMap};
use tokio::time::Instant;

use crate::assertion::{Assertion, AssertionError};
use crate::config::Quotas;
use crate::credential::{Credential, CredentialId, Proof};
use crate::directory::{Directory, DirectoryError};
use crate::error_response::Refusal;
use crate::quota::RateLimits;

#[derive(Debug)]
pub(crate) struct Authentication {
    directory: Arc<dyn Directory>,
    calls: RateLimits<CredentialId>,
    validations: RateLimits<CredentialId>,
}

/// The purpose of a call. Each purpose has its own rate limit: harnesses cause the validations
/// of an environment, and must not use up its other calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Call,
    Validation,
}

/// Why a caller is refused. It does not learn what is wrong with its credentials: it just gets 401.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AuthenticationError {
    #[error("the Authorization header is missing, repeated or malformed")]
    Missing,
    #[error("the authentication scheme is neither Bearer nor AgentAssertion")]
    UnknownScheme,
    #[error("the token or agent is unknown, expired or revoked; create a new one")]
    Unknown,
    #[error(transparent)]
    Assertion(#[from] AssertionError),
    #[error("the assertion was already used")]
    Replayed,
    #[error("too many calls with this credential")]
    TooMany,
    #[error(transparent)]
    Directory(#[from] DirectoryError),
}

impl Authentication {
    pub(crate) fn new(directory: Arc<dyn Directory>, quotas: &Quotas) -> Self {
        let rates = || RateLimits::new(quotas.calls_per_second, quotas.calls_at_once);
        Self { directory, calls: rates(), validations: rates() }
    }

    pub(crate) fn forget_idle(&self, now: Instant) {
        self.calls.forget_idle(now);
        self.validations.forget_idle(now);
    }

    pub(crate) fn count_call(
        &self,
        caller: &Credential,
        purpose: Purpose,
    ) -> Result<(), AuthenticationError> {
        let rates = match purpose {
            Purpose::Call => &self.calls,
            Purpose::Validation => &self.validations,
        };
        match rates.of(&caller.id).try_take(Instant::now()) {
            true => Ok(()),
            false => Err(AuthenticationError::TooMany),
        }
    }

    /// Authenticates a bearer token or an agent's assertion.
    pub(crate) async fn authenticate(
        &self,
        headers: &HeaderMap,
        purpose: Purpose,
        now: SystemTime,
    ) -> Result<Credential, AuthenticationError> {
        match scheme_and_rest(headers)? {
            (scheme, token) if scheme.eq_ignore_ascii_case("bearer") => {
                self.token(token, purpose, now).await
            }
            (scheme, text) if scheme.eq_ignore_ascii_case("agentassertion") => {
                self.assertion(&Assertion::decode(text)?, purpose, now).await
            }
            _ => Err(AuthenticationError::UnknownScheme),
        }
    }

    /// Like [`authenticate`](Self::authenticate), but also accepts a token as the password of HTTP
    /// Basic, for browsers.
    pub(crate) async fn authenticate_viewer(
        &self,
        headers: &HeaderMap,
        now: SystemTime,
    ) -> Result<Credential, AuthenticationError> {
        match scheme_and_rest(headers)? {
            (scheme, text) if scheme.eq_ignore_ascii_case("basic") => {
                let decoded =
                    STANDARD.decode_to_vec(text).map_err(|_| AuthenticationError::Missing)?;
                let decoded = str::from_utf8(&decoded).map_err(|_| AuthenticationError::Missing)?;
                let (_, password) = decoded.split_once(':').ok_or(AuthenticationError::Missing)?;
                self.token(password, Purpose::Call, now).await
            }
            _ => self.authenticate(headers, Purpose::Call, now).await,
        }
    }

    /// Returns a known and valid agent, and its public key.
    pub(crate) async fn agent(
        &self,
        id: &str,
        now: SystemTime,
    ) -> Result<(Credential, [u8; 32]), AuthenticationError> {
        let credential = self.directory.credential(&CredentialId::from(id)).await?;
        let credential = valid(credential, now)?;
        match credential.proof {
            Proof::Agent { public_key } => Ok((credential, public_key)),
            Proof::Token { .. } => Err(AuthenticationError::Unknown),
        }
    }

    async fn token(
        &self,
        token: &str,
        purpose: Purpose,
        now: SystemTime,
    ) -> Result<Credential, AuthenticationError> {
        // Found by its hash, so the lookup time reveals nothing about the token.
        let credential = self.directory.token_by_hash(sha256(token.as_bytes())).await?;
        let credential = valid(credential, now)?;
        self.count_call(&credential, purpose)?;
        Ok(credential)
    }

    async fn assertion(
        &self,
        assertion: &Assertion,
        purpose: Purpose,
        now: SystemTime,
    ) -> Result<Credential, AuthenticationError> {
        let (credential, public_key) = self.agent(&assertion.agent_runtime_id, now).await?;
        let secret = self.directory.signing_secret().await?;
        let (hash, expires) = assertion.verify(&public_key, &secret, now)?;
        // Counted before the write, which is durable and therefore slow.
        self.count_call(&credential, purpose)?;
        match self.directory.remember_assertion(hash, expires, now).await? {
            true => Ok(credential),
            false => Err(AuthenticationError::Replayed),
        }
    }
}

fn valid(
    credential: Option<Credential>,
    now: SystemTime,
) -> Result<Credential, AuthenticationError> {
    credential.filter(|credential| credential.is_valid_at(now)).ok_or(AuthenticationError::Unknown)
}

fn scheme_and_rest(headers: &HeaderMap) -> Result<(&str, &str), AuthenticationError> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next().filter(|_| values.next().is_none());
    let text = value.and_then(|value| value.to_str().ok()).ok_or(AuthenticationError::Missing)?;
    let (scheme, rest) = text.split_once(' ').ok_or(AuthenticationError::Missing)?;
    Ok((scheme, rest.trim()))
}

impl From<AuthenticationError> for Refusal {
    fn from(error: AuthenticationError) -> Self {
        match error {
            AuthenticationError::Directory(error) => error.into(),
            AuthenticationError::TooMany => {
                Self::too_many("too many calls with this credential; try again in a second")
            }
            reason => {
                tracing::info!(%reason, "refused a caller");
                Self::unauthorized()
            }
        }
    }
}
