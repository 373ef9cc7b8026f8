//! The tables of the embedded directory. All functions here block, and all commits are durable.

use redb::{Database, ReadableDatabase as _, ReadableTable as _, TableDefinition};
use ring::rand::{SecureRandom as _, SystemRandom};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{DirectoryError, Lease, Registration, SecretHash};
use crate::credential::{Credential, Proof};
use crate::environment_id::EnvironmentId;

/// Maps an environment to its [`Lease`], as JSON.
const REGISTRATIONS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("registrations");
/// Maps an id to its [`Credential`], as JSON.
const CREDENTIALS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("credentials");
/// Maps the hash of a token to the id of its credential.
const TOKENS: TableDefinition<'_, SecretHash, &str> = TableDefinition::new("tokens");
/// Used assertions: the second in which they expire, and their hash.
const ASSERTIONS: TableDefinition<'_, (u64, SecretHash), ()> =
    TableDefinition::new("used_assertions");
/// The name of the only secret.
const SIGNING: &str = "signing";
const SECRETS: TableDefinition<'_, &str, SecretHash> = TableDefinition::new("secrets");

/// Creates the tables: a table that does not exist cannot be read.
pub(super) fn make_tables(database: &Database) -> Result<(), DirectoryError> {
    let write = database.begin_write().map_err(failed)?;
    write.open_table(REGISTRATIONS).map_err(failed)?;
    write.open_table(CREDENTIALS).map_err(failed)?;
    write.open_table(TOKENS).map_err(failed)?;
    write.open_table(ASSERTIONS).map_err(failed)?;
    write.open_table(SECRETS).map_err(failed)?;
    write.commit().map_err(failed)
}

pub(super) fn replace_registration(
    database: &Database,
    environment: &EnvironmentId,
    registration: Registration,
    expected: Option<u64>,
) -> Result<Lease, DirectoryError> {
    let write = database.begin_write().map_err(failed)?;
    let lease = {
        let mut registrations = write.open_table(REGISTRATIONS).map_err(failed)?;
        let before: Option<Lease> = match registrations.get(environment.as_str()).map_err(failed)? {
            Some(json) => Some(from_json(json.value())?),
            None => None,
        };
        if before.map(|lease| lease.generation) != expected {
            return Err(DirectoryError::Conflict);
        }
        let generation = expected.map_or(1, |generation| generation + 1);
        let lease = Lease { generation, registration, node: None };
        registrations.insert(environment.as_str(), &*to_json(&lease)?).map_err(failed)?;
        lease
    };
    write.commit().map_err(failed)?;
    Ok(lease)
}

pub(super) fn remove_credential(database: &Database, id: &str) -> Result<bool, DirectoryError> {
    let write = database.begin_write().map_err(failed)?;
    let removed: Option<Credential> = {
        let mut credentials = write.open_table(CREDENTIALS).map_err(failed)?;
        let removed = credentials.remove(id).map_err(failed)?;
        removed.map(|json| from_json(json.value())).transpose()?
    };
    if let Some(Proof::Token { sha256 }) = removed.as_ref().map(|credential| &credential.proof) {
        let mut tokens = write.open_table(TOKENS).map_err(failed)?;
        tokens.remove(*sha256).map_err(failed)?;
    }
    write.commit().map_err(failed)?;
    Ok(removed.is_some())
}

pub(super) fn read_lease(
    database: &Database,
    environment: &str,
) -> Result<Option<Lease>, DirectoryError> {
    let read = database.begin_read().map_err(failed)?;
    let registrations = read.open_table(REGISTRATIONS).map_err(failed)?;
    let lease = registrations.get(environment).map_err(failed)?;
    lease.map(|json| from_json(json.value())).transpose()
}

pub(super) fn read_credential(
    database: &Database,
    id: &str,
) -> Result<Option<Credential>, DirectoryError> {
    let read = database.begin_read().map_err(failed)?;
    let credentials = read.open_table(CREDENTIALS).map_err(failed)?;
    let credential = credentials.get(id).map_err(failed)?;
    credential.map(|json| from_json(json.value())).transpose()
}

pub(super) fn put_credential(
    database: &Database,
    credential: &Credential,
) -> Result<(), DirectoryError> {
    let write = database.begin_write().map_err(failed)?;
    {
        let id = credential.id.as_str();
        let mut credentials = write.open_table(CREDENTIALS).map_err(failed)?;
        credentials.insert(id, &*to_json(credential)?).map_err(failed)?;
        if let Proof::Token { sha256 } = credential.proof {
            let mut tokens = write.open_table(TOKENS).map_err(failed)?;
            tokens.insert(sha256, id).map_err(failed)?;
        }
    }
    write.commit().map_err(failed)
}

pub(super) fn token_by_hash(
    database: &Database,
    hash: SecretHash,
) -> Result<Option<Credential>, DirectoryError> {
    let read = database.begin_read().map_err(failed)?;
    let tokens = read.open_table(TOKENS).map_err(failed)?;
    let Some(id) = tokens.get(hash).map_err(failed)? else { return Ok(None) };
    read_credential(database, id.value())
}

pub(super) fn list_credentials(database: &Database) -> Result<Vec<Credential>, DirectoryError> {
    let read = database.begin_read().map_err(failed)?;
    let credentials = read.open_table(CREDENTIALS).map_err(failed)?;
    let entries = credentials.iter().map_err(failed)?;
    entries.map(|entry| from_json(entry.map_err(failed)?.1.value())).collect()
}

/// Records a used assertion. Returns whether it is new. Times are in seconds since 1970.
pub(super) fn remember_assertion(
    database: &Database,
    hash: SecretHash,
    expires: u64,
    now: u64,
) -> Result<bool, DirectoryError> {
    let write = database.begin_write().map_err(failed)?;
    let is_new = {
        let mut assertions = write.open_table(ASSERTIONS).map_err(failed)?;
        assertions.retain_in(..(now, [0; 32]), |_, ()| false).map_err(failed)?;
        let seen = assertions.insert((expires, hash), ()).map_err(failed)?;
        seen.is_none()
    };
    write.commit().map_err(failed)?;
    Ok(is_new)
}

pub(super) fn signing_secret(database: &Database) -> Result<[u8; 32], DirectoryError> {
    let read = database.begin_read().map_err(failed)?;
    let secrets = read.open_table(SECRETS).map_err(failed)?;
    if let Some(secret) = secrets.get(SIGNING).map_err(failed)? {
        return Ok(secret.value());
    }
    let write = database.begin_write().map_err(failed)?;
    let secret = {
        let mut secrets = write.open_table(SECRETS).map_err(failed)?;
        // Another thread may have been faster.
        let known = secrets.get(SIGNING).map_err(failed)?.map(|secret| secret.value());
        let mut secret = [0; 32];
        SystemRandom::new().fill(&mut secret).expect("the system has randomness");
        let secret = known.unwrap_or(secret);
        secrets.insert(SIGNING, secret).map_err(failed)?;
        secret
    };
    write.commit().map_err(failed)?;
    Ok(secret)
}

fn to_json(value: &impl Serialize) -> Result<Vec<u8>, DirectoryError> {
    serde_json::to_vec(value).map_err(failed)
}

fn from_json<T: DeserializeOwned>(json: &[u8]) -> Result<T, DirectoryError> {
    serde_json::from_slice(json).map_err(failed)
}

pub(super) fn failed(error: impl std::error::Error + Send + Sync + 'static) -> DirectoryError {
    DirectoryError::Store(error.into())
}
