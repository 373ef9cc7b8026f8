//! The credentials of a cluster, cached in every node: authentication needs no round trip, and each
//! node learns of a revocation through its watch of the bucket.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_nats::jetstream::kv::{self, Operation};
use exec_server_relay::with_sources;
use futures_util::StreamExt as _;
use tokio::sync::{broadcast, watch};
use tokio::time::sleep;

use super::super::store::failed;
use super::super::{DirectoryError, Revocation, SecretHash};
use super::bucket::{Bucket, Entry, key};
use crate::credential::{Credential, CredentialId, Proof};

const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// How many revocations a slow watcher may lag behind.
const REVOCATIONS: usize = 256;
/// The prefix of the keys of credentials. The bucket has other keys, too.
const PREFIX: &str = "credential.";

#[derive(Debug)]
pub(super) struct Credentials {
    bucket: Bucket,
    table: Mutex<Table>,
    revocations: broadcast::Sender<Revocation>,
}

/// The last known state of each credential. Events of the watch may be older.
#[derive(Debug, Default)]
struct Table {
    by_key: HashMap<String, Known>,
    tokens: HashMap<SecretHash, String>,
}

#[derive(Debug)]
struct Known {
    revision: u64,
    /// `None` if the credential was revoked or cannot be read.
    credential: Option<Credential>,
}

impl Credentials {
    pub(super) fn new(bucket: Bucket) -> Arc<Self> {
        let revocations = broadcast::Sender::new(REVOCATIONS);
        Arc::new(Self { bucket, table: Mutex::default(), revocations })
    }

    pub(super) async fn put(&self, credential: Credential) -> Result<(), DirectoryError> {
        let key = key_of(&credential.id);
        let revision = self.bucket.put(&key, &credential).await?;
        self.table().set(key, revision, Some(credential));
        Ok(())
    }

    /// Returns whether the credential existed.
    pub(super) async fn revoke(&self, id: &CredentialId) -> Result<bool, DirectoryError> {
        let key = key_of(id);
        loop {
            let Entry { value: Some::<Credential>(_), revision } = self.bucket.get(&key).await?
            else {
                return Ok(false);
            };
            match self.bucket.remove(&key, revision).await {
                Err(DirectoryError::Conflict) => {}
                Err(error) => return Err(error),
                Ok(()) => {
                    // The revision of the removal is unknown, but at least this.
                    self.forget(key, revision + 1);
                    return Ok(true);
                }
            }
        }
    }

    pub(super) fn by_id(&self, id: &CredentialId) -> Option<Credential> {
        self.table().by_key.get(&key_of(id))?.credential.clone()
    }

    pub(super) fn by_token(&self, hash: SecretHash) -> Option<Credential> {
        let table = self.table();
        table.by_key.get(table.tokens.get(&hash)?)?.credential.clone()
    }

    pub(super) fn list(&self) -> Vec<Credential> {
        self.table().by_key.values().filter_map(|known| known.credential.clone()).collect()
    }

    pub(super) fn watch_revocations(&self) -> broadcast::Receiver<Revocation> {
        self.revocations.subscribe()
    }

    /// Applies the changes of all nodes to the table, for as long as it is polled. Sets
    /// `is_current` once the table has all credentials of the bucket.
    pub(super) async fn follow(self: Arc<Self>, is_current: watch::Sender<bool>) {
        loop {
            if let Err(error) = self.follow_once(&is_current).await {
                let error = with_sources(&error);
                tracing::warn!(error, "cannot watch the credentials of the cluster; trying again");
            }
            sleep(RETRY_INTERVAL).await;
            // An error means that there are no watchers.
            let _ = self.revocations.send(Revocation::Missed);
        }
    }

    /// Follows the bucket until the watch fails or ends. Invariant: the bucket is not empty, since
    /// it has the signing secret; otherwise the watch would not report when the table is current.
    async fn follow_once(&self, is_current: &watch::Sender<bool>) -> Result<(), DirectoryError> {
        let mut changes = self.bucket.store().watch_with_history(">").await.map_err(failed)?;
        let mut first_keys = Some(HashSet::new());
        while let Some(change) = changes.next().await {
            let change = change.map_err(failed)?;
            if let Some(keys) = &mut first_keys {
                keys.insert(change.key.clone());
            }
            let (is_last, revision) = (change.seen_current, change.revision);
            self.apply(change);
            if is_last && let Some(keys) = first_keys.take() {
                self.forget_missing(&keys, revision);
                is_current.send_replace(true);
            }
        }
        Ok(())
    }

    fn apply(&self, change: kv::Entry) {
        if !change.key.starts_with(PREFIX) {
            return;
        }
        let credential = match change.operation {
            Operation::Put => serde_json::from_slice(&change.value),
            Operation::Delete | Operation::Purge => {
                return self.forget(change.key, change.revision);
            }
        };
        match credential {
            Ok(credential) => {
                self.table().set(change.key, change.revision, Some(credential));
            }
            Err(error) => {
                // Later changes still apply.
                tracing::warn!(
                    %error,
                    key = change.key,
                    "cannot read a credential, so this node refuses it; perhaps a newer version \
                     wrote it"
                );
                self.forget(change.key, change.revision);
            }
        }
    }

    /// Removes credentials that were missing from the bucket at this revision.
    fn forget_missing(&self, keys: &HashSet<String>, revision: u64) {
        let table = self.table();
        let is_missing = |(key, known): &(&String, &Known)| {
            known.credential.is_some() && known.revision <= revision && !keys.contains(*key)
        };
        let missing: Vec<_> =
            table.by_key.iter().filter(is_missing).map(|(key, _)| key.clone()).collect();
        drop(table);
        missing.into_iter().for_each(|key| self.forget(key, revision));
    }

    fn forget(&self, key: String, revision: u64) {
        if let Some(revoked) = self.table().set(key, revision, None) {
            tracing::debug!(credential = %revoked.id, "a credential is no longer valid");
            let _ = self.revocations.send(Revocation::Revoked(revoked.id));
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("no code panics while it holds the table")
    }
}

impl Table {
    /// Sets a credential, unless a newer state of it is known. Returns the one that it replaces.
    fn set(
        &mut self,
        key: String,
        revision: u64,
        credential: Option<Credential>,
    ) -> Option<Credential> {
        if self.by_key.get(&key).is_some_and(|known| known.revision >= revision) {
            return None;
        }
        if let Some(Proof::Token { sha256 }) = credential.as_ref().map(|it| &it.proof) {
            self.tokens.insert(*sha256, key.clone());
        }
        let before = self.by_key.insert(key, Known { revision, credential })?.credential;
        if let Some(Proof::Token { sha256 }) = before.as_ref().map(|it| &it.proof) {
            let is_same = |known: &Known| {
                known
                    .credential
                    .as_ref()
                    .is_some_and(|it| it.proof == Proof::Token { sha256: *sha256 })
            };
            if !self.tokens.get(sha256).and_then(|key| self.by_key.get(key)).is_some_and(is_same) {
                self.tokens.remove(sha256);
            }
        }
        before
    }
}

fn key_of(id: &CredentialId) -> String {
    format!("{PREFIX}{}", key(id.as_str()))
}
