//! The options of `exec-server token`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum, ValueHint};
use exec_server_protocol::{Role, SandboxLevel};

use super::values::parse_duration;

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Print a random token, which also serves as a secret to sign others with
    New,
    Sign(Box<Sign>),
    Inspect(Inspect),
}

/// Print a token that a server with the same secret accepts
#[derive(Debug, Args)]
#[command(after_help = "\
Example: exec-server token sign --secret-file secret --subject agent-7 --ttl 8h \\
             --sandbox workspace-write --writable /srv/agent-7")]
pub(crate) struct Sign {
    /// The file with the secret that the server has as --ws-shared-secret-file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) secret_file: PathBuf,
    /// Whom the token is for: sessions belong to their subject
    #[arg(long, value_name = "NAME")]
    pub(crate) subject: String,
    /// How long the token is valid
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "1h")]
    pub(crate) ttl: Duration,
    /// Its role
    #[arg(long, value_enum, default_value_t = RoleName::Owner)]
    pub(crate) role: RoleName,
    /// The most access that its requests get [default: that of the server]
    #[arg(long, value_enum, value_name = "LEVEL")]
    pub(crate) sandbox: Option<LevelName>,
    /// With --sandbox workspace-write, let it write below this directory of the server's machine
    /// (may be repeated)
    #[arg(long, value_name = "DIR", requires = "sandbox", value_hint = ValueHint::DirPath)]
    pub(crate) writable: Vec<PathBuf>,
    /// With --sandbox, let it use the network
    #[arg(long, requires = "sandbox")]
    pub(crate) network: bool,
    /// The issuer, if the server asks for one
    #[arg(long, value_name = "TEXT")]
    pub(crate) issuer: Option<String>,
    /// The audience, if the server asks for one
    #[arg(long, value_name = "TEXT")]
    pub(crate) audience: Option<String>,
}

/// Explain a token without its secret
#[derive(Debug, Args)]
pub(crate) struct Inspect {
    /// Print the claims as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The file with the token; - or nothing for standard input
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) file: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RoleName {
    /// Works in the sessions of its subject
    Owner,
    /// Reads files and observes the sessions of its subject
    Observer,
    /// Also lists, observes and ends the sessions of all subjects
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
