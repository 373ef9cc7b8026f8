//! Opening a tunnel: the node of a harness asks the node of its environment.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_nats::client::{Request, RequestErrorKind};
use async_nats::{Client, Message, Subject, Subscriber};
use futures_util::StreamExt as _;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;
use uuid::Uuid;

use super::bus::{Bus, TunnelTimes, down_subject, open_subject, up_subject};
use crate::credential::CredentialId;
use crate::environment_id::EnvironmentId;

/// A harness socket that a node has admitted, and for which it requests a tunnel.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct OpenRequest {
    pub(crate) environment: EnvironmentId,
    /// The generation of the registration that the harness connected to.
    pub(crate) generation: u64,
    pub(crate) credential: CredentialId,
    pub(crate) expires: Option<SystemTime>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Envelope {
    tunnel: String,
    #[serde(flatten)]
    request: OpenRequest,
}

#[derive(Debug, Serialize, Deserialize)]
enum OpenResponse {
    #[serde(rename = "accepted")]
    Accepted,
    #[serde(rename = "refused")]
    Refused { reason: String },
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error("the node of the environment is gone")]
    NodeGone,
    #[error("the node of the environment refused: {reason}")]
    Refused { reason: String },
    #[error("the node of the environment did not answer in time, or NATS is unreachable")]
    NoAnswer,
    #[error("cannot exchange messages with the other node through NATS")]
    Client(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Both directions of a tunnel, as seen by one end.
#[derive(Debug)]
pub(crate) struct Tunnel {
    pub(super) client: Client,
    pub(super) times: TunnelTimes,
    pub(super) outgoing: Subject,
    pub(super) incoming: Subscriber,
}

#[derive(Debug)]
pub(crate) struct PendingOpen {
    pub(crate) request: OpenRequest,
    tunnel: Uuid,
    reply: Subject,
    bus: Arc<Bus>,
}

impl Bus {
    pub(crate) async fn open(&self, node: &str, request: OpenRequest) -> Result<Tunnel, OpenError> {
        // The outer timeout is needed while NATS is unreachable: the client then does not even
        // accept the request.
        let limit = self.times.request_timeout;
        timeout(limit, self.request_open(node, request, limit))
            .await
            .unwrap_or(Err(OpenError::NoAnswer))
    }

    async fn request_open(
        &self,
        node: &str,
        request: OpenRequest,
        limit: Duration,
    ) -> Result<Tunnel, OpenError> {
        let failed = |error: Box<dyn std::error::Error + Send + Sync>| OpenError::Client(error);
        let tunnel = Uuid::new_v4();
        // Subscribe before the other node can send.
        let incoming = self.client.subscribe(down_subject(tunnel)).await;
        let incoming = incoming.map_err(|error| failed(error.into()))?;
        let envelope = Envelope { tunnel: tunnel.simple().to_string(), request };
        let json = serde_json::to_vec(&envelope).map_err(|error| failed(error.into()))?;
        let asking = Request::new().payload(json.into()).timeout(Some(limit));
        let answer = self.client.send_request(open_subject(node), asking).await;
        let answer = answer.map_err(|error| match error.kind() {
            RequestErrorKind::NoResponders => OpenError::NodeGone,
            RequestErrorKind::TimedOut => OpenError::NoAnswer,
            _ => failed(error.into()),
        })?;
        match serde_json::from_slice(&answer.payload).map_err(|error| failed(error.into()))? {
            OpenResponse::Accepted => Ok(Tunnel {
                client: self.client.clone(),
                times: self.times,
                outgoing: up_subject(tunnel).into(),
                incoming,
            }),
            OpenResponse::Refused { reason } => Err(OpenError::Refused { reason }),
        }
    }

    /// Returns the next request to this node; `None` when the bus is gone.
    pub(crate) async fn next_open(self: &Arc<Self>, opens: &mut Subscriber) -> Option<PendingOpen> {
        loop {
            let message = opens.next().await?;
            match PendingOpen::read(message, Arc::clone(self)) {
                Some(pending) => return Some(pending),
                None => tracing::warn!("another node sent an invalid request for a tunnel"),
            }
        }
    }
}

impl PendingOpen {
    /// Parses a request. The id of the tunnel becomes part of subjects, so it must be a UUID.
    fn read(message: Message, bus: Arc<Bus>) -> Option<Self> {
        let Envelope { tunnel, request } = serde_json::from_slice(&message.payload).ok()?;
        let tunnel = Uuid::try_parse(&tunnel).ok()?;
        Some(Self { request, tunnel, reply: message.reply?, bus })
    }

    pub(crate) async fn accept(self) -> Result<Tunnel, OpenError> {
        let Bus { client, times } = &*self.bus;
        // Subscribe before the other node can send.
        let incoming = client.subscribe(up_subject(self.tunnel)).await;
        let incoming = incoming.map_err(|error| OpenError::Client(error.into()))?;
        self.answer(&OpenResponse::Accepted).await?;
        let outgoing = down_subject(self.tunnel).into();
        Ok(Tunnel { client: client.clone(), times: *times, outgoing, incoming })
    }

    pub(crate) async fn refuse(self, reason: &str) -> Result<(), OpenError> {
        self.answer(&OpenResponse::Refused { reason: reason.to_owned() }).await
    }

    async fn answer(&self, response: &OpenResponse) -> Result<(), OpenError> {
        let json = serde_json::to_vec(response).map_err(|error| OpenError::Client(error.into()))?;
        let sent = self.bus.client.publish(self.reply.clone(), json.into()).await;
        sent.map_err(|error| OpenError::Client(error.into()))
    }
}
