//! The serving end: registers with the registry, waits at the rendezvous, and turns each stream
//! that a harness opens into a [`Connection`].
//!
//! Streams to harnesses that acknowledge outlive a socket: when it is lost, they wait and continue
//! on the next one.

mod handshakes;
mod streams;

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use exec_server_transport::{CloseCode, Connection, Received, TlsOptions};
use rand_core::OsRng;
use tokio::time::{Instant, sleep};

use crate::backoff::Backoff;
use crate::counters::RelayCounters;
use crate::frame::Frame;
use crate::noise::Identity;
use crate::registry::{RegisterResponse, RegistryClient, RegistryCredentials, RegistryError};
use crate::socket::{self, write_frames};
use crate::with_sources;
use streams::{Streams, Verdict};

/// Serves one connection until it ends.
pub type Serve = Arc<dyn Fn(Connection) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// An environment that is reached through a relay.
#[derive(Debug, Clone)]
pub struct RemoteEnvironmentConfig {
    /// The registry's URL.
    pub base_url: String,
    pub environment_id: String,
    /// For the log only; not sent to the registry.
    pub name: Option<String>,
    pub credentials: Arc<dyn RegistryCredentials>,
    /// The trust settings for registry and rendezvous.
    pub tls: TlsOptions,
}

impl RemoteEnvironmentConfig {
    #[must_use]
    pub fn new(
        base_url: impl Into<String>,
        environment_id: impl Into<String>,
        credentials: Arc<dyn RegistryCredentials>,
    ) -> Self {
        Self {
            base_url: base_url.into(),
            environment_id: environment_id.into(),
            name: None,
            credentials,
            tls: TlsOptions::default(),
        }
    }
}

/// The identity of the environment lasts as long as this value.
pub struct Environment {
    registry: Arc<RegistryClient>,
    tls: TlsOptions,
    identity: Arc<Identity>,
    streams: Streams,
    backoff: Backoff,
    has_registered: bool,
}

enum SocketEnd {
    /// `was_used`: the socket has received a frame.
    Lost { was_used: bool },
    /// Too many handshakes have failed.
    TooManyFailures,
    /// During the shutdown, the streams or the socket have ended.
    ShutDown,
}

impl Environment {
    pub async fn new(config: RemoteEnvironmentConfig, serve: Serve) -> Result<Self, RegistryError> {
        let RemoteEnvironmentConfig { base_url, environment_id, name, credentials, tls } = config;
        let options = tls.clone();
        let registry = tokio::task::spawn_blocking(move || {
            RegistryClient::new(&base_url, &environment_id, credentials, &options)
        });
        let registry = Arc::new(registry.await.expect("making a client does not panic")?);
        let identity = Arc::new(Identity::generate(&mut OsRng));
        tracing::info!(
            environment = registry.environment_id(),
            name = name.as_deref(),
            key = ?identity.public_key(),
            "registering with the registry"
        );
        let streams = Streams::new(Arc::clone(&registry), Arc::clone(&identity), serve);
        let backoff = Backoff::default();
        Ok(Self { registry, tls, identity, streams, backoff, has_registered: false })
    }

    /// Returns the frame counters of all sockets.
    #[must_use]
    pub fn counters(&self) -> Arc<RelayCounters> {
        Arc::clone(self.streams.queue().counters())
    }

    /// Serves until `shutdown`, then until the streams have ended or the socket is lost. Fails if
    /// the environment cannot register, and another attempt would fail too.
    pub async fn run_until(
        mut self,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), RegistryError> {
        let outcome = self.register_and_serve(shutdown).await;
        // Each stream's server must learn of the end, or its session would stay attached forever.
        self.streams.end_all().await;
        outcome
    }

    async fn register_and_serve(
        &mut self,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), RegistryError> {
        let mut shutdown = std::pin::pin!(shutdown);
        loop {
            let registration = tokio::select! {
                registered = self.register() => registered?,
                () = &mut shutdown => return Ok(()),
            };
            let Err(NeedsRegistration) = self.serve(&registration, shutdown.as_mut()).await else {
                return Ok(());
            };
        }
    }

