//! Serves the two ends of a tunnel at a node.

use std::sync::Arc;

use async_nats::Subscriber;
use exec_server_relay::with_sources;
use exec_server_transport::{CloseCode, Connection, memory_with_capacity};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::bus::{Bus, Moved, NodeInbox};
use super::open::{OpenError, OpenRequest, PendingOpen, Tunnel};
use super::pump::{Pump, WhenFull};
use crate::credential::CredentialId;
use crate::environment_id::EnvironmentId;
use crate::handler::Handler;
use crate::router::{Closing, MOVED, RESTARTING, RelayEnd, SocketGrant};

/// Maximum number of frames between the router and a tunnel, in each direction; no quota counts
/// them.
const MEMORY_CAPACITY: usize = 2;

const UNREACHABLE: Closing =
    Closing::new(CloseCode::Restart, "the node of the environment cannot be reached");
const REFUSED: Closing =
    Closing::new(CloseCode::Restart, "the node of the environment refused the socket");

impl Handler {
    /// Serves a harness whose environment is at another node. A harness whose socket is closed
    /// reconnects, and then finds the node that holds the environment.
    pub(crate) async fn serve_over(
        &self,
        bus: &Bus,
        node: &str,
        generation: u64,
        connection: Connection,
        grant: SocketGrant,
    ) {
        let SocketGrant { environment, credential, expires, permit, .. } = grant;
        let pump = self.pump(&environment, &credential, WhenFull::Close);
        // Subscribe before the other node is asked, so that no move after its response is missed.
        let moves = self.moves.of(&environment);
        let moved = moved_from(node, moves.subscribe());
        let request = OpenRequest {
            environment: environment.clone(),
            generation,
            credential: credential.clone(),
            expires,
        };
        let mut ended = std::pin::pin!(async {
            tokio::select! {
                () = self.drained() => RESTARTING,
                () = moved => MOVED,
            }
        });
        // `open` may wait for a node that has just died, because NATS may not have noticed that.
        let opened = tokio::select! {
            opened = bus.open(node, request) => Ok(opened),
            closing = &mut ended => Err(closing),
        };
        match opened {
            Err(closing) => pump.close(connection, closing).await,
            Ok(Ok(tunnel)) => pump.run(tunnel, connection, ended).await,
            Ok(Err(error)) => {
                let closing = match &error {
                    OpenError::Refused { .. } => REFUSED,
                    _ => UNREACHABLE,
                };
                let error = with_sources(&error);
                tracing::info!(node, %environment, %credential, error, "cannot open a tunnel");
                pump.close(connection, closing).await;
            }
        }
        drop(permit);
    }

    /// Serves the harnesses that other nodes send here, until the service shuts down.
    pub(crate) async fn serve_tunnels(self: Arc<Self>, bus: Arc<Bus>, mut opens: Subscriber) {
        let mut tunnels = JoinSet::new();
        loop {
            tokio::select! {
                pending = bus.next_open(&mut opens) => match pending {
                    Some(pending) => {
                        let (handler, limit) = (Arc::clone(&self), bus.times.request_timeout);
                        tunnels.spawn(async move {
                            let accepted = timeout(limit, handler.accept(pending)).await;
                            if let Ok(Some((tunnel, grant))) = accepted {
                                handler.serve_end(tunnel, grant).await;
                            }
                        });
                    }
                    None => break,
                },
                Some(_) = tunnels.join_next() => {}
                () = self.drained() => break,
            }
        }
        // Requests that arrive now have no responder.
        drop(opens);
        while tunnels.join_next().await.is_some() {}
    }

    /// Handles environments that moved to other nodes: their harnesses must follow.
    pub(crate) async fn follow_moves(self: Arc<Self>, mut moves: Subscriber) {
        while let Some(moved) = NodeInbox::next_move(&mut moves).await {
            let Moved { environment, node } = moved;
            let is_elsewhere = node != self.node;
            self.moves.of(&environment).send_replace(node);
            if is_elsewhere {
                self.move_away(&environment).await;
            }
        }
    }

    async fn accept(&self, pending: PendingOpen) -> Option<(Tunnel, SocketGrant)> {
        let OpenRequest { environment, generation, credential, expires } = pending.request.clone();
        let outcome = if self.router.online_generation(&environment) != Some(generation) {
            Err(pending.refuse("this registration is not connected to this node").await)
        } else if let Some(permit) = self.router.permit(&credential, Some(&environment)) {
            let end = RelayEnd::Harness;
            let environment = environment.clone();
            let grant = SocketGrant { environment, credential, expires, end, permit };
            Ok(pending.accept().await.map(|tunnel| (tunnel, grant)))
        } else {
            Err(pending.refuse("the credential, environment or node has too many sockets").await)
        };
        match outcome {
            Ok(Ok(accepted)) => Some(accepted),
            Err(Ok(())) => None,
            Ok(Err(error)) | Err(Err(error)) => {
                let error = with_sources(&error);
                tracing::warn!(%environment, error, "cannot respond to another node");
                None
            }
        }
    }

    /// Serves a harness from another node.
    async fn serve_end(&self, tunnel: Tunnel, grant: SocketGrant) {
        let pump = self.pump(&grant.environment, &grant.credential, WhenFull::Drop);
        let (near, far) = memory_with_capacity(MEMORY_CAPACITY);
        let ended = async {
            self.drained().await;
            RESTARTING
        };
        tokio::join!(pump.run(tunnel, near, ended), self.serve_here(far, grant));
    }

    fn pump(
        &self,
        environment: &EnvironmentId,
        credential: &CredentialId,
        when_full: WhenFull,
    ) -> Pump<'_> {
        let limits = self.router.read_limits(credential, Some(environment));
        Pump {
            limits: match when_full {
                WhenFull::Close => limits,
                WhenFull::Drop => limits.without_rates(),
            },
            queue: self.router.new_queue(credential, Some(environment)),
            when_full,
            counters: &self.router.counters,
        }
    }
}

/// Resolves when an environment connects to a node other than `node`. A dead node cannot close its
/// tunnels, and this is faster than waiting for the silence limit.
async fn moved_from(node: &str, mut moves: watch::Receiver<String>) {
    while moves.changed().await.is_ok() {
        if *moves.borrow_and_update() != node {
            return;
        }
    }
}
