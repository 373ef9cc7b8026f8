//! The properties of leases that the simulation relies on.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::super::LEASE_AGE;
use super::memory_store::{MemoryStore, at_once};
use super::node::Node;
use crate::directory::DirectoryError;
use crate::environment_id::EnvironmentId;

fn two_nodes() -> (Arc<MemoryStore>, [Node; 2], EnvironmentId) {
    let store = Arc::new(MemoryStore::default());
    let nodes = [0, 1].map(|number| Node::new(number, 1, &store));
    (store, nodes, "box".parse().expect("the id is valid"))
}

fn register_and_claim(node: &Node, id: &EnvironmentId) -> u64 {
    let generation = at_once(node.replace_registration(id, [1; 32])).unwrap().generation;
    node.claim(id, generation).unwrap();
    generation
}

fn has_lost(node: &Node, id: &EnvironmentId, generation: u64) -> bool {
    matches!(node.renew(id, generation), Err(DirectoryError::Conflict))
}

#[test]
fn racing_registrations_all_succeed_and_one_is_current() {
    let (_, [one, other], id) = two_nodes();
    let mut first = pin!(one.replace_registration(&id, [1; 32]));
    let mut second = pin!(other.replace_registration(&id, [2; 32]));
    let mut context = Context::from_waker(Waker::noop());
    let (mut polls, mut leases) = ([0; 2], [None, None]);
    while leases.iter().any(Option::is_none) {
        for (number, call) in [first.as_mut(), second.as_mut()].into_iter().enumerate() {
            if leases[number].is_some() {
                continue;
            }
            polls[number] += 1;
            if let Poll::Ready(lease) = call.poll(&mut context) {
                leases[number] = Some(lease.unwrap());
            }
        }
    }
    let generations = leases.map(|lease| lease.unwrap().generation);
    assert!(generations[0] < generations[1], "{generations:?}");
    assert!(polls[0] < polls[1], "the second had to retry: {polls:?}");
    assert_eq!(one.lookup(&id).unwrap().generation, generations[1]);
    assert!(has_lost(&one, &id, generations[0]));
    one.release(&id, generations[0]);
    other.renew(&id, generations[1]).unwrap();
    let renewed = one.lookup(&id).unwrap();
    assert_eq!(renewed.generation, generations[1], "a renewal keeps the generation");
}

#[test]
fn an_expired_lease_belongs_to_its_holder_until_another_registers() {
    let (store, [one, other], id) = two_nodes();
    let generation = register_and_claim(&one, &id);
    store.set_now(LEASE_AGE - Duration::from_millis(1));
    assert_eq!(store.len(), 1);
    store.set_now(LEASE_AGE);
    assert_eq!(store.len(), 0);
    assert!(other.lookup(&id).is_none());
    assert!(has_lost(&other, &id, generation));
    one.renew(&id, generation).unwrap();
    assert_eq!(one.lookup(&id).unwrap().generation, generation);
    store.set_now(2 * LEASE_AGE);
    assert!(register_and_claim(&other, &id) > generation);
    assert!(has_lost(&one, &id, generation));
}

#[test]
fn of_two_expired_leases_the_newer_one_lasts() {
    let (store, [old, new], id) = two_nodes();
    let first = register_and_claim(&old, &id);
    let second = register_and_claim(&new, &id);
    store.set_now(LEASE_AGE);
    assert_eq!(store.len(), 0);
    // The old node does not know about the newer lease.
    old.renew(&id, first).unwrap();
    new.renew(&id, second).unwrap();
    assert!(has_lost(&old, &id, first));
    let current = old.lookup(&id).unwrap();
    assert_eq!((current.generation, current.node), (second, Some(new.url)));
}
