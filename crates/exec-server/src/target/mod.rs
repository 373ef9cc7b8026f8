//! Which server a command works on, and how it gets there. The first that is named wins: `--connect`, `--on`,
//! `EXEC_SERVER_URL`, the configuration file, the default of `environments.toml`, the running server of this user;
//! else a server of our own, in this process, for as long as we last.

pub(crate) mod remote_path;
pub(crate) mod runtime_file;
pub(crate) mod server_url;

use std::fmt;
use std::time::Duration;

use exec_server_client::{
    ConnectionState, DisconnectReason, ExecServerClient, ExecServerClientConnectOptions,
    ExecServerError,
};
use exec_server_protocol::{ErrorKind, SessionCloseParams};
use exec_server_server::{Server, ServerConfig};
use exec_server_transport::DialUrlParseError;

use crate::cli::client::ServerChoice;
use crate::config::{self, ConfigError, Flags, SERVER_URL_VARIABLE, Source};
use crate::environment::runtime_paths::ExecServerRuntimePaths;
use crate::environment::sandbox_terms::SandboxTerms;
use crate::environment::{
    Environment, EnvironmentManager, EnvironmentsFileError, RemoteServer, UnknownEnvironment,
};
use crate::program::say;
use crate::program::serve::{self, ServeError};
use crate::terminal::outage;

/// How long the end of a session may take before we go without waiting for it.
const CLOSE_PATIENCE: Duration = Duration::from_secs(6);
/// The same for whoever is in a hurry: enough for the request to be on its way.
const HURRIED_CLOSE_PATIENCE: Duration = Duration::from_millis(500);

/// Where a command does its work.
#[derive(Debug)]
pub(crate) enum Target {
    Server { server: Box<RemoteServer>, origin: Origin },
    Embedded { origin: Origin },
}

/// Who said so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    Flag,
    Environment { id: String },
    Configured(Source),
    RuntimeFile,
    Nobody,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ReachError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Environments(#[from] EnvironmentsFileError),
    #[error(transparent)]
    UnknownEnvironment(#[from] UnknownEnvironment),
    #[error("{origin}: {source}")]
    Url { origin: Origin, source: DialUrlParseError },
    #[error(
        "no server is running; start one with `exec-server`, or name one with --connect URL or {SERVER_URL_VARIABLE}"
    )]
    NoServer,
    #[error(
        "environment {id:?} gets a server for each command, so nothing of it outlives one; use one with a url"
    )]
    NothingOutlives { id: String },
    #[error("{origin}: {source}")]
    Connect { origin: Origin, source: ExecServerError },
    #[error(transparent)]
    Embedded(#[from] ServeError),
}

impl ReachError {
    /// Of whoever wrote the command line or a file, as opposed to a failure of a machine.
    pub(crate) fn is_mistake(&self) -> bool {
        match self {
            Self::Config(_)
            | Self::Environments(_)
            | Self::UnknownEnvironment(_)
            | Self::Url { .. } => true,
            Self::NoServer
            | Self::NothingOutlives { .. }
            | Self::Connect { .. }
            | Self::Embedded(_) => false,
        }
    }
}

impl Target {
    pub(crate) fn find(choice: &ServerChoice) -> Result<Self, ReachError> {
        let flags = Flags { config_file: choice.config_file.clone(), ..Flags::default() };
        let load = || config::load(&flags, std::env::vars_os());
        // One that was named is read, needed or not: a mistake does not wait for its day.
        if flags.config_file.is_some() {
            load()?;
        }
        if let Some(url) = &choice.connect {
            return Self::at(url.as_written(), Origin::Flag);
        }
        if let Some(id) = &choice.on {
            return Self::environment(id);
        }
        if let Some((url, source)) = load()?.server_url {
            return Self::at(url.as_written(), Origin::Configured(source));
        }
        let default = user_environments()?.default().clone();
        // Else it is this machine, where a server may be running.
        if default.server().is_some() {
            return Ok(Self::of(&default));
        }
        match runtime_file::running_server() {
            Some(running) => Self::at(&running.url, Origin::RuntimeFile),
            None => Ok(Self::Embedded { origin: Origin::Nobody }),
        }
    }

    /// For commands about what outlives a client.
    pub(crate) fn lasting(choice: &ServerChoice) -> Result<Self, ReachError> {
        let target = Self::find(choice)?;
        match &target {
            Self::Server { server, .. } if server.url().is_some() => Ok(target),
            Self::Server { origin, .. } | Self::Embedded { origin } => Err(match origin {
                Origin::Environment { id } => ReachError::NothingOutlives { id: id.clone() },
                _ => ReachError::NoServer,
            }),
        }
    }

    fn at(url: &str, origin: Origin) -> Result<Self, ReachError> {
        match RemoteServer::at(url) {
            Ok(server) => Ok(Self::Server { server: Box::new(server), origin }),
            Err(source) => Err(ReachError::Url { origin, source }),
        }
    }

