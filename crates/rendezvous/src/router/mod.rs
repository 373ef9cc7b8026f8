//! Carries frames between the sockets of harnesses and environments. Reads only the stream id of a
//! frame, and forwards its bytes unchanged.
//!
//! The socket of a harness that does not read is closed, since waiting for it would stall the
//! environment's other streams. While an environment does not read, the router does not read from
//! its harnesses.

mod environment;
mod frame_queue;
mod read_limits;
mod socket;
mod stream_table;

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use exec_server_relay::frame::MAX_FRAME_BYTES;
use exec_server_transport::{CloseCode, Connection, MemoryBudget};
use tokio::time::Instant;

use crate::config::{Quotas, RendezvousConfig};
use crate::credential::CredentialId;
use crate::environment_id::EnvironmentId;
use crate::quota::{ByteBudget, Counted, Counts, PerKey, RateLimits};
pub(crate) use environment::EnvironmentStatus;
use environment::{Environment, Socket};
pub(crate) use frame_queue::{Closing, FrameQueue, Full};
pub(crate) use read_limits::ReadLimits;
pub(crate) use socket::write_frames;
use stream_table::StreamTable;

/// The minimum size of a queue, which has room for the largest frame.
const LEAST_QUEUE: usize = 2 * MAX_FRAME_BYTES;

const REPLACED: Closing =
    Closing::new(CloseCode::Policy, "a newer socket or registration replaced this one");
const REVOKED: Closing = Closing::new(CloseCode::Policy, "the credential was revoked");
pub(crate) const MOVED: Closing =
    Closing::new(CloseCode::Restart, "the environment has left its node");
pub(crate) const ENDED: Closing = Closing::new(CloseCode::Normal, "");
pub(crate) const RESTARTING: Closing = Closing::new(CloseCode::Restart, "service restart");
pub(crate) const SLOW: Closing = Closing::new(CloseCode::Policy, "this socket is read too slowly");
pub(crate) const TEXT: Closing = Closing::new(CloseCode::Unsupported, "frames are binary messages");

#[derive(Debug)]
pub(crate) struct Router {
    quotas: Quotas,
    stream_grace: Duration,
    environment_grace: Duration,
    environments: Mutex<HashMap<EnvironmentId, Arc<Environment>>>,
    /// Whether the service is shutting down, so that new sockets are closed at once. Set while
    /// `environments` is locked.
    is_closed: AtomicBool,
    next_socket: AtomicU64,
    frames_of_credentials: RateLimits<CredentialId>,
    frames_of_environments: RateLimits<EnvironmentId>,
    streams_of_credentials: Arc<Counts<CredentialId>>,
    credential_budgets: PerKey<CredentialId, ByteBudget>,
    environment_budgets: PerKey<EnvironmentId, ByteBudget>,
    unfinished_frames: PerKey<CredentialId, MemoryBudget>,
    sockets_of_credentials: Arc<Counts<CredentialId>>,
    sockets_of_environments: Arc<Counts<EnvironmentId>>,
    sockets: Arc<Counts<()>>,
    queued_bytes: Arc<ByteBudget>,
    pub(crate) counters: Counters,
}

/// Counted since the service started.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) frames: AtomicU64,
    pub(crate) bytes: AtomicU64,
    /// Frames without a destination, or without room.
    pub(crate) dropped: AtomicU64,
    pub(crate) malformed: AtomicU64,
    /// Harness sockets that were closed because frames of the environment filled their queue.
    pub(crate) slow: AtomicU64,
    /// Requests answered with an error, and streams refused with a reset.
    pub(crate) refusals: AtomicU64,
}

/// An admitted socket.
#[derive(Debug)]
pub(crate) struct SocketGrant {
    pub(crate) environment: EnvironmentId,
    pub(crate) credential: CredentialId,
    pub(crate) expires: Option<SystemTime>,
    pub(crate) end: RelayEnd,
    /// Counts the socket against its limits.
    pub(crate) permit: SocketPermit,
}

#[derive(Debug)]
pub(crate) enum RelayEnd {
    Environment { generation: u64 },
    Harness,
}

/// An attached socket. It is detached however its task ends.
struct Attached {
    environment: Arc<Environment>,
    socket: Arc<Socket>,
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.socket.queue.close(ENDED);
        let now = Instant::now();
        self.environment.detach(self.socket.id, now);
        self.environment.remove_harness(self.socket.id, now);
    }
}

#[derive(Debug)]
pub(crate) struct SocketPermit {
    _credential: Counted<CredentialId>,
    _environment: Option<Counted<EnvironmentId>>,
    _service: Counted<()>,
}

