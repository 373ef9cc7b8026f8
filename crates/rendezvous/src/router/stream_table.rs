//! Maps the streams of one environment to the sockets of harnesses. Takes the time as an argument.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use exec_server_relay::frame::{InvalidStreamId, StreamId};
use tokio::time::Instant;

use crate::credential::CredentialId;
use crate::quota::{Counted, Counts};

/// The number of a socket, unique while the service runs.
pub(super) type SocketId = u64;

#[derive(Debug)]
pub(super) struct StreamTable {
    max: usize,
    /// Counts the streams of each credential, in all environments.
    of_credentials: Arc<Counts<CredentialId>>,
    streams: HashMap<StreamId, Stream>,
}

#[derive(Debug)]
struct Stream {
    /// Only sockets of this credential may use the stream.
    owner: CredentialId,
    place: Place,
    /// When the harness last used the stream.
    used: Instant,
    counted: Counted<CredentialId>,
}

#[derive(Debug, PartialEq, Eq)]
enum Place {
    Attached(SocketId),
    Detached { since: Instant },
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ClaimError {
    #[error(transparent)]
    Invalid(#[from] InvalidStreamId),
    #[error("another credential has a stream with this id")]
    NotOwner,
    #[error("the environment or the credential has reached its limit on streams")]
    TooMany,
}

impl StreamTable {
    pub(super) fn new(max: usize, of_credentials: Arc<Counts<CredentialId>>) -> Self {
        Self { max, of_credentials, streams: HashMap::new() }
    }

    /// Counts the streams that have a socket.
    pub(super) fn attached(&self) -> usize {
        let is_attached = |stream: &&Stream| matches!(stream.place, Place::Attached(_));
        self.streams.values().filter(is_attached).count()
    }

    /// Assigns the stream to the socket. Returns the stream that was ended to make room for it, if
    /// any.
    pub(super) fn claim(
        &mut self,
        stream_id: &str,
        socket: SocketId,
        owner: &CredentialId,
        now: Instant,
    ) -> Result<Option<StreamId>, ClaimError> {
        if let Some(stream) = self.streams.get_mut(stream_id) {
            if stream.owner != *owner {
                return Err(ClaimError::NotOwner);
            }
            // A late frame from an older socket does not take the stream from a newer one.
            if !matches!(stream.place, Place::Attached(current) if current > socket) {
                stream.place = Place::Attached(socket);
            }
            stream.used = now;
            return Ok(None);
        }
        let stream_id: StreamId = stream_id.parse()?;
        let (counted, ended) = match self.try_count(owner) {
            Some(counted) => (counted, None),
            None => {
                let (ended, stream) = self.make_room(socket, owner).ok_or(ClaimError::TooMany)?;
                (stream.counted, Some(ended))
            }
        };
        let (owner, place) = (owner.clone(), Place::Attached(socket));
        self.streams.insert(stream_id, Stream { owner, place, used: now, counted });
        Ok(ended)
    }

    /// Counts one more stream of a credential, if there is room for it.
    fn try_count(&self, owner: &CredentialId) -> Option<Counted<CredentialId>> {
        match self.streams.len() < self.max {
            true => self.of_credentials.try_add(owner),
            false => None,
        }
    }

    /// Makes room for a stream. The router does not see when a stream ends, so a socket may have
    /// many ended streams. Drops the least recently used stream: first among the credential's
    /// streams that wait for a socket, then among the socket's own. Streams of other credentials
    /// are never dropped.
    fn make_room(&mut self, socket: SocketId, owner: &CredentialId) -> Option<(StreamId, Stream)> {
        let least_recent = |is_candidate: &dyn Fn(&Stream) -> bool| {
            let candidates = self.streams.iter().filter(|(_, stream)| is_candidate(stream));
            candidates.min_by_key(|(_, stream)| stream.used).map(|(id, _)| *id)
        };
        let detached = |stream: &Stream| {
            stream.owner == *owner && matches!(stream.place, Place::Detached { .. })
        };
        let own = |stream: &Stream| stream.place == Place::Attached(socket);
        let ended = least_recent(&detached).or_else(|| least_recent(&own))?;
        self.streams.remove_entry(&ended)
    }

    pub(super) fn socket_of(&self, stream_id: &str) -> Option<SocketId> {
        match self.streams.get(stream_id)?.place {
            Place::Attached(socket) => Some(socket),
            Place::Detached { .. } => None,
        }
    }

    /// Detaches the streams of a lost socket. They wait for another socket.
    pub(super) fn detach(&mut self, socket: SocketId, now: Instant) {
        for stream in self.streams.values_mut() {
            if stream.place == Place::Attached(socket) {
                stream.place = Place::Detached { since: now };
            }
        }
    }

    /// Drops the streams of a socket, and returns them.
    pub(super) fn end(&mut self, socket: SocketId) -> Vec<StreamId> {
        let is_its = |stream: &Stream| stream.place == Place::Attached(socket);
        self.streams.extract_if(|_, stream| is_its(stream)).map(|(id, _)| id).collect()
    }

    /// Returns streams that have been without a socket for this long.
    pub(super) fn expired(&self, now: Instant, grace: Duration) -> Vec<StreamId> {
        let is_expired = |stream: &Stream| match stream.place {
            Place::Attached(_) => false,
            Place::Detached { since } => now.saturating_duration_since(since) >= grace,
        };
        let expired = self.streams.iter().filter(|(_, stream)| is_expired(stream));
        expired.map(|(id, _)| *id).collect()
    }

    pub(super) fn remove(&mut self, stream_id: &StreamId) {
        self.streams.remove(stream_id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(45);

    fn credentials() -> [CredentialId; 2] {
        ["alice", "bob"].map(CredentialId::from)
    }

    fn table(max: usize) -> StreamTable {
        StreamTable::new(max, Counts::new(100))
    }

    #[test]
    fn a_socket_keeps_a_stream_until_another_of_the_same_credential_takes_it() {
        let (mut table, now) = (table(8), Instant::now());
        let [alice, bob] = credentials();
        assert_eq!(table.socket_of("s"), None);
        assert_eq!(table.claim("s", 1, &alice, now), Ok(None));
        assert_eq!(table.socket_of("s"), Some(1));
        assert_eq!(table.claim("s", 2, &bob, now), Err(ClaimError::NotOwner));
        assert_eq!(table.socket_of("s"), Some(1));
        assert_eq!(table.claim("s", 3, &alice, now), Ok(None));
        assert_eq!(table.socket_of("s"), Some(3));
        // Late frames from the old socket change nothing; neither does its late disconnect.
        assert_eq!(table.claim("s", 1, &alice, now), Ok(None));
        assert_eq!(table.socket_of("s"), Some(3));
        table.detach(1, now);
        assert_eq!(table.socket_of("s"), Some(3));
    }

    #[test]
    fn a_stream_outlives_its_socket_by_the_grace_period() {
        let (mut table, now) = (table(8), Instant::now());
        let [alice, bob] = credentials();
        table.claim("lost", 1, &alice, now).unwrap();
        table.claim("kept", 2, &alice, now).unwrap();
        table.detach(1, now);
        assert_eq!(table.socket_of("lost"), None);
        assert_eq!(table.claim("lost", 9, &bob, now), Err(ClaimError::NotOwner));
        assert!(table.expired(now + GRACE / 2, GRACE).is_empty());
        let expired = table.expired(now + GRACE, GRACE);
        assert_eq!(expired, ["lost".parse().unwrap()]);
        table.claim("lost", 3, &alice, now + GRACE).unwrap();
        assert!(table.expired(now + GRACE * 2, GRACE).is_empty());
        assert_eq!(table.socket_of("lost"), Some(3));
    }

    #[test]
    fn a_full_table_ends_lost_streams_of_the_credential_before_those_of_the_socket() {
        let (mut table, now) = (table(3), Instant::now());
        let [alice, bob] = credentials();
        let at = |seconds| now + Duration::from_secs(seconds);
        table.claim("a1", 1, &alice, at(0)).unwrap();
        table.claim("a2", 1, &alice, at(1)).unwrap();
        table.claim("b1", 2, &bob, at(2)).unwrap();
        assert_eq!(table.claim("c1", 3, &bob, at(3)), Err(ClaimError::TooMany));
        table.claim("a1", 1, &alice, at(4)).unwrap();
        assert_eq!(table.claim("a3", 1, &alice, at(5)), Ok(Some("a2".parse().unwrap())));
        table.detach(2, at(6));
        assert_eq!(table.claim("a4", 4, &alice, at(7)), Err(ClaimError::TooMany), "b1 is bob's");
        assert_eq!(table.claim("c1", 3, &bob, at(8)), Ok(Some("b1".parse().unwrap())));
        assert_eq!(table.streams.len(), 3);
    }

    #[test]
    fn streams_of_a_credential_count_across_environments() {
        let (of_credentials, now) = (Counts::new(2), Instant::now());
        let [alice, bob] = credentials();
        let mut one = StreamTable::new(8, Arc::clone(&of_credentials));
        let mut other = StreamTable::new(8, of_credentials);
        one.claim("a1", 1, &alice, now).unwrap();
        other.claim("a2", 2, &alice, now).unwrap();
        assert_eq!(other.claim("a3", 3, &alice, now), Err(ClaimError::TooMany));
        other.claim("b1", 4, &bob, now).unwrap();
        assert_eq!(one.claim("a3", 1, &alice, now), Ok(Some("a1".parse().unwrap())));
        other.detach(2, now);
        assert_eq!(other.claim("a4", 3, &alice, now), Ok(Some("a2".parse().unwrap())));
        one.end(1);
        assert_eq!(other.claim("a5", 5, &alice, now), Ok(None));
    }

    #[test]
    fn a_closed_socket_ends_its_streams() {
        let (mut table, now) = (table(8), Instant::now());
        let [alice, _] = credentials();
        table.claim("a", 1, &alice, now).unwrap();
        table.claim("b", 2, &alice, now).unwrap();
        assert_eq!(table.end(1), ["a".parse().unwrap()]);
        assert_eq!((table.socket_of("a"), table.socket_of("b")), (None, Some(2)));
    }

    #[test]
    fn invalid_ids_are_refused() {
        let (mut table, [alice, _]) = (table(8), credentials());
        let refused = table.claim("", 1, &alice, Instant::now());
        assert!(matches!(refused, Err(ClaimError::Invalid(_))));
        assert_eq!(table.streams.len(), 0);
    }
}
