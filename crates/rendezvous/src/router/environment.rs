//! The sockets and streams of one environment, under one lock that is never held across an await.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use exec_server_relay::frame::{Body, Frame, ResetReason, StreamId};
use exec_server_transport::CloseCode;
use tokio::time::Instant;

use super::frame_queue::{Closing, FrameQueue};
use super::stream_table::{ClaimError, SocketId, StreamTable};
use super::{MOVED, REPLACED, REVOKED};
use crate::credential::CredentialId;

const OFFLINE: Closing = Closing::new(CloseCode::Again, "the environment is offline");
const EXPIRED: Closing = Closing::new(CloseCode::Policy, "the credential has expired");

const HARNESS_GONE: ResetReason = ResetReason::from_static("harness_disconnected");
const NOT_OWNER: ResetReason = ResetReason::from_static("stream_id_in_use");
const TOO_MANY: ResetReason = ResetReason::from_static("too_many_streams");

#[derive(Debug)]
pub(super) struct Environment {
    state: Mutex<State>,
    pub(super) frames: AtomicU64,
    pub(super) bytes: AtomicU64,
}

#[derive(Debug)]
struct State {
    link: Link,
    harnesses: HashMap<SocketId, Arc<Socket>>,
    streams: StreamTable,
}

/// The link to the environment itself.
#[derive(Debug)]
enum Link {
    /// The socket belongs to the registration of this generation.
    Online {
        socket: Arc<Socket>,
        generation: u64,
    },
    Offline {
        since: Instant,
    },
}

/// A socket of a peer, and the frames queued for it.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) id: SocketId,
    pub(super) credential: CredentialId,
    pub(super) expires: Option<SystemTime>,
    pub(super) queue: FrameQueue,
}

/// The destination of a frame from a harness.
pub(super) enum Route {
    Environment(Arc<Socket>),
    /// The environment is disconnected. The harness retransmits the frame.
    Drop,
    /// The harness may not use this stream. The bytes are the reset that tells it so.
    Refuse(Bytes),
    /// The frame has no valid stream id.
    Malformed,
}

#[derive(Debug, Clone)]
pub(crate) struct EnvironmentStatus {
    pub(crate) is_online: bool,
    pub(crate) harnesses: usize,
    pub(crate) streams: usize,
    pub(crate) frames: u64,
    pub(crate) bytes: u64,
}

impl Environment {
    pub(super) fn new(streams: StreamTable, now: Instant) -> Self {
        let state =
            State { link: Link::Offline { since: now }, harnesses: HashMap::new(), streams };
        Self { state: Mutex::new(state), frames: AtomicU64::new(0), bytes: AtomicU64::new(0) }
    }

    /// Attaches a socket. The newest registration wins; among its sockets, the last one does.
    pub(super) fn attach(&self, socket: Arc<Socket>, generation: u64) {
        let mut state = self.lock();
        match &state.link {
            Link::Online { generation: current, .. } if *current > generation => {
                return socket.queue.close(REPLACED);
            }
            Link::Online { socket: before, .. } => before.queue.close(REPLACED),
            Link::Offline { .. } => {}
        }
        state.link = Link::Online { socket, generation };
    }

    /// Detaches a socket. Returns whether it was the current one; one that was replaced changes
    /// nothing.
    pub(super) fn detach(&self, socket: SocketId, now: Instant) -> bool {
        let mut state = self.lock();
        let is_current =
            matches!(&state.link, Link::Online { socket: current, .. } if current.id == socket);
        if is_current {
            state.link = Link::Offline { since: now };
        }
        is_current
    }

    pub(super) fn add_harness(&self, socket: Arc<Socket>) {
        self.lock().harnesses.insert(socket.id, socket);
    }

    pub(super) fn remove_harness(&self, socket: SocketId, now: Instant) {
        let mut state = self.lock();
        state.harnesses.remove(&socket);
        state.streams.detach(socket, now);
    }

