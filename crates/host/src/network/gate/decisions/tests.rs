use super::super::questions::{MAX_CACHED_ANSWERS, MAX_OPEN_QUESTIONS};
use super::super::test_support::{FakeClient, rules};
use super::*;
use crate::network::policy::{Mode, Rules, Unnamed};
use tokio::task::JoinSet;

fn judge(rules: Rules, client: &Arc<FakeClient>) -> Arc<Judge> {
    let policy = NetworkPolicy::new(vec![rules]);
    Arc::new(Judge::new(policy, Arc::clone(client) as Arc<dyn GateClient>))
}

fn asking() -> Rules {
    Rules { unnamed: Unnamed::Ask, ..rules(&["named.org"]) }
}

async fn connect(judge: &Judge, host: &str, port: u16) -> Result<(), Refusal> {
    let host = host.parse().unwrap();
    let protocol = Protocol::HttpsConnect;
    let access = Access { host: &host, port, protocol, route: Route::Proxy, method: None };
    judge.judge(&access, Some("127.0.0.1:9".parse().unwrap())).await.map(drop)
}

#[tokio::test]
async fn rules_decide_without_a_question() {
    let client = FakeClient::silent();
    let judge = judge(Rules { deny: vec!["bad.org".parse().unwrap()], ..asking() }, &client);
    assert_eq!(connect(&judge, "named.org", 443).await, Ok(()));
    assert_eq!(connect(&judge, "bad.org", 443).await, Err(Refusal::Policy(DenyReason::Denied)));
    assert!(client.questions().is_empty());
    let [allowed, denied] = &client.records()[..] else { panic!("expected two decisions") };
    assert_eq!((allowed.verdict, denied.verdict), (Verdict::Allow, Verdict::Deny));
    assert_eq!((&*allowed.reason, &*denied.reason), ("allow", "denied"));
    assert_eq!(denied.source, DecisionSource::BaselinePolicy);
    assert_eq!(denied.scope, DecisionScope::Domain);
    assert_eq!(denied.client.as_deref(), Some("127.0.0.1:9"));
    let refused = RefusedHost { host: "bad.org".into(), port: Some(443) };
    assert_eq!(judge.refused_hosts().hosts(), [refused]);
}

#[tokio::test]
async fn an_answer_applies_to_its_host_and_port() {
    let client = FakeClient::answering(Answer::Allow);
    let judge = judge(asking(), &client);
    assert_eq!(connect(&judge, "new.org", 443).await, Ok(()));
    client.answer(Answer::Deny { reason: "no".into() });
    assert_eq!(connect(&judge, "new.org", 443).await, Ok(()));
    let refusal = Refusal::Client { reason: "no".into() };
    assert_eq!(connect(&judge, "new.org", 444).await, Err(refusal.clone()));
    assert_eq!(connect(&judge, "NEW.org.", 444).await, Err(refusal));
    assert_eq!(client.questions().len(), 2);
    let records = client.records();
    assert_eq!(records.len(), 4);
    assert!(records.iter().all(|record| record.source == DecisionSource::Decider));
    assert!(records[0].policy_override && !records[2].policy_override);
    assert_eq!(records[2].reason, "no");
}

#[tokio::test]
async fn the_answer_ask_refuses_and_is_recorded_as_ask() {
    let client = FakeClient::answering(Answer::Ask { reason: "user away".into() });
    let judge = judge(asking(), &client);
    connect(&judge, "new.org", 443).await.unwrap_err();
    assert_eq!(client.records()[0].verdict, Verdict::Ask);
}

#[tokio::test]
async fn fifty_connections_share_one_question() {
    let client = FakeClient::silent();
    let judge = judge(asking(), &client);
    let mut waiting = JoinSet::new();
    for _ in 0..50 {
        let judge = Arc::clone(&judge);
        waiting.spawn(async move { connect(&judge, "new.org", 443).await });
    }
    client.wait_for_questions(1).await;
    client.answer(Answer::Allow);
    assert!(waiting.join_all().await.iter().all(Result::is_ok));
    assert_eq!(client.questions().len(), 1);
    assert_eq!(client.records().len(), 50);
}

