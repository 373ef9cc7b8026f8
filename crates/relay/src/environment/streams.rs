//! The streams of an environment, and the handling of each frame.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use exec_server_protocol::{Principal, Subject};
use exec_server_transport::Connection;
use tokio::task::{self, AbortHandle, JoinError, JoinSet};

use super::Serve;
use super::handshakes::{Authorized, Refusal, Registration};
use crate::frame::{Body, Frame, ResetReason, StreamId};
use crate::noise::Identity;
use crate::registry::RegistryClient;
use crate::socket::{loose_frame, reset};
use crate::stream::{Handled, Liveness, Stream, TransmitQueue};

const MAX_STREAMS: usize = 128;
const MAX_HANDSHAKES: usize = 32;
/// How many handshakes may fail on one socket. The next failure closes the socket.
const MAX_FAILURES: u32 = 7;

/// How long the tasks that serve streams may take to notice the end of the environment.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// A disconnected harness reconnects within 25 s, or never.
const LIVENESS: Liveness =
    Liveness { heartbeat: Duration::from_secs(30), silence_limit: Duration::from_secs(90) };

/// Whether the caller must close the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    GoOn,
    /// Too many handshakes have failed.
    Close,
}

pub(super) struct Streams {
    registration: Registration,
    serve: Serve,
    queue: Arc<TransmitQueue>,
    slots: HashMap<StreamId, Slot>,
    handshakes: JoinSet<(StreamId, Result<Authorized, Refusal>)>,
    serving: JoinSet<StreamId>,
    failures: u32,
    accepts: Accepts,
}

