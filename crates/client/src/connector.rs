//! Ways to reach a server, for the first connection and for each reconnect.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use exec_server_relay::harness::Harness;
use exec_server_transport::{Connection, DialError, DialOptions, DialUrl, dial, read_token_file};

use crate::{
    ConnectError, DisconnectReason, NoiseRendezvousConnectArgs, RemoteExecServerConnectArgs,
};

/// A connection attempt in progress. Dropping it abandons the attempt.
pub type Dialing = Pin<Box<dyn Future<Output = Result<Connection, ConnectError>> + Send>>;

/// Determines why a connection was lost for good. Must complete quickly.
pub type PostMortem<'a> = Pin<Box<dyn Future<Output = DisconnectReason> + Send + 'a>>;

/// Makes the connections of one client: the first one and its replacements.
pub trait Connector: Send + 'static {
    fn dial(&mut self) -> Dialing;

    /// Whether redialling reaches the same server. If not, the client ends with its connection.
    fn can_redial(&self) -> bool {
        true
    }

    /// Reports why a connection that cannot be redialled ended.
    fn post_mortem(&mut self) -> PostMortem<'_> {
        Box::pin(std::future::ready(DisconnectReason::CannotRedial))
    }
}

pub(crate) struct UrlConnector {
    url: String,
    options: DialOptions,
    token_file: Option<PathBuf>,
    timeout: Duration,
}

impl UrlConnector {
    pub(crate) fn new(args: &RemoteExecServerConnectArgs) -> Self {
        let options = DialOptions {
            bearer_token: args.bearer_token.clone(),
            tls: args.tls.clone(),
            keep_alive: args.keep_alive,
        };
        Self {
            url: args.websocket_url.clone(),
            options,
            token_file: args.token_file.clone(),
            timeout: args.connect_timeout,
        }
    }

    pub(crate) fn unix(path: &Path, timeout: Duration) -> Self {
        let url = format!("unix://{}", path.display());
        Self { url, options: DialOptions::default(), token_file: None, timeout }
    }
}

impl Connector for UrlConnector {
    fn dial(&mut self) -> Dialing {
        let (url, mut options, timeout) = (self.url.clone(), self.options.clone(), self.timeout);
        let token_file = self.token_file.clone();
        Box::pin(async move {
            let dialled = tokio::time::timeout(timeout, async {
                if let Some(path) = token_file {
                    options.bearer_token = Some(read_token(path).await?);
                }
                Ok(dial(&url, &options).await?)
            });
            dialled.await.unwrap_or_else(|_| {
                let url: DialUrl = url.parse().map_err(DialError::BadUrl)?;
                Err(ConnectError::TimedOut { url: url.to_string(), after: timeout })
            })
        })
    }
}

/// Opens streams through a relay. A stream survives the loss of its socket; redialling replaces a
/// lost stream.
pub(crate) struct RelayConnector(Arc<Harness>);

impl RelayConnector {
    pub(crate) fn new(args: &NoiseRendezvousConnectArgs) -> Self {
        Self(Arc::new(Harness::new(Arc::clone(&args.provider), args.tls.clone())))
    }
}

impl Connector for RelayConnector {
    fn dial(&mut self) -> Dialing {
        let harness = Arc::clone(&self.0);
        Box::pin(async move { Ok(harness.connect().await?) })
    }
}

/// Reads the file on a blocking thread: it may be a FIFO or on a network file system.
async fn read_token(path: PathBuf) -> Result<String, ConnectError> {
    let read = tokio::task::spawn_blocking(move || read_token_file(&path)).await;
    match read {
        Ok(token) => Ok(token?),
        // The runtime is shutting down, and this task with it.
        Err(_) => Err(ConnectError::EndedEarly),
    }
}

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
