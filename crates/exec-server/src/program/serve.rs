//! Running a server: bind, say where, serve, and end cleanly.

use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use exec_server_host::process::launch::Launcher;
use exec_server_host::process::origin::is_same_user_or_root;
use exec_server_server::{SandboxUnavailable, Server, ServerConfig};
use exec_server_transport::{
    BindError, ExecServerListenUrlParseError, ListenUrl, Listener, ListenerOptions, Peer, stdio,
};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;

use crate::config::Settings;
use crate::environment::runtime_paths::ExecServerRuntimePaths;
use crate::program::write_history_files::write_history_files;
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
    #[error("cannot start the spawner of processes: {0}")]
    Spawner(#[source] io::Error),
    #[error("cannot handle signals: {0}")]
    Signals(#[source] io::Error),
    #[error("cannot write the URL to standard output: {0}")]
    Announce(#[source] io::Error),
    #[error(transparent)]
    Sandbox(#[from] SandboxUnavailable),
}

/// Runs a server with default settings until it is told to stop: what embedders call. The commands of `exec-server`
/// do not find it by themselves: it is the embedder's, not the user's.
///
/// Must run inside a multi-threaded tokio runtime with I/O and time enabled.
pub async fn run_main(
    listen_url: &str,
    runtime_paths: ExecServerRuntimePaths,
) -> Result<ExitCode, ServeError> {
    let listen = listen_url.to_owned();
    let settings = Settings { listen, discoverable: false, ..Settings::default() };
    run(&settings, &runtime_paths).await
}

/// The default command of the program.
pub(crate) fn serve(settings: &Settings) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let outcome = runtime.block_on(run(settings, &ExecServerRuntimePaths::this_program()));
    // A read of a terminal or a file on standard input cannot be cancelled; it must not hold us.
    runtime.shutdown_background();
    outcome.map_err(anyhow::Error::from)
}

async fn run(settings: &Settings, paths: &ExecServerRuntimePaths) -> Result<ExitCode, ServeError> {
    let url: ListenUrl = settings.listen.parse()?;
    let mut signals = Signals::new().map_err(ServeError::Signals)?;
    match url {
        ListenUrl::WebSocket(_) | ListenUrl::Unix(_) => {
            let options = ListenerOptions {
                allowed_origins: settings.allow_origins.clone(),
                allowed_hosts: settings.allow_hosts.clone(),
                admits: if settings.allow_other_users { |_| true } else { is_own_user },
                ..ListenerOptions::default()
            };
            let listener = Listener::bind(&url, options).await?;
            let config = protecting(&settings.server, &listener);
            let enforcing = start_enforcing(&config, paths).await?;
            // Before the announcement: whoever has read that may rely on the file.
            let _runtime_file = if settings.discoverable { publish(&listener) } else { None };
            announce(listener.local_url()).map_err(ServeError::Announce)?;
            let server = enforcing.map_or_else(|| start(&config, paths), Ok)?;
            Ok(listen(&server, listener, &mut signals).await)
        }
        ListenUrl::Stdio => {
            let server = start_checked(&settings.server, paths).await?;
            let mut connection = JoinSet::new();
            connection.spawn({
                let server = server.clone();
                async move { server.serve(stdio()).await }
            });
            tokio::select! {
                _ = connection.join_next() => Ok(ExitCode::SUCCESS),
                _ = signals.next() => Ok(shut_down(&server, &mut signals).await),
            }
        }
        ListenUrl::Off => {
            let server = start_checked(&settings.server, paths).await?;
            signals.next().await;
            Ok(shut_down(&server, &mut signals).await)
        }
    }
}

/// Any user of the machine can reach a loopback port. A Unix socket has a mode that keeps others out.
fn is_own_user(peer: &Peer) -> bool {
    match peer {
        Peer::Tcp { remote, local } => is_same_user_or_root(*remote, *local),
        Peer::Unix { .. } => true,
    }
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

/// A sandbox that could replace the socket of this server could be taken for it.
fn protecting(config: &ServerConfig, listener: &Listener) -> ServerConfig {
    let mut config = config.clone();
    if let ListenUrl::Unix(path) = listener.local_url() {
        config.protected_paths.extend(std::path::absolute(path));
    }
    config
}

async fn start_checked(
    config: &ServerConfig,
    paths: &ExecServerRuntimePaths,
) -> Result<Server, ServeError> {
    let enforcing = start_enforcing(config, paths).await?;
    enforcing.map_or_else(|| start(config, paths), Ok)
}

/// Where a sandbox is required, nobody is let in before it is known that it can be enforced. Otherwise nothing is
/// asked: a server listens before it does anything else.
async fn start_enforcing(
    config: &ServerConfig,
    paths: &ExecServerRuntimePaths,
) -> Result<Option<Server>, ServeError> {
    if config.sandbox.require.is_none() {
        return Ok(None);
    }
    let server = start(config, paths)?;
    server.check_sandbox().await?;
    Ok(Some(server))
}

/// A server in this process, with nothing to serve yet.
pub(crate) fn start(
    config: &ServerConfig,
    paths: &ExecServerRuntimePaths,
) -> Result<Server, ServeError> {
    let launcher = paths.launcher().map_err(ServeError::Spawner)?;
    exec_server_host::survive_file_size_limit();
    if let Err(error) = exec_server_host::raise_descriptor_limit() {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
    if let Err(error) = exec_server_host::protect_own_memory() {
        tracing::warn!(%error, "child processes may be able to read the memory of this server");
    }
    Ok(new_server(config.clone(), launcher))
}

/// Every server of this crate is made here, also one that nobody finds: a sandbox that could write what leads the commands of the user
/// to a server could lead them to itself, and one that could write the history of sandboxes could
/// make its own symlinks trusted.
pub(crate) fn new_server(mut config: ServerConfig, launcher: Launcher) -> Server {
    config.protected_paths.extend(believed_directories());
    config.write_history = write_history_files();
    let directories = config.write_history.iter().filter_map(|file| file.parent());
    config.protected_paths.extend(directories.map(Path::to_owned));
    Server::new(config, launcher)
}

async fn listen(server: &Server, mut listener: Listener, signals: &mut Signals) -> ExitCode {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            connection = listener.accept() => {
                let server = server.clone();
                connections.spawn(async move { server.serve(connection).await });
            }
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            _ = signals.next() => break,
        }
    }
    // The listener stays: health answers until the end, readiness says no.
    listener.readiness().drain();
    let code = shut_down(server, signals).await;
    if code == ExitCode::SUCCESS {
        let closed = async { while connections.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, closed).await;
    }
    code
}

async fn shut_down(server: &Server, signals: &mut Signals) -> ExitCode {
    tracing::info!("shutting down; a second signal ends at once");
    tokio::select! {
        () = server.shutdown() => ExitCode::SUCCESS,
        // The keepers see our end of their sockets close and kill what is left.
        number = signals.next() => ExitCode::from(128 + number),
    }
}

/// The first line on standard output, and the last.
fn announce(url: &ListenUrl) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{url}")?;
    stdout.flush()?;
    let mut stderr = io::stderr().lock();
    if stderr.is_terminal() {
        let _ = write!(
            stderr,
            "Listening. In another terminal: exec-server shell --connect {url}\n\
             or exec-server run --connect {url} -- COMMAND. Any WebSocket client can\n\
             drive it too: see README.md. Ctrl-C stops the server and all it started.\n"
        );
    }
    Ok(())
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// The number of the next signal that asks for the end.
    async fn next(&mut self) -> u8 {
        tokio::select! {
            _ = self.terminate.recv() => 15,
            _ = self.interrupt.recv() => 2,
        }
    }
}
