//! Manages credentials and lists nodes: directly in the store, or through a Unix socket of the
//! service that has the store open. Request and response are one JSON value per line.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use exec_server_relay::with_sources;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};

use crate::credential::{Credential, CredentialId, CredentialOptions, Proof, Role, since_1970};
use crate::directory::{Directory, DirectoryError, NatsDirectory, NatsOptions, RedbDirectory};
use crate::environment_id::EnvironmentId;
use crate::node_status::NodeStatus;

/// The file name of the socket in the data directory.
pub const ADMIN_SOCKET_FILE: &str = "admin.sock";
const MAX_REQUEST_BYTES: u64 = 64 << 10;
/// Further commands wait to be accepted.
const MAX_CONNECTIONS: usize = 16;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a command waits for a store that another process has open.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
const MAX_NAME_BYTES: usize = 128;

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "call", rename_all = "snake_case")]
pub enum AdminRequest {
    Create(NewCredential),
    List,
    Revoke { id: String },
    Nodes,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NewCredential {
    pub kind: CredentialKind,
    pub role: Role,
    pub environments: BTreeSet<EnvironmentId>,
    pub lifetime: Option<Duration>,
    pub name: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CredentialKind {
    Token,
    Agent,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum AdminResponse {
    Created { id: CredentialId, secret: Secret },
    Listed { credentials: Vec<CredentialSummary> },
    Revoked { existed: bool },
    Nodes { nodes: Vec<NodeStatus> },
    Failed { message: String },
}

/// The text of a new token or identity, which is shown once.
#[derive(Serialize, Deserialize)]
pub struct Secret(pub String);

/// Times are in seconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CredentialSummary {
    pub id: CredentialId,
    pub name: Option<String>,
    pub kind: CredentialKind,
    pub role: Role,
    pub environments: BTreeSet<EnvironmentId>,
    pub created: u64,
    pub expires: Option<u64>,
}

#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    #[error("{} contains no rendezvous store; check --data", path.display())]
    NoStore { path: PathBuf },
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error("cannot use the running service: {0}")]
    Service(#[source] io::Error),
    #[error("{0}")]
    Refused(String),
}

/// Performs one request on a data directory, whether or not the service runs.
pub async fn administer(data: &Path, request: &AdminRequest) -> Result<AdminResponse, AdminError> {
    let is_new = matches!(request, AdminRequest::Create(_));
    if !is_new && !RedbDirectory::exists(data) {
        return Err(AdminError::NoStore { path: data.to_owned() });
    }
    let deadline = Instant::now() + LOCK_TIMEOUT;
    let response = loop {
        if let Ok(socket) = UnixStream::connect(data.join(ADMIN_SOCKET_FILE)).await {
            let answered = timeout(REQUEST_TIMEOUT, ask(socket, request)).await;
            let answered = answered.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
            break answered.map_err(AdminError::Service)?;
        }
        let directory = data.to_owned();
        let opened = tokio::task::spawn_blocking(move || RedbDirectory::open(&directory)).await;
        match opened.map_err(|error| AdminError::Service(error.into()))? {
            Ok(directory) => break respond(&directory, request.clone(), SystemTime::now()).await,
            // The service is starting or stopping, or another command is running.
            Err(DirectoryError::InUse { .. }) if Instant::now() < deadline => {
                sleep(RETRY_INTERVAL).await;
            }
            Err(error) => return Err(error.into()),
        }
    };
    accepted(response)
}

/// Performs one request on a cluster. All of its nodes notice a change.
pub async fn administer_cluster(
    options: &NatsOptions,
    request: AdminRequest,
) -> Result<AdminResponse, AdminError> {
    let directory = NatsDirectory::connect(options).await?;
    accepted(respond(&directory, request, SystemTime::now()).await)
}

fn accepted(response: AdminResponse) -> Result<AdminResponse, AdminError> {
    match response {
        AdminResponse::Failed { message } => Err(AdminError::Refused(message)),
        response => Ok(response),
    }
}

async fn ask(mut socket: UnixStream, request: &AdminRequest) -> io::Result<AdminResponse> {
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    socket.write_all(&line).await?;
    let mut answer = String::new();
    BufReader::new(socket).read_line(&mut answer).await?;
    // The parser's error may quote the response, which may hold a secret.
    let problem = match answer.is_empty() {
        true => "it closed the connection; try again, as the user of the service or as root",
        false => "its response cannot be read; it may run another version",
    };
    serde_json::from_str(&answer).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, problem))
}

