//! The WebSocket to a rendezvous, as both ends use it.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use exec_server_transport::{
    Connection, DialError, DialOptions, DialUrl, KeepAlive, Outgoing, SignOfLife, TlsOptions, dial,
};
use reqwest::Url;

use crate::frame::{Body, Frame, MAX_FRAME_BYTES, ResetReason, StreamId};
use crate::registry::is_loopback;
use crate::stream::TransmitQueue;

/// Covers everything from the look-up of the host to the end of the WebSocket upgrade.
const DIAL_TIMEOUT: Duration = Duration::from_secs(6);

/// Frames are collected up to this size before they are written.
const BATCH_BYTES: usize = 128 << 10;

/// Lets both ends leave a hanging node of a cluster for another node within 45 s. The kernel of the
/// hanging node still accepts connections, so each end may dial it once or twice more in vain.
const KEEP_ALIVE: KeepAlive = KeepAlive {
    ping_interval: Duration::from_secs(7),
    silence_limit: Duration::from_secs(15),
    stall_limit: Duration::from_secs(30),
    sign_of_life: SignOfLife::Bytes,
    close_timeout: Duration::from_secs(2),
};

#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    #[error("the registry returned an unencrypted rendezvous URL for {host}; expected wss://")]
    Unencrypted { host: String },
    #[error("the registry returned an invalid rendezvous URL; expected wss://HOST[:PORT][/PATH]")]
    InvalidUrl,
    #[error("the rendezvous at {url} refused the connection ({status})")]
    Refused { url: DialUrl, status: u16 },
    #[error(transparent)]
    Dial(DialError),
    #[error("the rendezvous at {host} did not answer within {}s", DIAL_TIMEOUT.as_secs())]
    TimedOut { host: String },
}

impl SocketError {
    /// Returns whether another attempt, with a fresh URL, may succeed.
    pub(crate) fn is_temporary(&self) -> bool {
        match self {
            Self::Refused { .. } | Self::TimedOut { .. } => true,
            Self::Dial(error) => !error.is_permanent(),
            Self::Unencrypted { .. } | Self::InvalidUrl => false,
        }
    }
}

/// Drops the advice of [`DialError::Refused`], which concerns the tokens of servers.
impl From<DialError> for SocketError {
    fn from(error: DialError) -> Self {
        match error {
            DialError::Refused { url, status } => Self::Refused { url, status: status.as_u16() },
            other => Self::Dial(other),
        }
    }
}

/// The query of the URL is a credential, so errors omit it.
pub(crate) async fn open(url: &str, tls: &TlsOptions) -> Result<Connection, SocketError> {
    let parsed = Url::parse(url).map_err(|_| SocketError::InvalidUrl)?;
    let host = || parsed.host_str().unwrap_or_default().to_owned();
    match parsed.scheme() {
        "wss" => {}
        "ws" if is_loopback(&parsed) => {}
        "ws" => return Err(SocketError::Unencrypted { host: host() }),
        _ => return Err(SocketError::InvalidUrl),
    }
    let options = DialOptions { bearer_token: None, tls: tls.clone(), keep_alive: KEEP_ALIVE };
    let dialled = tokio::time::timeout(DIAL_TIMEOUT, dial(url, &options)).await;
    let mut connection = dialled.map_err(|_| SocketError::TimedOut { host: host() })??;
    connection.outgoing.send_binary();
    connection.incoming.limit_messages(MAX_FRAME_BYTES);
    connection.incoming.expect_binary();
    Ok(connection)
}

pub(crate) async fn write_frames(
    outgoing: &mut Outgoing,
    queue: &TransmitQueue,
) -> io::Result<Infallible> {
    loop {
        while outgoing.buffered() < BATCH_BYTES
            && let Some(frame) = queue.next_frame()
        {
            frame.encode_with(|len, append| outgoing.push_with(len, append));
        }
        if outgoing.buffered() > 0 {
            outgoing.flush().await?;
            queue.note_flushed();
            continue;
        }
        tokio::select! {
            () = queue.filled() => {}
            () = outgoing.control_pending() => outgoing.flush().await?,
        }
    }
}

/// Returns a frame that acknowledges nothing, because no [`Stream`](crate::stream::Stream) sends
/// it: part of a handshake, or a reset.
pub(crate) fn loose_frame(stream_id: StreamId, body: Body) -> Frame {
    Frame { stream_id, ack: 0, ack_bits: 0, body, trace: None }
}

/// Returns a frame that tells the peer that its stream was refused or is unknown.
pub(crate) fn reset(stream_id: StreamId, reason: ResetReason) -> Frame {
    loose_frame(stream_id, Body::Reset { reason })
}
