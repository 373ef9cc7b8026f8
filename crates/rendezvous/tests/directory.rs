//! The contract of every directory. A new implementation adds a test that calls
//! [`keeps_the_contract`].

#![expect(clippy::unwrap_used, reason = "a failed step fails its test")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use exec_server_relay::with_sources;
use exec_server_rendezvous::{
    Authorization, Credential, CredentialId, Directory, DirectoryError, EnvironmentId, Lease,
    NatsDirectory, NatsOptions, NodeStatus, Proof, PublicKey, RedbDirectory, Registration,
    Revocation, Role, Ticket,
};
use exec_server_test_support::{NatsServers, NatsVersion, skipped};
use tokio::task::JoinSet;

const NOW: SystemTime = SystemTime::UNIX_EPOCH;
const NODE: &str = "node";
const SOON: Duration = Duration::from_secs(60);

async fn keeps_the_contract(directory: Arc<dyn Directory>) {
    registrations_are_compared_and_set(&*directory).await;
    one_of_many_registrations_wins(&directory).await;
    presence_follows_the_generation(&*directory).await;
    the_last_node_that_claims_an_environment_has_it("moving", &*directory, &*directory).await;
    tickets_and_authorizations_have_one_taker(&directory).await;
    credentials_are_found_until_they_are_revoked(&*directory).await;
    assertions_are_new_once(&*directory).await;
    nodes_are_listed(&*directory).await;
    let secret = directory.signing_secret().await.unwrap();
    assert_eq!(directory.signing_secret().await.unwrap(), secret);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redb_keeps_the_contract() {
    let scratch = tempfile::tempdir().unwrap();
    keeps_the_contract(Arc::new(RedbDirectory::open(scratch.path()).unwrap())).await;
}

#[tokio::test]
async fn redb_keeps_durable_state_across_a_restart() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = RedbDirectory::open(scratch.path()).unwrap();
    let box_id = environment("box");
    let lease = directory.register(&box_id, registration(1), None).await.unwrap();
    directory.claim(&box_id, lease.generation, NODE).await.unwrap();
    directory.put_credential(credential("kept", 1)).await.unwrap();
    directory.put_credential(credential("revoked", 2)).await.unwrap();
    directory.revoke_credential(&"revoked".into()).await.unwrap();
    assert!(directory.remember_assertion([5; 32], NOW + SOON, NOW).await.unwrap());
    let secret = directory.signing_secret().await.unwrap();
    let in_use = RedbDirectory::open(scratch.path());
    assert!(matches!(in_use, Err(DirectoryError::InUse { .. })));
    drop(directory);

    let directory = RedbDirectory::open(scratch.path()).unwrap();
    let found = directory.lookup(&box_id).await.unwrap().unwrap();
    assert_eq!(found.registration, lease.registration);
    assert_eq!(found.node, None, "the sockets are gone");
    assert!(directory.token_by_hash([1; 32]).await.unwrap().is_some());
    assert!(directory.token_by_hash([2; 32]).await.unwrap().is_none());
    assert!(!directory.remember_assertion([5; 32], NOW + SOON, NOW).await.unwrap());
    assert_eq!(directory.signing_secret().await.unwrap(), secret);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nats_of_debian_keeps_the_contract() {
    let Some((_servers, nodes)) = cluster(NatsVersion::Debian, 1).await else { return };
    keeps_the_contract(nodes[0].clone()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_replicas_of_nats_keep_the_contract() {
    let Some((_servers, nodes)) = cluster(NatsVersion::Current, 3).await else { return };
    keeps_the_contract(nodes[0].clone()).await;
    the_last_node_that_claims_an_environment_has_it("roaming", &*nodes[1], &*nodes[2]).await;
    one_of_a_thousand_takers_wins(&nodes).await;
    one_of_a_thousand_registrations_is_current(&nodes).await;
    revocations_are_seen_by_all(&nodes).await;
    let directory = &nodes[2];
    assert_eq!(directory.signing_secret().await.unwrap(), nodes[0].signing_secret().await.unwrap());
}

#[tokio::test]
async fn replicas_are_refused_on_servers_that_lose_updates() {
    let Some((servers, _)) = cluster(NatsVersion::Debian, 1).await else { return };
    let options = NatsOptions { replicas: Some(3), ..NatsOptions::new(servers.urls()) };
    let error = NatsDirectory::connect(&options).await.unwrap_err();
    let error = with_sources(&error);
    assert!(error.contains("2.15.1 or newer"), "{error}");
}

#[tokio::test]
async fn a_lease_expired_in_an_outage_is_written_again() {
    let Some((mut servers, nodes)) = cluster(NatsVersion::Current, 1).await else { return };
    let directory = &nodes[0];
    let id = environment("kept");
    let lease = directory.register(&id, registration(1), None).await.unwrap();
    directory.claim(&id, lease.generation, NODE).await.unwrap();
    servers.kill(0);
    let away = directory.renew(&id, lease.generation, NODE).await;
    assert!(matches!(away, Err(DirectoryError::Store(_))), "{away:?}");
    assert!(!directory.is_reachable());
    servers.restart(&[0]);
    until_reachable(directory).await;
    purge(&servers, "KV_exec-server-leases").await;
    assert_eq!(directory.lookup(&id).await.unwrap(), None);
    directory.renew(&id, lease.generation, NODE).await.unwrap();
    let found = directory.lookup(&id).await.unwrap();
    assert_eq!(found, Some(Lease { node: Some(NODE.to_owned()), ..lease.clone() }));
    // A released lease is not written again.
    directory.release(&id, lease.generation, NODE).await.unwrap();
    purge(&servers, "KV_exec-server-leases").await;
    let gone = directory.renew(&id, lease.generation, NODE).await;
    assert!(matches!(gone, Err(DirectoryError::Conflict)), "{gone:?}");
}

#[tokio::test]
async fn of_two_expired_leases_the_newer_one_lasts() {
    let Some((servers, nodes)) = cluster(NatsVersion::Current, 1).await else { return };
    let old = &nodes[0];
    let new = connect_when_ready(servers.urls().remove(0), 1).await;
    let id = environment("twice");
    let first = old.register(&id, registration(1), None).await.unwrap();
    old.claim(&id, first.generation, "old").await.unwrap();
    let second = new.register(&id, registration(2), Some(first.generation)).await.unwrap();
    new.claim(&id, second.generation, "new").await.unwrap();
    purge(&servers, "KV_exec-server-leases").await;
    // The old node does not know about the newer lease.
    old.renew(&id, first.generation, "old").await.unwrap();
    new.renew(&id, second.generation, "new").await.unwrap();
    let late = old.renew(&id, first.generation, "old").await;
    assert!(matches!(late, Err(DirectoryError::Conflict)), "{late:?}");
    let current = old.lookup(&id).await.unwrap().unwrap();
    assert_eq!((current.generation, current.node.as_deref()), (second.generation, Some("new")));
}

#[tokio::test]
async fn an_unreadable_credential_hides_no_other() {
    let Some((servers, nodes)) = cluster(NatsVersion::Current, 1).await else { return };
    let client = async_nats::connect(&servers.urls()[0]).await.unwrap();
    let context = async_nats::jetstream::new(client);
    let bucket = context.get_key_value("exec-server-credentials").await.unwrap();
    bucket.put("credential.newer", "{\"role\":\"unheard of\"}".into()).await.unwrap();
    nodes[0].put_credential(credential("after", 70)).await.unwrap();
    let later = connect_when_ready(servers.urls().remove(0), 1).await;
    assert!(later.token_by_hash([70; 32]).await.unwrap().is_some());
    let mut revocations = nodes[0].watch_revocations();
    assert!(later.revoke_credential(&"after".into()).await.unwrap());
    assert_eq!(revocations.recv().await.unwrap(), Revocation::Revoked("after".into()));
}

type Nodes = Vec<Arc<dyn Directory>>;

/// Connects one directory to each of the servers. `None` if NATS is not available here.
async fn cluster(version: NatsVersion, replicas: usize) -> Option<(NatsServers, Nodes)> {
    let servers = match NatsServers::start(version, replicas) {
        Ok(servers) => servers,
        Err(why) => {
            skipped(format_args!("a cluster on NATS: {why}"));
            return None;
        }
    };
    let mut nodes: Nodes = Vec::new();
    for url in servers.urls() {
        nodes.push(Arc::new(connect_when_ready(url, replicas).await));
    }
    Some((servers, nodes))
}

/// Servers that have just started need a moment to elect a leader.
async fn connect_when_ready(url: String, replicas: usize) -> NatsDirectory {
    let options = NatsOptions { replicas: Some(replicas), ..NatsOptions::new(vec![url]) };
    let mut attempts = 0;
    loop {
        match NatsDirectory::connect(&options).await {
            Ok(directory) => return directory,
            Err(error) => {
                attempts += 1;
                assert!(attempts < 300, "{error:?}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn until_reachable(directory: &Arc<dyn Directory>) {
    while directory.lookup(&environment("any")).await.is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(directory.is_reachable());
}

/// Removes all entries, as if they had expired.
async fn purge(servers: &NatsServers, stream: &str) {
    let client = async_nats::connect(&servers.urls()[0]).await.unwrap();
    let context = async_nats::jetstream::new(client);
    context.get_stream(stream).await.unwrap().purge().await.unwrap();
}

/// Races a thousand takers for one authorization, and three takers for each of a thousand others.
async fn one_of_a_thousand_takers_wins(nodes: &Nodes) {
    let hash = [100; 32];
    nodes[0].put_authorization(hash, authorization(), NOW).await.unwrap();
    let mut takers = JoinSet::new();
    for taker in 0..1000 {
        let directory = Arc::clone(&nodes[taker % nodes.len()]);
        takers.spawn(async move { directory.take_authorization(hash, NOW).await.unwrap() });
    }
    assert_eq!(takers.join_all().await.into_iter().flatten().count(), 1);

    let mut winners = JoinSet::new();
    for number in 0..1000_u64 {
        let mut hash = [101; 32];
        hash[..8].copy_from_slice(&number.to_be_bytes());
        let nodes = nodes.clone();
        winners.spawn(async move {
            nodes[0].put_authorization(hash, authorization(), NOW).await.unwrap();
            let take = |node: &Arc<dyn Directory>| {
                let node = Arc::clone(node);
                async move { node.take_authorization(hash, NOW).await.unwrap() }
            };
            let takers: JoinSet<_> = nodes.iter().map(take).collect();
            takers.join_all().await.into_iter().flatten().count()
        });
    }
    assert_eq!(winners.join_all().await, [1; 1000]);
}

async fn one_of_a_thousand_registrations_is_current(nodes: &Nodes) {
    let id = environment("contested");
    let mut attempts = JoinSet::new();
    for number in 0..1000 {
        let directory = Arc::clone(&nodes[number % nodes.len()]);
        let id = id.clone();
        attempts.spawn(async move {
            let before = directory.lookup(&id).await.unwrap().map(|lease| lease.generation);
            let lease = directory.register(&id, registration(1), before).await.ok()?;
            // Invariant: a generation has one predecessor, and a predecessor one successor.
            Some((before, lease.generation))
        });
    }
    let mut won: Vec<_> = attempts.join_all().await.into_iter().flatten().collect();
    won.sort_unstable();
    let current = nodes[0].lookup(&id).await.unwrap().unwrap().generation;
    let expected = won.iter().skip(1).map(|(before, _)| before.unwrap()).chain([current]);
    let generations: Vec<_> = won.iter().map(|(_, generation)| *generation).collect();
    assert_eq!(generations, expected.collect::<Vec<_>>());
    for generation in &generations {
        let is_current = nodes[1].renew(&id, *generation, NODE).await.is_ok();
        assert_eq!(is_current, *generation == current);
    }
}

async fn revocations_are_seen_by_all(nodes: &Nodes) {
    let credential = credential("shared", 90);
    nodes[0].put_credential(credential.clone()).await.unwrap();
    for node in nodes {
        while node.token_by_hash([90; 32]).await.unwrap().is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    let mut watches: Vec<_> = nodes.iter().map(|node| node.watch_revocations()).collect();
    assert!(nodes[1].revoke_credential(&credential.id).await.unwrap());
    for (node, watch) in nodes.iter().zip(&mut watches) {
        assert_eq!(watch.recv().await.unwrap(), Revocation::Revoked(credential.id.clone()));
        assert_eq!(node.token_by_hash([90; 32]).await.unwrap(), None);
    }
}

async fn registrations_are_compared_and_set(directory: &dyn Directory) {
    let id = environment("compared");
    assert_eq!(directory.lookup(&id).await.unwrap(), None);
    let wrong = directory.register(&id, registration(1), Some(1)).await;
    assert!(matches!(wrong, Err(DirectoryError::Conflict)));
    let first = directory.register(&id, registration(1), None).await.unwrap();
    assert_eq!(directory.lookup(&id).await.unwrap().unwrap(), first);
    let outrun = directory.register(&id, registration(2), None).await;
    assert!(matches!(outrun, Err(DirectoryError::Conflict)));
    let second = directory.register(&id, registration(2), Some(first.generation)).await.unwrap();
    assert!(second.generation > first.generation);
    assert_eq!(directory.lookup(&id).await.unwrap(), Some(second));
}

async fn one_of_many_registrations_wins(directory: &Arc<dyn Directory>) {
    let mut attempts = JoinSet::new();
    for number in 10..30 {
        let directory = Arc::clone(directory);
        attempts.spawn(async move {
            directory.register(&environment("raced"), registration(number), None).await
        });
    }
    let outcomes = attempts.join_all().await;
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1);
}

async fn presence_follows_the_generation(directory: &dyn Directory) {
    let id = environment("present");
    let node = async || directory.lookup(&id).await.unwrap().unwrap().node;
    let here = || Some(NODE.to_owned());
    let first = directory.register(&id, registration(40), None).await.unwrap();
    assert_eq!(first.node, None);
    directory.claim(&id, first.generation, NODE).await.unwrap();
    directory.renew(&id, first.generation, NODE).await.unwrap();
    assert_eq!(node().await, here());
    let second = directory.register(&id, registration(41), Some(first.generation)).await.unwrap();
    assert_eq!(node().await, None);
    for late in [
        directory.claim(&id, first.generation, NODE).await,
        directory.renew(&id, first.generation, NODE).await,
    ] {
        assert!(matches!(late, Err(DirectoryError::Conflict)));
    }
    directory.claim(&id, second.generation, NODE).await.unwrap();
    directory.release(&id, first.generation, NODE).await.unwrap();
    assert_eq!(node().await, here());
    directory.release(&id, second.generation, NODE).await.unwrap();
    assert_eq!(node().await, None);
    directory.renew(&id, second.generation, NODE).await.unwrap();
    assert_eq!(node().await, here(), "it reconnected");
}

async fn the_last_node_that_claims_an_environment_has_it(
    id: &str,
    one: &dyn Directory,
    two: &dyn Directory,
) {
    let id = environment(id);
    let lease = one.register(&id, registration(42), None).await.unwrap();
    let generation = lease.generation;
    let other = "other-node";
    one.claim(&id, generation, NODE).await.unwrap();
    let early = two.renew(&id, generation, other).await;
    assert!(matches!(early, Err(DirectoryError::Conflict)), "{early:?}");
    two.claim(&id, generation, other).await.unwrap();
    let late = one.renew(&id, generation, NODE).await;
    assert!(matches!(late, Err(DirectoryError::Conflict)), "{late:?}");
    one.release(&id, generation, NODE).await.unwrap();
    two.renew(&id, generation, other).await.unwrap();
    assert_eq!(one.lookup(&id).await.unwrap().unwrap().node.as_deref(), Some(other));
    one.claim(&id, generation, NODE).await.unwrap();
    assert_eq!(two.lookup(&id).await.unwrap().unwrap().node.as_deref(), Some(NODE));
}

async fn tickets_and_authorizations_have_one_taker(directory: &Arc<dyn Directory>) {
    let authorization = authorization();
    directory.put_authorization([7; 32], authorization.clone(), NOW).await.unwrap();
    directory.put_authorization([8; 32], authorization.clone(), NOW).await.unwrap();
    let mut takers = JoinSet::new();
    for _ in 0..50 {
        let directory = Arc::clone(directory);
        takers.spawn(async move { directory.take_authorization([7; 32], NOW).await.unwrap() });
    }
    let taken: Vec<_> = takers.join_all().await.into_iter().flatten().collect();
    assert_eq!(taken, [authorization]);
    assert_eq!(directory.take_authorization([8; 32], NOW + SOON).await.unwrap(), None, "expired");

    let ticket = Ticket {
        environment: environment("box"),
        registration_id: "r".to_owned(),
        credential: "c".into(),
        expires: NOW + SOON,
    };
    directory.put_ticket([7; 32], ticket.clone(), NOW).await.unwrap();
    assert_eq!(directory.take_ticket([7; 32], NOW).await.unwrap(), Some(ticket));
    assert_eq!(directory.take_ticket([7; 32], NOW).await.unwrap(), None);
}

async fn credentials_are_found_until_they_are_revoked(directory: &dyn Directory) {
    let (one, other) = (credential("one", 51), credential("other", 52));
    directory.put_credential(one.clone()).await.unwrap();
    directory.put_credential(other.clone()).await.unwrap();
    assert_eq!(directory.token_by_hash([51; 32]).await.unwrap(), Some(one.clone()));
    assert_eq!(directory.credential(&one.id).await.unwrap(), Some(one.clone()));
    let listed = directory.list_credentials().await.unwrap();
    assert!(listed.contains(&one) && listed.contains(&other));
    let mut revocations = directory.watch_revocations();
    assert!(directory.revoke_credential(&one.id).await.unwrap());
    assert_eq!(revocations.recv().await.unwrap(), Revocation::Revoked(one.id.clone()));
    assert!(!directory.revoke_credential(&one.id).await.unwrap());
    assert_eq!(directory.token_by_hash([51; 32]).await.unwrap(), None);
    assert_eq!(directory.credential(&one.id).await.unwrap(), None);
    assert_eq!(directory.token_by_hash([52; 32]).await.unwrap(), Some(other));
}

async fn assertions_are_new_once(directory: &dyn Directory) {
    let remember = |now| directory.remember_assertion([60; 32], now + SOON, now);
    assert!(remember(NOW).await.unwrap());
    assert!(!remember(NOW).await.unwrap());
    assert!(remember(NOW + 2 * SOON).await.unwrap(), "forgotten after it expired");
}

async fn nodes_are_listed(directory: &dyn Directory) {
    assert_eq!(directory.nodes().await.unwrap(), []);
    let node = |url: &str, streams| NodeStatus {
        id: url.to_owned(),
        url: url.to_owned(),
        routing: "direct".to_owned(),
        version: "1".to_owned(),
        started: 7,
        environments: 1,
        streams,
        frames: 2,
        bytes: 3,
        is_leaving: false,
    };
    for status in [node("wss://b", 1), node("wss://a", 1), node("wss://b", 2)] {
        directory.put_node(status).await.unwrap();
    }
    assert_eq!(directory.nodes().await.unwrap(), [node("wss://a", 1), node("wss://b", 2)]);
}

fn environment(id: &str) -> EnvironmentId {
    id.parse().unwrap()
}

fn registration(number: u8) -> Registration {
    Registration {
        registration_id: number.to_string(),
        public_key: public_key(),
        node_url: "ws://node".to_owned(),
        credential: CredentialId::from("c"),
        ticket: [number; 32],
    }
}

fn authorization() -> Authorization {
    Authorization {
        environment: environment("box"),
        registration_id: "r".to_owned(),
        harness_public_key: public_key(),
        credential: "c".into(),
        expires: NOW + SOON,
    }
}

fn credential(id: &str, hash: u8) -> Credential {
    Credential {
        id: id.into(),
        name: None,
        role: Role::Harness,
        environments: BTreeSet::from([environment("box")]),
        created: NOW,
        expires: None,
        proof: Proof::Token { sha256: [hash; 32] },
    }
}

fn public_key() -> PublicKey {
    let text = || "k".to_owned();
    PublicKey { suite: text(), x25519_public_key: text(), mlkem768_public_key: text() }
}
