//! The steps from a new connection until calls are admitted.

use std::time::Duration;

use exec_server_protocol::{
    ErrorCode, InitializeParams, InitializeResponse, Initialized, Method, Rpc as _, notification,
    rpc,
};
use exec_server_transport::Connection;
use tokio::time::Instant;

use super::{Driver, GrantedSession, Link};
use crate::call::read_result;
use crate::calls::{Answer, Call, ProcessQuery, ReplyTo};
use crate::recovery::{Generation, Refusal};
use crate::{ConnectError, ExecServerError, Violation};

impl Driver {
    pub(super) fn dialled(
        &mut self,
        generation: Generation,
        dialled: Result<Connection, ConnectError>,
    ) {
        match dialled {
            Ok(connection) => {
                self.link = Some(Link::new(generation, connection));
                let ttl = self.options.detached_ttl;
                let params = InitializeParams {
                    client_name: self.options.client_name.clone(),
                    resume_session_id: self.session_id.clone(),
                    detached_ttl_ms: ttl
                        .map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)),
                    acks: Some(true),
                    positions: self.session_id.as_ref().and_then(|_| self.processes.positions()),
                };
                self.send(Call::internal(
                    &rpc::Initialize::into_call(params),
                    ReplyTo::Handshake(generation),
                ));
            }
            Err(error) => {
                let permanent = error.is_permanent();
                self.last_failure = Some(error.into());
                let refusal = if permanent { Refusal::Permanent } else { Refusal::Temporary };
                self.recovery.handle_lost(generation, refusal, Instant::now());
            }
        }
    }

    pub(super) fn handshake_answered(&mut self, generation: Generation, answer: Answer) {
        let response = answer.and_then(|result| {
            let response: InitializeResponse = read_result(Method::Initialize, &result)?;
            match &self.session_id {
                Some(asked) if *asked != response.session_id => {
                    let (asked, given) = (asked.clone(), response.session_id);
                    Err(Violation::OtherSession { asked, given }.into())
                }
                _ => Ok(response),
            }
        });
        match response {
            Ok(response) => {
                self.session_id = Some(response.session_id);
                self.detached_ttl = response.detached_ttl_ms.map(Duration::from_millis);
                self.processes.confirm_output(response.acks == Some(true));
                // A server that grants `acks` for output also supports acknowledgements of bodies.
                // Other servers may close the connection when they receive one.
                self.leases.acknowledge(response.acks == Some(true));
                if let Some(link) = &mut self.link {
                    link.is_initialized = true;
                    link.known_events = response.positions.unwrap_or_default();
                }
                self.push(&notification(&Initialized {}));
                self.recovery.handle_initialized(generation, Instant::now());
            }
            Err(error) => {
                // The server may not have noticed yet that the old connection is dead.
                let attached = ErrorCode::SessionAttached.value();
                let refusal = match &error {
                    ExecServerError::Server(error) if error.code == attached => Refusal::Temporary,
                    _ => Refusal::Permanent,
                };
                self.last_failure = Some(error);
                self.drop_connection(generation);
                self.recovery.handle_lost(generation, refusal, Instant::now());
            }
        }
    }

    /// Immediately requests the events that the client missed, except those that the server sends
    /// unasked.
    pub(super) fn catch_up(&mut self, generation: Generation) {
        let known = self.link.as_mut().map(|link| std::mem::take(&mut link.known_events));
        let calls = self.processes.catch_up(&known.unwrap_or_default());
        let waiting =
            calls.iter().filter(|call| matches!(call.reply_to, ReplyTo::CatchUp(_))).count();
        for call in calls {
            self.send(call);
        }
        if let Some(link) = &mut self.link {
            link.catching_up = waiting;
        }
        if waiting == 0 {
            self.recovery.handle_caught_up(generation, Instant::now());
        }
    }

    pub(super) fn caught_up(&mut self, question: &ProcessQuery, answer: Answer) {
        let now = Instant::now();
        self.processes.caught_up(question, answer, now);
        if let Some(link) = &mut self.link {
            link.catching_up = link.catching_up.saturating_sub(1);
            if link.catching_up == 0 {
                self.recovery.handle_caught_up(link.generation, now);
            }
        }
    }

    pub(super) fn admit(&mut self) {
        self.last_failure = None;
        self.announce();
        if let Some(opened) = self.opened.take() {
            let session_id = self.session_id.clone().unwrap_or_default();
            let granted = GrantedSession { session_id, detached_ttl: self.detached_ttl };
            if opened.send(Ok(granted)).is_err() {
                self.shared.hang_up.notify_one();
            }
        }
        while let Some(call) = self.calls.next_lost() {
            self.send(call);
        }
    }
}
