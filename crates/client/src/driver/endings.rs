//! The end of connections, and of the client.

use tokio::time::Instant;

use super::Driver;
use crate::calls::ReplyTo;
use crate::recovery::{Generation, GiveUpReason, Refusal};
use crate::{ConnectError, ConnectionState, DisconnectReason, ExecServerError};

impl Driver {
    /// Drops the connection after a protocol violation: nothing the server sends next can be
    /// trusted.
    pub(super) fn break_off(&mut self, error: ExecServerError) {
        if let Some(link) = &self.link {
            let generation = link.generation;
            self.last_failure = Some(error);
            self.drop_connection(generation);
            self.recovery.handle_lost(generation, Refusal::Permanent, Instant::now());
        }
    }

    pub(super) fn connection_lost(&mut self) {
        let Some(link) = &self.link else { return };
        let generation = link.generation;
        if !link.is_initialized {
            // The failure of an earlier attempt may be more precise, so it is kept.
            self.last_failure.get_or_insert_with(|| ConnectError::EndedEarly.into());
        }
        self.drop_connection(generation);
        let refusal = match self.connector.can_redial() {
            true => Refusal::Temporary,
            false => Refusal::Permanent,
        };
        self.recovery.handle_lost(generation, refusal, Instant::now());
        self.announce();
    }

    pub(super) fn drop_connection(&mut self, generation: Generation) {
        self.dialing.take_if(|(dialing, _)| *dialing == generation);
        if self.link.take_if(|link| link.generation == generation).is_none() {
            return;
        }
        self.requests.abandon();
        self.processes.connection_lost();
        for call in self.calls.lose() {
            let error = ExecServerError::Interrupted { method: call.method.name() };
            if let ReplyTo::Opening(key, _) = &call.reply_to {
                self.processes.abandon(key, &error);
            }
            call.reply_to.tell(Err(error));
        }
        // After the calls have failed, so that a caller that observes the end of a lease finds the
        // error of its call.
        self.leases.connection_lost();
    }

    /// Returns the one error that all waiting callers receive.
    pub(super) async fn final_error(&mut self, over: GiveUpReason) -> ExecServerError {
        let last = self.last_failure.take();
        match over {
            GiveUpReason::NeverConnected => match last {
                // The connector may know more about the end of its connection.
                Some(ExecServerError::ConnectFailed(error)) if self.ended_early(&error) => {
                    match self.connector.post_mortem().await {
                        DisconnectReason::CannotRedial => ExecServerError::ConnectFailed(error),
                        lost => lost.into(),
                    }
                }
                last => last.unwrap_or_else(|| ConnectError::EndedEarly.into()),
            },
            GiveUpReason::Deadline(deadline) => {
                let last =
                    last.map_or_else(|| "not completed".to_owned(), |error| error.to_string());
                DisconnectReason::Deadline { deadline, last }.into()
            }
            GiveUpReason::Permanent if !self.connector.can_redial() => match last {
                Some(error @ ExecServerError::ProtocolViolation(_)) => error,
                _ => self.connector.post_mortem().await.into(),
            },
            GiveUpReason::Permanent => match last {
                Some(error @ ExecServerError::ProtocolViolation(_)) => error,
                Some(error) => DisconnectReason::Refused(error).into(),
                None => DisconnectReason::CannotRedial.into(),
            },
        }
    }

    /// Whether a connection that cannot be redialled ended before its handshake was complete.
    pub(super) fn ended_early(&self, error: &ConnectError) -> bool {
        matches!(error, ConnectError::EndedEarly) && !self.connector.can_redial()
    }

    pub(super) async fn end(mut self, error: &ExecServerError, state: ConnectionState) {
        self.settle(error, state);
        self.link = None;
        // Not `try_recv`: a sender that has reserved a slot may still be filling it.
        while let Some(command) = self.commands.recv().await {
            command.call.reply_to.tell(Err(error.clone()));
        }
    }

    /// Fails everything that waits.
    pub(super) fn settle(&mut self, error: &ExecServerError, state: ConnectionState) {
        // The state is set before the queue is closed: a caller that finds the queue closed reads
        // the reason from the state.
        self.shared.state.send_replace(state);
        self.commands.close();
        self.settled = true;
        if let Some(opened) = self.opened.take() {
            let _ = opened.send(Err(error.clone()));
        }
        for call in self.calls.take_all() {
            call.reply_to.tell(Err(error.clone()));
        }
        self.requests.abandon();
        self.processes.fail_all(error);
        self.leases.fail_all(error);
    }
}

impl Drop for Driver {
    /// Also runs when the runtime ends or the driver panics, so that no caller waits forever.
    fn drop(&mut self) {
        if !self.settled {
            let error = ExecServerError::from(DisconnectReason::TaskStopped);
            self.settle(&error, ConnectionState::Failed(error.clone()));
        }
    }
}
