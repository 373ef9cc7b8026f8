//! The server of an environment, and how to reach it.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use exec_server_client::{
    ConnectError, ExecServerClient, ExecServerClientConnectOptions, ExecServerError,
    ExecServerLaunchCommand, HarnessError, NoiseRendezvousConnectArgs, ProviderError,
    RegistryProvider, RemoteExecServerConnectArgs,
};
use exec_server_relay::registry::{RegistryClient, RegistryError};
use exec_server_transport::{DialUrl, DialUrlParseError, TlsOptions};

use crate::environment::sandbox_options::SandboxOptions;
use crate::registry_credentials::{CredentialChoice, NoCredentials};

/// A server and how to reach it.
#[derive(Debug, Clone)]
pub struct RemoteServer {
    address: Address,
    /// For a URL: the timeout of each attempt to connect.
    pub connect_timeout: Option<Duration>,
    /// The timeout of the response to `initialize`.
    pub initialize_timeout: Option<Duration>,
    /// The file with the bearer token. Read for each connection, so that the token can be renewed.
    pub token_file: Option<PathBuf>,
    /// The variable with the bearer token, instead of a file.
    pub token_env: Option<String>,
    /// For a relay: sign requests to its registry with the identity in `EXEC_SERVER_ACCESS_TOKEN`.
    pub use_agent_identity_auth: bool,
    /// For `wss://` and for a relay: which servers are trusted, and the client certificate.
    pub tls: TlsOptions,
    /// The sandbox of processes whose start request sets none.
    pub sandbox: Option<SandboxOptions>,
}

#[derive(Clone)]
enum Address {
    Url {
        url: String,
        parsed: DialUrl,
    },
    Program(ExecServerLaunchCommand),
    /// `registry` is a normalized URL.
    Relay {
        registry: String,
        environment_id: String,
    },
}

impl RemoteServer {
    /// Describes a server that listens at `wss://HOST:PORT[/PATH]`, `ws://HOST:PORT[/PATH]` or
    /// `unix:///PATH`.
    pub fn at(url: impl Into<String>) -> Result<Self, DialUrlParseError> {
        let url = url.into();
        let parsed = url.parse()?;
        Ok(Self::new(Address::Url { url, parsed }))
    }

    /// Describes a server that is started on demand and ends with its environment.
    #[must_use]
    pub fn launched(command: ExecServerLaunchCommand) -> Self {
        Self::new(Address::Program(command))
    }

    /// Describes a server that is reached through the relay of this registry,
    /// `https://HOST[:PORT][/PATH]`.
    pub fn through_relay(
        registry: impl Into<String>,
        environment_id: impl Into<String>,
    ) -> Result<Self, RegistryError> {
        let environment_id = environment_id.into();
        let registry = registry.into();
        RegistryClient::check_address(&registry, &environment_id)?;
        let registry = RegistryClient::normalize_url(&registry)?;
        Ok(Self::new(Address::Relay { registry, environment_id }))
    }

    fn new(address: Address) -> Self {
        Self {
            address,
            connect_timeout: None,
            initialize_timeout: None,
            token_file: None,
            token_env: None,
            use_agent_identity_auth: false,
            tls: TlsOptions::default(),
            sandbox: None,
        }
    }

    /// Returns the URL at which the server listens, unless it is started on demand or behind a
    /// relay. Includes the query, which may hold a secret.
    #[must_use]
    pub fn url(&self) -> Option<&str> {
        match &self.address {
            Address::Url { url, .. } => Some(url),
            Address::Program(_) | Address::Relay { .. } => None,
        }
    }

    /// Whether the server exists independently of its clients.
    #[must_use]
    pub fn outlives_clients(&self) -> bool {
        match &self.address {
            Address::Url { .. } | Address::Relay { .. } => true,
            Address::Program(_) => false,
        }
    }

    #[must_use]
    pub fn is_tls(&self) -> bool {
        match &self.address {
            Address::Url { parsed, .. } => parsed.is_tls(),
            Address::Relay { registry, .. } => registry.starts_with("https://"),
            Address::Program(_) => false,
        }
    }

    /// Returns the command that starts the server, if it is started on demand.
    #[must_use]
    pub fn launch_command(&self) -> Option<&ExecServerLaunchCommand> {
        match &self.address {
            Address::Url { .. } | Address::Relay { .. } => None,
            Address::Program(command) => Some(command),
        }
    }

