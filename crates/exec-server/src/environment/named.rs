//! An environment: an id, and the server behind it, which is connected on first use.

use std::sync::Arc;

use async_trait::async_trait;
use exec_server_client::{
    ConnectError, ConnectionState, ExecServerClient, ExecServerClientConnectOptions,
    ExecServerError,
};
use exec_server_protocol::{EnvironmentInfo, StartParams};
use exec_server_server::ServerConfig;

use super::backend::{ExecBackend, ExecProcess};
use super::file_system::ExecutorFileSystem;
use super::host_options::HostOptions;
use super::http::HttpClient;
use super::lazy::Lazy;
use super::remote::RemoteServer;
use crate::environment::runtime_paths::ExecServerRuntimePaths;
use crate::program::serve::new_server;

pub const LOCAL_ENVIRONMENT_ID: &str = "local";

/// A location where processes run, local or remote, with its files and its network. Clones refer to
/// the same environment.
///
/// The first use connects. When a connection is lost for good, its processes report the error, and
/// the next use connects again.
#[derive(Debug, Clone)]
pub struct Environment {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    id: String,
    location: Location,
    client: Lazy<ExecServerClient, ExecServerError>,
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is only one per environment")]
enum Location {
    Local { runtime_paths: ExecServerRuntimePaths, config: ServerConfig },
    Remote(RemoteServer),
}

impl Environment {
    /// Creates the local environment, with the id `local`.
    #[must_use]
    pub fn local(runtime_paths: ExecServerRuntimePaths) -> Self {
        Self::local_with(runtime_paths, ServerConfig::default())
    }

    /// Creates the local environment with a configuration other than the default.
    #[must_use]
    pub fn local_with(runtime_paths: ExecServerRuntimePaths, config: ServerConfig) -> Self {
        Self::new(LOCAL_ENVIRONMENT_ID.to_owned(), Location::Local { runtime_paths, config })
    }

    /// Creates the environment of a server.
    pub fn remote(id: impl Into<String>, server: RemoteServer) -> Self {
        Self::new(id.into(), Location::Remote(server))
    }

    fn new(id: String, location: Location) -> Self {
        Self { shared: Arc::new(Shared { id, location, client: Lazy::new() }) }
    }

    #[must_use]
    pub fn id(&self) -> &str {
        &self.shared.id
    }

    /// Returns the server, or `None` for the local environment.
    #[must_use]
    pub fn server(&self) -> Option<&RemoteServer> {
        match &self.shared.location {
            Location::Local { .. } => None,
            Location::Remote(server) => Some(server),
        }
    }

    /// Returns this environment as an [`ExecutorFileSystem`]. For an owned value, clone the
    /// environment: it implements the trait.
    #[must_use]
    pub fn file_system(&self) -> &dyn ExecutorFileSystem {
        self
    }

    /// Returns this environment as an [`HttpClient`], which sends requests from the environment.
    #[must_use]
    pub fn http(&self) -> &dyn HttpClient {
        self
    }

    /// Returns the client of the server, connected on first use and again after a permanent loss.
    pub(super) async fn client(&self) -> Result<ExecServerClient, ExecServerError> {
        let is_usable = |client: &ExecServerClient| match *client.connection_state().borrow() {
            ConnectionState::Connected | ConnectionState::Recovering { .. } => true,
            ConnectionState::Failed(_) | ConnectionState::Closed => false,
        };
        self.shared.client.get(is_usable, self.shared.connect()).await
    }
}

impl Shared {
    async fn connect(&self) -> Result<ExecServerClient, ExecServerError> {
        match &self.location {
            Location::Local { runtime_paths, config } => {
                let launcher = runtime_paths.launcher().map_err(|source| {
                    let program = "the spawner process".to_owned();
                    ConnectError::Launch { program, source }
                })?;
                let server = new_server(config.clone(), launcher, Arc::default());
                let link = server.connect_in_process("local environment");
                link.map(ExecServerClient::connect_in_process).map_err(ExecServerError::Server)
            }
            Location::Remote(server) => {
                let options = ExecServerClientConnectOptions {
                    client_name: format!("environment {}", self.id),
                    ..ExecServerClientConnectOptions::default()
                };
                server.connect(options).await
            }
        }
    }
}

#[async_trait]
impl ExecBackend for Environment {
    async fn start(
        &self,
        mut params: StartParams,
    ) -> Result<Arc<dyn ExecProcess>, ExecServerError> {
        if params.sandbox.is_none()
            && let Some(options) = self.server().and_then(|server| server.sandbox.as_ref())
        {
            params.sandbox = Some(options.request(&params.cwd));
            if !params.asks_for_managed_network() {
                // This client has no handler for questions about hosts.
                let hosts = HostOptions { ask: false, ..options.hosts.clone() };
                params.network = hosts.rules().map(Box::new);
            }
        }
        ExecBackend::start(&self.client().await?, params).await
    }

    async fn info(&self) -> Result<EnvironmentInfo, ExecServerError> {
        self.client().await?.info().await
    }
}
