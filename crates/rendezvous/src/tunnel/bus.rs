//! The NATS connection that carries frames, and the subjects of nodes and tunnels.

use std::time::Duration;

use async_nats::{Client, SubscribeError, Subscriber};
use exec_server_relay::frame::MAX_FRAME_BYTES;
use futures_util::StreamExt as _;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;
use uuid::Uuid;

use crate::directory::{NatsOptions, connect_with};
use crate::environment_id::EnvironmentId;

/// Messages queued for NATS, of at most 256 KiB each. Each tunnel has at most one frame and one
/// heartbeat waiting for a slot, and slots are granted in the order of the requests. So a message
/// waits behind at most two messages of each busy tunnel.
const WRITE_QUEUE: usize = 64;
/// Messages queued in one subscription. The reader of a tunnel waits for nothing but the CPU, so
/// the queue only has to hold the messages that the client parses in one turn. Further messages are
/// dropped.
const READ_QUEUE: usize = 4096;
const MOVES: &str = "exec-server.moves";

#[derive(Debug, thiserror::Error)]
pub enum BusError {
    #[error("cannot connect to NATS for frames between nodes")]
    Connect(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error(
        "the NATS server accepts messages of at most {max} bytes, but a frame has up to \
         {MAX_FRAME_BYTES}; raise its max_payload, or give each node a URL with --advertise"
    )]
    MaxPayload { max: usize },
    #[error("cannot receive messages from other nodes through NATS")]
    Subscribe(#[from] SubscribeError),
}

/// The timeouts by which a tunnel notices that its other end is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TunnelTimes {
    pub heartbeat_interval: Duration,
    /// The other end is considered gone after this long without any message.
    pub silence_limit: Duration,
    /// Limit for opening a tunnel, for sending its last message, and for announcing a move.
    pub request_timeout: Duration,
}

impl Default for TunnelTimes {
    fn default() -> Self {
        Self {
            heartbeat_interval: Duration::from_secs(5),
            silence_limit: Duration::from_secs(15),
            request_timeout: Duration::from_millis(1500),
        }
    }
}

/// A separate NATS connection for frames, so that the directory never waits behind them.
#[derive(Debug)]
pub struct Bus {
    pub(super) client: Client,
    pub(super) times: TunnelTimes,
}

/// Announces that an environment has connected to a node.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Moved {
    pub(crate) environment: EnvironmentId,
    pub(crate) node: String,
}

#[derive(Debug)]
pub(crate) struct NodeInbox {
    pub(crate) opens: Subscriber,
    pub(crate) moves: Subscriber,
}

impl Bus {
    /// Connects, and reconnects for as long as the bus lives. Fails if no server responds now.
    pub async fn connect(options: &NatsOptions, times: TunnelTimes) -> Result<Self, BusError> {
        let client = connect_with(options, |connecting| {
            connecting
                .name("exec-server rendezvous frames")
                .client_capacity(WRITE_QUEUE)
                .subscription_capacity(READ_QUEUE)
        });
        let client = Box::pin(client).await.map_err(|error| BusError::Connect(error.into()))?;
        check_max_payload(client.max_payload())?;
        Ok(Self { client, times })
    }

    pub(crate) async fn subscribe_node(&self, node: &str) -> Result<NodeInbox, BusError> {
        Ok(NodeInbox {
            opens: self.client.subscribe(open_subject(node)).await?,
            moves: self.client.subscribe(MOVES).await?,
        })
    }

    /// A node that misses the message learns of the move when it next renews the lease, or looks
    /// for the environments that it has lost.
    pub(crate) async fn announce(&self, moved: &Moved) {
        let json = serde_json::to_vec(moved).expect("the message has only string keys");
        let sent = self.client.publish(MOVES, json.into());
        let error = match timeout(self.times.request_timeout, sent).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("NATS accepted no message within {:?}", self.times.request_timeout),
        };
        tracing::warn!(
            environment = %moved.environment,
            error,
            "cannot tell other nodes that an environment has moved"
        );
    }
}

impl NodeInbox {
    /// Returns the next environment that connected to a node; `None` when the bus is gone.
    pub(crate) async fn next_move(moves: &mut Subscriber) -> Option<Moved> {
        loop {
            let message = moves.next().await?;
            match serde_json::from_slice(&message.payload) {
                Ok(moved) => return Some(moved),
                Err(error) => {
                    tracing::warn!(%error, "another node sent an invalid announcement of a move");
                }
            }
        }
    }
}

/// Checks that a message can carry the largest frame, which is its whole payload.
fn check_max_payload(max: usize) -> Result<(), BusError> {
    match max < MAX_FRAME_BYTES {
        true => Err(BusError::MaxPayload { max }),
        false => Ok(()),
    }
}

pub(super) fn open_subject(node: &str) -> String {
    format!("exec-server.node.{node}.open")
}

/// Returns the subject from the node of the harness to the node of the environment. The id cannot
/// be guessed.
pub(super) fn up_subject(tunnel: Uuid) -> String {
    format!("exec-server.tunnel.{}.up", tunnel.simple())
}

pub(super) fn down_subject(tunnel: Uuid) -> String {
    format!("exec-server.tunnel.{}.down", tunnel.simple())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_must_accept_the_largest_frame() {
        assert!(check_max_payload(MAX_FRAME_BYTES).is_ok());
        let error = check_max_payload(MAX_FRAME_BYTES - 1).unwrap_err().to_string();
        assert!(error.contains("max_payload"), "{error}");
    }
}
