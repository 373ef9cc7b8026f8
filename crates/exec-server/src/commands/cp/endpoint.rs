//! The machines that a copy reads from and writes to. All file operations go through one trait, so
//! a copy works the same on local and remote endpoints.

use std::cell::RefCell;
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::Context as _;
use exec_server_client::{ConnectionState, ExecServerError};
use exec_server_protocol::PathUri;
use tokio::sync::watch;

use super::super::servers::{Servers, absolute, below, own_directory};
use super::retry_budget::{CompletedCount, RetryBudget};
use crate::environment::runtime_paths::ExecServerRuntimePaths;
use crate::environment::{Environment, ExecutorFileSystem};
use crate::target::remote_path::AnyPath;
use crate::target::{Origin, Target};
use crate::terminal::escaped;

#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) files: Arc<dyn ExecutorFileSystem>,
    name: EndpointName,
    /// Distinguishes the endpoint's files from those of other endpoints, across runs.
    pub(super) identity: String,
    pub(super) completed: CompletedCount,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum EndpointName {
    Here,
    /// The server of an environment; `None` is the server of the command.
    Server(Option<String>),
}

#[derive(Debug, Clone)]
pub(super) struct EndpointPath {
    pub(super) endpoint: Rc<Endpoint>,
    pub(super) path: PathUri,
    /// Whether the path was written with a trailing slash.
    pub(super) has_slash: bool,
    /// The name that a copy of this path gets in an existing directory; `None` if the path stands
    /// for the directory's content, like `.`.
    pub(super) name: Option<OsString>,
}

/// The endpoints of one command, each opened once.
pub(super) struct Endpoints<'a> {
    servers: &'a Servers<'a>,
    known: RefCell<Vec<Rc<Endpoint>>>,
    connections: RefCell<Vec<watch::Receiver<ConnectionState>>>,
}

impl<'a> Endpoints<'a> {
    pub(super) fn new(servers: &'a Servers<'a>) -> Self {
        Self { servers, known: RefCell::default(), connections: RefCell::default() }
    }

    pub(super) fn connections(&self) -> Vec<watch::Receiver<ConnectionState>> {
        self.connections.borrow().clone()
    }

    pub(super) async fn locate(&self, written: &AnyPath) -> anyhow::Result<EndpointPath> {
        match written {
            AnyPath::Here(path) => {
                let absolute = below(&own_directory()?, path)?;
                EndpointPath::new(self.here(), path, &absolute)
            }
            AnyPath::There(there) => {
                let environment = there.environment.as_deref();
                if self.servers.target(environment)?.is_embedded() {
                    let absolute = below(&own_directory()?, &there.path)?;
                    return EndpointPath::new(self.here(), &there.path, &absolute);
                }
                let (target, client) = self.servers.reach(environment).await?;
                let absolute = absolute(&there.path, &target, &client).await?;
                let name = EndpointName::Server(there.environment.clone());
                let endpoint = self.endpoint(&name, || {
                    self.connections.borrow_mut().push(client.connection_state());
                    Endpoint::new(Arc::new(client), name.clone(), identity_of(&target))
                });
                EndpointPath::new(endpoint, &there.path, &absolute)
            }
        }
    }

    fn here(&self) -> Rc<Endpoint> {
        self.endpoint(&EndpointName::Here, Endpoint::here)
    }

    fn endpoint(&self, name: &EndpointName, open: impl FnOnce() -> Endpoint) -> Rc<Endpoint> {
        let mut known = self.known.borrow_mut();
        if let Some(endpoint) = known.iter().find(|endpoint| endpoint.name == *name) {
            return Rc::clone(endpoint);
        }
        let endpoint = Rc::new(open());
        known.push(Rc::clone(&endpoint));
        endpoint
    }
}

impl Endpoint {
    pub(super) fn here() -> Self {
        let files = Environment::local(ExecServerRuntimePaths::without_helpers());
        Self::new(Arc::new(files), EndpointName::Here, String::new())
    }

    fn new(files: Arc<dyn ExecutorFileSystem>, name: EndpointName, identity: String) -> Self {
        Self { files, name, identity, completed: CompletedCount::default() }
    }

    /// Repeats an idempotent operation that a lost connection interrupted, within a
    /// [`RetryBudget`].
    pub(super) async fn retry_interrupted<T>(
        &self,
        act: impl AsyncFn() -> Result<T, ExecServerError>,
    ) -> Result<T, ExecServerError> {
        let mut retries = RetryBudget::new(&self.completed);
        loop {
            match act().await {
                Err(ExecServerError::Interrupted { .. }) if retries.allows_another() => {}
                outcome => {
                    self.completed.increment();
                    return outcome;
                }
            }
        }
    }

    pub(super) fn is(&self, other: &Self) -> bool {
        self.name == other.name
    }

    /// Formats a path as a user would write it.
    pub(super) fn show(&self, path: &PathUri) -> String {
        format!("{}{}", self.name, escaped(path.as_path()))
    }
}

/// Returns the identity of a server, independent of how the user wrote it: `:` may mean a different
/// server in each command line.
fn identity_of(target: &Target) -> String {
    match target {
        Target::Embedded { .. } | Target::Server { origin: Origin::RuntimeFile, .. } => {
            String::new()
        }
        Target::Server { server, origin } => match server.url() {
            // A query may contain a secret, and does not identify the machine.
            Some(url) => url.split('?').next().unwrap_or_default().to_owned(),
            None => origin.to_string(),
        },
    }
}

impl fmt::Display for EndpointName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Here => Ok(()),
            Self::Server(None) => f.write_str(":"),
            Self::Server(Some(environment)) => write!(f, "{environment}:"),
        }
    }
}

impl EndpointPath {
    fn new(endpoint: Rc<Endpoint>, written: &Path, absolute: &PathUri) -> anyhow::Result<Self> {
        let bytes = written.as_os_str().as_bytes();
        let path = without_slash(absolute.as_path());
        Ok(Self {
            endpoint,
            path: PathUri::from_path(path)
                .with_context(|| format!("{} is not absolute", written.display()))?,
            has_slash: bytes.ends_with(b"/"),
            name: name_of(bytes),
        })
    }

    pub(super) fn show(&self) -> String {
        self.endpoint.show(&self.path)
    }
}

fn name_of(written: &[u8]) -> Option<OsString> {
    let end = written.iter().rposition(|byte| *byte != b'/')? + 1;
    let last = written[..end].rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let is_name = !matches!(last, b"" | b"." | b"..");
    is_name.then(|| std::ffi::OsStr::from_bytes(last).to_owned())
}

fn without_slash(path: &Path) -> &Path {
    let bytes = path.as_os_str().as_bytes();
    let end = bytes.iter().rposition(|byte| *byte != b'/').map_or(1, |last| last + 1);
    Path::new(std::ffi::OsStr::from_bytes(&bytes[..end]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_the_last_component() {
        for (written, name) in [
            ("a", Some("a")),
            ("a/b/", Some("b")),
            ("/a//", Some("a")),
            ("a/.", None),
            ("..", None),
            ("", None),
            ("/", None),
        ] {
            assert_eq!(name_of(written.as_bytes()), name.map(OsString::from), "{written}");
        }
    }

    #[test]
    fn trailing_slashes_are_removed() {
        for (path, without) in [("/a/b//", "/a/b"), ("/", "/"), ("//", "/"), ("/a", "/a")] {
            assert_eq!(without_slash(Path::new(path)).as_os_str(), without);
        }
    }
}