impl Router {
    pub(crate) fn new(config: &RendezvousConfig) -> Self {
        let quotas = config.quotas;
        Self {
            quotas,
            stream_grace: config.stream_grace,
            environment_grace: config.environment_grace,
            environments: Mutex::default(),
            is_closed: AtomicBool::new(false),
            next_socket: AtomicU64::new(0),
            frames_of_credentials: frame_rates(quotas.frames_per_second_per_credential),
            frames_of_environments: frame_rates(quotas.frames_per_second_per_environment),
            streams_of_credentials: Counts::new(quotas.streams_per_credential),
            credential_budgets: byte_budgets(quotas.queued_bytes_per_credential),
            environment_budgets: byte_budgets(quotas.queued_bytes_per_environment),
            unfinished_frames: PerKey::new(move || {
                MemoryBudget::new(quotas.unfinished_bytes_per_credential)
            }),
            sockets_of_credentials: Counts::new(quotas.sockets_per_credential),
            sockets_of_environments: Counts::new(quotas.sockets_per_environment),
            sockets: Counts::new(quotas.sockets),
            queued_bytes: Arc::new(ByteBudget::new(quotas.queued_bytes)),
            counters: Counters::default(),
        }
    }

    pub(crate) fn queued_bytes(&self) -> usize {
        self.queued_bytes.used()
    }

    /// Counts a new socket. Returns `None` if the credential, the environment or the service has
    /// too many.
    pub(crate) fn permit(
        &self,
        credential: &CredentialId,
        harness_of: Option<&EnvironmentId>,
    ) -> Option<SocketPermit> {
        let environment = match harness_of {
            None => None,
            Some(environment) => Some(self.sockets_of_environments.try_add(environment)?),
        };
        let credential = self.sockets_of_credentials.try_add(credential)?;
        let service = self.sockets.try_add(&())?;
        Some(SocketPermit { _credential: credential, _environment: environment, _service: service })
    }

    /// Returns the generation of the registration whose socket is here.
    pub(crate) fn online_generation(&self, environment: &EnvironmentId) -> Option<u64> {
        self.lock().get(environment)?.online_generation()
    }

    /// Serves one socket until it ends. Returns whether the environment went offline with it.
    pub(crate) async fn serve(&self, connection: Connection, grant: SocketGrant) -> bool {
        let SocketGrant { environment: id, credential, expires, end, permit } = grant;
        let harness_of = matches!(end, RelayEnd::Harness).then_some(&id);
        let limits = self.read_limits(&credential, harness_of);
        let socket = Arc::new(Socket {
            id: self.next_socket.fetch_add(1, Ordering::Relaxed),
            queue: self.new_queue(&credential, harness_of),
            credential,
            expires,
        });
        let attached = Attached { environment: self.add(&id, &socket, &end), socket };
        let (socket, environment) = (&attached.socket, &attached.environment);
        let is_environment = matches!(end, RelayEnd::Environment { .. });
        let credential = &socket.credential;
        tracing::info!(environment = %id, is_environment, %credential, "socket opened");
        let relay = socket::Relay { router: self, environment, socket, limits };
        let offline = match end {
            RelayEnd::Environment { .. } => {
                relay.serve_environment(connection).await;
                environment.detach(socket.id, Instant::now())
            }
            RelayEnd::Harness => {
                relay.serve_harness(connection).await;
                false
            }
        };
        tracing::info!(environment = %id, is_environment, %credential, "socket closed");
        drop(permit);
        offline
    }

    pub(crate) fn read_limits(
        &self,
        credential: &CredentialId,
        harness_of: Option<&EnvironmentId>,
    ) -> ReadLimits {
        let mut frame_rates = vec![self.frames_of_credentials.of(credential)];
        frame_rates.extend(harness_of.map(|id| self.frames_of_environments.of(id)));
        ReadLimits::new(frame_rates, self.unfinished_frames.of(credential))
    }

    /// Creates a queue that is charged to the credential, to the service and, for a harness, to the
    /// environment.
    pub(crate) fn new_queue(
        &self,
        credential: &CredentialId,
        harness_of: Option<&EnvironmentId>,
    ) -> FrameQueue {
        let mut budgets =
            vec![self.credential_budgets.of(credential), Arc::clone(&self.queued_bytes)];
        budgets.extend(harness_of.map(|id| self.environment_budgets.of(id)));
        FrameQueue::new(self.quotas.queued_bytes_per_socket.max(LEAST_QUEUE), budgets)
    }

