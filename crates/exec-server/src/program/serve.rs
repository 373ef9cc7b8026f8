//! Running a server: bind, say where, serve, and end cleanly.

use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use exec_server_host::process::launch::Launcher;
use exec_server_host::service_manager::{Notifier, ServiceManager, ServiceState};
use exec_server_relay::registry::RegistryError;
use exec_server_server::{SandboxUnavailable, Server, ServerConfig, Telemetry};
use exec_server_telemetry::otlp::OtlpSettings;
use exec_server_transport::{
    AuthError, BindError, Connection, ExecServerListenUrlParseError, ListenUrl, Listener,
    ListenerMonitor, ListenerOptions, TlsError, stdio,
};
use futures_util::future::select_all;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;

use super::door::Door;
use super::monitor::Monitor;
use super::otlp::{self, ExportSetupError};
use super::reload::{Reloadable, Reloading, RunningSettings, notify};
use super::remote::{Remote, RunningRemote};
use super::sockets::{ActivationError, Endpoint, warn_of_unused};
use crate::config::Settings;
use crate::config::exposure::ExposureError;
use crate::environment::runtime_paths::ExecServerRuntimePaths;
use crate::program::write_history_files::write_history_files;
use crate::registry_credentials::NoCredentials;
use crate::target::runtime_file::{RuntimeFile, believed_directories};