enum Slot {
    /// Waits for the registry.
    Pending {
        handshake: AbortHandle,
        peer_acknowledges: bool,
    },
    Open {
        stream: Arc<Stream>,
        serving: AbortHandle,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Accepts {
    NewStreams,
    Nothing,
}

impl Streams {
    pub(super) fn new(
        registry: Arc<RegistryClient>,
        identity: Arc<Identity>,
        serve: Serve,
    ) -> Self {
        Self {
            registration: Registration { registry, identity, id: String::new() },
            serve,
            queue: Arc::default(),
            slots: HashMap::new(),
            handshakes: JoinSet::new(),
            serving: JoinSet::new(),
            failures: 0,
            accepts: Accepts::NewStreams,
        }
    }

    pub(super) fn queue(&self) -> &Arc<TransmitQueue> {
        &self.queue
    }

    pub(super) fn register_as(&mut self, registration_id: &str) {
        registration_id.clone_into(&mut self.registration.id);
    }

    pub(super) fn refuse_new(&mut self) {
        self.accepts = Accepts::Nothing;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.serving.is_empty()
    }

    pub(super) fn handle_frame(&mut self, frame: Frame) -> Verdict {
        match self.slots.get_mut(&frame.stream_id) {
            None => self.handle_unknown(frame),
            Some(Slot::Open { stream, .. }) => {
                if stream.handle_frame(frame) == Handled::SecondHandshake {
                    let reset = reset(stream.id(), ResetReason::NOISE_PROTOCOL_ERROR);
                    self.queue.push_frame(reset);
                }
                Verdict::GoOn
            }
            Some(Slot::Pending { handshake, peer_acknowledges }) => match frame.body {
                Body::Ack => {
                    *peer_acknowledges = true;
                    Verdict::GoOn
                }
                Body::Resume { .. } | Body::Heartbeat => Verdict::GoOn,
                Body::Reset { .. } => {
                    handshake.abort();
                    self.slots.remove(&frame.stream_id);
                    Verdict::GoOn
                }
                Body::Handshake { .. } | Body::Data { .. } => {
                    handshake.abort();
                    self.slots.remove(&frame.stream_id);
                    self.refuse(
                        frame.stream_id,
                        "it sent data or another handshake before its handshake was answered",
                    )
                }
            },
        }
    }

    fn handle_unknown(&mut self, Frame { stream_id, body, .. }: Frame) -> Verdict {
        match body {
            Body::Handshake { payload } => self.begin_handshake(stream_id, payload),
            // The first frames of a harness that opens a stream, or the end of a stream that is
            // already gone.
            Body::Resume { next_seq: 0 } | Body::Ack | Body::Reset { .. } => Verdict::GoOn,
            // A harness that continues an unknown stream must learn that it does not exist.
            Body::Resume { .. } | Body::Heartbeat | Body::Data { .. } => {
                self.queue.push_frame(reset(stream_id, ResetReason::UNKNOWN_STREAM));
                Verdict::GoOn
            }
        }
    }

    fn begin_handshake(&mut self, stream_id: StreamId, message: Bytes) -> Verdict {
        let is_full = self.slots.len() >= MAX_STREAMS || self.handshakes.len() >= MAX_HANDSHAKES;
        if is_full || self.accepts == Accepts::Nothing {
            self.queue.push_frame(reset(stream_id, ResetReason::LIMIT_REACHED));
            return Verdict::GoOn;
        }
        let (registration, id) = (self.registration.clone(), stream_id);
        let handshake = self.handshakes.spawn(async move {
            let outcome = registration.shake_hands(&id, &message).await;
            (id, outcome)
        });
        self.slots.insert(stream_id, Slot::Pending { handshake, peer_acknowledges: false });
        Verdict::GoOn
    }

    fn refuse(&mut self, stream_id: StreamId, reason: &str) -> Verdict {
        self.failures += 1;
        tracing::info!(stream = %stream_id, reason, failures = self.failures, "refused a harness");
        self.queue.push_frame(reset(stream_id, ResetReason::NOISE_PROTOCOL_ERROR));
        if self.failures > MAX_FAILURES { Verdict::Close } else { Verdict::GoOn }
    }

    /// Waits until a handshake or a stream ends, and handles its result. Cancel-safe.
    pub(super) async fn progress(&mut self) -> Verdict {
        tokio::select! {
            Some(finished) = self.handshakes.join_next_with_id() => match finished {
                Ok((task, (stream, outcome))) => self.finish_handshake(task, stream, outcome),
                Err(error) => {
                    self.abandon_handshake(&error);
                    Verdict::GoOn
                }
            },
            Some(ended) = self.serving.join_next() => {
                match ended {
                    Ok(id) => drop(self.slots.remove(&id)),
                    Err(error) => self.abandon_stream_of(&error),
                }
                Verdict::GoOn
            }
            else => std::future::pending().await,
        }
    }

    fn finish_handshake(
        &mut self,
        task: task::Id,
        stream_id: StreamId,
        outcome: Result<Authorized, Refusal>,
    ) -> Verdict {
        if self.accepts == Accepts::Nothing {
            self.slots.remove(&stream_id);
            self.queue.push_frame(reset(stream_id, ResetReason::LIMIT_REACHED));
            return Verdict::GoOn;
        }
        let peer_acknowledges = match self.slots.get(&stream_id) {
            Some(Slot::Pending { handshake, peer_acknowledges }) if handshake.id() == task => {
                *peer_acknowledges
            }
            // The handshake was aborted just as it finished.
            _ => return Verdict::GoOn,
        };
        let Authorized { answer, channel, subject } = match outcome {
            Ok(authorized) => authorized,
            Err(refusal) if refusal.is_undecided() => {
                self.slots.remove(&stream_id);
                self.queue.push_frame(reset(stream_id, ResetReason::LIMIT_REACHED));
                return Verdict::GoOn;
            }
            Err(refusal) => {
                self.slots.remove(&stream_id);
                return self.refuse(stream_id, &crate::with_sources(&refusal));
            }
        };
        let answer = loose_frame(stream_id, Body::Handshake { payload: answer });
        self.queue.push_frame(answer);
        let queue = Arc::clone(&self.queue);
        let stream = Stream::new(stream_id, channel, LIVENESS, peer_acknowledges, queue);
        let principal = Principal::new(Subject::Relayed(subject));
        let subject = &principal.subject;
        tracing::info!(stream = %stream_id, %subject, "a harness opened a stream");
        let connection = Connection { principal, ..stream.connection() };
        let (served, timed) = ((self.serve)(connection), Arc::clone(&stream));
        let serving = self.serving.spawn(async move {
            tokio::join!(served, timed.run_timers());
            stream_id
        });
        self.slots.insert(stream_id, Slot::Open { stream, serving });
        Verdict::GoOn
    }

    /// Continues the streams over the new socket if their harnesses acknowledge. Handshakes were
    /// lost with the old socket: their harnesses must start over.
    pub(super) fn replace_socket(&mut self) {
        self.failures = 0;
        for slot in self.slots.values() {
            if let Slot::Open { stream, .. } = slot {
                stream.replace_socket();
            }
        }
    }

    pub(super) fn lose_socket(&mut self) {
        self.handshakes.abort_all();
        self.slots.retain(|_, slot| match slot {
            Slot::Open { stream, .. } => {
                stream.lose_socket();
                true
            }
            Slot::Pending { .. } => false,
        });
        self.queue.clear();
    }

    /// Frees the slot of a handshake that panicked. An aborted handshake no longer has a slot.
    fn abandon_handshake(&mut self, error: &JoinError) {
        self.slots.retain(|id, slot| match slot {
            Slot::Pending { handshake, .. } if handshake.id() == error.id() => {
                if error.is_panic() {
                    tracing::error!(stream = %id, %error, "the task of a handshake panicked");
                }
                false
            }
            Slot::Pending { .. } | Slot::Open { .. } => true,
        });
    }

    /// Drops the stream whose task panicked. Its timers ended with the task.
    fn abandon_stream_of(&mut self, error: &JoinError) {
        let mut id = None;
        self.slots.retain(|stream_id, slot| match slot {
            Slot::Open { stream, serving } if serving.id() == error.id() => {
                stream.abandon();
                id = Some(stream_id.to_string());
                false
            }
            Slot::Open { .. } | Slot::Pending { .. } => true,
        });
        tracing::error!(stream = id, %error, "the task of a stream panicked");
    }

    pub(super) async fn end_all(&mut self) {
        self.handshakes.abort_all();
        for slot in self.slots.values() {
            if let Slot::Open { stream, .. } = slot {
                stream.abandon();
            }
        }
        let all = async { while self.serving.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(END_TIMEOUT, all).await;
    }

    /// Waits for `other`, and handles handshakes and streams that end in the meantime.
    pub(super) async fn reap_during<T>(&mut self, other: impl Future<Output = T>) -> T {
        let mut other = std::pin::pin!(other);
        loop {
            tokio::select! {
                done = &mut other => return done,
                _ = self.progress() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use exec_server_transport::TlsOptions;
    use rand_core::OsRng;

    use super::*;
    use crate::registry::BearerToken;

    #[tokio::test]
    async fn a_handshake_that_panics_frees_its_slot() {
        let credentials = Arc::new(BearerToken::Value("secret".to_owned()));
        let tls = TlsOptions::default();
        let registry = RegistryClient::new("http://127.0.0.1", "box", credentials, &tls).unwrap();
        let identity = Arc::new(Identity::generate(&mut OsRng));
        let mut streams =
            Streams::new(Arc::new(registry), identity, Arc::new(|_| Box::pin(async {})));
        let handshake = streams.handshakes.spawn(async { panic!("for the test") });
        let slot = Slot::Pending { handshake, peer_acknowledges: false };
        streams.slots.insert(StreamId::random(), slot);
        assert_eq!(streams.progress().await, Verdict::GoOn);
        assert!(streams.slots.is_empty());
    }
}