    /// Ends the streams of a harness that closed its socket: they do not wait for another socket.
    pub(super) fn end_streams_of(&self, socket: SocketId) {
        let mut state = self.lock();
        let ended = state.streams.end(socket);
        if let Link::Online { socket, .. } = &state.link {
            for stream_id in ended {
                // If the reset does not fit, the environment later ends the silent stream.
                let _ = socket.queue.try_push(reset(stream_id, HARNESS_GONE));
            }
        }
    }

    /// Returns the generation of the registration whose socket is here now. A socket that is being
    /// closed does not count.
    pub(super) fn online_generation(&self) -> Option<u64> {
        match &self.lock().link {
            Link::Online { socket, generation } if !socket.queue.is_closed() => Some(*generation),
            Link::Online { .. } | Link::Offline { .. } => None,
        }
    }

    pub(super) fn close_older_than(&self, generation: u64) {
        if let Link::Online { socket, generation: current } = &self.lock().link
            && *current < generation
        {
            socket.queue.close(REPLACED);
        }
    }

    /// Closes all sockets here because the environment has left, or has its socket at another node.
    /// Does nothing if a registration of at least this generation has its socket here.
    pub(super) fn move_away(&self, generation: u64) {
        let state = self.lock();
        match &state.link {
            Link::Online { socket, generation: current }
                if *current >= generation && !socket.queue.is_closed() =>
            {
                return;
            }
            Link::Online { socket, .. } => socket.queue.close(REPLACED),
            Link::Offline { .. } => {}
        }
        state.harnesses.values().for_each(|socket| socket.queue.close(MOVED));
    }

    pub(super) fn route_to_environment(
        &self,
        stream_id: &str,
        socket: &Socket,
        now: Instant,
    ) -> Route {
        let mut state = self.lock();
        match state.streams.claim(stream_id, socket.id, &socket.credential, now) {
            Ok(ended) => match &state.link {
                Link::Online { socket, .. } => {
                    if let Some(ended) = ended {
                        // If the reset does not fit, the environment later ends the silent stream.
                        let _ = socket.queue.try_push(reset(ended, HARNESS_GONE));
                    }
                    Route::Environment(Arc::clone(socket))
                }
                Link::Offline { .. } => Route::Drop,
            },
            Err(ClaimError::Invalid(_)) => Route::Malformed,
            Err(refusal) => {
                let Ok(stream_id) = stream_id.parse() else { return Route::Malformed };
                Route::Refuse(reset(
                    stream_id,
                    match refusal {
                        ClaimError::TooMany => TOO_MANY,
                        _ => NOT_OWNER,
                    },
                ))
            }
        }
    }

    pub(super) fn harness_of(&self, stream_id: &str) -> Option<Arc<Socket>> {
        let state = self.lock();
        let socket = state.streams.socket_of(stream_id)?;
        state.harnesses.get(&socket).map(Arc::clone)
    }

    /// Closes sockets with expired credentials. If the environment is online, ends streams that
    /// have been without a harness socket for `stream_grace`; if it has been offline for
    /// `environment_grace`, closes all harness sockets.
    pub(super) fn sweep(
        &self,
        now: Instant,
        wall: SystemTime,
        stream_grace: Duration,
        environment_grace: Duration,
    ) {
        let mut state = self.lock();
        for socket in state.sockets() {
            if socket.expires.is_some_and(|expires| expires <= wall) {
                socket.queue.close(EXPIRED);
            }
        }
        match &state.link {
            Link::Online { socket, .. } => {
                let socket = Arc::clone(socket);
                for stream in state.streams.expired(now, stream_grace) {
                    // Streams whose reset does not fit stay until there is room.
                    if socket.queue.try_push(reset(stream, HARNESS_GONE)).is_ok() {
                        state.streams.remove(&stream);
                    }
                }
            }
            Link::Offline { since } => {
                if now.saturating_duration_since(*since) >= environment_grace {
                    state.harnesses.values().for_each(|socket| socket.queue.close(OFFLINE));
                }
            }
        }
    }

