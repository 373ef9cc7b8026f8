//! Serves each socket until it ends, and tells the directory which environments are here.

use std::fmt;
use std::future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use exec_server_relay::with_sources;
use exec_server_transport::Connection;
use futures_util::stream::{self, StreamExt as _};
use tokio::time::sleep;

use crate::credential::{CredentialId, since_1970};
use crate::directory::DirectoryError;
use crate::environment_id::EnvironmentId;
use crate::handler::Handler;
use crate::node_status::NodeStatus;
use crate::router::{RelayEnd, SocketGrant};
use crate::tunnel::{Bus, Moved};

/// Delay before a failed directory call is retried.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// Concurrent renewals. One after another, the renewals of a large node would take longer than the
/// interval.
const RENEWED_AT_ONCE: usize = 32;

/// An admitted socket, and the route to its environment.
#[derive(Debug)]
pub(crate) struct Admission {
    pub(crate) grant: SocketGrant,
    pub(crate) route: Route,
}

#[derive(Debug)]
pub(crate) enum Route {
    /// The environment has its socket at this node, or is expected here.
    Here,
    /// The environment has its socket at another node, with the registration of this generation.
    Tunnel { bus: Arc<Bus>, node: String, generation: u64 },
}

impl Handler {
    /// Serves a socket whose environment is at this node or, over a tunnel, at another node.
    pub(crate) async fn serve(&self, connection: Connection, admission: Admission) {
        let Admission { grant, route } = admission;
        let _recorded = self.audit.as_ref().map(|audit| audit.socket_opened(&grant));
        match route {
            Route::Here => self.serve_here(connection, grant).await,
            // Boxed, so that the many sockets without a tunnel use no memory for one.
            Route::Tunnel { bus, node, generation } => {
                Box::pin(self.serve_over(&bus, &node, generation, connection, grant)).await;
            }
        }
    }

    pub(crate) async fn serve_here(&self, connection: Connection, grant: SocketGrant) {
        let environment = grant.environment.clone();
        let credential = grant.credential.clone();
        let generation = match grant.end {
            RelayEnd::Environment { generation } => Some(generation),
            RelayEnd::Harness => None,
        };
        // The first poll of `serve` attaches the socket, so the checks after it miss nothing.
        let went_offline = tokio::select! {
            biased;
            went_offline = self.router.serve(connection, grant) => went_offline,
            never = self.check_attached(&environment, generation, &credential) => never,
        };
        if went_offline && let Some(generation) = generation {
            let released = self.directory.release(&environment, generation, &self.node).await;
            self.report("release", &environment, released);
            if self.router.online_generation(&environment) == Some(generation) {
                // The environment reconnected in the meantime.
                self.claim(&environment, generation).await;
            }
        }
    }

    /// Closes the socket if its credential or registration has ended, or its environment has left,
    /// since the upgrade. Claims an environment for this node. Never returns.
    async fn check_attached<T>(
        &self,
        environment: &EnvironmentId,
        generation: Option<u64>,
        credential: &CredentialId,
    ) -> T {
        let is_harness = generation.is_none();
        if is_harness && self.bus.is_some() && self.router.online_generation(environment).is_none()
        {
            // The environment has left since the harness was admitted, and may reconnect elsewhere.
            self.router.move_away(environment, 0);
        }
        self.close_if_revoked(credential).await;
        if let Some(generation) = generation {
            while !self.claim(environment, generation).await {
                sleep(RETRY_INTERVAL).await;
            }
        }
        future::pending().await
    }

    /// Reports to the directory and the other nodes that the environment has connected here.
    /// Returns whether the directory responded.
    async fn claim(&self, environment: &EnvironmentId, generation: u64) -> bool {
        let claimed = self.directory.claim(environment, generation, &self.node).await;
        if claimed.is_ok()
            && let Some(bus) = &self.bus
        {
            let (environment, node) = (environment.clone(), self.node.clone());
            bus.announce(&Moved { environment, node }).await;
        }
        self.close_if_replaced("claim", environment, generation, claimed)
    }

