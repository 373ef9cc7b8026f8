//! What the operator decides, gathered from flags, environment, file and defaults, in that order of precedence.
//!
//! [`table`] is the only place that lists the settings. Flags, variables, file keys and the printout are all made
//! from it, so a setting cannot exist in one and be missing in another. What the values mean is the business of
//! whoever uses them: this module never binds, opens or limits anything.

mod error;
mod file;
mod kind;
mod location;
mod resolve;
mod table;

pub(crate) use error::ConfigError;
pub(crate) use location::Location;
pub(crate) use resolve::{Configuration, Flag, Flags, Source, load};
pub(crate) use table::{SERVER_URL_KEY, SERVER_URL_VARIABLE, SETTINGS, Setting, keys};

use exec_server_server::ServerConfig;
use exec_server_transport::DEFAULT_LISTEN_URL;

use crate::program::logging::LogFormat;

/// The value of every setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) listen: String,
    pub(crate) allow_origins: Vec<String>,
    pub(crate) allow_hosts: Vec<String>,
    /// Whether other users of this machine may connect over TCP.
    pub(crate) allow_other_users: bool,
    /// Whether commands of the same user find this server by themselves.
    pub(crate) discoverable: bool,
    pub(crate) server: ServerConfig,
    /// A filter that [`crate::program::logging::parse_filter`] accepts.
    pub(crate) log: String,
    pub(crate) log_format: LogFormat,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: DEFAULT_LISTEN_URL.to_owned(),
            allow_origins: Vec::new(),
            allow_hosts: Vec::new(),
            allow_other_users: false,
            discoverable: true,
            server: ServerConfig::default(),
            log: "info".to_owned(),
            log_format: LogFormat::Human,
        }
    }
}
