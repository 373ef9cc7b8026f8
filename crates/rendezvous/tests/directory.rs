//! The contract of every directory. Another implementation adds a test that calls [`keeps_the_contract`].

#![expect(clippy::unwrap_used, reason = "a step that fails fails its test")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use exec_server_rendezvous::{
    Authorization, Credential, CredentialId, Directory, DirectoryError, EnvironmentId, Proof,
    PublicKey, RedbDirectory, Registration, Revocation, Role, Ticket,
};
use tokio::task::JoinSet;

const NOW: SystemTime = SystemTime::UNIX_EPOCH;
const SOON: Duration = Duration::from_secs(60);

async fn keeps_the_contract(directory: Arc<dyn Directory>) {
    registrations_are_compared_and_set(&*directory).await;
    one_of_many_registrations_wins(&directory).await;
    presence_follows_the_generation(&*directory).await;
    single_use_material_has_one_taker(&directory).await;
    credentials_are_found_until_they_are_revoked(&*directory).await;
    assertions_are_new_once(&*directory).await;
    let secret = directory.signing_secret().await.unwrap();
    assert_eq!(directory.signing_secret().await.unwrap(), secret);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redb_keeps_the_contract() {
    let scratch = tempfile::tempdir().unwrap();
    keeps_the_contract(Arc::new(RedbDirectory::open(scratch.path()).unwrap())).await;
}

#[tokio::test]
async fn redb_remembers_what_it_must() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = RedbDirectory::open(scratch.path()).unwrap();
    let box_id = environment("box");
    let lease = directory.register(&box_id, registration(1), None).await.unwrap();
    directory.renew(&box_id, lease.generation, NOW + SOON).await.unwrap();
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
    assert_eq!(found.online_until, None, "the sockets are gone");
    assert!(directory.environment_by_ticket([1; 32]).await.unwrap().is_some());
    assert!(directory.token_by_hash([1; 32]).await.unwrap().is_some());
    assert!(directory.token_by_hash([2; 32]).await.unwrap().is_none());
    assert!(!directory.remember_assertion([5; 32], NOW + SOON, NOW).await.unwrap());
    assert_eq!(directory.signing_secret().await.unwrap(), secret);
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
    assert_eq!(directory.environment_by_ticket([1; 32]).await.unwrap(), None, "replaced");
    assert_eq!(directory.environment_by_ticket([2; 32]).await.unwrap(), Some((id, second)));
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
    let until = NOW + SOON;
    let first = directory.register(&id, registration(40), None).await.unwrap();
    assert_eq!(first.online_until, None);
    directory.renew(&id, first.generation, until).await.unwrap();
    assert_eq!(directory.lookup(&id).await.unwrap().unwrap().online_until, Some(until));
    let second = directory.register(&id, registration(41), Some(first.generation)).await.unwrap();
    assert_eq!(directory.lookup(&id).await.unwrap().unwrap().online_until, None);
    let late = directory.renew(&id, first.generation, until).await;
    assert!(matches!(late, Err(DirectoryError::Conflict)));
    directory.renew(&id, second.generation, until).await.unwrap();
    directory.release(&id, first.generation).await.unwrap();
    assert_eq!(directory.lookup(&id).await.unwrap().unwrap().online_until, Some(until));
    directory.release(&id, second.generation).await.unwrap();
    assert_eq!(directory.lookup(&id).await.unwrap().unwrap().online_until, None);
}

async fn single_use_material_has_one_taker(directory: &Arc<dyn Directory>) {
    let authorization = Authorization {
        environment: environment("box"),
        registration_id: "r".to_owned(),
        harness_public_key: public_key(),
        credential: "c".into(),
        expires: NOW + SOON,
    };
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
