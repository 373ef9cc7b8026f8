//! The options of `exec-server token`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum, ValueHint};
use exec_server_protocol::{LimitValues, Role, SandboxLevel};
use exec_server_rendezvous::{EnvironmentId, InvalidEnvironmentId};

use super::cluster::StoreOptions;
use super::hosts::parse_pattern;
use super::values::parse_duration;
use crate::environment::limit_options::parse_limit;

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Print a random token, also usable as a secret for signing tokens
    New,
    Sign(Box<Sign>),
    Inspect(Inspect),
    /// Print a new token for a rendezvous; only its hash is kept
    Create(NewCredentialOptions),
    /// Print a new agent identity for a rendezvous, including its private key; only its public key
    /// is kept
    CreateAgent(NewCredentialOptions),
    /// List the tokens and agent identities of a rendezvous
    List {
        #[command(flatten)]
        store: StoreOptions,
        /// Print one JSON object per line
        #[arg(long)]
        json: bool,
    },
    /// Revoke a token or an agent identity of a rendezvous; its open sockets are closed
    Revoke {
        #[command(flatten)]
        store: StoreOptions,
        /// The id, as token list shows it
        id: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct NewCredentialOptions {
    #[command(flatten)]
    pub(crate) store: StoreOptions,
    /// The role of the token
    #[arg(long, value_enum)]
    pub(crate) role: RelayRole,
    /// An environment that the token is for (may be repeated); needed unless the role is operator
    #[arg(
        long = "environment",
        value_name = "ID",
        required_if_eq_any = [("role", "environment"), ("role", "harness")],
        value_parser = parse_environment
    )]
    pub(crate) environments: Vec<EnvironmentId>,
    /// How long the token is valid, such as 30d [default: until it is revoked]
    #[arg(long, value_name = "DURATION", value_parser = parse_ttl)]
    pub(crate) ttl: Option<Duration>,
    /// A name for the token. Environments see it as the subject of a harness, so tokens with the
    /// same name share their sessions [default: the token's id]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RelayRole {
    /// Registers as the environment
    Environment,
    /// Connects to the environment
    Harness,
    /// Sees the status of all environments
    Operator,
}

impl From<RelayRole> for exec_server_rendezvous::Role {
    fn from(role: RelayRole) -> Self {
        match role {
            RelayRole::Environment => Self::Environment,
            RelayRole::Harness => Self::Harness,
            RelayRole::Operator => Self::Operator,
        }
    }
}

fn parse_environment(text: &str) -> Result<EnvironmentId, String> {
    text.parse().map_err(|error: InvalidEnvironmentId| error.to_string())
}

fn parse_ttl(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        Duration::ZERO => Err("must be more than 0".to_owned()),
        ttl => Ok(ttl),
    }
}

/// Print a token that a server with the same secret accepts
#[derive(Debug, Args)]
#[command(after_help = "\
Example: exec-server token sign --secret-file secret --subject agent-7 --ttl 8h \\
             --sandbox workspace-write --writable /srv/agent-7")]
pub(crate) struct Sign {
    /// The file with the secret that the server reads from its --ws-shared-secret-file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) secret_file: PathBuf,
    /// The subject of the token, which owns its sessions
    #[arg(long, value_name = "NAME")]
    pub(crate) subject: String,
    /// How long the token is valid
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "1h")]
    pub(crate) ttl: Duration,
    /// The role of the token
    #[arg(long, value_enum, default_value_t = RoleName::Owner)]
    pub(crate) role: RoleName,
    /// The most access that its requests may have [default: the server's limit]
    #[arg(long, value_enum, value_name = "LEVEL")]
    pub(crate) sandbox: Option<LevelName>,
    /// With --sandbox workspace-write, allow writing below this directory of the server's machine
    /// (may be repeated)
    #[arg(long, value_name = "DIR", requires = "sandbox", value_hint = ValueHint::DirPath)]
    pub(crate) writable: Vec<PathBuf>,
    /// With --sandbox, allow the network
    #[arg(long, requires = "sandbox")]
    pub(crate) network: bool,
    /// With --network, allow only this host: HOST, *.HOST or **.HOST, with an optional :PORT (may
    /// be repeated)
    #[arg(long, value_name = "PATTERN", requires = "network", value_parser = parse_pattern)]
    pub(crate) allow_host: Vec<String>,
    /// With --network, deny this host; without --allow-host, all others are allowed (may be
    /// repeated)
    #[arg(long, value_name = "PATTERN", requires = "network", value_parser = parse_pattern)]
    pub(crate) deny_host: Vec<String>,
    /// With --network, let the client decide about hosts that match no pattern
    #[arg(long, requires = "network")]
    pub(crate) ask_network: bool,
    /// A resource limit of each process, such as memory=512M or pids=100, as for run (may be
    /// repeated)
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_limit)]
    pub(crate) limit: Vec<LimitValues>,
    /// The issuer, if the server requires one
    #[arg(long, value_name = "TEXT")]
    pub(crate) issuer: Option<String>,
    /// The audience, if the server requires one
    #[arg(long, value_name = "TEXT")]
    pub(crate) audience: Option<String>,
}

/// Explain a token without its secret
#[derive(Debug, Args)]
pub(crate) struct Inspect {
    /// Print the claims as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The file with the token, or - for standard input [default: -]
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) file: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RoleName {
    /// Works in the sessions of its subject
    Owner,
    /// Reads files and observes the sessions of its subject
    Observer,
    /// Works in the sessions of its subject; lists, observes and ends those of all subjects
    Admin,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LevelName {
    ReadOnly,
    WorkspaceWrite,
}

impl From<RoleName> for Role {
    fn from(name: RoleName) -> Self {
        match name {
            RoleName::Owner => Self::Owner,
            RoleName::Observer => Self::Observer,
            RoleName::Admin => Self::Admin,
        }
    }
}

impl From<LevelName> for SandboxLevel {
    fn from(name: LevelName) -> Self {
        match name {
            LevelName::ReadOnly => Self::ReadOnly,
            LevelName::WorkspaceWrite => Self::WorkspaceWrite,
        }
    }
}
