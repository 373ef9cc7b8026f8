//! Selects the server of a command and opens the session there. Checked in this order: `--connect`,
//! `--on`, `EXEC_SERVER_URL`, the configuration file, `CODEX_EXEC_SERVER_NOISE_REGISTRY_URL`, the
//! default of `environments.toml`, the running server of this user. Otherwise the command embeds a
//! server for its own lifetime.

pub(crate) mod remote_path;
pub(crate) mod runtime_file;
pub(crate) mod server_url;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use exec_server_client::{
    ConnectionState, DisconnectReason, ExecServerClient, ExecServerClientConnectOptions,
    ExecServerError,
};
use exec_server_protocol::{ErrorKind, SessionCloseParams};
use exec_server_relay::registry::RegistryError;
use exec_server_server::{Server, ServerConfig};
use exec_server_transport::{ClientIdentity, DialUrlParseError, ServerTrust};

use crate::cli::client::{Credentials, ServerChoice};
use crate::config::{self, ConfigError, Flags, SERVER_URL_VARIABLE, Source};
use crate::environment::runtime_paths::ExecServerRuntimePaths;
use crate::environment::sandbox_options::SandboxOptions;
use crate::environment::{
    Environment, EnvironmentManager, EnvironmentsFileError, RemoteServer, UnknownEnvironment,
};
use crate::program::say;
use crate::program::serve::{self, ServeError};
use crate::terminal::outage;