    /// Adds a socket to its environment. All environments are locked, so that this one is not
    /// forgotten in the meantime.
    fn add(&self, id: &EnvironmentId, socket: &Arc<Socket>, end: &RelayEnd) -> Arc<Environment> {
        let mut environments = self.lock();
        let (max, of_credentials) =
            (self.quotas.streams_per_environment, &self.streams_of_credentials);
        let new = || {
            let streams = StreamTable::new(max, Arc::clone(of_credentials));
            Arc::new(Environment::new(streams, Instant::now()))
        };
        let environment = environments.entry(id.clone()).or_insert_with(new);
        match end {
            RelayEnd::Environment { generation } => {
                environment.attach(Arc::clone(socket), *generation);
            }
            RelayEnd::Harness => environment.add_harness(Arc::clone(socket)),
        }
        if self.is_closed.load(Ordering::Relaxed) {
            socket.queue.close(RESTARTING);
        }
        Arc::clone(environment)
    }

    /// Ends expired streams and sockets, and forgets unused environments. Called at least once a
    /// second.
    pub(crate) fn sweep(&self, now: Instant, wall: SystemTime) {
        let mut environments = self.lock();
        let (stream_grace, environment_grace) = (self.stream_grace, self.environment_grace);
        environments.retain(|_, environment| {
            environment.sweep(now, wall, stream_grace, environment_grace);
            !environment.is_unused(now, stream_grace.max(environment_grace))
        });
        drop(environments);
        self.frames_of_credentials.forget_idle(now);
        self.frames_of_environments.forget_idle(now);
    }

    /// Closes the environment's socket if its registration is older than this generation. A newer
    /// registration, or another node, has taken over.
    pub(crate) fn close_older_than(&self, environment: &EnvironmentId, generation: u64) {
        if let Some(environment) = self.lock().get(environment) {
            environment.close_older_than(generation);
        }
    }

    /// Closes the sockets here of an environment that has left, or has its socket at another node,
    /// so that its harnesses follow. Does nothing if a registration of at least this generation has
    /// its socket here.
    pub(crate) fn move_away(&self, environment: &EnvironmentId, generation: u64) {
        if let Some(environment) = self.lock().get(environment) {
            environment.move_away(generation);
        }
    }

    pub(crate) fn close_credential(&self, credential: &CredentialId) {
        self.lock().values().for_each(|environment| environment.close_credential(credential));
    }

    /// Returns the credentials of all sockets that the router serves.
    pub(crate) fn credentials(&self) -> Vec<CredentialId> {
        let environments = self.lock();
        let mut credentials: Vec<_> =
            environments.values().flat_map(|environment| environment.credentials()).collect();
        credentials.sort_unstable();
        credentials.dedup();
        credentials
    }

    /// Closes the sockets of an environment and its harnesses, which reconnect to other nodes.
    pub(crate) fn close_environment(&self, environment: &EnvironmentId) {
        if let Some(environment) = self.lock().get(environment) {
            environment.close_all(&RESTARTING);
        }
    }

    /// Returns the environments that harnesses wait for here.
    pub(crate) fn awaited(&self) -> Vec<EnvironmentId> {
        let environments = self.lock();
        let is_awaited = |environment: &Environment| {
            let status = environment.status();
            !status.is_online && status.harnesses > 0
        };
        let awaited = environments.iter().filter(|(_, environment)| is_awaited(environment));
        awaited.map(|(id, _)| id.clone()).collect()
    }

    /// Closes everything because the service is shutting down; peers reconnect at once.
    pub(crate) fn close_all(&self) {
        let environments = self.lock();
        self.is_closed.store(true, Ordering::Relaxed);
        environments.values().for_each(|environment| environment.close_all(&RESTARTING));
    }

    /// Returns the environments whose socket is here, with the generations of their registrations.
    pub(crate) fn online(&self) -> Vec<(EnvironmentId, u64)> {
        let environments = self.lock();
        let online = environments
            .iter()
            .filter_map(|(id, environment)| Some((id.clone(), environment.online_generation()?)));
        online.collect()
    }

    pub(crate) fn status(&self) -> Vec<(EnvironmentId, EnvironmentStatus)> {
        let environments = self.lock();
        let mut all: Vec<_> =
            environments.iter().map(|(id, it)| (id.clone(), it.status())).collect();
        all.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        all
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<EnvironmentId, Arc<Environment>>> {
        self.environments.lock().expect("no code panics while it holds the environments")
    }
}

fn byte_budgets<K: Clone + Eq + Hash>(limit: usize) -> PerKey<K, ByteBudget> {
    PerKey::new(move || ByteBudget::new(limit))
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Allows bursts of one second's frames.
fn frame_rates<K: Clone + Eq + Hash>(per_second: u32) -> RateLimits<K> {
    RateLimits::new(per_second, per_second)
}
