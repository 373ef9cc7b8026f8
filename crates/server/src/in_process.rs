//! The link of a client in the same program: no JSON, no socket and no flow control. The client is
//! bound by session limits, policies and a shutdown like any other.

use std::sync::Arc;
use std::time::Duration;

use exec_server_protocol::{Call, EventSink, Respond, RpcError, ServerLink, ServerRequestHandler};
use tokio::time::Instant;

use crate::connection::ClientConnection;
use crate::dispatch::{Dispatcher, Reply};
use crate::feed::ConfirmedBy;
use crate::server::ServerState;
use crate::sessions::{Session, SessionSettings};

/// A session that stays attached to its link: no other client can resume it, and it never expires.
/// Otherwise it is a normal session: counted by `max_sessions`, listed by `session/list`, and open
/// to observers.
#[derive(Debug)]
pub(crate) struct InProcessLink {
    dispatcher: Dispatcher,
    session: Arc<Session>,
}

impl InProcessLink {
    pub(crate) fn open(
        state: &Arc<ServerState>,
        client_name: &str,
    ) -> Result<Arc<dyn ServerLink>, RpcError> {
        let connection = Arc::new(ClientConnection::in_process(state.next_connection()));
        let settings =
            SessionSettings { confirmed_by: ConfirmedBy::Ack, detached_ttl: Duration::ZERO };
        let sandboxes = state.sandboxes.under(connection.principal());
        let (name, now) = (client_name.to_owned(), Instant::now());
        let session = state.sessions.open(name, settings, sandboxes, &connection, now)?;
        let dispatcher = Dispatcher::new(Arc::clone(state), connection);
        Ok(Arc::new(Self { dispatcher, session }))
    }
}

impl ServerLink for InProcessLink {
    fn session_id(&self) -> &str {
        self.session.id()
    }

    fn call(&self, call: Call, events: Option<Arc<dyn EventSink>>, respond: Respond) {
        // The caller may be on another runtime, or on none.
        let _context = self.dispatcher.runtime().enter();
        let record = self.dispatcher.record(Some(call.method()), None);
        let reply = Reply::in_process(respond, events, record);
        match call.check_names() {
            Ok(()) => self.dispatcher.call(&self.session, call, reply),
            Err(error) => reply.fail(error),
        }
    }

    fn handle_requests(&self, handler: Arc<dyn ServerRequestHandler>) {
        self.dispatcher.connection().set_handler(handler);
    }
}

impl Drop for InProcessLink {
    fn drop(&mut self) {
        // `end_session` ends the session before it returns its future, which only waits. So no
        // runtime is needed.
        let connection = self.dispatcher.connection();
        drop(self.dispatcher.state().end_session(&self.session, Some(connection)));
        self.dispatcher.connection().resources.end();
    }
}
