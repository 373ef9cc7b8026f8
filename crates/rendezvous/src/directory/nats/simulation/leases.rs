//! The simulated directory keeps the promises about leases that the simulation rests on.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::{Directory, DirectoryError, EnvironmentId};

use super::bucket::{Bucket, LEASE_AGE};
use super::directory::{NodeDirectory, at_once, renew};
use super::node::registration;

fn two_nodes() -> (Arc<Bucket>, [Arc<dyn Directory>; 2], EnvironmentId) {
    let bucket = Arc::new(Bucket::default());
    let node = || Arc::new(NodeDirectory::new(Arc::clone(&bucket))) as Arc<dyn Directory>;
    let nodes = [node(), node()];
    (bucket, nodes, "box".parse().expect("the id is valid"))
}

#[test]
fn registrations_that_race_all_succeed_and_one_is_current() {
    let (bucket, [one, other], id) = two_nodes();
    let mut first = pin!(one.replace_registration(&id, registration(0, [1; 32])));
    let mut second = pin!(other.replace_registration(&id, registration(1, [2; 32])));
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
    assert!(polls[0] < polls[1], "the second had to try again: {polls:?}");
    assert_eq!(bucket.generation(&id), Some(generations[1]));
    assert!(matches!(renew(&*one, &id, generations[0]), Err(DirectoryError::Conflict)));
    at_once(one.release(&id, generations[0], "")).unwrap();
    renew(&*other, &id, generations[1]).unwrap();
    assert_eq!(bucket.generation(&id), Some(generations[1]), "a renewal keeps the generation");
}

#[test]
fn a_lease_that_expired_belongs_to_its_holder_until_another_registers() {
    let (bucket, [one, other], id) = two_nodes();
    let lease = at_once(one.replace_registration(&id, registration(0, [1; 32]))).unwrap();
    renew(&*one, &id, lease.generation).unwrap();
    bucket.set_now(LEASE_AGE - Duration::from_millis(1));
    assert_eq!(bucket.len(), 1);
    bucket.set_now(LEASE_AGE);
    assert_eq!(bucket.len(), 0);
    assert!(at_once(other.lookup(&id)).unwrap().is_none());
    assert!(matches!(renew(&*other, &id, lease.generation), Err(DirectoryError::Conflict)));
    renew(&*one, &id, lease.generation).unwrap();
    assert_eq!(bucket.generation(&id), Some(lease.generation));
    bucket.set_now(2 * LEASE_AGE);
    let newer = at_once(other.replace_registration(&id, registration(1, [2; 32]))).unwrap();
    assert!(newer.generation > lease.generation);
    assert!(matches!(renew(&*one, &id, lease.generation), Err(DirectoryError::Conflict)));
}
