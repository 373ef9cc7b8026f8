//! An environment: a name, and what stands behind it once it is used.

use std::sync::Arc;

use async_trait::async_trait;
use exec_server_client::{ExecServerClientConnectOptions, ExecServerError};
use exec_server_protocol::{EnvironmentInfo, StartParams};
use exec_server_server::ServerConfig;

use super::backend::{ExecBackend, ExecProcess};
use super::file_system::ExecutorFileSystem;
use super::http::HttpClient;
use super::lazy::Lazy;
use super::local::LocalBackend;
use super::remote::{RemoteBackend, RemoteServer};
use crate::runtime_paths::ExecServerRuntimePaths;

/// The id of the environment that is this machine.
pub const LOCAL_ENVIRONMENT_ID: &str = "local";

/// A place where processes can be started, here or elsewhere, with its files and its network. Clones are the same
/// environment.
///
/// Nothing happens before the first use, which connects. When a connection is lost for good, its processes keep
/// their error and the next use connects anew.
#[derive(Debug, Clone)]
pub struct Environment {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    id: String,
    place: Place,
    opened: Lazy<Opened, ExecServerError>,
}

#[derive(Debug)]
enum Place {
    Local { runtime_paths: ExecServerRuntimePaths, config: ServerConfig },
    Remote(RemoteServer),
}

#[derive(Debug, Clone)]
enum Opened {
    Local(LocalBackend),
    Remote(RemoteBackend),
}

impl Environment {
    /// This machine, under the id `local`.
    #[must_use]
    pub fn local(runtime_paths: ExecServerRuntimePaths) -> Self {
        Self::local_with(runtime_paths, ServerConfig::default())
    }

    /// The same with limits other than the usual ones.
    #[must_use]
    pub fn local_with(runtime_paths: ExecServerRuntimePaths, config: ServerConfig) -> Self {
        Self::new(LOCAL_ENVIRONMENT_ID.to_owned(), Place::Local { runtime_paths, config })
    }

    /// The machine of another server.
    pub fn remote(id: impl Into<String>, server: RemoteServer) -> Self {
        Self::new(id.into(), Place::Remote(server))
    }

    fn new(id: String, place: Place) -> Self {
        Self { shared: Arc::new(Shared { id, place, opened: Lazy::new() }) }
    }

    #[must_use]
    pub fn id(&self) -> &str {
        &self.shared.id
    }

    /// Where it is, unless it is here.
    #[must_use]
    pub fn server(&self) -> Option<&RemoteServer> {
        match &self.shared.place {
            Place::Local { .. } => None,
            Place::Remote(server) => Some(server),
        }
    }

    /// Its files. An environment is its own [`ExecutorFileSystem`], so a clone of it serves where one is to be owned.
    #[must_use]
    pub fn file_system(&self) -> &dyn ExecutorFileSystem {
        self
    }

    /// HTTP from where it is. An environment is its own [`HttpClient`], as with files.
    #[must_use]
    pub fn http(&self) -> &dyn HttpClient {
        self
    }

    pub(super) async fn opened_files(
        &self,
    ) -> Result<Arc<dyn ExecutorFileSystem>, ExecServerError> {
        Ok(match self.opened().await? {
            Opened::Local(backend) => Arc::new(backend.file_system()),
            Opened::Remote(backend) => Arc::new(backend.file_system()),
        })
    }

    pub(super) async fn opened_http(&self) -> Result<Arc<dyn HttpClient>, ExecServerError> {
        Ok(match self.opened().await? {
            Opened::Local(backend) => Arc::new(backend.http()),
            Opened::Remote(backend) => Arc::new(backend.http()),
        })
    }

    async fn opened(&self) -> Result<Opened, ExecServerError> {
        let is_usable = |opened: &Opened| match opened {
            Opened::Local(_) => true,
            Opened::Remote(backend) => !backend.is_over(),
        };
        self.shared.opened.get(is_usable, self.shared.open()).await
    }
}

impl Shared {
    async fn open(&self) -> Result<Opened, ExecServerError> {
        match &self.place {
            Place::Local { runtime_paths, config } => {
                LocalBackend::open(runtime_paths, config.clone()).map(Opened::Local)
            }
            Place::Remote(server) => {
                let options = ExecServerClientConnectOptions {
                    client_name: format!("environment {}", self.id),
                    ..ExecServerClientConnectOptions::default()
                };
                Ok(Opened::Remote(RemoteBackend::new(server.connect(options).await?)))
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
        if params.sandbox.is_none() {
            let terms = self.server().and_then(|server| server.sandbox.as_ref());
            params.sandbox = terms.map(|terms| terms.request(&params.cwd));
        }
        match self.opened().await? {
            Opened::Local(backend) => backend.start(params).await,
            Opened::Remote(backend) => backend.start(params).await,
        }
    }

    async fn info(&self) -> Result<EnvironmentInfo, ExecServerError> {
        match self.opened().await? {
            Opened::Local(backend) => backend.info().await,
            Opened::Remote(backend) => backend.info().await,
        }
    }
}
