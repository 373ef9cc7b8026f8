//! The requesting end: opens a stream to an environment, and keeps it over lost sockets.
//!
//! Each physical connection needs a fresh bundle from the registry, because a bundle is valid once.
//! A stream whose peer acknowledges continues over the next socket with the same id and the same
//! keys. With any other peer the stream ends with its socket, and the client opens a new stream.

mod provider;
mod recovery;

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use exec_server_transport::{CloseCode, Connection, MalformedMessage, Received, TlsOptions};
use rand_core::OsRng;
use tokio::time::{Instant, interval_at, sleep, timeout};

use crate::frame::{Body, Frame, FrameError, ResetReason, StreamId};
use crate::noise::{Channel, HandshakeError, HarnessHandshake, Identity, Prologue};
use crate::socket::{self, SocketError, loose_frame, write_frames};
use crate::stream::{Handled, Liveness, Stream, TransmitQueue};
pub use provider::{
    NoiseRendezvousConnectBundle, NoiseRendezvousConnectProvider, ProviderError, Providing,
    RegistryProvider,
};
use recovery::{Lost, Pauses, Recovery};

/// How long first contact is retried. A machine that has just started, or whose link was lost, is
/// usually reachable within this time.
const FIRST_CONTACT: Duration = Duration::from_secs(10);
/// Limit for handshake and validation, from the first frame to the last.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a silent environment is asked whether it knows the stream.
const HANDSHAKE_HEARTBEAT: Duration = Duration::from_secs(1);

/// An environment that lost its socket reconnects within half a minute.
const LIVENESS: Liveness =
    Liveness { heartbeat: Duration::from_secs(10), silence_limit: Duration::from_secs(45) };

/// Why no stream could be opened.
#[derive(Debug, thiserror::Error)]
pub enum HarnessError {
    #[error(transparent)]
    Provider(#[from] ProviderError),
    #[error("cannot connect to the rendezvous")]
    Socket(#[from] SocketError),
    #[error("the encrypted handshake with the environment failed")]
    Handshake(#[from] HandshakeError),
    #[error("the environment or the rendezvous refused the stream ({reason})")]
    Refused { reason: ResetReason },
    #[error("the environment did not answer within {}s", HANDSHAKE_TIMEOUT.as_secs())]
    TimedOut,
    #[error("the connection to the rendezvous ended during the handshake")]
    ClosedEarly,
    #[error("received an invalid frame during the handshake")]
    InvalidFrame(#[from] FrameError),
    #[error("received a malformed message during the handshake")]
    MalformedMessage(#[from] MalformedMessage),
    #[error("the environment sent data before it answered the handshake")]
    EarlyData,
}

impl HarnessError {
    /// Returns whether another attempt may succeed.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Provider(error) => error.is_temporary(),
            Self::Socket(error) => error.is_temporary(),
            Self::Refused { .. }
            | Self::TimedOut
            | Self::ClosedEarly
            | Self::InvalidFrame(_)
            | Self::MalformedMessage(_)
            | Self::EarlyData => true,
            Self::Handshake(_) => false,
        }
    }
}

impl HarnessError {
    /// Returns whether [`Harness::connect`] tries again until [`FIRST_CONTACT`] has passed.
    fn is_retried_at_first_contact(&self) -> bool {
        match self {
            Self::Provider(_) | Self::Socket(_) | Self::ClosedEarly => self.is_temporary(),
            // Many clients arrive at once, as after a restart; or the environment lost its socket,
            // and the handshake with it.
            Self::Refused { reason } => {
                [ResetReason::LIMIT_REACHED, ResetReason::UNKNOWN_STREAM].contains(reason)
            }
            Self::Handshake(_)
            | Self::TimedOut
            | Self::InvalidFrame(_)
            | Self::MalformedMessage(_)
            | Self::EarlyData => false,
        }
    }
}

/// One client of an environment. Its identity lasts as long as this value.
pub struct Harness {
    provider: Arc<dyn NoiseRendezvousConnectProvider>,
    identity: Identity,
    tls: TlsOptions,
}

impl Harness {
    #[must_use]
    pub fn new(provider: Arc<dyn NoiseRendezvousConnectProvider>, tls: TlsOptions) -> Self {
        Self { provider, identity: Identity::generate(&mut OsRng), tls }
    }

    /// Opens a stream. A task carries it until the returned connection is closed or the stream is
    /// lost.
    ///
    /// Retries for a while if the registry, the rendezvous or the environment is unavailable, and
    /// once if the environment does not answer the handshake.
    pub async fn connect(self: &Arc<Self>) -> Result<Connection, HarnessError> {
        let began = Instant::now();
        let mut pauses = Pauses::default();
        let mut has_timed_out = false;
        loop {
            match self.open_stream().await {
                Ok(connection) => return Ok(connection),
                Err(error) => {
                    let pause = pauses.next_pause();
                    let is_retried = match error {
                        // Retried once: the response may have been lost with a socket of the
                        // environment.
                        HarnessError::TimedOut => !mem::replace(&mut has_timed_out, true),
                        _ => {
                            error.is_retried_at_first_contact()
                                && began.elapsed() + pause <= FIRST_CONTACT
                        }
                    };
                    if !is_retried {
                        return Err(error);
                    }
                    tracing::debug!(
                        error = crate::with_sources(&error),
                        ?pause,
                        "cannot open a stream yet"
                    );
                    sleep(pause).await;
                }
            }
        }
    }

    async fn open_stream(self: &Arc<Self>) -> Result<Connection, HarnessError> {
        let bundle = self.provider.connect_bundle(self.identity.public_key()).await?;
        let mut connection = socket::open(&bundle.websocket_url, &self.tls).await?;
        let opening = Opening::new(self, &bundle)?;
        let finished = timeout(HANDSHAKE_TIMEOUT, opening.run(&mut connection)).await;
        let (id, channel) = finished.map_err(|_| HarnessError::TimedOut)??;
        let queue = Arc::<TransmitQueue>::default();
        let stream = Stream::new(id, channel, LIVENESS, false, Arc::clone(&queue));
        let carrier = Carrier {
            stream: Arc::clone(&stream),
            queue,
            recovery: Recovery::new(Arc::clone(self), bundle.executor_public_key),
        };
        let application = stream.connection();
        // The task ends with the stream, which ends with the connection.
        tokio::spawn(carrier.run(connection));
        Ok(application)
    }
}

impl fmt::Debug for Harness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Harness").field("provider", &self.provider).finish_non_exhaustive()
    }
}

struct Opening {
    id: StreamId,
    handshake: HarnessHandshake,
    message: Bytes,
}

impl Opening {
    fn new(harness: &Harness, bundle: &NoiseRendezvousConnectBundle) -> Result<Self, HarnessError> {
        let id = StreamId::random();
        let prologue = Prologue {
            environment_id: &bundle.environment_id,
            registration_id: &bundle.executor_registration_id,
            stream_id: id.as_str(),
        };
        let (handshake, message) = HarnessHandshake::start(
            &harness.identity,
            &bundle.executor_public_key,
            &prologue,
            &bundle.harness_key_authorization,
        )?;
        Ok(Self { id, handshake, message })
    }

