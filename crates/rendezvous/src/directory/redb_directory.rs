//! The directory of a single node, in one file.
//!
//! State that must survive a restart is in `redb`, with durable commits. Tickets, authorizations,
//! the list of connected environments and the status of nodes are in memory.

use std::collections::{BTreeMap, HashMap};
use std::fs::{DirBuilder, OpenOptions, Permissions};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

use async_trait::async_trait;
use redb::{Database, DatabaseError};
use tokio::sync::broadcast;

use super::single_use::SingleUse;
use super::store::{self, failed};
use super::{
    Authorization, Directory, DirectoryError, Lease, Registration, Revocation, SecretHash, Ticket,
};
use crate::credential::{Credential, CredentialId, since_1970};
use crate::environment_id::EnvironmentId;
use crate::node_status::NodeStatus;

const FILE: &str = "rendezvous.redb";
/// Maximum number of unused tickets, and of unused authorizations, per credential.
const MAX_UNUSED: usize = 8192;
/// How many revocations a slow watcher may lag behind.
const REVOCATIONS: usize = 256;

#[derive(Debug)]
pub struct RedbDirectory {
    database: Arc<Database>,
    online: Mutex<HashMap<EnvironmentId, Presence>>,
    tickets: SingleUse<Ticket>,
    authorizations: SingleUse<Authorization>,
    revocations: broadcast::Sender<Revocation>,
    nodes: Mutex<BTreeMap<(String, String), NodeStatus>>,
}

/// The node that an environment is connected to.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Presence {
    generation: u64,
    node: String,
}

impl RedbDirectory {
    /// Opens the store in a directory, and creates both if necessary. Only this user can read the
    /// store. Blocks.
    pub fn open(directory: &Path) -> Result<Self, DirectoryError> {
        let store = |error: std::io::Error| DirectoryError::Store(error.into());
        // An existing directory keeps its mode, since it may have other uses; the store is private
        // anyway.
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(store)?;
        let path = directory.join(FILE);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(store)?;
        file.set_permissions(Permissions::from_mode(0o600)).map_err(store)?;
        drop(file);
        let database = Database::create(&path).map_err(|error| match error {
            DatabaseError::DatabaseAlreadyOpen => {
                DirectoryError::InUse { path: path.display().to_string() }
            }
            error => failed(error),
        })?;
        store::make_tables(&database)?;
        Ok(Self {
            database: Arc::new(database),
            online: Mutex::default(),
            tickets: SingleUse::new(MAX_UNUSED),
            authorizations: SingleUse::new(MAX_UNUSED),
            revocations: broadcast::Sender::new(REVOCATIONS),
            nodes: Mutex::default(),
        })
    }

    #[must_use]
    pub fn exists(directory: &Path) -> bool {
        directory.join(FILE).exists()
    }

    /// Runs blocking work on the store.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Database) -> Result<T, DirectoryError> + Send + 'static,
    ) -> Result<T, DirectoryError> {
        let database = Arc::clone(&self.database);
        tokio::task::spawn_blocking(move || work(&database)).await.map_err(failed)?
    }

    fn with_presence(&self, environment: &EnvironmentId, lease: Lease) -> Lease {
        let online = self.online();
        let presence = online.get(environment).filter(|it| it.generation == lease.generation);
        Lease { node: presence.map(|presence| presence.node.clone()), ..lease }
    }

    /// Sets the node of an environment. Fails with [`DirectoryError::Conflict`] if the generation
    /// of `presence` is not the current one, or if there is a presence of the same generation that
    /// it must not replace, according to `may_replace`.
    async fn set_presence(
        &self,
        environment: &EnvironmentId,
        presence: Presence,
        may_replace: impl FnOnce(&Presence) -> bool + Send,
    ) -> Result<(), DirectoryError> {
        let current = self.lookup(environment).await?;
        if current.is_none_or(|lease| lease.generation != presence.generation) {
            return Err(DirectoryError::Conflict);
        }
        let mut online = self.online();
        match online.get(environment) {
            // A newer registration was claimed after the lookup.
            Some(current) if current.generation > presence.generation => {
                return Err(DirectoryError::Conflict);
            }
            Some(current) if current.generation == presence.generation && !may_replace(current) => {
                return Err(DirectoryError::Conflict);
            }
            _ => drop(online.insert(environment.clone(), presence)),
        }
        Ok(())
    }

    fn online(&self) -> MutexGuard<'_, HashMap<EnvironmentId, Presence>> {
        self.online.lock().expect("no code panics while it holds the map")
    }
}

#[async_trait]
impl Directory for RedbDirectory {
    async fn register(
        &self,
        environment: &EnvironmentId,
        registration: Registration,
        expected: Option<u64>,
    ) -> Result<Lease, DirectoryError> {
        let environment = environment.clone();
        self.run(move |database| {
            store::replace_registration(database, &environment, registration, expected)
        })
        .await
    }

    async fn claim(
        &self,
        environment: &EnvironmentId,
        generation: u64,
        node: &str,
    ) -> Result<(), DirectoryError> {
        let presence = Presence { generation, node: node.to_owned() };
        self.set_presence(environment, presence, |_| true).await
    }

