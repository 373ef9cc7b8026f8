//! Credentials of environments, harnesses and operators: random tokens, stored only as a hash, and
//! agent identities, stored only as a public key.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64_simd::{STANDARD, URL_SAFE_NO_PAD};
use exec_server_transport::{new_token, sha256};
use ring::hmac;
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::environment_id::EnvironmentId;

/// The prefix by which secret scanners recognize a token of a rendezvous.
const TOKEN_PREFIX: &str = "esr_";
/// The longest lifetime. An agent's identity must expire, so for agents this means "no limit".
const LONGEST_LIFETIME: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The public id of a credential.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct CredentialId(Arc<str>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// May register and validate.
    Environment,
    /// May connect.
    Harness,
    /// May see the status of all environments, and the metrics.
    Operator,
}

/// A credential as it is stored. None of it is secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credential {
    pub id: CredentialId,
    pub name: Option<String>,
    pub role: Role,
    pub environments: BTreeSet<EnvironmentId>,
    pub created: SystemTime,
    pub expires: Option<SystemTime>,
    pub proof: Proof,
}

/// How the owner of a credential proves possession.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Proof {
    /// A bearer token with this hash.
    Token { sha256: [u8; 32] },
    /// Assertions signed with Ed25519; the id of the credential is the runtime id of the agent.
    Agent { public_key: [u8; 32] },
}

#[derive(Debug, Clone)]
pub(crate) struct CredentialOptions {
    pub(crate) name: Option<String>,
    pub(crate) role: Role,
    pub(crate) environments: BTreeSet<EnvironmentId>,
    pub(crate) lifetime: Option<Duration>,
}

impl Credential {
    /// Creates a token. Returns the record to store, and the token.
    pub(crate) fn new_token(options: CredentialOptions, now: SystemTime) -> (Self, String) {
        let token = format!("{TOKEN_PREFIX}{}", new_token());
        let proof = Proof::Token { sha256: sha256(token.as_bytes()) };
        let id = format!("tok_{}", Uuid::new_v4().simple());
        (Self::new(&id, options, proof, now), token)
    }

    /// Creates an agent identity. Returns the record to store, and the JSON Web Token with its
    /// private key.
    ///
    /// # Panics
    /// If the system provides no randomness.
    pub(crate) fn new_agent(
        options: CredentialOptions,
        secret: &[u8],
        now: SystemTime,
    ) -> (Self, String) {
        let key = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new());
        let key = key.expect("the system has randomness");
        let pair = Ed25519KeyPair::from_pkcs8(key.as_ref()).expect("the key was just made");
        let public_key = pair.public_key().as_ref();
        let public_key = public_key.try_into().expect("an Ed25519 key has 32 bytes");
        let id = format!("agent_{}", Uuid::new_v4().simple());
        let lifetime = options.lifetime.unwrap_or(LONGEST_LIFETIME).min(LONGEST_LIFETIME);
        let payload = AgentIdentity {
            agent_runtime_id: &id,
            agent_private_key: &STANDARD.encode_to_string(key.as_ref()),
            iat: since_1970(now),
            exp: since_1970(now).saturating_add(lifetime.as_secs()),
        };
        let identity = sign(&payload, secret);
        (Self::new(&id, options, Proof::Agent { public_key }, now), identity)
    }

    fn new(id: &str, options: CredentialOptions, proof: Proof, now: SystemTime) -> Self {
        let CredentialOptions { name, role, environments, lifetime } = options;
        let expires = lifetime.map(|lifetime| now + lifetime.min(LONGEST_LIFETIME));
        let id = CredentialId::from(id);
        Self { id, name, role, environments, created: now, expires, proof }
    }

    #[must_use]
    pub fn is_valid_at(&self, now: SystemTime) -> bool {
        self.expires.is_none_or(|expires| now < expires)
    }

    /// Returns the name of the owner, as environments see it.
    #[must_use]
    pub fn subject(&self) -> &str {
        self.name.as_deref().unwrap_or(self.id.as_str())
    }
}

#[derive(Serialize)]
struct AgentIdentity<'a> {
    agent_runtime_id: &'a str,
    agent_private_key: &'a str,
    iat: u64,
    exp: u64,
}

fn sign(payload: &AgentIdentity<'_>, secret: &[u8]) -> String {
    let encode = |text: &[u8]| URL_SAFE_NO_PAD.encode_to_string(text);
    let payload = serde_json::to_vec(payload).expect("the payload has only string keys");
    let signed = format!("{}.{}", encode(br#"{"alg":"HS256","typ":"JWT"}"#), encode(&payload));
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    let signature = hmac::sign(&key, signed.as_bytes());
    format!("{signed}.{}", encode(signature.as_ref()))
}

pub(crate) fn since_1970(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

impl CredentialId {
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for CredentialId {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl From<String> for CredentialId {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl From<CredentialId> for String {
    fn from(id: CredentialId) -> Self {
        id.as_str().to_owned()
    }
}

impl fmt::Display for CredentialId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for CredentialId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(lifetime: Option<Duration>) -> CredentialOptions {
        let environments = BTreeSet::from(["box".parse().unwrap()]);
        CredentialOptions { name: None, role: Role::Harness, environments, lifetime }
    }

    #[test]
    fn a_token_is_stored_as_its_hash() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let (credential, token) =
            Credential::new_token(options(Some(Duration::from_secs(10))), now);
        assert!(token.starts_with("esr_") && token.len() >= 47);
        assert_eq!(credential.proof, Proof::Token { sha256: sha256(token.as_bytes()) });
        assert!(!format!("{credential:?}").contains(&token[4..]));
        assert!(credential.is_valid_at(now + Duration::from_secs(9)));
        assert!(!credential.is_valid_at(now + Duration::from_secs(10)));
        assert_eq!(credential.subject(), credential.id.as_str());
        let (forever, _) = Credential::new_token(options(Some(Duration::MAX)), now);
        assert_eq!(forever.expires, Some(now + LONGEST_LIFETIME));
    }

    #[test]
    fn an_identity_contains_the_private_key_of_its_public_key() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let (credential, identity) = Credential::new_agent(options(None), &[7; 32], now);
        let parts: Vec<_> = identity.split('.').collect();
        let key = hmac::Key::new(hmac::HMAC_SHA256, &[7; 32]);
        let signature = URL_SAFE_NO_PAD.decode_to_vec(parts[2]).unwrap();
        let signed = format!("{}.{}", parts[0], parts[1]);
        hmac::verify(&key, signed.as_bytes(), &signature).unwrap();
        let payload = URL_SAFE_NO_PAD.decode_to_vec(parts[1]).unwrap();
        let payload: serde_json::Value = serde_json::from_slice(&payload).unwrap();
        assert_eq!(payload["agent_runtime_id"], credential.id.as_str());
        assert_eq!(payload["iat"], 1000);
        assert!(payload["exp"].as_u64().unwrap() > 1000);
        let pkcs8 = payload["agent_private_key"].as_str().unwrap();
        let pair = Ed25519KeyPair::from_pkcs8(&STANDARD.decode_to_vec(pkcs8).unwrap()).unwrap();
        let public_key = pair.public_key().as_ref().try_into().unwrap();
        assert_eq!(credential.proof, Proof::Agent { public_key });
    }
}
