//! Assertions that agents sign with the keys of their identities. The time is an argument.
//!
//! Tasks need no storage: a task id contains a mark, an HMAC with the secret of this service.

use std::time::{Duration, SystemTime};

use base64_simd::{STANDARD, URL_SAFE_NO_PAD};
use exec_server_transport::sha256;
use ring::hmac;
use ring::signature::{ED25519, UnparsedPublicKey};
use serde::Deserialize;
use uuid::Uuid;

use crate::directory::SecretHash;

/// Maximum difference between the clocks of an agent and of this service.
pub(crate) const MAX_AGE: Duration = Duration::from_secs(60);
/// The longest header that is decoded.
const MAX_BYTES: usize = 4096;

/// The credentials of one call.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Assertion {
    pub(crate) agent_runtime_id: String,
    pub(crate) task_id: String,
    timestamp: String,
    signature: String,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct TaskRequest {
    timestamp: String,
    signature: String,
}

/// Why an assertion or a request for a task is refused. For the log only: the caller just gets 401.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AssertionError {
    #[error("the assertion, or a signature, is malformed")]
    Malformed,
    #[error("the timestamp is not RFC 3339 in UTC")]
    Timestamp,
    #[error("the timestamp is over {}s in the past; check the agent's clock", MAX_AGE.as_secs())]
    Old,
    #[error("the timestamp is over {}s in the future; check the agent's clock", MAX_AGE.as_secs())]
    Future,
    #[error("the signature is wrong")]
    Signature,
    #[error("the task is unknown")]
    Task,
}

impl Assertion {
    /// Decodes the text after `AgentAssertion` in the header.
    pub(crate) fn decode(text: &str) -> Result<Self, AssertionError> {
        if text.len() > MAX_BYTES {
            return Err(AssertionError::Malformed);
        }
        let json = URL_SAFE_NO_PAD.decode_to_vec(text).map_err(|_| AssertionError::Malformed)?;
        serde_json::from_slice(&json).map_err(|_| AssertionError::Malformed)
    }

    /// Verifies the assertion. Returns a hash to remember, so that the assertion is accepted only
    /// once, and the time until which to remember it.
    pub(crate) fn verify(
        &self,
        public_key: &[u8; 32],
        secret: &[u8; 32],
        now: SystemTime,
    ) -> Result<(SecretHash, SystemTime), AssertionError> {
        let Self { agent_runtime_id, task_id, timestamp, signature } = self;
        let moment = check_time(timestamp, now)?;
        let message = format!("{agent_runtime_id}:{task_id}:{timestamp}");
        check_signature(public_key, &message, signature)?;
        if !is_task(task_id, agent_runtime_id, secret) {
            return Err(AssertionError::Task);
        }
        // The hash of the message, not of the signature: a signature has several encodings.
        Ok((sha256(message.as_bytes()), moment + MAX_AGE + Duration::from_secs(1)))
    }
}

impl TaskRequest {
    pub(crate) fn verify(
        &self,
        agent: &str,
        public_key: &[u8; 32],
        now: SystemTime,
    ) -> Result<(), AssertionError> {
        check_time(&self.timestamp, now)?;
        check_signature(public_key, &format!("{agent}:{}", self.timestamp), &self.signature)
    }
}

/// Creates the id of a task of an agent. Its mark later proves that this service created it.
pub(crate) fn new_task(agent: &str, secret: &[u8; 32]) -> String {
    let name = format!("task_{}", Uuid::new_v4().simple());
    let mark = URL_SAFE_NO_PAD.encode_to_string(mark(&name, agent, secret));
    format!("{name}.{mark}")
}

fn is_task(task_id: &str, agent: &str, secret: &[u8; 32]) -> bool {
    let Some((name, text)) = task_id.split_once('.') else { return false };
    let Ok(given) = URL_SAFE_NO_PAD.decode_to_vec(text) else { return false };
    hmac::verify(&key(secret), marked(name, agent).as_bytes(), &given).is_ok()
}

fn mark(name: &str, agent: &str, secret: &[u8; 32]) -> hmac::Tag {
    hmac::sign(&key(secret), marked(name, agent).as_bytes())
}

fn marked(name: &str, agent: &str) -> String {
    format!("task:{agent}:{name}")
}

fn key(secret: &[u8; 32]) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, secret)
}

fn check_time(timestamp: &str, now: SystemTime) -> Result<SystemTime, AssertionError> {
    let moment = humantime::parse_rfc3339(timestamp).map_err(|_| AssertionError::Timestamp)?;
    if moment + MAX_AGE < now {
        return Err(AssertionError::Old);
    }
    if now + MAX_AGE < moment {
        return Err(AssertionError::Future);
    }
    Ok(moment)
}

fn check_signature(
    public_key: &[u8; 32],
    message: &str,
    signature: &str,
) -> Result<(), AssertionError> {
    let signature = STANDARD.decode_to_vec(signature).map_err(|_| AssertionError::Malformed)?;
    UnparsedPublicKey::new(&ED25519, public_key)
        .verify(message.as_bytes(), &signature)
        .map_err(|_| AssertionError::Signature)
}

