//! In-process calls: the calls and notifications of the wire as values, without JSON.
//!
//! The traits live here so that client and server do not depend on each other.

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;

use crate::{Call, CallResponse, RpcError, ServerCall, ServerCallResponse, ServerNotification};

/// Receives the response to one call, on any thread. Must not block.
pub type Respond = Box<dyn FnOnce(Result<CallResponse, RpcError>) + Send + Sync>;

/// Receives the client's response to one server request, on any thread. A request whose callback is
/// dropped fails.
pub type RespondToServer = Box<dyn FnOnce(Result<ServerCallResponse, RpcError>) + Send + Sync>;

/// A future returned by a sink. Boxed, because sinks are used as trait objects.
pub type SinkFuture<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// A session on a server in the same program. Dropping the link ends the session and kills its
/// processes.
pub trait ServerLink: Debug + Send + Sync {
    fn session_id(&self) -> &str;

    /// Calls a method. Calls take effect in order. Notifications caused by the call go to `events`;
    /// without a sink, a started process has no reader.
    fn call(&self, call: Call, events: Option<Arc<dyn EventSink>>, respond: Respond);

    /// Sends the server's own requests to `handler`. A second call has no effect. Without a
    /// handler, the requests fail.
    fn handle_requests(&self, handler: Arc<dyn ServerRequestHandler>);
}

/// Handles the requests of a server in the same program.
pub trait ServerRequestHandler: Debug + Send + Sync {
    /// Must not block; the response may follow later.
    fn request(&self, call: ServerCall, respond: RespondToServer);

    /// Handles a notification that belongs to no call. Must not block.
    fn notify(&self, notification: ServerNotification);
}

/// Receives the notifications of one process, watch, search or HTTP body.
pub trait EventSink: Debug + Send + Sync {
    /// Offers the next notification, in order. Must not block.
    fn offer(&self, notification: ServerNotification) -> Offered;

    /// After [`Offered::Full`], resolves when offering again is worthwhile.
    fn room(&self) -> SinkFuture<'_>;

    /// Resolves when the sink wants no further notifications.
    fn gone(&self) -> SinkFuture<'_>;

    /// Ends the sink: no further notification follows.
    fn end(&self);
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "boxing would allocate for each notification")]
pub enum Offered {
    Accepted,
    /// No room now; offer it again later.
    Full(ServerNotification),
    /// The sink wants no further notifications.
    Gone,
}
