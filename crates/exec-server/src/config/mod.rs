//! The operator's settings from flags, environment variables, file and defaults, in that order of
//! precedence.
//!
//! [`table`] is the only list of settings. Flags, variables, file keys and the output of
//! `exec-server config` are derived from it, so a setting exists in all of them or in none. This
//! module does not act on the values: it never binds, opens or limits anything.

mod error;
pub(crate) mod exposure;
mod file;
mod kind;
mod location;
pub(crate) mod remote;
mod resolve;
mod table;

pub(crate) use error::ConfigError;
pub(crate) use location::Location;
pub(crate) use resolve::{Configuration, Flag, Flags, Source, load};
pub(crate) use table::{SERVER_URL_KEY, SERVER_URL_VARIABLE, SETTINGS, Setting, keys};

use std::path::PathBuf;
use std::time::Duration;

use exec_server_server::ServerConfig;
use exec_server_telemetry::AuditTarget;
use exec_server_transport::DEFAULT_LISTEN_URL;

use crate::program::logging::LogFormat;
use crate::program::serve::ServeError;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Never empty.
    pub(crate) listen: Vec<String>,
    pub(crate) allow_origins: Vec<String>,
    pub(crate) allow_hosts: Vec<String>,
    /// Whether other users of this machine may connect without credentials.
    pub(crate) allow_other_users: bool,
    /// Whether commands of the same user discover this server.
    pub(crate) discoverable: bool,
    pub(crate) handshake_timeout: Duration,
    /// [`exposure`] checks the `ws_*` and `tls_*` settings together. An empty string means not set.
    pub(crate) ws_auth: String,
    pub(crate) ws_token_file: String,
    pub(crate) ws_token_sha256: String,
    pub(crate) ws_shared_secret_file: String,
    pub(crate) ws_issuer: String,
    pub(crate) ws_audience: String,
    pub(crate) ws_max_clock_skew: Duration,
    pub(crate) tls_cert: String,
    pub(crate) tls_key: String,
    pub(crate) tls_self_signed: bool,
    pub(crate) tls_client_ca: String,
    /// Whether `ws://` is allowed beyond loopback.
    pub(crate) insecure: bool,
    /// [`remote`] checks the settings for remote mode together. An empty string means not set.
    pub(crate) remote: String,
    pub(crate) environment_id: String,
    pub(crate) name: String,
    pub(crate) remote_token_file: String,
    pub(crate) remote_tls_ca: String,
    pub(crate) remote_tls_fingerprint: String,
    pub(crate) use_agent_identity_auth: bool,
    pub(crate) max_connections: usize,
    pub(crate) max_connections_per_subject: usize,
    pub(crate) server: ServerConfig,
    /// [`resolve`] builds the host rules of [`Self::server`] from the `network_*` settings. `None`
    /// differs from an empty list, which allows no host.
    pub(crate) network_allow: Option<Vec<String>>,
    pub(crate) network_deny: Vec<String>,
    pub(crate) network_ask: bool,
    /// A filter that [`crate::program::logging::parse_filter`] accepts.
    pub(crate) log: String,
    pub(crate) log_format: LogFormat,
    /// Whether listeners serve `GET /metrics`.
    pub(crate) metrics: bool,
    /// Empty means no audit log.
    pub(crate) audit_log: String,
    pub(crate) audit_commands: bool,
    pub(crate) audit_required: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: vec![DEFAULT_LISTEN_URL.to_owned()],
            allow_origins: Vec::new(),
            allow_hosts: Vec::new(),
            allow_other_users: false,
            discoverable: true,
            handshake_timeout: Duration::from_secs(10),
            ws_auth: table::NO_AUTH.to_owned(),
            ws_token_file: String::new(),
            ws_token_sha256: String::new(),
            ws_shared_secret_file: String::new(),
            ws_issuer: String::new(),
            ws_audience: String::new(),
            ws_max_clock_skew: Duration::from_secs(30),
            tls_cert: String::new(),
            tls_key: String::new(),
            tls_self_signed: false,
            tls_client_ca: String::new(),
            insecure: false,
            remote: String::new(),
            environment_id: String::new(),
            name: String::new(),
            remote_token_file: String::new(),
            remote_tls_ca: String::new(),
            remote_tls_fingerprint: String::new(),
            use_agent_identity_auth: false,
            max_connections: 4096,
            max_connections_per_subject: 1024,
            server: ServerConfig::default(),
            network_allow: None,
            network_deny: Vec::new(),
            network_ask: false,
            log: "info".to_owned(),
            log_format: LogFormat::Human,
            metrics: false,
            audit_log: String::new(),
            audit_commands: false,
            audit_required: false,
        }
    }
}

impl Settings {
    /// Returns the file of the audit log, which no sandbox may read or change.
    pub(crate) fn audit_file(&self) -> Option<PathBuf> {
        let target = self.audit_target().ok().flatten()?;
        match target {
            AuditTarget::File(path) => Some(path),
            AuditTarget::Journal(_) => None,
        }
    }

    pub(crate) fn audit_target(&self) -> Result<Option<AuditTarget>, ServeError> {
        if self.audit_log.is_empty() {
            return match self.audit_commands || self.audit_required {
                true => Err(ServeError::Settings(
                    "audit.commands and audit.required have no effect without audit.log; set audit.log"
                        .to_owned(),
                )),
                false => Ok(None),
            };
        }
        self.audit_log.parse().map(Some).map_err(ServeError::Settings)
    }
}
