//! An agent that authenticates with signatures: its Ed25519 key is never sent, and each signature
//! is valid for one call.

use std::fmt;
use std::time::SystemTime;

use base64_simd::{STANDARD, URL_SAFE_NO_PAD};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use ring::signature::Ed25519KeyPair;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use super::RegistryError;
use super::client::RegistryClient;
use super::credentials::{Authorization, CredentialsError, RegistryCredentials};

/// An agent identity, and the task that was registered for it.
pub struct AgentIdentity {
    runtime_id: String,
    key: Ed25519KeyPair,
    /// Registered by the first call.
    task_id: Mutex<Option<String>>,
}

/// The payload of an access token.
#[derive(Deserialize)]
struct Claims {
    agent_runtime_id: String,
    /// PKCS#8 in standard base64.
    agent_private_key: String,
}

#[derive(Serialize)]
struct Assertion<'a> {
    agent_runtime_id: &'a str,
    signature: String,
    task_id: &'a str,
    timestamp: &'a str,
}

#[derive(Serialize)]
struct TaskRequest {
    timestamp: String,
    signature: String,
}

#[derive(Deserialize)]
struct TaskResponse {
    task_id: String,
}

impl AgentIdentity {
    /// Reads the JWT that contains the identity. Does not verify the signature of the JWT: only its
    /// issuer can do that.
    pub fn from_access_token(token: &str) -> Result<Self, CredentialsError> {
        let invalid = |why| CredentialsError::InvalidIdentity { why };
        let payload = token.trim().split('.').nth(1).ok_or(invalid("it is not a JWT"))?;
        let payload = URL_SAFE_NO_PAD
            .decode_to_vec(payload.trim_end_matches('='))
            .map_err(|_| invalid("its payload is not base64"))?;
        let claims: Claims = serde_json::from_slice(&payload).map_err(|_| {
            invalid("its payload is not JSON with agent_runtime_id and agent_private_key")
        })?;
        let key = STANDARD
            .decode_to_vec(&claims.agent_private_key)
            .map_err(|_| invalid("agent_private_key is not base64"))?;
        let key = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&key)
            .map_err(|_| invalid("agent_private_key is not an Ed25519 key in PKCS#8"))?;
        Ok(Self { runtime_id: claims.agent_runtime_id, key, task_id: Mutex::new(None) })
    }

    fn sign(&self, text: &str) -> String {
        STANDARD.encode_to_string(self.key.sign(text.as_bytes()))
    }

    fn assertion(&self, task_id: &str, timestamp: &str) -> String {
        let runtime = &self.runtime_id;
        let assertion = Assertion {
            agent_runtime_id: runtime,
            signature: self.sign(&format!("{runtime}:{task_id}:{timestamp}")),
            task_id,
            timestamp,
        };
        let json = serde_json::to_vec(&assertion).expect("text is JSON");
        format!("AgentAssertion {}", URL_SAFE_NO_PAD.encode_to_string(json))
    }

    async fn register_task(&self, registry: &RegistryClient) -> Result<String, RegistryError> {
        let call = "register a task";
        let id = utf8_percent_encode(&self.runtime_id, NON_ALPHANUMERIC);
        let url = registry.resource(&format!("/v1/agent/{id}/task/register"));
        let timestamp = now();
        let signature = self.sign(&format!("{}:{timestamp}", self.runtime_id));
        let body = serde_json::to_vec(&TaskRequest { timestamp, signature }).expect("text is JSON");
        let response = registry.post(url, body, |request| request).await?;
        let status = response.status();
        if !status.is_success() {
            let (code, message) = (String::new(), String::new());
            return Err(RegistryError::Refused { call, status, code, message });
        }
        let body = registry.read_body(response).await?;
        let response: Result<TaskResponse, _> = serde_json::from_slice(&body);
        let why = "it is not JSON with a task_id";
        Ok(response.map_err(|_| RegistryError::InvalidResponse { call, why })?.task_id)
    }
}

impl RegistryCredentials for AgentIdentity {
    fn authorization<'a>(&'a self, registry: &'a RegistryClient) -> Authorization<'a> {
        Box::pin(async move {
            let mut task_id = self.task_id.lock().await;
            let task_id = match &mut *task_id {
                Some(task_id) => task_id,
                none => {
                    let registered = self.register_task(registry).await;
                    none.insert(registered.map_err(|error| CredentialsError::Task(error.into()))?)
                }
            };
            Ok(self.assertion(task_id, &now()))
        })
    }
}

impl fmt::Debug for AgentIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentIdentity")
            .field("runtime_id", &self.runtime_id)
            .finish_non_exhaustive()
    }
}

/// Returns the time as RFC 3339 in UTC. The fraction makes two calls within a second differ.
fn now() -> String {
    humantime::format_rfc3339_micros(SystemTime::now()).to_string()
}

#[cfg(test)]
mod tests {
    use ring::signature::{ED25519, KeyPair as _, UnparsedPublicKey};

    use super::*;

    fn token(payload: &str) -> String {
        format!("e30.{}.sig", URL_SAFE_NO_PAD.encode_to_string(payload))
    }

    fn identity() -> AgentIdentity {
        let key = Ed25519KeyPair::generate_pkcs8(&ring::rand::SystemRandom::new()).unwrap();
        let key = STANDARD.encode_to_string(key);
        let payload = serde_json::json!({"agent_runtime_id": "agent-1", "agent_private_key": key})
            .to_string();
        AgentIdentity::from_access_token(&token(&payload)).unwrap()
    }

    #[test]
    fn an_assertion_is_signed_over_runtime_task_and_time() {
        let identity = identity();
        let header = identity.assertion("task-7", "2026-01-02T03:04:05.678901Z");
        let json =
            URL_SAFE_NO_PAD.decode_to_vec(header.strip_prefix("AgentAssertion ").unwrap()).unwrap();
        let assertion: serde_json::Value = serde_json::from_slice(&json).unwrap();
        let signature = STANDARD.decode_to_vec(assertion["signature"].as_str().unwrap()).unwrap();
        let key = UnparsedPublicKey::new(&ED25519, identity.key.public_key().as_ref());
        key.verify(b"agent-1:task-7:2026-01-02T03:04:05.678901Z", &signature).unwrap();
        assert_eq!(assertion["agent_runtime_id"], "agent-1");
        assert_eq!(assertion["task_id"], "task-7");
        assert_eq!(assertion["timestamp"], "2026-01-02T03:04:05.678901Z");
        assert!(!format!("{identity:?}").contains("key"));
    }

    #[test]
    fn tokens_without_a_usable_identity_are_refused() {
        for payload in [
            r#"{"agent_runtime_id": "a"}"#,
            r#"{"agent_runtime_id": "a", "agent_private_key": "!"}"#,
            r#"{"agent_runtime_id": "a", "agent_private_key": "AAAA"}"#,
            "no JSON",
        ] {
            let refused = AgentIdentity::from_access_token(&token(payload));
            assert!(matches!(refused, Err(CredentialsError::InvalidIdentity { .. })), "{payload}");
        }
        assert!(AgentIdentity::from_access_token("opaque").is_err());
    }
}
