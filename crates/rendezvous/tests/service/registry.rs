//! Permissions for calls, and the validity of tickets and authorizations.

use std::collections::BTreeSet;

use exec_server_rendezvous::{CredentialKind, NewCredential, Role};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::{Peer, Service, bearer, key};

fn validation(registered: &Value, connected: &Value) -> Value {
    json!({
        "executor_registration_id": registered["executor_registration_id"],
        "harness_public_key": key("h"),
        "harness_key_authorization": connected["harness_key_authorization"],
    })
}

#[tokio::test]
async fn a_harness_learns_the_key_of_the_environment() {
    let service = Service::start().await;
    let (_peer, registered) = service.environment("box").await;
    assert_eq!(registered["environment_id"], "box");
    assert_eq!(registered["security_profile"], "noise_hybrid_ik_v1");
    let harness = service.token(Role::Harness, "box").await;
    let connected = service.connect("box", &harness).await;
    assert_eq!(connected["environment_id"], "box");
    assert_eq!(connected["executor_public_key"], key("e"));
    assert_eq!(connected["executor_registration_id"], registered["executor_registration_id"]);
    let prefix = service.url.replace("http", "ws") + "/relay/harness?ticket=";
    assert!(connected["url"].as_str().unwrap().starts_with(&prefix));
    service.stop().await;
}

#[tokio::test]
async fn an_authorization_is_valid_exactly_once() {
    let service = Service::start().await;
    let environment = service.token(Role::Environment, "box").await;
    let registered = service.register("box", &environment).await;
    let _peer = Peer::dial(&registered["url"]).await;
    service.wait_online("box").await;
    let harness = service.token(Role::Harness, "box").await;
    let connected = service.connect("box", &harness).await;
    let body = validation(&registered, &connected);
    let service = std::sync::Arc::new(service);
    let mut calls = JoinSet::new();
    for _ in 0..50 {
        let (service, body, token) = (service.clone(), body.clone(), bearer(&environment));
        calls.spawn(async move { service.call("box", "validate", &token, &body).await });
    }
    let answers = calls.join_all().await;
    assert!(answers.iter().all(|(status, _)| *status == 200));
    let valid: Vec<_> = answers.iter().filter(|(_, answer)| answer["valid"] == true).collect();
    assert_eq!(valid.len(), 1);
    assert!(valid[0].1["subject"].as_str().unwrap().starts_with("tok_"));
}

#[tokio::test]
async fn an_authorization_is_bound_to_its_key_registration_and_environment() {
    let service = Service::start().await;
    let environment = service.token(Role::Environment, "box").await;
    let registered = service.register("box", &environment).await;
    let _peer = Peer::dial(&registered["url"]).await;
    service.wait_online("box").await;
    let harness = service.token(Role::Harness, "box").await;
    for (member, other) in [
        ("harness_public_key", key("other")),
        ("executor_registration_id", "other".into()),
        ("harness_key_authorization", "other".into()),
    ] {
        let mut body = validation(&registered, &service.connect("box", &harness).await);
        body[member] = other;
        let (status, answer) = service.call("box", "validate", &bearer(&environment), &body).await;
        assert_eq!((status, answer), (200, json!({"valid": false})), "{member}");
    }
    let foreign = service.token(Role::Environment, "other").await;
    let body = validation(&registered, &service.connect("box", &harness).await);
    let (status, _) = service.call("box", "validate", &bearer(&foreign), &body).await;
    assert_eq!(status, 403);
    let (_, answer) = service.call("other", "validate", &bearer(&foreign), &body).await;
    assert_eq!(answer, json!({"valid": false}));
    service.stop().await;
}

#[tokio::test]
async fn roles_and_environments_bound_what_a_token_may_do() {
    let service = Service::start().await;
    let environment = service.token(Role::Environment, "box").await;
    let harness = service.token(Role::Harness, "box").await;
    let register =
        json!({"security_profile": "noise_hybrid_ik_v1", "executor_public_key": key("e")});
    let connect = json!({"harness_public_key": key("h")});
    let validate = validation(
        &json!({"executor_registration_id": "r"}),
        &json!({
            "harness_key_authorization": "a"
        }),
    );
    for (call, body, token, expected) in [
        ("register", &register, "", 401),
        ("register", &register, "esr_wrong", 401),
        ("register", &register, &harness, 403),
        ("validate", &validate, &harness, 403),
        ("connect", &connect, &environment, 403),
        ("connect", &connect, &harness, 409),
        ("connect", &register, &harness, 400),
    ] {
        let authorization = if token.is_empty() { String::new() } else { bearer(token) };
        let (status, answer) = service.call("box", call, &authorization, body).await;
        assert_eq!(status, expected, "{call}: {answer}");
        assert!(answer["error"]["message"].is_string());
        if expected == 409 {
            assert_eq!(answer["error"]["code"], "environment_offline");
        }
    }
    let (status, _) = service.call("other", "register", &bearer(&environment), &register).await;
    assert_eq!(status, 403);
    let (status, _) = service.call("a%2Fb", "register", &bearer(&environment), &register).await;
    assert_eq!(status, 400);
    let path = "/cloud/environment/box/register";
    for len in [17 << 10, 1_000_000] {
        let large = "x".repeat(len);
        assert_eq!(service.post(path, &bearer(&environment), large.clone()).await.0, 413);
        assert_eq!(service.post(path, "", large).await.0, 401);
    }
    assert_eq!(service.post("/cloud/other", &bearer(&environment), String::new()).await.0, 404);
    service.stop().await;
}

