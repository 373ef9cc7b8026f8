//! How a client calls a server in the same program: the calls and notifications of the wire, without their text.
//!
//! The traits live here so that client and server need not know each other.

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;

use crate::{Call, CallResponse, RpcError, ServerCall, ServerCallResponse, ServerNotification};

/// Takes the response of one call, from any thread. It must not block.
pub type Respond = Box<dyn FnOnce(Result<CallResponse, RpcError>) + Send + Sync>;

/// Takes the client's response to one request of the server, from any thread. A request whose
/// callback is dropped fails.
pub type RespondToServer = Box<dyn FnOnce(Result<ServerCallResponse, RpcError>) + Send + Sync>;

/// A future that a sink returns through its trait object.
pub type SinkFuture<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// A session at a server in the same program. Dropping the link ends the session and kills its processes.
pub trait ServerLink: Debug + Send + Sync {
    fn session_id(&self) -> &str;

    /// Calls a method. Calls take effect in the order in which they are made. Notifications that the call brings
    /// about go to `events`; without one, a started process has no reader.
    fn call(&self, call: Call, events: Option<Arc<dyn EventSink>>, respond: Respond);

    /// Brings the server's own requests to `handler`. A second call changes nothing; without a
    /// handler the requests fail.
    fn handle_requests(&self, handler: Arc<dyn ServerRequestHandler>);
}

/// Answers the requests of a server in the same program.
pub trait ServerRequestHandler: Debug + Send + Sync {
    /// It must not block; the response may be given later.
    fn request(&self, call: ServerCall, respond: RespondToServer);

    /// Takes a notification that belongs to no call. It must not block.
    fn notify(&self, notification: ServerNotification);
}

/// Where the notifications of one process, watch, search or HTTP body go.
pub trait EventSink: Debug + Send + Sync {
    /// Offers the next notification, in order. It must not block.
    fn offer(&self, notification: ServerNotification) -> Offered;

    /// Resolves when it is worth offering again after [`Offered::Full`].
    fn room(&self) -> SinkFuture<'_>;

    /// Resolves when nothing more will be accepted, and nothing is wanted.
    fn gone(&self) -> SinkFuture<'_>;

    /// No further notification will come.
    fn end(&self);
}

/// The outcome of [`EventSink::offer`].
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a box would cost an allocation for each notification"
)]
pub enum Offered {
    Accepted,
    /// There is no room for it now; offer it again.
    Full(ServerNotification),
    /// Nothing is wanted any more.
    Gone,
}
