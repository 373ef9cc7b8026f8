//! Remote mode: the server is an environment, reachable through a relay.

use std::path::PathBuf;
use std::sync::Arc;

use exec_server_relay::RelayCounters;
use exec_server_relay::environment::{Environment, RemoteEnvironmentConfig, Serve};
use exec_server_relay::registry::RegistryError;
use exec_server_server::{Server, ServerConfig};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::serve::{ServeError, start};
use crate::config::remote::RemoteOptions;
use crate::environment::runtime_paths::ExecServerRuntimePaths;
use crate::registry_credentials::NoCredentials;

/// An environment that is ready to run, with the file of its credentials.
#[derive(Debug)]
pub(super) struct Remote {
    config: RemoteEnvironmentConfig,
    secret_file: Option<PathBuf>,
}

impl Remote {
    pub(super) fn new(options: RemoteOptions) -> Result<Self, NoCredentials> {
        let found = options.credentials.find(&options.registry)?;
        let config = RemoteEnvironmentConfig {
            base_url: options.registry,
            environment_id: options.environment_id,
            name: options.name,
            credentials: found.credentials,
            tls: options.tls,
        };
        // A sandbox hides only absolute paths.
        let secret_file = found.secret_file.and_then(|file| std::path::absolute(file).ok());
        Ok(Self { config, secret_file })
    }

    /// Returns the file that no sandbox may read.
    pub(super) fn secret_file(&self) -> Option<&PathBuf> {
        self.secret_file.as_ref()
    }

    pub(super) async fn serve_with(self, server: &Server) -> Result<RunningRemote, RegistryError> {
        RunningRemote::start(self.config, serving(server)).await
    }
}

fn serving(server: &Server) -> Serve {
    let server = server.clone();
    Arc::new(move |connection| {
        let server = server.clone();
        Box::pin(async move { server.serve(connection).await })
    })
}

#[derive(Debug)]
pub(crate) struct RunningRemote {
    /// Dropping the sender requests the shutdown.
    stop: Option<oneshot::Sender<()>>,
    counters: Arc<RelayCounters>,
    task: JoinHandle<Result<(), RegistryError>>,
}

impl RunningRemote {
    pub(crate) async fn start(
        config: RemoteEnvironmentConfig,
        serve: Serve,
    ) -> Result<Self, RegistryError> {
        let environment = Environment::new(config, serve).await?;
        let counters = environment.counters();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(environment.run_until(async {
            let _ = stopped.await;
        }));
        Ok(Self { stop: Some(stop), counters, task })
    }

    pub(super) fn counters(&self) -> &Arc<RelayCounters> {
        &self.counters
    }

    /// Stops accepting streams.
    pub(crate) fn stop(&mut self) {
        self.stop = None;
    }

    /// Resolves when the registry refuses permanently or, after [`Self::stop`], when the last
    /// stream has ended. Cancel-safe.
    pub(crate) async fn ended(&mut self) -> Result<(), RegistryError> {
        (&mut self.task).await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
    }
}

impl Drop for RunningRemote {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Serves through a relay until the registry refuses permanently. For embedders.
///
/// Must run inside a multi-threaded tokio runtime with I/O and time enabled.
pub async fn run_remote_environment(
    config: RemoteEnvironmentConfig,
    runtime_paths: ExecServerRuntimePaths,
) -> Result<(), ServeError> {
    run_remote_environment_until_shutdown(config, runtime_paths, std::future::pending()).await
}

/// Like [`run_remote_environment`], but also ends all sessions and returns when `shutdown`
/// resolves.
pub async fn run_remote_environment_until_shutdown(
    config: RemoteEnvironmentConfig,
    runtime_paths: ExecServerRuntimePaths,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), ServeError> {
    let server = start(&ServerConfig::default(), &runtime_paths, &Arc::default())?;
    let mut remote = RunningRemote::start(config, serving(&server)).await?;
    tokio::select! {
        refused = remote.ended() => {
            server.shutdown().await;
            refused.map_err(ServeError::Remote)
        }
        () = shutdown => {
            remote.stop();
            server.shutdown().await;
            remote.ended().await.map_err(ServeError::Remote)
        }
    }
}