#[tokio::test]
async fn an_environment_that_never_dialled_is_offline() {
    let service = Service::start().await;
    let environment = service.token(Role::Environment, "box").await;
    service.register("box", &environment).await;
    let harness = service.token(Role::Harness, "box").await;
    let body = json!({"harness_public_key": key("h")});
    let (status, answer) = service.call("box", "connect", &bearer(&harness), &body).await;
    assert_eq!((status, &answer["error"]["code"]), (409, &json!("environment_offline")));
    service.stop().await;
}

#[tokio::test]
async fn a_harness_ticket_is_valid_once() {
    let service = Service::start().await;
    let _environment = service.environment("box").await;
    let harness = service.token(Role::Harness, "box").await;
    let url = service.connect("box", &harness).await["url"].clone();
    let _peer = Peer::dial(&url).await;
    assert_eq!(Peer::refusal(&url).await, 401);
    let wrong = service.url.replace("http", "ws") + "/relay/harness?ticket=wrong";
    assert_eq!(Peer::refusal(&wrong.into()).await, 401);
    let none = service.url.replace("http", "ws") + "/relay/environment";
    assert_eq!(Peer::refusal(&none.into()).await, 401);
    let elsewhere = service.url.replace("http", "ws") + "/other";
    assert_eq!(Peer::refusal(&elsewhere.into()).await, 404);
    service.stop().await;
}

#[tokio::test]
async fn tickets_expire() {
    let service = Service::start_with(|config| config.ticket_lifetime = Default::default()).await;
    let (_peer, registered) = service.environment("box").await;
    let harness = service.token(Role::Harness, "box").await;
    let connected = service.connect("box", &harness).await;
    assert_eq!(Peer::refusal(&connected["url"]).await, 401);
    let environment = service.token(Role::Environment, "box").await;
    let body = validation(&registered, &connected);
    let (_, answer) = service.call("box", "validate", &bearer(&environment), &body).await;
    assert_eq!(answer, json!({"valid": false}));
    service.stop().await;
}

#[tokio::test]
async fn a_newer_registration_takes_over() {
    let service = Service::start().await;
    let (mut old, registered) = service.environment("box").await;
    let harness = service.token(Role::Harness, "box").await;
    let early = service.connect("box", &harness).await;
    let (_new, newer) = service.environment("box").await;
    old.closed().await;
    assert_ne!(registered["executor_registration_id"], newer["executor_registration_id"]);
    assert_eq!(Peer::refusal(&registered["url"]).await, 401, "it registers again");
    assert_eq!(Peer::refusal(&early["url"]).await, 403, "the harness connects again");
    let connected = service.connect("box", &harness).await;
    assert_eq!(connected["executor_registration_id"], newer["executor_registration_id"]);
    service.stop().await;
}

#[tokio::test]
async fn calls_are_rate_limited() {
    let service = Service::start_with(|config| {
        config.quotas.calls_at_once = 2;
        config.quotas.calls_per_second = 1;
    })
    .await;
    let harness = service.token(Role::Harness, "box").await;
    let body = json!({"harness_public_key": key("h")});
    let mut statuses = Vec::new();
    for _ in 0..3 {
        statuses.push(service.call("box", "connect", &bearer(&harness), &body).await.0);
    }
    assert_eq!(statuses, [409, 409, 429]);
    // Each caller has its own rate, and validations are limited, too.
    let environment = service.token(Role::Environment, "other").await;
    let body = json!({
        "executor_registration_id": "r",
        "harness_public_key": key("h"),
        "harness_key_authorization": "unknown",
    });
    let mut statuses = Vec::new();
    for _ in 0..3 {
        statuses.push(service.call("other", "validate", &bearer(&environment), &body).await.0);
    }
    assert_eq!(statuses, [200, 200, 429]);
    service.stop().await;
}

#[tokio::test]
async fn an_environment_learns_the_name_of_a_harness() {
    let service = Service::start().await;
    let environment = service.token(Role::Environment, "box").await;
    let registered = service.register("box", &environment).await;
    let _peer = Peer::dial(&registered["url"]).await;
    service.wait_online("box").await;
    let environments = BTreeSet::from(["box".parse().unwrap()]);
    let (kind, role, name) = (CredentialKind::Token, Role::Harness, Some("alice".to_owned()));
    let new = NewCredential { kind, role, environments, lifetime: None, name };
    let (_, harness) = service.create_new(new).await;
    let body = validation(&registered, &service.connect("box", &harness).await);
    let (_, answer) = service.call("box", "validate", &bearer(&environment), &body).await;
    assert_eq!(answer, json!({"valid": true, "subject": "alice"}));
    service.stop().await;
}