    async fn run(self, connection: &mut Connection) -> Result<(StreamId, Channel), HarnessError> {
        let Self { id, handshake, message } = self;
        let hello = [
            Body::Resume { next_seq: 0 },
            Body::Handshake { payload: message },
            // Shows that this end acknowledges, before the environment answers the handshake.
            Body::Ack,
        ];
        for body in hello {
            push(connection, &loose_frame(id, body));
        }
        connection.outgoing.flush().await.map_err(|_| HarnessError::ClosedEarly)?;
        let mut heartbeats = interval_at(Instant::now() + HANDSHAKE_HEARTBEAT, HANDSHAKE_HEARTBEAT);
        loop {
            let message = tokio::select! {
                received = connection.incoming.recv() => match received {
                    Some(Received::Message(message)) => message,
                    Some(Received::Malformed(error)) => return Err(error.into()),
                    None => return Err(HarnessError::ClosedEarly),
                },
                _ = heartbeats.tick() => {
                    push(connection, &loose_frame(id, Body::Heartbeat));
                    connection.outgoing.flush().await.map_err(|_| HarnessError::ClosedEarly)?;
                    continue;
                }
                () = connection.outgoing.control_pending() => {
                    connection.outgoing.flush().await.map_err(|_| HarnessError::ClosedEarly)?;
                    continue;
                }
            };
            let frame = Frame::decode(message)?;
            if frame.stream_id != id {
                continue;
            }
            match frame.body {
                Body::Handshake { payload } => return Ok((id, handshake.finish(&payload)?)),
                Body::Reset { reason } => return Err(HarnessError::Refused { reason }),
                Body::Data { .. } => return Err(HarnessError::EarlyData),
                Body::Ack | Body::Resume { .. } | Body::Heartbeat => {}
            }
        }
    }
}

fn push(connection: &mut Connection, frame: &Frame) {
    frame.encode_with(|len, append| connection.outgoing.push_with(len, append));
}

/// Carries one stream over one socket after another.
struct Carrier {
    stream: Arc<Stream>,
    queue: Arc<TransmitQueue>,
    recovery: Recovery,
}

impl Carrier {
    async fn run(mut self, connection: Connection) {
        let stream = Arc::clone(&self.stream);
        tokio::join!(stream.run_timers(), async {
            self.carry(connection).await;
            stream.abandon();
        });
    }

    async fn carry(&mut self, mut connection: Connection) {
        loop {
            let since = Instant::now();
            let was_used = self.run_socket(connection).await;
            let lost = Lost { lived: since.elapsed(), was_used };
            self.stream.lose_socket();
            self.queue.clear();
            if self.stream.is_over() || !self.stream.peer_acknowledges() {
                return;
            }
            let reconnected = tokio::select! {
                reconnected = self.recovery.reconnect(lost) => reconnected,
                () = self.stream.ended() => None,
            };
            match reconnected {
                Some(replacement) => connection = replacement,
                None => return,
            }
            self.stream.replace_socket();
        }
    }

    /// Runs until the socket is lost or the stream has ended. Returns whether the socket has
    /// received a message.
    async fn run_socket(&self, connection: Connection) -> bool {
        let Connection { mut incoming, mut outgoing, .. } = connection;
        let mut was_used = false;
        {
            let mut writing = std::pin::pin!(write_frames(&mut outgoing, &self.queue));
            loop {
                let message = tokio::select! {
                    received = incoming.recv() => match received {
                        Some(Received::Message(message)) => message,
                        Some(Received::Malformed(_)) => {
                            self.stream.reset();
                            continue;
                        }
                        None => return was_used,
                    },
                    _ = &mut writing => return was_used,
                    () = self.stream.ended() => break,
                };
                was_used = true;
                self.handle_message(message);
            }
        }
        outgoing.close(CloseCode::Normal, "").await;
        was_used
    }

    fn handle_message(&self, message: Bytes) {
        let handled = match Frame::decode(message) {
            Ok(frame) if frame.stream_id != self.stream.id() => return,
            Ok(frame) => self.stream.handle_frame(frame) == Handled::Yes,
            Err(error) => {
                let stream = self.stream.id();
                let error = crate::with_sources(&error);
                tracing::debug!(%stream, error, "received an invalid frame; resetting the stream");
                false
            }
        };
        if !handled {
            self.stream.reset();
        }
    }
}