    /// Retries failures that are temporary or [may pass](Self::may_pass), without limit.
    async fn register(&mut self) -> Result<RegisterResponse, RegistryError> {
        loop {
            match self.registry.register(self.identity.public_key()).await {
                Ok(registration) => {
                    self.has_registered = true;
                    return Ok(registration);
                }
                Err(error) if error.is_temporary() || self.may_pass(&error) => {
                    let pause = self.backoff.after_failure(rand::random());
                    let error = with_sources(&error);
                    tracing::warn!(
                        environment = self.registry.environment_id(),
                        error,
                        ?pause,
                        "cannot register with the registry; trying again"
                    );
                    self.streams.reap_during(sleep(pause)).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns whether a failure is probably temporary, because an earlier registration succeeded:
    /// a token file may be half written, and a proxy may respond for a registry that is down.
    fn may_pass(&self, error: &RegistryError) -> bool {
        self.has_registered
            && matches!(
                error,
                RegistryError::Credentials(_) | RegistryError::InvalidResponse { .. }
            )
    }

    /// Uses one registration until its URL fails; returns `Ok` on shutdown.
    async fn serve(
        &mut self,
        registration: &RegisterResponse,
        mut shutdown: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<(), NeedsRegistration> {
        self.streams.register_as(&registration.executor_registration_id);
        loop {
            let opening = socket::open(&registration.url, &self.tls);
            let opened = tokio::select! {
                opened = self.streams.reap_during(opening) => opened,
                () = &mut shutdown => return Ok(()),
            };
            let pause = match opened {
                Ok(connection) => {
                    let environment = self.registry.environment_id();
                    tracing::info!(environment, "connected to the rendezvous");
                    let since = Instant::now();
                    let end = self.run_socket(connection, shutdown.as_mut()).await;
                    match end {
                        SocketEnd::ShutDown => return Ok(()),
                        SocketEnd::Lost { was_used } => {
                            self.backoff.after_loss(since.elapsed(), was_used, rand::random())
                        }
                        SocketEnd::TooManyFailures => self.backoff.after_failure(rand::random()),
                    }
                }
                Err(error) => {
                    // The rendezvous refuses the URL, or its node is gone and a new registration
                    // leads to another node. Without the pause, two environments with one id
                    // would replace each other as fast as they can.
                    let pause = self.backoff.after_failure(rand::random());
                    let error = with_sources(&error);
                    tracing::warn!(
                        environment = self.registry.environment_id(),
                        error,
                        ?pause,
                        "cannot connect to the rendezvous; registering again (if this repeats, \
                         another environment may use the same id)"
                    );
                    tokio::select! {
                        () = self.streams.reap_during(sleep(pause)) => {}
                        () = &mut shutdown => return Ok(()),
                    }
                    return Err(NeedsRegistration);
                }
            };
            tokio::select! {
                () = self.streams.reap_during(sleep(pause)) => {}
                () = &mut shutdown => return Ok(()),
            }
        }
    }

    /// Carries frames until the socket is lost, too many handshakes have failed, or all streams
    /// have ended during the shutdown.
    async fn run_socket(
        &mut self,
        connection: Connection,
        mut shutdown: Pin<&mut impl Future<Output = ()>>,
    ) -> SocketEnd {
        let Connection { mut incoming, mut outgoing, .. } = connection;
        self.streams.replace_socket();
        let queue = Arc::clone(self.streams.queue());
        let (mut is_shutting_down, mut was_used) = (false, false);
        let end = {
            let mut writing = std::pin::pin!(write_frames(&mut outgoing, &queue));
            loop {
                tokio::select! {
                    received = incoming.recv() => match received {
                        Some(Received::Message(message)) => {
                            // An invalid frame is ignored; the socket stays open.
                            let Ok(frame) = Frame::decode(message) else { continue };
                            queue.counters().received.fetch_add(1, Ordering::Relaxed);
                            was_used = true;
                            if self.streams.handle_frame(frame) == Verdict::Close {
                                break SocketEnd::TooManyFailures;
                            }
                        }
                        Some(Received::Malformed(_)) => {}
                        None => break SocketEnd::Lost { was_used },
                    },
                    verdict = self.streams.progress() => if verdict == Verdict::Close {
                        break SocketEnd::TooManyFailures;
                    },
                    written = &mut writing => {
                        let Err(error): io::Result<_> = written;
                        let environment = self.registry.environment_id();
                        tracing::debug!(environment, %error, "cannot write to the rendezvous");
                        break SocketEnd::Lost { was_used };
                    }
                    () = &mut shutdown, if !is_shutting_down => {
                        is_shutting_down = true;
                        self.streams.refuse_new();
                    }
                }
                if is_shutting_down && self.streams.is_empty() {
                    break SocketEnd::ShutDown;
                }
            }
        };
        if let SocketEnd::TooManyFailures = end {
            // Notify the harness of the last failed handshake, too.
            while let Some(frame) = queue.next_loose_frame() {
                frame.encode_with(|len, append| outgoing.push_with(len, append));
            }
        }
        self.streams.lose_socket();
        if let SocketEnd::Lost { .. } = end {
            let environment = self.registry.environment_id();
            tracing::info!(environment, "lost the connection to the rendezvous");
        } else {
            outgoing.close(CloseCode::Normal, "").await;
        }
        if is_shutting_down { SocketEnd::ShutDown } else { end }
    }
}

/// The URL of the registration no longer works, so the environment must register again.
struct NeedsRegistration;

impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Environment").field("registry", &self.registry).finish_non_exhaustive()
    }
}
