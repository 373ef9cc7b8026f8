//! Connections to the NATS servers of a cluster.

use std::path::{Path, PathBuf};
use std::time::Duration;

use async_nats::jetstream::{self, Context};
use async_nats::{Client, ConnectOptions, ServerAddr};
use percent_encoding::percent_decode_str;

use super::super::DirectoryError;

/// Time limit for a server's response; peers of the rendezvous retry after a timeout.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// A hanging server is detected after the second missed ping.
const PING_INTERVAL: Duration = Duration::from_secs(5);
const FIRST_RECONNECT_DELAY: Duration = Duration::from_millis(50);
const LONGEST_RECONNECT_DELAY: Duration = Duration::from_secs(1);

/// The first version on which compare-and-set in a replicated bucket was observed to have only one
/// winner. On 2.9 it has several.
const FIRST_WITH_ATOMIC_REPLICAS: Version = Version(2, 15, 1);

/// The NATS servers of a cluster, and how to log in to them.
#[derive(Debug, Clone)]
pub struct NatsOptions {
    /// `nats://[USER:PASSWORD@|TOKEN@]HOST[:PORT]` or `tls://…`, at least one. The first user or
    /// token in them is used for all of them.
    pub servers: Vec<String>,
    /// A file with a JWT and an NKey seed.
    pub credentials: Option<PathBuf>,
    /// A PEM file with the authorities that sign the servers' certificates. It also makes TLS
    /// mandatory. By default, the authorities of the system are trusted.
    pub tls_ca: Option<PathBuf>,
    /// How many servers store each bucket: 1, 3 or 5. Defaults to the number of an existing bucket,
    /// or to one.
    pub replicas: Option<usize>,
}

impl NatsOptions {
    #[must_use]
    pub fn new(servers: Vec<String>) -> Self {
        Self { servers, credentials: None, tls_ca: None, replicas: None }
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum NatsError {
    /// `url` is shown without user and password.
    #[error("{url:?} is not the URL of a NATS server, such as nats://HOST:4222")]
    Url { url: String, source: std::io::Error },
    #[error("cannot read the NATS credentials in {}", path.display())]
    Credentials { path: PathBuf, source: std::io::Error },
    /// `servers` are shown without users and passwords.
    #[error("cannot connect to a NATS server ({servers}{})", trusting(tls_ca.as_deref()))]
    Connect { servers: String, tls_ca: Option<PathBuf>, source: async_nats::ConnectError },
    #[error(
        "NATS {version} may lose updates of replicated buckets; use {FIRST_WITH_ATOMIC_REPLICAS} \
         or newer, or one replica"
    )]
    TooOldForReplicas { version: String },
}

/// Connects, and reconnects for as long as the client lives. Fails if no server responds now.
pub(super) async fn connect(options: &NatsOptions) -> Result<(Client, Context), DirectoryError> {
    let client = connect_with(options, |connecting| connecting).await;
    let client = client.map_err(|error| DirectoryError::Store(error.into()))?;
    check_replicas(&client, options.replicas.unwrap_or(1))?;
    let mut context = jetstream::new(client.clone());
    context.set_timeout(REQUEST_TIMEOUT);
    Ok((client, context))
}

/// Fails if there are several replicas and the connected server is too old for them.
pub(super) fn check_replicas(client: &Client, replicas: usize) -> Result<(), DirectoryError> {
    let version = client.server_info().version;
    let is_new_enough =
        Version::parse(&version).is_some_and(|version| version >= FIRST_WITH_ATOMIC_REPLICAS);
    match replicas > 1 && !is_new_enough {
        true => Err(DirectoryError::Store(NatsError::TooOldForReplicas { version }.into())),
        false => Ok(()),
    }
}

/// Connects with options that `change` may adapt.
pub(crate) async fn connect_with(
    options: &NatsOptions,
    change: impl FnOnce(ConnectOptions) -> ConnectOptions,
) -> Result<Client, NatsError> {
    let without_user = |url: &str| url.rsplit('@').next().unwrap_or_default().to_owned();
    let servers = options
        .servers
        .iter()
        .map(|url| url.parse().map_err(|source| NatsError::Url { url: without_user(url), source }));
    let servers: Vec<ServerAddr> = servers.collect::<Result<_, _>>()?;
    let mut connecting = ConnectOptions::new()
        .name("exec-server rendezvous")
        .connection_timeout(CONNECT_TIMEOUT)
        .request_timeout(Some(REQUEST_TIMEOUT))
        .ping_interval(PING_INTERVAL)
        .reconnect_delay_callback(|attempts| {
            let exponent = u32::try_from(attempts).unwrap_or(u32::MAX).min(10);
            (FIRST_RECONNECT_DELAY * 2_u32.pow(exponent)).min(LONGEST_RECONNECT_DELAY)
        });
    // `async-nats` itself ignores the user, password and token in a URL.
    let decode = |text| percent_decode_str(text).decode_utf8_lossy().into_owned();
    let named = servers.iter().find_map(|server| Some((server.username()?, server.password())));
    connecting = match named {
        Some((user, Some(password))) => {
            connecting.user_and_password(decode(user), decode(password))
        }
        Some((token, None)) => connecting.token(decode(token)),
        None => connecting,
    };
    if let Some(path) = &options.credentials {
        let failed = |source| NatsError::Credentials { path: path.clone(), source };
        let text = std::fs::read_to_string(path).map_err(failed)?;
        connecting = connecting.credentials(&text).map_err(failed)?;
    }
    if let Some(path) = &options.tls_ca {
        connecting = connecting.add_root_certificates(path.clone()).require_tls(true);
    }
    let connected = change(connecting).connect(servers).await;
    connected.map_err(|source| {
        let servers: Vec<String> = options.servers.iter().map(|url| without_user(url)).collect();
        NatsError::Connect { servers: servers.join(", "), tls_ca: options.tls_ca.clone(), source }
    })
}

/// Names the file of authorities: `async-nats` does not, even if it cannot read the file.
fn trusting(tls_ca: Option<&Path>) -> String {
    tls_ca.map_or_else(String::new, |path| format!("; trusting {}", path.display()))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Version(u32, u32, u32);

impl Version {
    /// Parses `2.15.1`, with an optional suffix as in `2.15.1-RC.1`.
    fn parse(text: &str) -> Option<Self> {
        let text = text.split(['-', '+']).next()?;
        let mut parts = text.split('.').map(|part| part.parse().ok());
        Some(Self(parts.next()??, parts.next()??, parts.next()??))
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(major, minor, patch) = self;
        write!(f, "{major}.{minor}.{patch}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_number() {
        let parse = |text| Version::parse(text).unwrap();
        assert!(parse("2.9.10") < FIRST_WITH_ATOMIC_REPLICAS);
        assert!(parse("2.15.1-RC.2") >= FIRST_WITH_ATOMIC_REPLICAS);
        assert!(parse("2.100.0") > FIRST_WITH_ATOMIC_REPLICAS);
        assert_eq!(Version::parse("2.15"), None);
        assert_eq!(Version::parse("dev"), None);
    }
}
