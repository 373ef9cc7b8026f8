//! Tickets and authorizations: valid once, for a short time. They are lost at a restart, and
//! harnesses request new ones.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::SystemTime;

use super::{DirectoryError, SecretHash};
use crate::credential::CredentialId;

/// Expired entries are pruned at this number of entries, and again whenever the number has doubled.
const FIRST_PRUNING: usize = 256;

#[derive(Debug)]
pub(super) struct SingleUse<T> {
    max_of_credential: usize,
    entries: Mutex<Entries<T>>,
}

#[derive(Debug)]
struct Entries<T> {
    by_hash: HashMap<SecretHash, Entry<T>>,
    of_credentials: HashMap<CredentialId, usize>,
    next_pruning: usize,
}

#[derive(Debug)]
struct Entry<T> {
    owner: CredentialId,
    expires: SystemTime,
    value: T,
}

impl<T> SingleUse<T> {
    /// `max_of_credential`: maximum number of unused entries per credential.
    pub(super) fn new(max_of_credential: usize) -> Self {
        let entries = Entries {
            by_hash: HashMap::new(),
            of_credentials: HashMap::new(),
            next_pruning: FIRST_PRUNING,
        };
        Self { max_of_credential, entries: Mutex::new(entries) }
    }

    pub(super) fn put(
        &self,
        hash: SecretHash,
        value: T,
        owner: &CredentialId,
        expires: SystemTime,
        now: SystemTime,
    ) -> Result<(), DirectoryError> {
        let mut entries = self.lock();
        if entries.by_hash.len() >= entries.next_pruning {
            entries.prune(now);
        }
        if entries.count_of(owner) >= self.max_of_credential {
            entries.prune(now);
        }
        if entries.count_of(owner) >= self.max_of_credential {
            return Err(DirectoryError::Full);
        }
        *entries.of_credentials.entry(owner.clone()).or_default() += 1;
        entries.by_hash.insert(hash, Entry { owner: owner.clone(), expires, value });
        Ok(())
    }

    pub(super) fn take(&self, hash: SecretHash, now: SystemTime) -> Option<T> {
        let mut entries = self.lock();
        let Entry { owner, expires, value } = entries.by_hash.remove(&hash)?;
        entries.forget_one_of(&owner);
        (expires > now).then_some(value)
    }

    fn lock(&self) -> MutexGuard<'_, Entries<T>> {
        self.entries.lock().expect("no code panics while it holds the entries")
    }
}

impl<T> Entries<T> {
    fn count_of(&self, owner: &CredentialId) -> usize {
        self.of_credentials.get(owner).copied().unwrap_or(0)
    }

    fn prune(&mut self, now: SystemTime) {
        let expired: Vec<_> = self
            .by_hash
            .extract_if(|_, entry| entry.expires <= now)
            .map(|(_, it)| it.owner)
            .collect();
        expired.iter().for_each(|owner| self.forget_one_of(owner));
        self.next_pruning = FIRST_PRUNING.max(2 * self.by_hash.len());
    }

    fn forget_one_of(&mut self, owner: &CredentialId) {
        if let Some(count) = self.of_credentials.get_mut(owner) {
            *count -= 1;
            if *count == 0 {
                self.of_credentials.remove(owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn expired_entries_are_gone_and_make_room() {
        let table = SingleUse::new(2);
        let alice = CredentialId::from("alice");
        let now = SystemTime::UNIX_EPOCH;
        let later = now + Duration::from_secs(60);
        let put = |number, expires, now| table.put([number; 32], number, &alice, expires, now);
        put(1, later, now).unwrap();
        put(2, later + Duration::from_secs(60), now).unwrap();
        assert!(matches!(put(3, later, now), Err(DirectoryError::Full)));
        table.put([9; 32], 9, &CredentialId::from("bob"), later, now).unwrap();
        assert_eq!(table.take([1; 32], later), None, "expired");
        put(3, later, now).unwrap();
        put(4, later, later).unwrap();
        assert_eq!(table.take([2; 32], now), Some(2));
        assert_eq!(table.take([2; 32], now), None);
    }

    #[test]
    fn entries_that_are_never_taken_are_forgotten() {
        let table = SingleUse::new(usize::MAX);
        let mut now = SystemTime::UNIX_EPOCH;
        for number in 0..100_000_u64 {
            let mut hash = [0; 32];
            hash[..8].copy_from_slice(&number.to_be_bytes());
            now += Duration::from_millis(1);
            let expires = now + Duration::from_millis(100);
            table.put(hash, (), &CredentialId::from("alice"), expires, now).unwrap();
        }
        let entries = table.lock();
        assert!(entries.by_hash.len() <= FIRST_PRUNING, "{}", entries.by_hash.len());
        assert_eq!(entries.of_credentials[&"alice".into()], entries.by_hash.len());
    }
}
