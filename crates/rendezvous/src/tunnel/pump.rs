//! Moves messages between a socket and a tunnel until one of them ends.

use std::time::Duration;

use async_nats::connection::State;
use async_nats::{Client, Subject, Subscriber};
use exec_server_transport::{CloseCode, Connection, Incoming, Received, YieldBudget};
use futures_util::StreamExt as _;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::message::TunnelMessage;
use super::open::Tunnel;
use crate::router::{
    Closing, Counters, ENDED, FrameQueue, Full, ReadLimits, SLOW, TEXT, count, write_frames,
};

const SILENT: Closing =
    Closing::new(CloseCode::Restart, "no messages arrive from the other node of the cluster");
/// The close code for a socket that ended without a close frame.
const LOST: CloseCode = CloseCode::Away;

/// One end of a tunnel, and the socket there.
pub(crate) struct Pump<'a> {
    pub(crate) limits: ReadLimits,
    /// Frames queued for the socket. Closing the queue ends the pump.
    pub(crate) queue: FrameQueue,
    pub(crate) when_full: WhenFull,
    pub(crate) counters: &'a Counters,
}

/// How to handle a frame for a socket that does not keep up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WhenFull {
    /// Close the socket: it belongs to a harness that does not read.
    Close,
    /// Drop the frame: the environment does not keep up with its harnesses, and they retransmit it.
    Drop,
}

impl Pump<'_> {
    /// `ended` resolves when this node has a reason to close the socket.
    pub(crate) async fn run(
        self,
        tunnel: Tunnel,
        connection: Connection,
        ended: impl Future<Output = Closing>,
    ) {
        let Tunnel { client, times, outgoing: subject, incoming: messages } = tunnel;
        let Connection { incoming, outgoing, .. } = connection;
        let sender = Sender { client, subject };
        let ended = async { self.queue.close(ended.await) };
        tokio::join!(
            self.send_frames(incoming, &sender, times.request_timeout),
            self.receive_messages(messages, times.silence_limit),
            self.until_closed(sender.send_heartbeats(times.heartbeat_interval)),
            self.until_closed(ended),
            write_frames(outgoing, &self.queue),
        );
    }

    /// Closes a socket without opening a tunnel.
    pub(crate) async fn close(self, connection: Connection, closing: Closing) {
        let Connection { mut incoming, outgoing, .. } = connection;
        self.queue.close(closing);
        tokio::join!(self.end(&mut incoming), write_frames(outgoing, &self.queue));
    }

    /// Moves frames from the socket to the tunnel. The last message reports how the socket ended.
    async fn send_frames(&self, mut incoming: Incoming, sender: &Sender, close_timeout: Duration) {
        self.limits.apply_to(&mut incoming);
        let mut budget = YieldBudget::default();
        while let Some(received) =
            self.limits.receive(&mut incoming, &mut budget, &self.queue).await
        {
            match received {
                Received::Message(frame) => {
                    self.limits.keep_to_rate(&self.queue).await;
                    self.until_closed(sender.send(TunnelMessage::Frame(frame))).await;
                }
                Received::Malformed(_) => {
                    count(&self.counters.malformed);
                    self.queue.close(TEXT);
                }
            }
        }
        let closing = self.queue.closing().unwrap_or_else(|| Closing {
            code: incoming.peer_close().unwrap_or(LOST),
            reason: incoming.peer_close_reason().to_owned().into(),
        });
        self.queue.close(ENDED);
        // The other end times out if it misses this message.
        let closed = sender.send(TunnelMessage::Close(closing));
        let (_, ()) = tokio::join!(timeout(close_timeout, closed), self.end(&mut incoming));
    }

    /// Moves messages from the tunnel to the queue. Never waits for the socket.
    async fn receive_messages(&self, mut messages: Subscriber, silence_limit: Duration) {
        loop {
            let next = tokio::select! {
                biased;
                _ = self.queue.closed() => return,
                next = timeout(silence_limit, messages.next()) => next,
            };
            let Ok(Some(message)) = next else { return self.queue.close(SILENT) };
            match TunnelMessage::decode(message) {
                Some(TunnelMessage::Frame(frame)) => match self.queue.try_push(frame) {
                    Ok(()) => {}
                    Err(Full::Queue) if self.when_full == WhenFull::Close => {
                        count(&self.counters.slow);
                        self.queue.close(SLOW);
                    }
                    Err(_) => count(&self.counters.dropped),
                },
                Some(TunnelMessage::Close(closing)) => self.queue.close(closing),
                Some(TunnelMessage::Heartbeat) | None => {}
            }
        }
    }

    /// Lets the peer of a socket read the close frame.
    async fn end(&self, incoming: &mut Incoming) {
        let Closing { code, reason } = self.queue.closed().await;
        incoming.close(code, &reason);
        while incoming.recv().await.is_some() {}
    }

    async fn until_closed(&self, work: impl Future<Output = ()>) {
        tokio::select! {
            biased;
            _ = self.queue.closed() => {}
            () = work => {}
        }
    }
}

struct Sender {
    client: Client,
    subject: Subject,
}

impl Sender {
    /// Waits while the client's queue is full. Drops messages while the connection is lost: the
    /// queue would deliver them late, when they are stale.
    async fn send(&self, message: TunnelMessage) {
        if self.client.connection_state() != State::Connected {
            return;
        }
        let subject = self.subject.clone();
        let sent = match message.encode() {
            (Some(headers), payload) => {
                self.client.publish_with_headers(subject, headers, payload).await
            }
            (None, payload) => self.client.publish(subject, payload).await,
        };
        if let Err(error) = sent {
            tracing::debug!(%error, "cannot send a message of a tunnel");
        }
    }

    async fn send_heartbeats(&self, period: Duration) {
        let mut beats = interval(period);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            beats.tick().await;
            self.send(TunnelMessage::Heartbeat).await;
        }
    }
}
