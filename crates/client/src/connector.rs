//! Ways to reach a server, again and again.

use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use exec_server_transport::{Connection, DialOptions, dial};

use crate::{ConnectError, DisconnectReason, RemoteExecServerConnectArgs};

/// A connection that is being made. Dropping it abandons the attempt.
pub type Dialing = Pin<Box<dyn Future<Output = Result<Connection, ConnectError>> + Send>>;

/// What is found out about a connection that is lost for good. May take a moment, and not more.
pub type PostMortem<'a> = Pin<Box<dyn Future<Output = DisconnectReason> + Send + 'a>>;

/// Makes the connections of one client: the first, and those that replace a lost one.
pub trait Connector: Send + 'static {
    fn dial(&mut self) -> Dialing;

    /// Whether dialling again reaches the same server. Where it does not, the end of the connection is the end.
    fn can_redial(&self) -> bool {
        true
    }

    /// What is known about the end of a connection that cannot be dialled again.
    fn post_mortem(&mut self) -> PostMortem<'_> {
        Box::pin(std::future::ready(DisconnectReason::CannotRedial))
    }
}

/// Dials a URL.
pub(crate) struct UrlConnector {
    url: String,
    options: DialOptions,
    timeout: Duration,
}

impl UrlConnector {
    pub(crate) fn new(args: &RemoteExecServerConnectArgs) -> Self {
        let options =
            DialOptions { bearer_token: args.bearer_token.clone(), keep_alive: args.keep_alive };
        Self { url: args.websocket_url.clone(), options, timeout: args.connect_timeout }
    }

    pub(crate) fn unix(path: &Path, timeout: Duration) -> Self {
        Self { url: format!("unix://{}", path.display()), options: DialOptions::default(), timeout }
    }
}

impl Connector for UrlConnector {
    fn dial(&mut self) -> Dialing {
        let (url, options, timeout) = (self.url.clone(), self.options.clone(), self.timeout);
        Box::pin(async move {
            match tokio::time::timeout(timeout, dial(&url, &options)).await {
                Ok(dialled) => Ok(dialled?),
                Err(_) => Err(ConnectError::TimedOut { after: timeout }),
            }
        })
    }
}

/// A connection that somebody else made: good for once.
#[derive(Debug)]
pub(crate) struct OnceConnector(Option<Connection>);

impl OnceConnector {
    pub(crate) fn new(connection: Connection) -> Self {
        Self(Some(connection))
    }
}

impl Connector for OnceConnector {
    fn dial(&mut self) -> Dialing {
        let connection = self.0.take();
        Box::pin(async move { connection.ok_or(ConnectError::EndedEarly) })
    }

    fn can_redial(&self) -> bool {
        false
    }
}
