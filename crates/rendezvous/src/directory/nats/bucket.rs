//! A JetStream bucket: values as JSON under keys, each with the revision of its last change.

use std::time::Duration;

use async_nats::jetstream::kv::{Operation, Store, UpdateError};
use async_nats::jetstream::stream::{Config, DiscardPolicy, StorageType};
use async_nats::jetstream::{self, Context, ErrorCode};
use base64_simd::URL_SAFE_NO_PAD;
use futures_util::StreamExt as _;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::super::DirectoryError;
use super::super::store::failed;

#[derive(Debug, Clone)]
pub(super) struct Bucket {
    store: Store,
    replicas: usize,
}

/// The content of a key, and the revision that a change must name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry<T> {
    pub(super) value: Option<T>,
    /// 0 if the key was never used, or all its revisions have expired.
    pub(super) revision: u64,
}

#[derive(Debug, thiserror::Error)]
#[error(
    "the bucket {name} has {found} replicas instead of {wanted}; use --replicas {found}, or change the replicas of its stream in NATS (docs/cluster.md, Upgrades)"
)]
struct OtherReplicas {
    name: &'static str,
    found: usize,
    wanted: usize,
}

impl Bucket {
    /// Opens a bucket, and creates it if necessary. Entries expire `max_age` after their last
    /// change, or never.
    ///
    /// The stream is configured here, because servers of version 2.9 refuse the bucket
    /// configuration of `async-nats`. Reads go to the leader: other replicas may lag.
    pub(super) async fn open(
        context: &Context,
        name: &'static str,
        max_age: Option<Duration>,
        replicas: Option<usize>,
    ) -> Result<Self, DirectoryError> {
        let config = Config {
            name: format!("KV_{name}"),
            subjects: vec![format!("$KV.{name}.>")],
            max_messages_per_subject: 1,
            max_age: max_age.unwrap_or_default(),
            storage: StorageType::File,
            num_replicas: replicas.unwrap_or(1),
            discard: DiscardPolicy::New,
            allow_rollup: true,
            deny_delete: true,
            allow_direct: false,
            ..Config::default()
        };
        let stream = context.get_or_create_stream(config).await.map_err(failed)?;
        let found = stream.cached_info().config.num_replicas;
        if let Some(wanted) = replicas.filter(|wanted| *wanted != found) {
            return Err(failed(OtherReplicas { name, found, wanted }));
        }
        Ok(Self { store: context.get_key_value(name).await.map_err(failed)?, replicas: found })
    }

    pub(super) fn replicas(&self) -> usize {
        self.replicas
    }

    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    pub(super) async fn get<T: DeserializeOwned>(
        &self,
        key: &str,
    ) -> Result<Entry<T>, DirectoryError> {
        let entry = match self.store.entry(key).await {
            Ok(Some(entry)) => entry,
            Ok(None) => return Ok(Entry { value: None, revision: 0 }),
            Err(error) => return Err(failed(error)),
        };
        let value = match entry.operation {
            Operation::Put => Some(serde_json::from_slice(&entry.value).map_err(failed)?),
            Operation::Delete | Operation::Purge => None,
        };
        Ok(Entry { value, revision: entry.revision })
    }

    /// Sets a key if `expected` is still its revision, or fails with [`DirectoryError::Conflict`].
    /// Returns the new revision.
    pub(super) async fn update(
        &self,
        key: &str,
        value: &impl Serialize,
        expected: u64,
    ) -> Result<u64, DirectoryError> {
        let json = serde_json::to_vec(value).map_err(failed)?;
        self.store.update(key, json.into(), expected).await.map_err(conflict_or_failed)
    }

    /// Sets a key, whatever its revision.
    pub(super) async fn put(
        &self,
        key: &str,
        value: &impl Serialize,
    ) -> Result<u64, DirectoryError> {
        let json = serde_json::to_vec(value).map_err(failed)?;
        self.store.put(key, json.into()).await.map_err(failed)
    }

    /// Removes a key if `expected` is still its revision, or fails with
    /// [`DirectoryError::Conflict`].
    pub(super) async fn remove(&self, key: &str, expected: u64) -> Result<(), DirectoryError> {
        let removed = self.store.delete_expect_revision(key, Some(expected)).await;
        removed.map_err(conflict_or_failed)
    }

    /// Returns all readable values.
    pub(super) async fn values<T: DeserializeOwned>(&self) -> Result<Vec<T>, DirectoryError> {
        let mut keys = self.store.keys().await.map_err(failed)?;
        let mut values = Vec::new();
        while let Some(key) = keys.next().await {
            let value: Option<serde_json::Value> = self.get(&key.map_err(failed)?).await?.value;
            // A newer version may have written a value that this version cannot read.
            values.extend(value.and_then(|value| serde_json::from_value(value).ok()));
        }
        Ok(values)
    }

    /// Removes a value and returns it; only one of several callers gets it.
    pub(super) async fn take<T: DeserializeOwned>(
        &self,
        key: &str,
    ) -> Result<Option<T>, DirectoryError> {
        let Entry { value: Some(value), revision } = self.get(key).await? else { return Ok(None) };
        match self.remove(key, revision).await {
            Ok(()) => Ok(Some(value)),
            Err(DirectoryError::Conflict) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Detects a revision conflict. Servers have two codes for it, and `async-nats` knows only one of
/// them.
fn conflict_or_failed(error: UpdateError) -> DirectoryError {
    let sources = std::iter::successors(std::error::Error::source(&error), |error| error.source());
    let mut codes = sources.filter_map(|error| error.downcast_ref::<jetstream::Error>());
    let is_conflict = codes.any(|error| {
        [ErrorCode::STREAM_WRONG_LAST_SEQUENCE, ErrorCode::STREAM_WRONG_LAST_SEQUENCE_CONSTANT]
            .contains(&error.error_code())
    });
    if is_conflict { DirectoryError::Conflict } else { failed(error) }
}

/// Encodes text or bytes as a key, because keys allow few characters.
pub(super) fn key(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode_to_string(bytes)
}
