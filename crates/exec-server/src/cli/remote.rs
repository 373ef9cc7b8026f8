//! The commands for remote mode that do not run a server.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use exec_server_transport::Fingerprint;

use super::values::secret;
use crate::target::server_url::ServerUrl;

/// Make another server reachable through a rendezvous, relaying its messages unread
#[derive(Debug, Args)]
#[command(after_help = "\
Each client gets its own connection to the server. To the server, all clients appear as
one client: this command, which needs credentials for that server.")]
pub(crate) struct Forward {
    /// Relay clients to the server at wss://HOST:PORT, ws://HOST:PORT or unix:///PATH
    #[arg(long, value_name = "URL", value_parser = secret(super::client::parse_url))]
    pub(crate) connect: ServerUrl,
    /// Send the token in this file to the server
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) token_file: Option<PathBuf>,
    /// Trust the authorities in this PEM file instead of the system's
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) tls_ca: Option<PathBuf>,
    /// Trust the server whose certificate has this SHA-256 fingerprint
    #[arg(long, value_name = "SHA256:HEX", conflicts_with = "tls_ca")]
    pub(crate) tls_fingerprint: Option<Fingerprint>,
    #[command(flatten)]
    pub(crate) registry: RegistryFlags,
    /// The id by which clients address the server
    #[arg(long, value_name = "ID", help_heading = RENDEZVOUS)]
    pub(crate) environment_id: String,
    /// A descriptive name, shown in the log of this command
    #[arg(long, value_name = "TEXT", help_heading = RENDEZVOUS)]
    pub(crate) name: Option<String>,
    /// Sign requests to the rendezvous with the identity in EXEC_SERVER_ACCESS_TOKEN
    #[arg(long, conflicts_with = "remote_token_file", help_heading = RENDEZVOUS)]
    pub(crate) use_agent_identity_auth: bool,
    /// Read the token for the rendezvous from this file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = RENDEZVOUS)]
    pub(crate) remote_token_file: Option<PathBuf>,
}

const RENDEZVOUS: &str = "Rendezvous";

#[derive(Debug, Args)]
pub(crate) struct RegistryFlags {
    /// The rendezvous: https://HOST[:PORT][/PATH]
    #[arg(long, value_name = "URL", help_heading = RENDEZVOUS)]
    pub(crate) remote: String,
    /// Trust the authorities in this PEM file instead of the system's
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = RENDEZVOUS)]
    pub(crate) remote_tls_ca: Option<PathBuf>,
    /// Trust the rendezvous whose certificate has this SHA-256 fingerprint
    #[arg(long, value_name = "SHA256:HEX", conflicts_with = "remote_tls_ca")]
    #[arg(help_heading = RENDEZVOUS)]
    pub(crate) remote_tls_fingerprint: Option<Fingerprint>,
}

/// Store a token for a rendezvous, for commands and servers of this user
#[derive(Debug, Args)]
pub(crate) struct Login {
    /// The rendezvous: https://HOST[:PORT][/PATH]
    #[arg(long, value_name = "URL")]
    pub(crate) remote: String,
    /// Read the token from this file [default: standard input]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) token_file: Option<PathBuf>,
}

/// Delete the stored token for a rendezvous
#[derive(Debug, Args)]
pub(crate) struct Logout {
    /// The rendezvous: https://HOST[:PORT][/PATH]
    #[arg(long, value_name = "URL")]
    pub(crate) remote: String,
}