    /// Reports to the directory that the environment is still here, if it is. Returns `false` if
    /// the directory does not respond.
    async fn renew(&self, environment: &EnvironmentId, generation: u64) -> bool {
        let is_here = || self.router.online_generation(environment) == Some(generation);
        if !is_here() {
            return true;
        }
        let renewed = self.directory.renew(environment, generation, &self.node).await;
        if renewed.is_ok() && !is_here() {
            // The environment has left in the meantime, and the renewal may have arrived after the
            // release.
            let released = self.directory.release(environment, generation, &self.node).await;
            self.report("release", environment, released);
        }
        self.close_if_replaced("renew", environment, generation, renewed)
    }

    /// Closes the environment's socket if a newer registration, or another node, has taken over.
    /// Returns whether the directory responded.
    fn close_if_replaced(
        &self,
        call: &'static str,
        environment: &EnvironmentId,
        generation: u64,
        outcome: Result<(), DirectoryError>,
    ) -> bool {
        match outcome {
            Ok(()) => true,
            Err(DirectoryError::Conflict) => {
                self.router.close_older_than(environment, generation + 1);
                true
            }
            Err(error) => {
                self.report(call, environment, Err(error));
                false
            }
        }
    }

    /// Handles the news that an environment has connected to another node. The news may be
    /// outdated, so the directory decides about a socket that is here.
    pub(crate) async fn move_away(&self, environment: &EnvironmentId) {
        let generation = self.router.online_generation(environment);
        if let Some(generation) = generation {
            match self.directory.renew(environment, generation, &self.node).await {
                Err(DirectoryError::Conflict) => {}
                outcome => return self.report("renew", environment, outcome),
            }
        }
        self.router.move_away(environment, generation.map_or(0, |generation| generation + 1));
    }

    /// Reports to the directory the status of this node, and the environments that are here.
    pub(crate) async fn renew_all(&self) {
        self.tell_status().await;
        let renewals = stream::iter(self.router.online());
        let renewals = renewals.for_each_concurrent(RENEWED_AT_ONCE, async |renewed| {
            let (environment, generation) = renewed;
            self.renew(&environment, generation).await;
        });
        renewals.await;
    }

    pub(crate) async fn tell_status(&self) {
        let put = self.directory.put_node(self.node_status()).await;
        self.report("put_node", &self.node, put);
    }

    fn node_status(&self) -> NodeStatus {
        let environments = self.router.status();
        let counters = &self.router.counters;
        NodeStatus {
            id: self.node.clone(),
            url: self.registry.node_url().to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started: since_1970(self.status.started()),
            routing: self.status.routing().to_owned(),
            environments: environments.iter().filter(|(_, status)| status.is_online).count(),
            streams: environments.iter().map(|(_, status)| status.streams).sum(),
            frames: counters.frames.load(Ordering::Relaxed),
            bytes: counters.bytes.load(Ordering::Relaxed),
            is_leaving: self.is_leaving(),
        }
    }

    /// Finds environments that were lost here and are at another node by now. Their harnesses
    /// reconnect and are directed there.
    pub(crate) async fn follow_moved(&self) {
        for environment in self.router.awaited() {
            match self.registry.is_elsewhere(&environment).await {
                // If the environment has reconnected here in the meantime, nothing happens.
                Ok(true) => self.router.move_away(&environment, 0),
                Ok(false) => {}
                Err(error) => return self.report("lookup", &environment, Err(error)),
            }
        }
    }

    /// Checks all credentials, since revocations may have been missed.
    pub(crate) async fn close_all_revoked(&self) {
        for credential in self.router.credentials() {
            self.close_if_revoked(&credential).await;
        }
    }

    /// Closes the sockets of a revoked credential. Retries until the directory responds.
    async fn close_if_revoked(&self, credential: &CredentialId) {
        loop {
            match self.directory.credential(credential).await {
                Ok(Some(_)) => return,
                Ok(None) => return self.router.close_credential(credential),
                Err(error) => self.report("credential", credential, Err(error)),
            }
            sleep(RETRY_INTERVAL).await;
        }
    }

    /// Logs a failed call of the directory. `key`: the environment, credential or node.
    fn report(
        &self,
        call: &'static str,
        key: impl fmt::Display,
        outcome: Result<(), DirectoryError>,
    ) {
        if let Err(error) = outcome {
            tracing::error!(call, %key, error = with_sources(&error), "the store failed");
        }
    }
}
