//! The connections shared by all requests.

use std::time::Duration;

use super::Variables;
use super::diagnosis::{self, CONNECT_TIMEOUT};
use super::error::HttpError;
use super::proxies::proxies;
use super::trust::tls;

/// The most unread data of one HTTP/2 response that this machine buffers.
const STREAM_WINDOW: u32 = 1 << 20;
/// Large enough for the unread data of 64 responses: an unread response must not block others from
/// the same server.
const CONNECTION_WINDOW: u32 = 64 << 20;
const IDLE_CONNECTIONS_PER_HOST: usize = 8;
const IDLE_FOR: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Pool {
    /// Keeps connections for the next request.
    pub(super) kept: reqwest::Client,
    /// Opens a new connection for each request.
    pub(super) fresh: reqwest::Client,
}

impl Pool {
    /// Reads proxies and certificate authorities from the machine. Blocks.
    pub(super) fn open(variables: &Variables) -> Result<Self, HttpError> {
        let tls = tls(variables)?;
        let kept = open(variables, tls.clone(), IDLE_CONNECTIONS_PER_HOST)?;
        Ok(Self { kept, fresh: open(variables, tls, 0)? })
    }
}

fn open(
    variables: &Variables,
    tls: rustls::ClientConfig,
    idle_connections: usize,
) -> Result<reqwest::Client, HttpError> {
    let builder = reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_max_idle_per_host(idle_connections)
        .pool_idle_timeout(IDLE_FOR)
        .http2_initial_stream_window_size(STREAM_WINDOW)
        .http2_initial_connection_window_size(CONNECTION_WINDOW)
        // `redirect` decides for each request.
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy();
    let builder = proxies(variables)?.into_iter().fold(builder, reqwest::ClientBuilder::proxy);
    builder.build().map_err(|error| diagnosis::of_setup(&error))
}
