//! Runs a server: bind, print the URLs, serve, and shut down cleanly.

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
use crate::target::runtime_file::{
    RunningServer, RuntimeFile, believed_directories, running_server,
};

/// How long connections may take to close at shutdown.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Why a server could not run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(transparent)]
    Url(#[from] ExecServerListenUrlParseError),
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(
        "a server of this user (pid {pid}) already listens on {url}, and commands use it; to run a \
         second server, choose another address"
    )]
    AlreadyRunning { url: String, pid: u32 },
    #[error(transparent)]
    Activation(#[from] ActivationError),
    #[error("{0}")]
    Settings(String),
    #[error(transparent)]
    Auth(#[from] AuthError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(
        "no directory is available for a self-signed certificate; set HOME or XDG_STATE_HOME, or \
         give --tls-cert and --tls-key"
    )]
    NoStateDirectory,
    #[error("cannot start the spawner process: {0}")]
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

/// Runs a server with default settings until a signal ends it. For embedders. The commands of
/// `exec-server` do not discover this server, because it belongs to the embedder, not to the user.
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

#[derive(Debug)]
pub(crate) struct ServiceContext {
    pub(crate) manager: ServiceManager,
    /// Compared with the new settings on SIGHUP.
    pub(crate) running: Option<RunningSettings>,
    /// Only for the program itself. An embedder's `OTEL_*` variables are not used.
    pub(crate) otlp: Option<OtlpSettings>,
}

impl ServiceContext {
    fn none() -> Self {
        Self { manager: ServiceManager::none(), running: None, otlp: None }
    }
}

/// Runs the default command of the program.
pub(crate) fn serve(settings: &Settings, context: ServiceContext) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot create the event loop")?;
    let context = ServiceContext { otlp: otlp::settings("exec-server")?, ..context };
    let outcome = runtime.block_on(run(settings, &ExecServerRuntimePaths::this_program(), context));
    // A blocking read of a terminal or file on standard input cannot be cancelled; do not wait for
    // it.
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
        listeners.push(endpoint.listen(options).await.map_err(naming_own_server)?);
    }
    let mut config = protecting(&settings.server, &door, &listeners);
    config.secret_paths.extend(remote.iter().filter_map(Remote::secret_file).cloned());
    config.secret_paths.extend(settings.audit_file());
    let enforcing = start_enforcing(&config, paths, &monitor.telemetry).await?;
    // Before the announcement, so that a SIGHUP cannot end a server that has announced itself.
    let reloadable = Reloadable {
        settings: running,
        notifier: notifier.clone(),
        audit_log: monitor.audit_log.clone(),
        ..door.reloadable()
    };
    let reloading = Reloading::start(reloadable).map_err(ServeError::Signals)?;
    let mut ending = Ending { signals, reloading, notifier };
    // Before the announcement: a reader of the announcement may rely on the file.
    let runtime_file = match listeners.iter().find(|listener| door.is_open_to_own_user(listener)) {
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
        greet(only.local_url(), settings.discoverable && runtime_file.is_none());
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

/// Names the server that uses the address, if it is this user's discoverable server.
fn naming_own_server(error: BindError) -> ServeError {
    let url = match &error {
        BindError::AddressInUse { address } => ListenUrl::WebSocket(*address).to_string(),
        BindError::PathInUse { path } => ListenUrl::Unix(path.clone()).to_string(),
        _ => return error.into(),
    };
    match running_server() {
        Some(RunningServer { url: own, pid, .. }) if own == url => {
            ServeError::AlreadyRunning { url, pid }
        }
        _ => error.into(),
    }
}

/// Failures are only logged, because the server works without discovery.
fn publish(listener: &Listener) -> Option<RuntimeFile> {
    match RuntimeFile::publish(&listener.local_url().to_string()) {
        Ok(Some(file)) => Some(file),
        Ok(None) => {
            tracing::debug!(
                url = %listener.local_url(),
                "commands find another server of this user first; use --connect to reach this one"
            );
            None
        }
        Err(error) => {
            tracing::warn!(
                url = %listener.local_url(),
                "cannot publish the URL of this server; commands need --connect: {error}"
            );
            None
        }
    }
}

/// Protects the server's socket and secrets: a sandbox that could replace the socket could
/// impersonate the server, and one that could read the secrets could impersonate any client.
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

/// If a sandbox is required, starts the server and checks that the sandbox can be enforced, before
/// the URLs are announced. Otherwise returns `None`: the announcement need not wait for the server.
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

/// Creates a server in this process, without listeners.
pub(crate) fn start(
    config: &ServerConfig,
    paths: &ExecServerRuntimePaths,
    telemetry: &Arc<Telemetry>,
) -> Result<Server, ServeError> {
    let launcher = paths.launcher().map_err(ServeError::Spawner)?;
    exec_server_host::survive_file_size_limit();
    if let Err(error) = exec_server_host::raise_descriptor_limit() {
        tracing::warn!(%error, "cannot raise the limit on open files to the hard limit");
    }
    if let Err(error) = exec_server_host::protect_own_memory() {
        tracing::warn!(
            %error,
            "cannot protect the memory of this server; processes that it starts may be able to \
             read it"
        );
    }
    Ok(new_server(config.clone(), launcher, Arc::clone(telemetry)))
}

/// Creates a server. Every server of this crate is created here, including those that are not
/// discoverable. Protects the server-discovery files, because a sandbox that could write them could
/// redirect the user's commands to itself. Protects the sandbox history, because a sandbox that
/// could write it could make its own symlinks trusted.
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
                // Includes the sources of the error.
                let error = format!("{:#}", anyhow::Error::new(error));
                tracing::error!(error, "no longer reachable through the relay");
            }
            () = ending.asked() => break,
        }
    }
    notify(&ending.notifier, ServiceState::Stopping, "shutting down");
    if let Some(remote) = &mut remote {
        remote.stop();
    }
    // The listeners stay open until the end: health checks succeed, and readiness checks fail.
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