/// How long connections have to close at the end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Why a server could not run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(transparent)]
    Url(#[from] ExecServerListenUrlParseError),
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    Activation(#[from] ActivationError),
    #[error("{0}")]
    Settings(String),
    #[error(transparent)]
    Auth(#[from] AuthError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(
        "there is no directory to keep a self-signed certificate in; set HOME or XDG_STATE_HOME, or \
         give --tls-cert and --tls-key"
    )]
    NoStateDirectory,
    #[error("cannot start the spawner of processes: {0}")]
    Spawner(#[source] io::Error),
    #[error("cannot handle signals: {0}")]
    Signals(#[source] io::Error),
    #[error("cannot write the URL to standard output: {0}")]
    Announce(#[source] io::Error),
    #[error(transparent)]
    Export(#[from] ExportSetupError),
    #[error(transparent)]
    Sandbox(#[from] SandboxUnavailable),
    #[error(transparent)]
    NoCredentials(#[from] NoCredentials),
    #[error(transparent)]
    Remote(#[from] RegistryError),
}

impl From<ExposureError> for ServeError {
    fn from(error: ExposureError) -> Self {
        Self::Settings(error.to_string())
    }
}

/// Runs a server with default settings until it is told to stop: what embedders call. The commands of `exec-server`
/// do not find it by themselves: it is the embedder's, not the user's.
///
/// Must run inside a multi-threaded tokio runtime with I/O and time enabled.
pub async fn run_main(
    listen_url: &str,
    runtime_paths: ExecServerRuntimePaths,
) -> Result<ExitCode, ServeError> {
    let listen = vec![listen_url.to_owned()];
    let settings = Settings { listen, discoverable: false, ..Settings::default() };
    run(&settings, &runtime_paths, ServiceContext::none()).await
}

/// The service manager, the settings for a later comparison, and where telemetry goes.
#[derive(Debug)]
pub(crate) struct ServiceContext {
    pub(crate) manager: ServiceManager,
    /// Compared with new ones on SIGHUP.
    pub(crate) running: Option<RunningSettings>,
    /// Of the program itself. The variables of an embedder are the embedder's.
    pub(crate) otlp: Option<OtlpSettings>,
}

impl ServiceContext {
    fn none() -> Self {
        Self { manager: ServiceManager::none(), running: None, otlp: None }
    }
}

/// The default command of the program.
pub(crate) fn serve(settings: &Settings, context: ServiceContext) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let context = ServiceContext { otlp: otlp::settings("exec-server")?, ..context };
    let outcome = runtime.block_on(run(settings, &ExecServerRuntimePaths::this_program(), context));
    // A read of a terminal or a file on standard input cannot be cancelled; it must not hold us.
    runtime.shutdown_background();
    outcome.map_err(anyhow::Error::from)
}

async fn run(
    settings: &Settings,
    paths: &ExecServerRuntimePaths,
    context: ServiceContext,
) -> Result<ExitCode, ServeError> {
    let urls = settings.listen.iter().map(|url| url.parse());
    let urls: Vec<ListenUrl> = urls.collect::<Result<_, _>>()?;
    let mut signals = Signals::new().map_err(ServeError::Signals)?;
    match urls[..] {
        [ListenUrl::Stdio] => {
            let ServiceContext { manager: ServiceManager { notifier, sockets }, otlp, .. } =
                context;
            warn_of_unused(sockets);
            serve_stdio(settings, paths, otlp, &notifier, &mut signals).await
        }
        [ListenUrl::Off] => serve_listeners(settings, paths, Vec::new(), context, signals).await,
        _ => serve_listeners(settings, paths, urls, context, signals).await,
    }
}

async fn serve_listeners(
    settings: &Settings,
    paths: &ExecServerRuntimePaths,
    urls: Vec<ListenUrl>,
    context: ServiceContext,
    signals: Signals,
) -> Result<ExitCode, ServeError> {
    let ServiceContext { manager: ServiceManager { notifier, sockets }, running, otlp } = context;
    let endpoints = Endpoint::all(urls, sockets)?;
    let remote =
        settings.remote_options().map_err(|error| ServeError::Settings(error.to_string()))?;
    let remote = remote.map(Remote::new).transpose()?;
    let door = Door::new(settings, &endpoints)?;
    let (monitor, export) = Monitor::new(settings, otlp)?;
    let mut listeners = Vec::new();
    for endpoint in endpoints {
        let monitor = Some(Arc::clone(&monitor) as Arc<dyn ListenerMonitor>);
        let options = ListenerOptions { monitor, ..door.options(settings) };
        listeners.push(endpoint.listen(options).await?);
    }
    let mut config = protecting(&settings.server, &door, &listeners);
    config.secret_paths.extend(remote.iter().filter_map(Remote::secret_file).cloned());
    config.secret_paths.extend(settings.audit_file());
    let enforcing = start_enforcing(&config, paths, &monitor.telemetry).await?;
    // Before the announcement: a signal must not end a server that says it is there.
    let reloadable = Reloadable {
        settings: running,
        notifier: notifier.clone(),
        audit_log: monitor.audit_log.clone(),
        ..door.reloadable()
    };
    let reloading = Reloading::start(reloadable).map_err(ServeError::Signals)?;
    let mut ending = Ending { signals, reloading, notifier };
    // Before the announcement: whoever has read that may rely on the file.
    let _runtime_file = match listeners.iter().find(|listener| door.is_open_to_own_user(listener)) {
        Some(listener) if settings.discoverable => publish(listener),
        _ => None,
    };
    monitor
        .telemetry
        .listens_on(listeners.iter().map(|listener| listener.local_url().to_string()).collect());
    announce(&listeners).map_err(ServeError::Announce)?;
    if let [only] = &listeners[..]
        && door.is_open_to_own_user(only)
    {
        greet(only.local_url());
    }
    door.explain(settings, &listeners);
    let server = enforcing.map_or_else(|| start(&config, paths, &monitor.telemetry), Ok)?;
    monitor.watch(&server);
    server.prepare_limits();
    let remote = match remote {
        Some(remote) => Some(remote.serve_with(&server).await?),
        None => None,
    };
    if let Some(remote) = &remote {
        monitor.watch_relay(remote.counters());
    }
    notify(&ending.notifier, ServiceState::Ready, "serving");
    let outcome = listen(&server, listeners, remote, &mut ending).await;
    monitor.telemetry.flush();
    if !matches!(outcome, Ok(code) if code != ExitCode::SUCCESS) {
        export.finish(&mut ending.signals).await;
    }
    outcome
}

async fn serve_stdio(
    settings: &Settings,
    paths: &ExecServerRuntimePaths,
    otlp: Option<OtlpSettings>,
    notifier: &Notifier,
    signals: &mut Signals,
) -> Result<ExitCode, ServeError> {
    let (monitor, export) = Monitor::new(settings, otlp)?;
    let mut config = settings.server.clone();
    config.secret_paths.extend(settings.audit_file());
    let enforcing = start_enforcing(&config, paths, &monitor.telemetry).await?;
    let server = enforcing.map_or_else(|| start(&config, paths, &monitor.telemetry), Ok)?;
    monitor.watch(&server);
    notify(notifier, ServiceState::Ready, "serving");
    let mut connection = JoinSet::new();
    connection.spawn({
        let server = server.clone();
        async move { server.serve(stdio()).await }
    });
    let code = tokio::select! {
        _ = connection.join_next() => ExitCode::SUCCESS,
        _ = signals.next() => shut_down(&server, signals).await,
    };
    monitor.telemetry.flush();
    if code == ExitCode::SUCCESS {
        export.finish(signals).await;
    }
    Ok(code)
}

/// A server does not need to be found: whatever is wrong here is only remarked on.
fn publish(listener: &Listener) -> Option<RuntimeFile> {
    match RuntimeFile::publish(&listener.local_url().to_string()) {
        Ok(Some(file)) => Some(file),
        Ok(None) => {
            tracing::debug!("another server of this user is found first; this one needs --connect");
            None
        }
        Err(error) => {
            tracing::warn!("commands will not find this server without --connect: {error}");
            None
        }
    }
}

/// A sandbox that could replace the socket of this server could be taken for it, and one that could read
/// its secrets could be anybody.
fn protecting(config: &ServerConfig, door: &Door, listeners: &[Listener]) -> ServerConfig {
    let mut config = config.clone();
    for listener in listeners {
        if let ListenUrl::Unix(path) = listener.local_url() {
            config.protected_paths.extend(std::path::absolute(path));
        }
    }
    config.protected_paths.extend(door.protected_files());
    config.secret_paths.extend(door.secret_files());
    config
}

/// Where a sandbox is required, nobody is let in before it is known that it can be enforced. Otherwise nothing is
/// asked: a server listens before it does anything else.
async fn start_enforcing(
    config: &ServerConfig,
    paths: &ExecServerRuntimePaths,
    telemetry: &Arc<Telemetry>,
) -> Result<Option<Server>, ServeError> {
    if config.sandbox.require.is_none() {
        return Ok(None);
    }
    let server = start(config, paths, telemetry)?;
    server.check_sandbox().await?;
    Ok(Some(server))
}

/// A server in this process, with nothing to serve yet.
pub(crate) fn start(
    config: &ServerConfig,
    paths: &ExecServerRuntimePaths,
    telemetry: &Arc<Telemetry>,
) -> Result<Server, ServeError> {
    let launcher = paths.launcher().map_err(ServeError::Spawner)?;
    exec_server_host::survive_file_size_limit();
    if let Err(error) = exec_server_host::raise_descriptor_limit() {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
    if let Err(error) = exec_server_host::protect_own_memory() {
        tracing::warn!(%error, "child processes may be able to read the memory of this server");
    }
    Ok(new_server(config.clone(), launcher, Arc::clone(telemetry)))
}

/// Every server of this crate is made here, also one that nobody finds: a sandbox that could write what leads the commands of the user
/// to a server could lead them to itself, and one that could write the history of sandboxes could
/// make its own symlinks trusted.
pub(crate) fn new_server(
    mut config: ServerConfig,
    launcher: Launcher,
    telemetry: Arc<Telemetry>,
) -> Server {
    config.protected_paths.extend(believed_directories());
    config.write_history = write_history_files();
    let directories = config.write_history.iter().filter_map(|file| file.parent());
    config.protected_paths.extend(directories.map(Path::to_owned));
    Server::with_telemetry(config, launcher, telemetry)
}

async fn listen(
    server: &Server,
    mut listeners: Vec<Listener>,
    mut remote: Option<RunningRemote>,
    ending: &mut Ending,
) -> Result<ExitCode, ServeError> {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            connection = accept_any(&mut listeners) => {
                let server = server.clone();
                connections.spawn(async move { server.serve(connection).await });
            }
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            refused = remote_ended(&mut remote) => {
                remote = None;
                let Err(error) = refused else { continue };
                if listeners.is_empty() {
                    server.shutdown().await;
                    return Err(ServeError::Remote(error));
                }
                // With its sources.
                let error = format!("{:#}", anyhow::Error::new(error));
                tracing::error!(error, "not reachable through the relay any more");
            }
            () = ending.asked() => break,
        }
    }
    notify(&ending.notifier, ServiceState::Stopping, "shutting down");
    if let Some(remote) = &mut remote {
        remote.stop();
    }
    // The listeners stay: health answers until the end, readiness says no.
    for listener in &listeners {
        listener.readiness().drain();
    }
    let code = shut_down(server, &mut ending.signals).await;
    if code == ExitCode::SUCCESS {
        let closed = async {
            while connections.join_next().await.is_some() {}
            if remote.is_some() {
                let _ = remote_ended(&mut remote).await;
            }
        };
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, closed).await;
    }
    Ok(code)
}

/// The next client of any listener; never without listeners.
async fn accept_any(listeners: &mut [Listener]) -> Connection {
    if listeners.is_empty() {
        return std::future::pending().await;
    }
    let accepting = listeners.iter_mut().map(|listener| Box::pin(listener.accept()));
    select_all(accepting).await.0
}

async fn remote_ended(remote: &mut Option<RunningRemote>) -> Result<(), RegistryError> {
    match remote {
        Some(remote) => remote.ended().await,
        None => std::future::pending().await,
    }
}

async fn shut_down(server: &Server, signals: &mut Signals) -> ExitCode {
    tracing::info!("shutting down; a second signal ends at once");
    tokio::select! {
        () = server.shutdown() => ExitCode::SUCCESS,
        // The keepers see our end of their sockets close and kill what is left.
        number = signals.next() => ExitCode::from(128 + number),
    }
}

/// The URL of each listener, a line each. Nothing follows on standard output.
fn announce(listeners: &[Listener]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    for listener in listeners {
        writeln!(stdout, "{}", listener.local_url())?;
    }
    stdout.flush()
}

/// For a person who has just started the server, and may not know what to do next.
fn greet(url: &ListenUrl) {
    let mut stderr = io::stderr().lock();
    if stderr.is_terminal() {
        let _ = write!(
            stderr,
            "Listening. In another terminal: exec-server shell --connect {url}\n\
             or exec-server run --connect {url} -- COMMAND. Any WebSocket client can\n\
             drive it too: see README.md. Ctrl-C stops the server and all it started.\n"
        );
    }
}

/// The signals that end a server with listeners.
struct Ending {
    signals: Signals,
    reloading: Reloading,
    notifier: Notifier,
}

impl Ending {
    async fn asked(&mut self) {
        tokio::select! {
            _ = self.signals.next() => {}
            () = self.reloading.terminal_closed() => {}
        }
    }
}

/// Signals that ask the program to end.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// The number of the next signal that asks for the end.
    pub(super) async fn next(&mut self) -> u8 {
        tokio::select! {
            _ = self.terminate.recv() => 15,
            _ = self.interrupt.recv() => 2,
        }
    }
}
