//! Replaces a lost socket.

use std::sync::Arc;
use std::time::Duration;

use exec_server_transport::Connection;
use rand::RngExt as _;
use tokio::time::{Instant, sleep, timeout_at};

use super::{Harness, HarnessError};
use crate::noise::PublicKey;
use crate::socket;

/// How long the attempts to replace a working socket continue after its loss.
const DEADLINE: Duration = Duration::from_secs(25);
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const SHORT_PAUSES: u32 = 6;
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A socket that lived for less than this is not replaced at once.
const SHORT_LIFE: Duration = Duration::from_millis(250);
/// Spreads the clients that lose a rendezvous at the same time, so that they do not all reconnect
/// at once.
const SPREAD: Duration = Duration::from_millis(50);

/// The pauses between attempts. The first few are short, since an environment that lost its node
/// reaches another node within a second or two; then they double. Each is extended by up to half.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    attempts: u32,
}

impl Pauses {
    pub(super) fn next_pause(&mut self) -> Duration {
        let doublings = self.attempts.saturating_sub(SHORT_PAUSES - 1).min(10);
        let pause = FIRST_PAUSE.saturating_mul(1 << doublings).min(LONGEST_PAUSE);
        self.attempts = self.attempts.saturating_add(1);
        pause.mul_f64(1.0 + jitter() / 2.0).min(LONGEST_PAUSE)
    }
}

pub(super) struct Recovery {
    harness: Arc<Harness>,
    environment: PublicKey,
    pauses: Pauses,
    /// When a working socket was last lost.
    since: Instant,
}

pub(super) struct Lost {
    pub(super) lived: Duration,
    /// The socket has received a message.
    pub(super) was_used: bool,
}

impl Recovery {
    pub(super) fn new(harness: Arc<Harness>, environment: PublicKey) -> Self {
        Self { harness, environment, pauses: Pauses::default(), since: Instant::now() }
    }

    /// Opens a new socket to the same environment. Returns `None` if that takes too long, fails for
    /// good, or leads to an environment that was restarted and has other keys.
    ///
    /// The loss of a socket that received nothing and ended at once does not extend the deadline.
    pub(super) async fn reconnect(&mut self, lost: Lost) -> Option<Connection> {
        let is_short = lost.lived < SHORT_LIFE;
        if lost.was_used || !is_short {
            (self.pauses, self.since) = (Pauses::default(), Instant::now());
        }
        let first = match is_short {
            true => self.pauses.next_pause(),
            false => SPREAD.mul_f64(jitter()),
        };
        let deadline = self.since + DEADLINE;
        timeout_at(deadline, self.try_until_connected(first)).await.unwrap_or_else(|_| {
            let environment = &self.environment;
            tracing::debug!(?environment, after = ?DEADLINE, "gave up replacing a lost socket");
            None
        })
    }

    async fn try_until_connected(&mut self, first_pause: Duration) -> Option<Connection> {
        sleep(first_pause).await;
        loop {
            let environment = &self.environment;
            match self.attempt().await {
                Ok(connection) => return connection,
                Err(error) if error.is_temporary() => {
                    let error = crate::with_sources(&error);
                    tracing::debug!(?environment, error, "cannot replace a lost socket yet");
                }
                Err(error) => {
                    let error = crate::with_sources(&error);
                    tracing::debug!(?environment, error, "cannot replace a lost socket");
                    return None;
                }
            }
            sleep(self.pauses.next_pause()).await;
        }
    }

    async fn attempt(&self) -> Result<Option<Connection>, HarnessError> {
        let Harness { provider, identity, tls } = &*self.harness;
        let bundle = provider.connect_bundle(identity.public_key()).await?;
        if bundle.executor_public_key != self.environment {
            return Ok(None);
        }
        Ok(Some(socket::open(&bundle.websocket_url, tls).await?))
    }
}

fn jitter() -> f64 {
    rand::rng().random_range(0.0..=1.0)
}