#[cfg(test)]
mod tests {
    use ring::signature::{Ed25519KeyPair, KeyPair as _};

    use super::*;

    const SECRET: [u8; 32] = [3; 32];

    struct Agent {
        pair: Ed25519KeyPair,
        task: String,
    }

    impl Agent {
        fn new() -> Self {
            let pair = Ed25519KeyPair::from_seed_unchecked(&[9; 32]).unwrap();
            Self { pair, task: new_task("agent_a", &SECRET) }
        }

        fn public_key(&self) -> [u8; 32] {
            self.pair.public_key().as_ref().try_into().unwrap()
        }

        fn sign(&self, message: &str) -> String {
            STANDARD.encode_to_string(self.pair.sign(message.as_bytes()).as_ref())
        }

        fn assertion(&self, timestamp: &str) -> Assertion {
            let message = format!("agent_a:{}:{timestamp}", self.task);
            let json = serde_json::json!({
                "agent_runtime_id": "agent_a",
                "task_id": self.task,
                "timestamp": timestamp,
                "signature": self.sign(&message),
            });
            Assertion::decode(&URL_SAFE_NO_PAD.encode_to_string(json.to_string())).unwrap()
        }

        fn verify(&self, timestamp: &str) -> Result<(SecretHash, SystemTime), AssertionError> {
            self.assertion(timestamp).verify(&self.public_key(), &SECRET, now())
        }
    }

    fn now() -> SystemTime {
        humantime::parse_rfc3339("2026-07-01T12:00:00Z").unwrap()
    }

    #[test]
    fn only_the_last_and_the_next_minute_are_accepted() {
        let agent = Agent::new();
        for (timestamp, expected) in [
            ("2026-07-01T12:00:00Z", Ok(())),
            ("2026-07-01T12:00:00.123456789Z", Ok(())),
            ("2026-07-01T11:59:00Z", Ok(())),
            ("2026-07-01T11:58:59Z", Err(AssertionError::Old)),
            ("2026-07-01T12:01:00Z", Ok(())),
            ("2026-07-01T12:01:01Z", Err(AssertionError::Future)),
            ("2026-07-01T12:00:00+02:00", Err(AssertionError::Timestamp)),
            ("yesterday", Err(AssertionError::Timestamp)),
        ] {
            assert_eq!(agent.verify(timestamp).map(drop), expected, "{timestamp}");
        }
    }

    #[test]
    fn calls_within_one_second_have_different_hashes() {
        let agent = Agent::new();
        let (one, until) = agent.verify("2026-07-01T12:00:00.000000001Z").unwrap();
        let (other, _) = agent.verify("2026-07-01T12:00:00.000000002Z").unwrap();
        let (again, _) = agent.verify("2026-07-01T12:00:00.000000001Z").unwrap();
        assert_ne!(one, other);
        assert_eq!(one, again);
        assert!(until > now() + MAX_AGE, "remembered for longer than it is accepted");
    }

    #[test]
    fn another_key_task_or_agent_is_refused() {
        let agent = Agent::new();
        let assertion = agent.assertion("2026-07-01T12:00:00Z");
        let verify =
            |assertion: &Assertion| assertion.verify(&agent.public_key(), &SECRET, now()).map(drop);
        assert_eq!(verify(&assertion), Ok(()));
        let stranger = Ed25519KeyPair::from_seed_unchecked(&[1; 32]).unwrap();
        let stranger = stranger.public_key().as_ref().try_into().unwrap();
        let refused = assertion.verify(&stranger, &SECRET, now());
        assert_eq!(refused.map(drop), Err(AssertionError::Signature));
        let changed = Assertion { task_id: "task_other".into(), ..assertion.clone() };
        assert_eq!(verify(&changed), Err(AssertionError::Signature));

        let foreign = Agent { task: new_task("agent_b", &SECRET), ..Agent::new() };
        assert_eq!(foreign.verify("2026-07-01T12:00:00Z").map(drop), Err(AssertionError::Task));
        let forged = Agent { task: new_task("agent_a", &[4; 32]), ..Agent::new() };
        assert_eq!(forged.verify("2026-07-01T12:00:00Z").map(drop), Err(AssertionError::Task));
    }

    #[test]
    fn a_task_request_is_verified_for_its_agent() {
        let agent = Agent::new();
        let timestamp = "2026-07-01T12:00:00Z".to_owned();
        let signature = agent.sign("agent_a:2026-07-01T12:00:00Z");
        let request = TaskRequest { timestamp, signature };
        assert_eq!(request.verify("agent_a", &agent.public_key(), now()), Ok(()));
        let refused = request.verify("agent_b", &agent.public_key(), now());
        assert_eq!(refused, Err(AssertionError::Signature));
    }

    #[test]
    fn malformed_assertions_are_refused() {
        for text in ["", "!", "e30", &"a".repeat(5000)] {
            assert!(Assertion::decode(text).is_err(), "{text:?}");
        }
    }
}