    /// Returns whether the environment can be forgotten: no socket is left, and the grace period is
    /// over.
    pub(super) fn is_unused(&self, now: Instant, grace: Duration) -> bool {
        let state = self.lock();
        let is_gone = matches!(state.link, Link::Offline { since }
            if now.saturating_duration_since(since) >= grace);
        is_gone && state.harnesses.is_empty()
    }

    pub(super) fn close_credential(&self, credential: &CredentialId) {
        for socket in self.lock().sockets().filter(|socket| socket.credential == *credential) {
            socket.queue.close(REVOKED);
        }
    }

    pub(super) fn credentials(&self) -> Vec<CredentialId> {
        self.lock().sockets().map(|socket| socket.credential.clone()).collect()
    }

    pub(super) fn close_all(&self, closing: &Closing) {
        self.lock().sockets().for_each(|socket| socket.queue.close(closing.clone()));
    }

    pub(super) fn count(&self, frame: &Bytes) {
        self.frames.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(frame.len() as u64, Ordering::Relaxed);
    }

    pub(super) fn status(&self) -> EnvironmentStatus {
        let state = self.lock();
        EnvironmentStatus {
            is_online: matches!(state.link, Link::Online { .. }),
            harnesses: state.harnesses.len(),
            streams: state.streams.attached(),
            frames: self.frames.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds an environment")
    }
}

impl State {
    fn sockets(&self) -> impl Iterator<Item = &Arc<Socket>> {
        let own = match &self.link {
            Link::Online { socket, .. } => Some(socket),
            Link::Offline { .. } => None,
        };
        own.into_iter().chain(self.harnesses.values())
    }
}

fn reset(stream_id: StreamId, reason: ResetReason) -> Bytes {
    let body = Body::Reset { reason };
    Frame { stream_id, ack: 0, ack_bits: 0, body, trace: None }.encode()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::Counts;

    fn socket(id: SocketId) -> Arc<Socket> {
        let queue = FrameQueue::new(1 << 20, Vec::new());
        Arc::new(Socket { id, credential: "alice".into(), expires: None, queue })
    }

    fn is_closed(socket: &Socket) -> bool {
        socket.queue.is_closed()
    }

    #[test]
    fn the_newest_registration_wins() {
        let now = Instant::now();
        let environment = Environment::new(StreamTable::new(8, Counts::new(8)), now);
        let [first, late, again, newer] = [1, 2, 3, 4].map(socket);
        environment.attach(Arc::clone(&first), 7);
        // Admitted before the newer registration, but attached after it.
        environment.attach(Arc::clone(&late), 6);
        assert!(is_closed(&late) && !is_closed(&first));
        assert!(!environment.detach(late.id, now));
        assert_eq!(environment.online_generation(), Some(7));
        environment.attach(Arc::clone(&again), 7);
        assert!(is_closed(&first) && !is_closed(&again));
        environment.close_older_than(7);
        assert!(!is_closed(&again));
        environment.attach(Arc::clone(&newer), 8);
        assert!(is_closed(&again));
        environment.close_older_than(9);
        assert!(is_closed(&newer));
        assert_eq!(
            environment.online_generation(),
            None,
            "a socket that is being closed does not count"
        );
    }

    #[test]
    fn harnesses_follow_an_environment_that_moved_away() {
        let now = Instant::now();
        let environment = Environment::new(StreamTable::new(8, Counts::new(8)), now);
        let [own, harness] = [1, 2].map(socket);
        environment.attach(Arc::clone(&own), 7);
        environment.add_harness(Arc::clone(&harness));
        environment.move_away(7);
        assert!(
            !is_closed(&own) && !is_closed(&harness),
            "the registration of this generation is here"
        );
        environment.move_away(8);
        assert_eq!(own.queue.closing(), Some(REPLACED));
        assert_eq!(harness.queue.closing(), Some(MOVED));
    }
}