/// How long a command waits for its session to end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(6);
/// The timeout after a signal and for a disconnect: long enough to send the request.
const HURRIED_CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(crate) enum Target {
    Server { server: Box<RemoteServer>, origin: Origin },
    Embedded { origin: Origin },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    Flag,
    Environment {
        id: String,
    },
    Configured(Source),
    RuntimeFile,
    /// The [`NOISE_VARIABLES`].
    NoiseVariables,
    Embedded,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum TargetError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Environments(#[from] EnvironmentsFileError),
    #[error(transparent)]
    UnknownEnvironment(#[from] UnknownEnvironment),
    #[error(
        "no server that {flag} applies to is selected; select one with --connect {url} or --on ENVIRONMENT"
    )]
    NoUseForCredentials { flag: &'static str, url: &'static str },
    #[error("{origin}: {source}")]
    Url { origin: Origin, source: DialUrlParseError },
    #[error(
        "found no server; start one with `exec-server`, or select one with --connect URL or {SERVER_URL_VARIABLE}"
    )]
    NoServer,
    #[error(
        "environment {id:?} starts a server for each command, and its processes end with the command; use an environment that is defined by `url` or `remote`"
    )]
    NothingOutlives { id: String },
    #[error("{missing} is not set; set all of {}", NOISE_VARIABLES.join(", "))]
    MissingNoiseVariable { missing: &'static str },
    #[error("{}: {source}", NOISE_VARIABLES[0])]
    NoiseRegistry { source: Box<RegistryError> },
    #[error("{origin}: {source}")]
    Connect { origin: Box<Origin>, source: ExecServerError },
    #[error(transparent)]
    Embedded(#[from] ServeError),
}

impl TargetError {
    /// Whether the command line or a file is wrong, as opposed to a failure at run time.
    pub(crate) fn is_usage_error(&self) -> bool {
        match self {
            Self::Config(_)
            | Self::Environments(_)
            | Self::UnknownEnvironment(_)
            | Self::NoUseForCredentials { .. }
            | Self::MissingNoiseVariable { .. }
            | Self::NoiseRegistry { .. }
            | Self::Url { .. } => true,
            Self::NoServer
            | Self::NothingOutlives { .. }
            | Self::Connect { .. }
            | Self::Embedded(_) => false,
        }
    }
}

impl Target {
    pub(crate) fn find(choice: &ServerChoice) -> Result<Self, TargetError> {
        let mut target = Self::choose(choice)?;
        target.use_credentials(&choice.credentials)?;
        Ok(target)
    }

    fn choose(choice: &ServerChoice) -> Result<Self, TargetError> {
        let flags = Flags { config_file: choice.config_file.clone(), ..Flags::default() };
        let load = || config::load(&flags, std::env::vars_os());
        // A file given on the command line is always read, so that its errors surface at once.
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
        if let Some(server) = noise_variables(|name| std::env::var(name).ok())? {
            let origin = Origin::NoiseVariables;
            return Ok(Self::Server { server: Box::new(server), origin });
        }
        let default = user_environments()?.default().clone();
        // An environment without a server is this machine, which may have a running server.
        if default.server().is_some() {
            return Ok(Self::of(&default));
        }
        match runtime_file::running_server() {
            Some(running) => Self::at(&running.url, Origin::RuntimeFile),
            None => Ok(Self::Embedded { origin: Origin::Embedded }),
        }
    }

    fn use_credentials(&mut self, credentials: &Credentials) -> Result<(), TargetError> {
        let useless = match &*self {
            Self::Server { server, .. } if server.outlives_clients() => {
                credentials.given().find(|(_, is_tls)| *is_tls && !server.is_tls())
            }
            _ => credentials.given().next(),
        };
        if let Some((flag, is_tls)) = useless {
            let url = if is_tls { "wss://HOST:PORT" } else { "URL" };
            return Err(TargetError::NoUseForCredentials { flag, url });
        }
        let Self::Server { server, .. } = self else { return Ok(()) };
        let Credentials { token_file, tls_ca, tls_fingerprint, tls_client_cert, tls_client_key } =
            credentials.clone();
        if token_file.is_some() {
            (server.token_file, server.token_env) = (token_file, None);
        }
        let trust = tls_ca.map(ServerTrust::Authorities);
        if let Some(trust) = trust.or(tls_fingerprint.map(ServerTrust::Fingerprint)) {
            server.tls.trust = trust;
        }
        if let Some((certificate, key)) = tls_client_cert.zip(tls_client_key) {
            server.tls.identity = Some(ClientIdentity { certificate, key });
        }
        Ok(())
    }

    /// Finds a server whose processes can outlive this command.
    pub(crate) fn lasting(choice: &ServerChoice) -> Result<Self, TargetError> {
        let target = Self::find(choice)?;
        match &target {
            Self::Server { server, .. } if server.outlives_clients() => Ok(target),
            Self::Server { origin, .. } | Self::Embedded { origin } => Err(match origin {
                Origin::Environment { id } => TargetError::NothingOutlives { id: id.clone() },
                _ => TargetError::NoServer,
            }),
        }
    }

    fn at(url: &str, origin: Origin) -> Result<Self, TargetError> {
        match RemoteServer::at(url) {
            Ok(server) => Ok(Self::Server { server: Box::new(server), origin }),
            Err(source) => Err(TargetError::Url { origin, source }),
        }
    }

    pub(crate) fn environment(id: &str) -> Result<Self, TargetError> {
        Ok(Self::of(user_environments()?.get(id)?))
    }

    fn of(environment: &Environment) -> Self {
        let origin = Origin::Environment { id: environment.id().to_owned() };
        match environment.server() {
            Some(server) => Self::Server { server: Box::new(server.clone()), origin },
            None => Self::Embedded { origin },
        }
    }

    /// Returns the sandbox of a process whose command line sets none.
    pub(crate) fn default_sandbox(&self) -> Option<&SandboxOptions> {
        match self {
            Self::Server { server, .. } => server.sandbox.as_ref(),
            Self::Embedded { .. } => None,
        }
    }

    pub(crate) fn is_embedded(&self) -> bool {
        matches!(self, Self::Embedded { .. })
    }

    /// Whether the server shares this command's files and user, so that local paths are valid
    /// there.
    pub(crate) fn shares_files(&self) -> bool {
        match self {
            Self::Server { origin, .. } => *origin == Origin::RuntimeFile,
            Self::Embedded { .. } => true,
        }
    }

    pub(crate) async fn connect(
        &self,
        options: ExecServerClientConnectOptions,
    ) -> Result<TargetSession, TargetError> {
        let (client, origin, embedded) = match self {
            Self::Server { server, origin } => (server.connect(options).await, origin, None),
            Self::Embedded { origin } => {
                let paths = ExecServerRuntimePaths::this_program();
                let server = serve::start(&ServerConfig::default(), &paths, &Arc::default())?;
                let link = server.connect_in_process(&options.client_name);
                let client =
                    link.map(|link| ExecServerClient::connect_in_process_with(link, &options));
                (client.map_err(ExecServerError::Server), origin, Some(server))
            }
        };
        match client {
            Ok(client) => Ok(TargetSession { client, embedded }),
            Err(source) => Err(TargetError::Connect { origin: Box::new(origin.clone()), source }),
        }
    }
}

/// The variables by which some deployed harnesses locate their environment: registry, environment
/// id, token.
const NOISE_VARIABLES: [&str; 3] = [
    "CODEX_EXEC_SERVER_NOISE_REGISTRY_URL",
    "CODEX_EXEC_SERVER_NOISE_ENVIRONMENT_ID",
    "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN",
];

/// Either all of the variables must be set, or none.
fn noise_variables(
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<RemoteServer>, TargetError> {
    let values = NOISE_VARIABLES.map(|name| variable(name).filter(|value| !value.is_empty()));
    if values.iter().all(Option::is_none) {
        return Ok(None);
    }
    let [Some(registry), Some(environment_id), Some(_)] = values else {
        let missing = values.iter().position(Option::is_none).unwrap_or_default();
        return Err(TargetError::MissingNoiseVariable { missing: NOISE_VARIABLES[missing] });
    };
    let mut server = RemoteServer::through_relay(registry, environment_id)
        .map_err(|source| TargetError::NoiseRegistry { source: source.into() })?;
    server.token_env = Some(NOISE_VARIABLES[2].to_owned());
    Ok(Some(server))
}

/// Returns the ids that `--on` accepts; empty if `environments.toml` is invalid.
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
            Self::NoiseVariables => f.write_str(NOISE_VARIABLES[0]),
            Self::Embedded => f.write_str("a server in this process"),
        }
    }
}

