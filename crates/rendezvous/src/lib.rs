//! The rendezvous of remote mode: a registry that decides who may talk to whom, and a router that
//! carries frames between the sockets of environments and harnesses.
//!
//! It cannot read the traffic that it routes: the crate is built without the Noise code of the
//! relay, which decrypts records. Of a frame it reads only the stream id. Public keys are opaque
//! text.
//!
//! The peers do not depend on any state of the router. After a restart, environments dial the same
//! URL again, harnesses connect again, and their streams continue.

mod admin;
mod assertion;
mod audit;
mod authentication;
mod config;
mod credential;
mod directory;
mod environment_id;
mod error_response;
mod handler;
mod metrics;
mod node_status;
mod public_key;
mod quota;
mod registry;
mod router;
mod service;
mod sockets;
mod status;
mod trace;
mod tunnel;

pub use admin::{
    ADMIN_SOCKET_FILE, AdminError, AdminRequest, AdminResponse, CredentialKind, CredentialSummary,
    NewCredential, Secret, administer, administer_cluster,
};
pub use config::{Quotas, RendezvousConfig, Routing};
pub use credential::{Credential, CredentialId, Proof, Role};
pub use directory::{
    Authorization, Directory, DirectoryError, Lease, NatsDirectory, NatsOptions, RedbDirectory,
    Registration, Revocation, SecretHash, Ticket,
};
pub use environment_id::{EnvironmentId, InvalidEnvironmentId};
pub use node_status::NodeStatus;
pub use public_key::PublicKey;
pub use service::{BindRendezvousError, Rendezvous};
pub use tunnel::{Bus, BusError, TunnelTimes};
