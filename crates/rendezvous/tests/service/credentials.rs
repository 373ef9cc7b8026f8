//! Expired and revoked tokens, and agents that sign.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use base64_simd::{STANDARD, URL_SAFE_NO_PAD};
use exec_server_rendezvous::{CredentialKind, NewCredential, Role};
use ring::signature::Ed25519KeyPair;
use serde_json::{Value, json};

use crate::support::{Peer, Service, bearer, key};

#[tokio::test]
async fn a_revoked_token_closes_its_sockets() {
    let service = Service::start().await;
    let (environment_id, environment) =
        service.create(CredentialKind::Token, Role::Environment, "box").await;
    let registered = service.register("box", &environment).await;
    let mut peer = Peer::dial(&registered["url"]).await;
    service.wait_online("box").await;
    let (harness_id, harness) = service.create(CredentialKind::Token, Role::Harness, "box").await;
    let mut other = service.harness("box", &service.token(Role::Harness, "box").await).await;
    let mut revoked = service.harness("box", &harness).await;
    let unused = service.connect("box", &harness).await;

    service.revoke(&harness_id).await;
    revoked.closed().await;
    assert_eq!(Peer::refusal(&unused["url"]).await, 401);
    let body = json!({"harness_public_key": key("h")});
    assert_eq!(service.call("box", "connect", &bearer(&harness), &body).await.0, 401);
    let stream = exec_server_relay::frame::StreamId::random();
    other.send(stream, b"goes on").await;
    assert_eq!(peer.payload().await.1, "goes on");

    service.revoke(&environment_id).await;
    peer.closed().await;
    assert_eq!(Peer::refusal(&registered["url"]).await, 401);
    service.stop().await;
}

#[tokio::test]
async fn an_expired_token_closes_its_sockets() {
    let service = Service::start().await;
    let _environment = service.environment("box").await;
    let environments = BTreeSet::from(["box".parse().unwrap()]);
    let lifetime = Some(Duration::from_secs(1));
    let (kind, role) = (CredentialKind::Token, Role::Harness);
    let new = NewCredential { kind, role, environments, lifetime, name: None };
    let (_, token) = service.create_new(new).await;
    let mut harness = service.harness("box", &token).await;
    harness.closed().await;
    let body = json!({"harness_public_key": key("h")});
    assert_eq!(service.call("box", "connect", &bearer(&token), &body).await.0, 401);
    service.stop().await;
}

struct Agent {
    id: String,
    pair: Ed25519KeyPair,
}

impl Agent {
    fn of(identity: &str) -> Self {
        let payload = identity.split('.').nth(1).unwrap();
        let payload = URL_SAFE_NO_PAD.decode_to_vec(payload).unwrap();
        let payload: Value = serde_json::from_slice(&payload).unwrap();
        let key = STANDARD.decode_to_vec(payload["agent_private_key"].as_str().unwrap()).unwrap();
        let id = payload["agent_runtime_id"].as_str().unwrap().to_owned();
        Self { id, pair: Ed25519KeyPair::from_pkcs8(&key).unwrap() }
    }

    fn sign(&self, message: &str) -> String {
        STANDARD.encode_to_string(self.pair.sign(message.as_bytes()).as_ref())
    }

    async fn task(&self, service: &Service, timestamp: &str) -> (u16, Value) {
        let signature = self.sign(&format!("{}:{timestamp}", self.id));
        let body = json!({"timestamp": timestamp, "signature": signature});
        service.post(&format!("/v1/agent/{}/task/register", self.id), "", body.to_string()).await
    }

    fn assertion(&self, task: &str, timestamp: &str) -> String {
        let signature = self.sign(&format!("{}:{task}:{timestamp}", self.id));
        let json = json!({
            "agent_runtime_id": self.id,
            "signature": signature,
            "task_id": task,
            "timestamp": timestamp,
        });
        format!("AgentAssertion {}", URL_SAFE_NO_PAD.encode_to_string(json.to_string()))
    }
}

fn timestamp(offset_nanos: u64) -> String {
    let moment = SystemTime::now() + Duration::from_nanos(offset_nanos);
    humantime::format_rfc3339_nanos(moment).to_string()
}

#[tokio::test]
async fn an_agent_signs_each_call() {
    let service = Service::start().await;
    let _environment = service.environment("box").await;
    let (id, identity) = service.create(CredentialKind::Agent, Role::Harness, "box").await;
    let agent = Agent::of(&identity);
    assert_eq!(agent.id, id);
    let seconds = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let (status, answer) = agent.task(&service, &seconds).await;
    assert_eq!(status, 200, "{answer}");
    let task = answer["task_id"].as_str().unwrap();
    let body = json!({"harness_public_key": key("h")});
    let connect = async |assertion: &str| service.call("box", "connect", assertion, &body).await.0;

    let first = agent.assertion(task, &timestamp(0));
    assert_eq!(connect(&first).await, 200);
    assert_eq!(connect(&first).await, 401, "a replay");
    assert_eq!(connect(&agent.assertion(task, &timestamp(1))).await, 200);
    assert_eq!(connect(&agent.assertion(task, "2020-01-01T00:00:00Z")).await, 401);
    assert_eq!(connect(&agent.assertion("task_other", &timestamp(2))).await, 401);
    assert_eq!(agent.task(&service, "2020-01-01T00:00:00Z").await.0, 401);
    assert_eq!(connect("AgentAssertion garbage").await, 401);
    // The identity itself is not a token.
    assert_eq!(connect(&bearer(&identity)).await, 401);

    service.revoke(&id).await;
    assert_eq!(connect(&agent.assertion(task, &timestamp(3))).await, 401);
    service.stop().await;
}