#[derive(Debug)]
pub(crate) struct TargetSession {
    pub(crate) client: ExecServerClient,
    embedded: Option<Server>,
}

impl TargetSession {
    /// Ends the session and its processes, and waits up to a timeout. If the connection is lost,
    /// the server ends the session when it expires.
    pub(crate) async fn close(self) {
        self.close_before(std::future::pending::<()>()).await;
    }

    /// Disconnects and leaves the session detached. No clone of the client may exist: it would keep
    /// the connection open.
    pub(crate) async fn leave(self) {
        let mut state = self.client.connection_state();
        drop(self.client);
        let _ = tokio::time::timeout(HURRIED_CLOSE_TIMEOUT, state.wait_for(is_final)).await;
    }

    /// Ends the session even if the connection is lost: waits until the client has reconnected or
    /// given up, or until shortly after `hurry`. Returns whether the session has ended.
    pub(crate) async fn close_when_back<T>(self, hurry: impl Future<Output = T>) -> bool {
        let closing = async {
            loop {
                let params = SessionCloseParams { session_id: None };
                match self.client.session_close(params).await {
                    Ok(_) => return true,
                    // Interrupted again. If the session has already ended, the retry fails because
                    // the session is unknown.
                    Err(ExecServerError::Interrupted { .. }) => {}
                    Err(error) => return is_unknown_session(&error),
                }
            }
        };
        tokio::select! {
            is_closed = closing => is_closed,
            () = soon_after(hurry) => false,
            never = outage::report(self.client.connection_state(), say, true) => match never {},
        }
    }

    /// Like `close`, but returns shortly after `hurry`. Still waits for an embedded server, because
    /// nothing else would end its processes.
    pub(crate) async fn close_before<T>(self, hurry: impl Future<Output = T>) {
        if let ConnectionState::Recovering { .. } = *self.client.connection_state().borrow() {
            return;
        }
        tokio::select! {
            _ = self.client.close() => hung_up(&self.client).await,
            () = tokio::time::sleep(CLOSE_TIMEOUT) => {}
            () = soon_after(hurry) => {}
        }
        // Needed even after a close, because file operations remove their temporary files when they
        // end.
        if let Some(server) = self.embedded {
            server.shutdown().await;
        }
    }
}

/// Waits until the client has sent the disconnect: a relay does not detect that this program has
/// ended.
async fn hung_up(client: &ExecServerClient) {
    let mut state = client.connection_state();
    let _ = tokio::time::timeout(HURRIED_CLOSE_TIMEOUT, state.wait_for(is_final)).await;
}

fn is_final(state: &ConnectionState) -> bool {
    matches!(state, ConnectionState::Closed | ConnectionState::Failed(_))
}

async fn soon_after<T>(hurry: impl Future<Output = T>) {
    hurry.await;
    tokio::time::sleep(HURRIED_CLOSE_TIMEOUT).await;
}

/// Whether the server has responded that the session no longer exists.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_noise_variables_must_be_set_together() {
        let all = ["https://relay.example", "box", "secret"];
        let read = |given: [bool; 3]| {
            noise_variables(|name| {
                let index = NOISE_VARIABLES.iter().position(|known| *known == name)?;
                given[index].then(|| all[index].to_owned())
            })
        };
        assert!(read([false; 3]).unwrap().is_none());
        assert!(read([true; 3]).unwrap().unwrap().outlives_clients());
        for (missing, name) in NOISE_VARIABLES.iter().enumerate() {
            let error = read([0, 1, 2].map(|index| index != missing)).unwrap_err();
            assert!(error.to_string().starts_with(name), "{error}");
        }
    }
}