#[tokio::test]
async fn a_question_outlives_the_connection_that_asked() {
    let client = FakeClient::silent();
    let judge = judge(asking(), &client);
    let mut first = JoinSet::new();
    let asker = Arc::clone(&judge);
    first.spawn(async move { connect(&asker, "new.org", 443).await });
    client.wait_for_questions(1).await;
    first.shutdown().await;
    client.answer(Answer::Allow);
    assert_eq!(connect(&judge, "new.org", 443).await, Ok(()));
    assert_eq!(client.questions().len(), 1);
}

#[tokio::test]
async fn questions_end_when_the_judge_is_dropped() {
    let client = FakeClient::silent();
    let judge = judge(asking(), &client);
    let mut waiting = JoinSet::new();
    waiting.spawn(async move { connect(&judge, "new.org", 443).await });
    client.wait_for_questions(1).await;
    waiting.shutdown().await;
    client.wait_until_abandoned().await;
}

#[tokio::test]
async fn too_many_open_questions_are_refused() {
    let client = FakeClient::silent();
    let judge = judge(asking(), &client);
    let mut waiting = JoinSet::new();
    for n in 0..MAX_OPEN_QUESTIONS {
        let judge = Arc::clone(&judge);
        waiting.spawn(async move { connect(&judge, &format!("h{n}.org"), 443).await });
    }
    client.wait_for_questions(MAX_OPEN_QUESTIONS).await;
    assert_eq!(connect(&judge, "more.org", 443).await, Err(Refusal::TooManyQuestions));
    assert_eq!(client.records()[0].source, DecisionSource::ProxyState);
    client.answer(Answer::Allow);
    assert!(waiting.join_all().await.iter().all(Result::is_ok));
    assert_eq!(connect(&judge, "more.org", 443).await, Ok(()));
}

#[tokio::test]
async fn the_oldest_answer_is_evicted_first() {
    let client = FakeClient::answering(Answer::Allow);
    let judge = judge(asking(), &client);
    for n in 0..=MAX_CACHED_ANSWERS {
        connect(&judge, &format!("h{n}.org"), 443).await.unwrap();
    }
    let asked = client.questions().len();
    connect(&judge, &format!("h{MAX_CACHED_ANSWERS}.org"), 443).await.unwrap();
    assert_eq!(client.questions().len(), asked);
    connect(&judge, "h0.org", 443).await.unwrap();
    assert_eq!(client.questions().len(), asked + 1);
}

#[tokio::test]
async fn a_refusal_by_mode_has_the_non_domain_scope() {
    let client = FakeClient::silent();
    let judge = judge(Rules { mode: Mode::Limited, ..rules(&["named.org"]) }, &client);
    let refusal = connect(&judge, "named.org", 443).await.unwrap_err();
    assert_eq!(refusal, Refusal::Policy(DenyReason::Method));
    let record = &client.records()[0];
    assert_eq!(record.source, DecisionSource::ModeGuard);
    assert_eq!(record.scope, DecisionScope::NonDomain);
}

#[tokio::test]
async fn a_refused_lookup_is_recorded_once() {
    let client = FakeClient::silent();
    let judge = judge(rules(&["named.org"]), &client);
    let peer = "127.0.0.1:9".parse().unwrap();
    assert!(judge.may_look_up(&"named.org".parse().unwrap(), peer));
    for _ in 0..3 {
        assert!(!judge.may_look_up(&"other.org".parse().unwrap(), peer));
    }
    assert_eq!(client.records().len(), 1);
    assert_eq!(client.records()[0].reason, "not_allowed");
    let refused = RefusedHost { host: "other.org".into(), port: None };
    assert_eq!(judge.refused_hosts().hosts(), [refused]);
}