async fn respond(
    directory: &dyn Directory,
    request: AdminRequest,
    now: SystemTime,
) -> AdminResponse {
    let outcome = match request {
        AdminRequest::Create(new) => create(directory, new, now).await,
        AdminRequest::List => directory.list_credentials().await.map(|credentials| {
            let credentials = credentials.iter().map(CredentialSummary::of).collect();
            AdminResponse::Listed { credentials }
        }),
        AdminRequest::Revoke { id } => {
            let revoked = directory.revoke_credential(&CredentialId::from(id)).await;
            revoked.map(|existed| AdminResponse::Revoked { existed })
        }
        AdminRequest::Nodes => directory.nodes().await.map(|nodes| AdminResponse::Nodes { nodes }),
    };
    outcome.unwrap_or_else(|error| AdminResponse::Failed { message: with_sources(&error) })
}

async fn create(
    directory: &dyn Directory,
    new: NewCredential,
    now: SystemTime,
) -> Result<AdminResponse, DirectoryError> {
    let NewCredential { kind, role, environments, lifetime, name } = new;
    let is_name = |name: &String| {
        (1..=MAX_NAME_BYTES).contains(&name.len()) && !name.chars().any(char::is_control)
    };
    let failed = |message: &str| Ok(AdminResponse::Failed { message: message.to_owned() });
    match (role, environments.is_empty()) {
        (Role::Operator, false) => {
            return failed("the role operator sees all environments; omit --environment");
        }
        (Role::Environment | Role::Harness, true) => {
            return failed(
                "the roles environment and harness need an environment; name it with --environment",
            );
        }
        _ => {}
    }
    if let Some(name) = &name
        && !is_name(name)
    {
        return failed(&format!(
            "invalid name {name:?}; expected 1 to {MAX_NAME_BYTES} bytes without control characters"
        ));
    }
    let options = CredentialOptions { name, role, environments, lifetime };
    let (credential, secret) = match kind {
        CredentialKind::Token => Credential::new_token(options, now),
        CredentialKind::Agent => {
            Credential::new_agent(options, &directory.signing_secret().await?, now)
        }
    };
    let id = credential.id.clone();
    directory.put_credential(credential).await?;
    Ok(AdminResponse::Created { id, secret: Secret(secret) })
}

impl CredentialSummary {
    fn of(credential: &Credential) -> Self {
        let Credential { id, name, role, environments, created, expires, proof } =
            credential.clone();
        let kind = match proof {
            Proof::Token { .. } => CredentialKind::Token,
            Proof::Agent { .. } => CredentialKind::Agent,
        };
        let (created, expires) = (since_1970(created), expires.map(since_1970));
        Self { id, name, kind, role, environments, created, expires }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

/// Dropping the socket removes its file.
#[derive(Debug)]
pub(crate) struct AdminSocket {
    path: PathBuf,
    task: JoinHandle<()>,
}

impl AdminSocket {
    /// Binds the socket. The caller has the store open, so an existing socket file is stale.
    pub(crate) fn bind(path: &Path, directory: Arc<dyn Directory>) -> io::Result<Self> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        let task = tokio::spawn(serve(listener, directory));
        Ok(Self { path: path.to_owned(), task })
    }
}

impl Drop for AdminSocket {
    fn drop(&mut self) {
        self.task.abort();
        let _ = std::fs::remove_file(&self.path);
    }
}

async fn serve(listener: UnixListener, directory: Arc<dyn Directory>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < MAX_CONNECTIONS => match accepted {
                Ok((socket, _)) => {
                    let directory = Arc::clone(&directory);
                    connections.spawn(async move {
                        // A command that fails or is too slow finds its socket closed.
                        let _ = timeout(REQUEST_TIMEOUT, answer(socket, &*directory)).await;
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept an administration command");
                    sleep(Duration::from_secs(1)).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn answer(mut socket: UnixStream, directory: &dyn Directory) -> io::Result<()> {
    let user = socket.peer_cred()?.uid();
    let is_root = user == rustix::process::Uid::ROOT.as_raw();
    if !is_root && user != rustix::process::geteuid().as_raw() {
        tracing::warn!(user, "refused an administration command from another user");
        return Ok(());
    }
    let (reader, mut writer) = socket.split();
    let mut line = String::new();
    BufReader::new(reader.take(MAX_REQUEST_BYTES)).read_line(&mut line).await?;
    let response = match serde_json::from_str(&line) {
        Ok(request) => respond(directory, request, SystemTime::now()).await,
        Err(error) => AdminResponse::Failed { message: format!("invalid request: {error}") },
    };
    let mut line = serde_json::to_vec(&response)?;
    line.push(b'\n');
    writer.write_all(&line).await
}
