//! `exec-server token create`, `create-agent`, `list` and `revoke`: manage the credentials of a
//! rendezvous, in its store or through the running service.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail};
use exec_server_rendezvous::{
    AdminRequest, AdminResponse, CredentialKind, CredentialSummary, EnvironmentId, NewCredential,
    RedbDirectory, Role, administer, administer_cluster,
};

use crate::cli::cluster::Store;
use crate::cli::token::NewCredentialOptions;
use crate::program::say;
use crate::terminal::{json_line, printable};

pub(super) const UNEXPECTED_RESPONSE: &str =
    "unexpected response from the rendezvous; it may run another version of exec-server";

/// Creates a credential and returns only its secret.
pub(super) fn create(
    options: &NewCredentialOptions,
    kind: CredentialKind,
) -> anyhow::Result<String> {
    let new = NewCredential {
        kind,
        role: options.role.into(),
        environments: options.environments.iter().cloned().collect(),
        lifetime: options.ttl,
        name: options.name.clone(),
    };
    let store = options.store.store()?;
    let new_directory = match &store {
        Store::Directory(data) if !RedbDirectory::exists(data) => Some(data),
        Store::Directory(_) | Store::Cluster(_) => None,
    };
    match ask(&store, AdminRequest::Create(new))? {
        AdminResponse::Created { secret, .. } => {
            if let Some(data) = new_directory {
                // Otherwise a mistyped directory would silently yield a token that every rendezvous
                // refuses.
                say(&format!("created a new store in {}", data.display()));
            }
            Ok(secret.0 + "\n")
        }
        _ => bail!(UNEXPECTED_RESPONSE),
    }
}

pub(super) fn list(store: &Store, json: bool) -> anyhow::Result<String> {
    let AdminResponse::Listed { credentials } = ask(store, AdminRequest::List)? else {
        bail!(UNEXPECTED_RESPONSE);
    };
    Ok(match json {
        true => credentials.iter().map(json_line).collect(),
        false => table(&credentials, SystemTime::now()),
    })
}

pub(super) fn revoke(store: &Store, id: &str) -> anyhow::Result<String> {
    match ask(store, AdminRequest::Revoke { id: id.to_owned() })? {
        AdminResponse::Revoked { existed: true } => Ok(String::new()),
        AdminResponse::Revoked { existed: false } => {
            bail!("no token or agent has the id {id:?}; see exec-server token list")
        }
        _ => bail!(UNEXPECTED_RESPONSE),
    }
}

pub(super) fn ask(store: &Store, request: AdminRequest) -> anyhow::Result<AdminResponse> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot create the event loop")?;
    match store {
        Store::Directory(data) => runtime
            .block_on(administer(data, &request))
            .with_context(|| format!("cannot use the rendezvous in {}", data.display())),
        Store::Cluster(options) => {
            runtime.block_on(administer_cluster(options, request)).context("cannot use the cluster")
        }
    }
}

fn table(credentials: &[CredentialSummary], now: SystemTime) -> String {
    let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let mut text = String::new();
    for credential in credentials {
        let role = match credential.role {
            Role::Environment => "environment",
            Role::Harness => "harness",
            Role::Operator => "operator",
        };
        let kind = match credential.kind {
            CredentialKind::Token => "token",
            CredentialKind::Agent => "agent",
        };
        let environments: Vec<_> =
            credential.environments.iter().map(EnvironmentId::as_str).collect();
        let environments = match credential.role {
            Role::Operator => "all".to_owned(),
            Role::Environment | Role::Harness => environments.join(","),
        };
        let expiry = match credential.expires {
            None => "never expires".to_owned(),
            Some(expires) if expires <= now => "expired".to_owned(),
            Some(expires) => {
                let left = Duration::from_secs(expires - now);
                format!("expires in {}", humantime::format_duration(left))
            }
        };
        let name = printable(credential.name.as_deref().unwrap_or("-"));
        writeln!(text, "{}  {kind}  {role}  {environments}  {name}  {expiry}", credential.id)
            .expect("a String accepts every write");
    }
    text
}