    pub(crate) fn environment(id: &str) -> Result<Self, ReachError> {
        Ok(Self::of(user_environments()?.get(id)?))
    }

    fn of(environment: &Environment) -> Self {
        let origin = Origin::Environment { id: environment.id().to_owned() };
        match environment.server() {
            Some(server) => Self::Server { server: Box::new(server.clone()), origin },
            None => Self::Embedded { origin },
        }
    }

    /// What a process gets whose command line says nothing about a sandbox.
    pub(crate) fn default_sandbox(&self) -> Option<&SandboxTerms> {
        match self {
            Self::Server { server, .. } => server.sandbox.as_ref(),
            Self::Embedded { .. } => None,
        }
    }

    pub(crate) fn is_embedded(&self) -> bool {
        matches!(self, Self::Embedded { .. })
    }

    /// Whether the server has our files and our user, so that our directory means the same to it.
    pub(crate) fn is_ours(&self) -> bool {
        match self {
            Self::Server { origin, .. } => *origin == Origin::RuntimeFile,
            Self::Embedded { .. } => true,
        }
    }

    pub(crate) async fn connect(
        &self,
        options: ExecServerClientConnectOptions,
    ) -> Result<Reached, ReachError> {
        let (client, origin, embedded) = match self {
            Self::Server { server, origin } => (server.connect(options).await, origin, None),
            Self::Embedded { origin } => {
                let paths = ExecServerRuntimePaths::this_program();
                let server = serve::start(&ServerConfig::default(), &paths)?;
                let link = server.connect_in_process(&options.client_name);
                let client = link.map(ExecServerClient::connect_in_process);
                (client.map_err(ExecServerError::Server), origin, Some(server))
            }
        };
        match client {
            Ok(client) => Ok(Reached { client, embedded }),
            Err(source) => Err(ReachError::Connect { origin: origin.clone(), source }),
        }
    }
}

/// Those that `--on` accepts; none if their file has a mistake.
pub(crate) fn environment_ids() -> Vec<String> {
    let environments = user_environments();
    environments.map_or_else(|_| Vec::new(), |all| all.ids().map(str::to_owned).collect())
}

fn user_environments() -> Result<EnvironmentManager, EnvironmentsFileError> {
    EnvironmentManager::from_user_file(ExecServerRuntimePaths::this_program())
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("--connect"),
            Self::Environment { id } => write!(f, "environment {id:?}"),
            Self::Configured(source) => source.fmt(f),
            Self::RuntimeFile => f.write_str("the running server of this user"),
            Self::Nobody => f.write_str("a server in this process"),
        }
    }
}

/// A session on the server that a command works on.
#[derive(Debug)]
pub(crate) struct Reached {
    pub(crate) client: ExecServerClient,
    embedded: Option<Server>,
}

impl Reached {
    /// Ends the session and everything in it, and waits for that, within reason. If the connection is away it is
    /// left to the server, which ends it in its own time.
    pub(crate) async fn close(self) {
        self.close_before(std::future::pending::<()>()).await;
    }

    /// Ends the session also if the connection is away: waits until it is back, as long as the client tries to get it
    /// back, or until soon after `hurry`. Returns whether the session has ended.
    pub(crate) async fn close_when_back<T>(self, hurry: impl Future<Output = T>) -> bool {
        let closing = async {
            loop {
                let params = SessionCloseParams { session_id: None };
                match self.client.session_close(params).await {
                    Ok(_) => return true,
                    // Cut again. If the session has ended by then, it is unknown.
                    Err(ExecServerError::Interrupted { .. }) => {}
                    Err(error) => return is_unknown_session(&error),
                }
            }
        };
        tokio::select! {
            is_closed = closing => is_closed,
            () = soon_after(hurry) => false,
            never = outage::remark(self.client.connection_state(), say) => match never {},
        }
    }

    /// The same as `close`, soon after `hurry`. A server of our own is still waited for: nobody else would end what it runs.
    pub(crate) async fn close_before<T>(self, hurry: impl Future<Output = T>) {
        if let ConnectionState::Recovering { .. } = *self.client.connection_state().borrow() {
            return;
        }
        let is_closed = tokio::select! {
            closed = self.client.close() => closed.is_ok(),
            () = tokio::time::sleep(CLOSE_PATIENCE) => false,
            () = soon_after(hurry) => false,
        };
        if let (Some(server), false) = (self.embedded, is_closed) {
            server.shutdown().await;
        }
    }
}

async fn soon_after<T>(hurry: impl Future<Output = T>) {
    hurry.await;
    tokio::time::sleep(HURRIED_CLOSE_PATIENCE).await;
}

/// The server is there and does not have the session any more.
fn is_unknown_session(error: &ExecServerError) -> bool {
    let refusal = match error {
        ExecServerError::Disconnected(lost) => match &**lost {
            DisconnectReason::Refused(refusal) => refusal,
            _ => error,
        },
        _ => error,
    };
    matches!(refusal.kind(), Some(ErrorKind::UnknownSession | ErrorKind::SessionEnded))
}
