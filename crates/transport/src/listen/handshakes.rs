//! The handshakes in progress, each a task, and which of them to drop when there are too many.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use tokio::task::{AbortHandle, JoinSet};

pub(super) struct Handshakes {
    max: usize,
    tasks: JoinSet<()>,
    oldest_first: VecDeque<(Option<IpAddr>, AbortHandle)>,
}

impl Handshakes {
    pub(super) fn at_most(max: usize) -> Self {
        Self { max, tasks: JoinSet::new(), oldest_first: VecDeque::new() }
    }

    /// Starts a handshake. If there are too many, drops the oldest one of the address with the
    /// most, so that one address cannot lock out others.
    pub(super) fn spawn(
        &mut self,
        address: Option<IpAddr>,
        handshake: impl Future<Output = ()> + Send + 'static,
    ) {
        while self.tasks.try_join_next().is_some() {}
        self.oldest_first.retain(|(_, task)| !task.is_finished());
        if self.oldest_first.len() >= self.max {
            let busiest = busiest(self.oldest_first.iter().map(|(address, _)| *address));
            let oldest = self.oldest_first.iter().position(|(address, _)| *address == busiest);
            if let Some((_, task)) = oldest.and_then(|index| self.oldest_first.remove(index)) {
                task.abort();
            }
        }
        self.oldest_first.push_back((address, self.tasks.spawn(handshake)));
    }
}

/// Returns the address with the most handshakes; on a tie, the first.
fn busiest(addresses: impl Iterator<Item = Option<IpAddr>> + Clone) -> Option<IpAddr> {
    let mut counts = HashMap::new();
    for address in addresses.clone() {
        *counts.entry(address).or_insert(0) += 1;
    }
    let most = counts.values().max().copied();
    addresses.into_iter().find(|address| counts.get(address).copied() == most).flatten()
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn the_busiest_address_loses_its_oldest_handshake() {
        let mut handshakes = Handshakes::at_most(4);
        let [quiet, busy] = [1, 2].map(|last| Some(IpAddr::from([192, 0, 2, last])));
        let mut dropped = Vec::new();
        for address in [quiet, busy, busy, busy, busy, busy] {
            let (alive, gone) = oneshot::channel::<()>();
            handshakes.spawn(address, async move {
                let _alive = alive;
                pending::<()>().await;
            });
            dropped.push(gone);
        }
        for gone in &mut dropped[1..3] {
            assert!(gone.await.is_err());
        }
        for index in [0, 3, 4, 5] {
            assert!(
                dropped[index]
                    .try_recv()
                    .is_err_and(|error| { error == oneshot::error::TryRecvError::Empty })
            );
        }
    }
}