    /// Opens a session, or resumes the one that `options` name. Timeouts of this server take
    /// precedence over those of `options`.
    pub async fn connect(
        &self,
        mut options: ExecServerClientConnectOptions,
    ) -> Result<ExecServerClient, ExecServerError> {
        if let Some(timeout) = self.initialize_timeout {
            options.initialize_timeout = timeout;
        }
        match &self.address {
            Address::Url { url, .. } => {
                let mut args = RemoteExecServerConnectArgs::new(url, "");
                args.options = options;
                if let Some(timeout) = self.connect_timeout {
                    args.connect_timeout = timeout;
                }
                args.tls = self.tls.clone();
                args.token_file = self.token_file.clone();
                if let Some(name) = &self.token_env {
                    args.bearer_token = Some(token_in(name)?);
                }
                ExecServerClient::connect_websocket(args).await
            }
            Address::Program(command) => {
                ExecServerClient::connect_stdio(command.clone(), options).await
            }
            Address::Relay { registry, environment_id } => {
                let registry = self.registry(registry, environment_id).await?;
                let provider = Arc::new(RegistryProvider::new(registry));
                let tls = self.tls.clone();
                let args = NoiseRendezvousConnectArgs { provider, tls, options };
                ExecServerClient::connect_noise_rendezvous(args).await
            }
        }
    }

    async fn registry(
        &self,
        registry: &str,
        environment_id: &str,
    ) -> Result<RegistryClient, ConnectError> {
        let choice = CredentialChoice {
            token_file: self.token_file.clone(),
            token_variable: self.token_env.clone(),
            use_agent_identity: self.use_agent_identity_auth,
        };
        let failed = |source: NoCredentials| ConnectError::Credentials(source.to_string());
        let credentials = choice.find(registry).map_err(failed)?.credentials;
        let (base, id) = (registry.to_owned(), environment_id.to_owned());
        let tls = self.tls.clone();
        // On a blocking thread, because it reads files.
        let made =
            tokio::task::spawn_blocking(move || RegistryClient::new(&base, &id, credentials, &tls));
        let made = made.await.map_err(|_| ConnectError::EndedEarly)?;
        made.map_err(|error| HarnessError::from(ProviderError::from(error)).into())
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Omits the query.
            Self::Url { parsed, .. } => parsed.fmt(f),
            Self::Program(command) => f.debug_tuple("Program").field(&command.program).finish(),
            Self::Relay { registry, environment_id } => {
                f.debug_tuple("Relay").field(registry).field(environment_id).finish()
            }
        }
    }
}

fn token_in(variable: &str) -> Result<String, ConnectError> {
    let token = std::env::var(variable).ok().filter(|token| !token.is_empty());
    token.ok_or_else(|| ConnectError::TokenVariable { name: variable.to_owned() })
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncBufReadExt as _, BufReader};
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn the_url_of_a_registry_is_normalized() {
        for url in ["https://relay.example/base", "https://RELAY.example:443/base/?token=secret"] {
            let server = RemoteServer::through_relay(url, "box").unwrap();
            let shown = format!("{server:?}");
            assert!(shown.contains(r#"Relay("https://relay.example/base", "box")"#), "{shown}");
        }
    }

    #[tokio::test]
    async fn a_token_is_read_on_connect_and_sent_without_its_newline() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let directory = tempfile::tempdir().unwrap();
        let token_file = directory.path().join("token");
        let url = format!("ws://{}", listener.local_addr().unwrap());
        let mut server = RemoteServer::at(url.as_str()).unwrap();
        server.token_file = Some(token_file.clone());

        let error = server.connect(ExecServerClientConnectOptions::default()).await.unwrap_err();
        let expected = format!("cannot read {}: ", token_file.display());
        assert!(error.to_string().contains(&expected), "{error}");

        std::fs::write(&token_file, "secret\n").unwrap();
        let connecting = server.connect(ExecServerClientConnectOptions::default());
        let sent = async {
            let (socket, _) = listener.accept().await.unwrap();
            let mut lines = BufReader::new(socket).lines();
            loop {
                let line = lines.next_line().await.unwrap().expect("the token is sent");
                if let Some(token) = line.strip_prefix("Authorization: ") {
                    return token.to_owned();
                }
            }
        };
        let (refused, sent) = tokio::join!(connecting, sent);
        assert_eq!(sent, "Bearer secret");
        assert!(!format!("{server:?} {:?}", refused.unwrap_err()).contains("secret"));
    }
}