    async fn renew(
        &self,
        environment: &EnvironmentId,
        generation: u64,
        node: &str,
    ) -> Result<(), DirectoryError> {
        let presence = Presence { generation, node: node.to_owned() };
        self.set_presence(environment, presence, |current| current.node == node).await
    }

    async fn release(
        &self,
        environment: &EnvironmentId,
        generation: u64,
        node: &str,
    ) -> Result<(), DirectoryError> {
        let mut online = self.online();
        let current = online.get(environment);
        if current.is_some_and(|it| it.generation == generation && it.node == node) {
            online.remove(environment);
        }
        Ok(())
    }

    async fn lookup(&self, environment: &EnvironmentId) -> Result<Option<Lease>, DirectoryError> {
        let id = environment.clone();
        let lease = self.run(move |database| store::read_lease(database, id.as_str())).await?;
        Ok(lease.map(|lease| self.with_presence(environment, lease)))
    }

    async fn put_ticket(
        &self,
        hash: SecretHash,
        ticket: Ticket,
        now: SystemTime,
    ) -> Result<(), DirectoryError> {
        let (owner, expires) = (ticket.credential.clone(), ticket.expires);
        self.tickets.put(hash, ticket, &owner, expires, now)
    }

    async fn take_ticket(
        &self,
        hash: SecretHash,
        now: SystemTime,
    ) -> Result<Option<Ticket>, DirectoryError> {
        Ok(self.tickets.take(hash, now))
    }

    async fn put_authorization(
        &self,
        hash: SecretHash,
        authorization: Authorization,
        now: SystemTime,
    ) -> Result<(), DirectoryError> {
        let (owner, expires) = (authorization.credential.clone(), authorization.expires);
        self.authorizations.put(hash, authorization, &owner, expires, now)
    }

    async fn take_authorization(
        &self,
        hash: SecretHash,
        now: SystemTime,
    ) -> Result<Option<Authorization>, DirectoryError> {
        Ok(self.authorizations.take(hash, now))
    }

    async fn put_credential(&self, credential: Credential) -> Result<(), DirectoryError> {
        self.run(move |database| store::put_credential(database, &credential)).await
    }

    async fn token_by_hash(&self, hash: SecretHash) -> Result<Option<Credential>, DirectoryError> {
        self.run(move |database| store::token_by_hash(database, hash)).await
    }

    async fn credential(&self, id: &CredentialId) -> Result<Option<Credential>, DirectoryError> {
        let id = id.clone();
        self.run(move |database| store::read_credential(database, id.as_str())).await
    }

    async fn list_credentials(&self) -> Result<Vec<Credential>, DirectoryError> {
        self.run(store::list_credentials).await
    }

    async fn revoke_credential(&self, id: &CredentialId) -> Result<bool, DirectoryError> {
        let revoked = id.clone();
        let existed =
            self.run(move |database| store::remove_credential(database, revoked.as_str())).await?;
        if existed {
            // An error means that there are no watchers.
            let _ = self.revocations.send(Revocation::Revoked(id.clone()));
        }
        Ok(existed)
    }

    fn watch_revocations(&self) -> broadcast::Receiver<Revocation> {
        self.revocations.subscribe()
    }

    async fn remember_assertion(
        &self,
        hash: SecretHash,
        expires: SystemTime,
        now: SystemTime,
    ) -> Result<bool, DirectoryError> {
        let (expires, now) = (since_1970(expires), since_1970(now));
        self.run(move |database| store::remember_assertion(database, hash, expires, now)).await
    }

    async fn signing_secret(&self) -> Result<[u8; 32], DirectoryError> {
        self.run(store::signing_secret).await
    }

    async fn put_node(&self, status: NodeStatus) -> Result<(), DirectoryError> {
        self.nodes
            .lock()
            .expect("no code panics while it holds the map")
            .insert((status.url.clone(), status.id.clone()), status);
        Ok(())
    }

    async fn nodes(&self) -> Result<Vec<NodeStatus>, DirectoryError> {
        let nodes = self.nodes.lock().expect("no code panics while it holds the map");
        Ok(nodes.values().cloned().collect())
    }

    fn is_reachable(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::public_key::PublicKey;

    #[tokio::test]
    async fn a_claim_that_a_newer_registration_has_overtaken_is_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = RedbDirectory::open(scratch.path()).unwrap();
        let environment: EnvironmentId = "box".parse().unwrap();
        let registration = Registration {
            registration_id: "1".to_owned(),
            public_key: PublicKey {
                suite: "s".to_owned(),
                x25519_public_key: "x".to_owned(),
                mlkem768_public_key: "m".to_owned(),
            },
            node_url: "ws://node".to_owned(),
            credential: CredentialId::from("c"),
            ticket: [1; 32],
        };
        let lease = directory.register(&environment, registration, None).await.unwrap();
        let newer = Presence { generation: lease.generation + 1, node: "newer".to_owned() };
        directory.online().insert(environment.clone(), newer.clone());
        let claimed = directory.claim(&environment, lease.generation, "older").await;
        assert!(matches!(claimed, Err(DirectoryError::Conflict)), "{claimed:?}");
        assert_eq!(directory.online().get(&environment), Some(&newer));
    }
}