/// Accepts the next client of any listener. Never resolves without listeners.
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
    tracing::info!("shutting down; a second signal ends the server at once");
    tokio::select! {
        () = server.shutdown() => ExitCode::SUCCESS,
        // The keepers notice that this process has closed its sockets, and kill the remaining
        // processes.
        number = signals.next() => ExitCode::from(128 + number),
    }
}

/// Prints the URL of each listener on a separate line. Nothing else is written to standard output.
fn announce(listeners: &[Listener]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    for listener in listeners {
        writeln!(stdout, "{}", listener.local_url())?;
    }
    stdout.flush()
}

/// Prints the next steps for a person who has just started the server on a terminal.
fn greet(url: &ListenUrl, is_second: bool) {
    let mut stderr = io::stderr().lock();
    if !stderr.is_terminal() {
        return;
    }
    let program = program_as_started();
    let _ = write!(
        stderr,
        "Listening. In another terminal: {program} shell --connect {url}\n\
         or {program} run --connect {url} -- COMMAND.\n\
         Ctrl-C here stops the server and all its processes.\n"
    );
    if is_second && let Some(RunningServer { url, pid, .. }) = running_server() {
        let _ = writeln!(
            stderr,
            "Without --connect, commands use your other server at {url} (pid {pid})."
        );
    }
}

/// Returns the word with which another shell can start the program: its path if it was started by
/// a path that needs no quotes, otherwise its name.
fn program_as_started() -> String {
    let needs_no_quotes = |path: &String| {
        path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-+".contains(&byte))
    };
    let was_a_path =
        std::env::args_os().next().is_some_and(|name| name.as_encoded_bytes().contains(&b'/'));
    let path = std::env::current_exe().ok().filter(|_| was_a_path);
    let path = path.and_then(|path| path.into_os_string().into_string().ok());
    path.filter(needs_no_quotes).unwrap_or_else(|| "exec-server".to_owned())
}

/// The events that end a server with listeners.
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

    /// Returns the number of the signal.
    pub(super) async fn next(&mut self) -> u8 {
        tokio::select! {
            _ = self.terminate.recv() => 15,
            _ = self.interrupt.recv() => 2,
        }
    }
}
