//! The servers that one command uses, each connected once and on demand, and the resolution of
//! paths on them.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::future::ready;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};
use std::pin::pin;
use std::rc::Rc;

use anyhow::Context as _;
use exec_server_client::ExecServerClient;
use exec_server_protocol::{Empty, PathUri};

use super::run::options;
use crate::cli::client::ServerChoice;
use crate::foreground::Signals;
use crate::program::exit_code::ExitStatus;
use crate::target::remote_path::ServerPath;
use crate::target::{Target, TargetSession};

pub(super) struct Servers<'a> {
    choice: &'a ServerChoice,
    client_name: String,
    known: RefCell<Vec<ConnectedServer>>,
}

struct ConnectedServer {
    /// `None`: the server selected by the command line or the configuration.
    environment: Option<String>,
    target: Rc<Target>,
    session: TargetSession,
}

#[derive(Debug)]
pub(super) struct Located {
    pub(super) client: ExecServerClient,
    pub(super) path: PathUri,
}

impl<'a> Servers<'a> {
    /// Runs the work of a command until it ends or a signal arrives, then closes all sessions.
    pub(super) async fn work(
        choice: &'a ServerChoice,
        command: &str,
        work: impl AsyncFnOnce(&Self) -> anyhow::Result<ExitStatus>,
    ) -> anyhow::Result<ExitStatus> {
        let mut signals = Signals::new().context("cannot listen for signals")?;
        let client_name = format!("exec-server {command}");
        let servers = Self { choice, client_name, known: RefCell::default() };
        let mut work = pin!(work(&servers));
        match signals.until_asked_to_end(work.as_mut()).await {
            Ok(outcome) => {
                let closing = async {
                    for known in servers.known.take() {
                        known.session.close().await;
                    }
                };
                let _ = signals.until_asked_to_end(closing).await;
                outcome
            }
            Err(number) => {
                // Closes sessions before the work releases its files: partial files that can be
                // resumed are kept when a connection ends.
                for known in servers.known.take() {
                    known.session.close_before(ready(())).await;
                }
                Ok(ExitStatus::of_signal(number))
            }
        }
    }

    /// Validates the environments before any path is used. An undefined environment is a usage
    /// error. If there is only one server, and it is not embedded, connects to it, so that a
    /// connection error is not attributed to a path.
    pub(super) async fn prepare(
        &self,
        environments: &BTreeSet<Option<&str>>,
    ) -> anyhow::Result<()> {
        let mut is_only = environments.len() == 1;
        for environment in environments {
            is_only &= !self.target(*environment)?.is_embedded();
            if is_only {
                self.reach(*environment).await?;
            }
        }
        Ok(())
    }

    pub(super) async fn locate(&self, path: &ServerPath) -> anyhow::Result<Located> {
        let (target, client) = self.reach(path.environment.as_deref()).await?;
        let path = absolute(&path.path, &target, &client).await?;
        Ok(Located { client, path })
    }

    pub(super) fn target(&self, environment: Option<&str>) -> anyhow::Result<Target> {
        Ok(match environment {
            None => Target::find(self.choice)?,
            Some(id) => Target::environment(id)?,
        })
    }

    pub(super) async fn reach(
        &self,
        environment: Option<&str>,
    ) -> anyhow::Result<(Rc<Target>, ExecServerClient)> {
        let known = self.known.borrow().iter().find_map(|known| {
            let is_it = known.environment.as_deref() == environment;
            is_it.then(|| (Rc::clone(&known.target), known.session.client.clone()))
        });
        if let Some(known) = known {
            return Ok(known);
        }
        let target = Rc::new(self.target(environment)?);
        let session = target.connect(options(&self.client_name)).await?;
        let found = (Rc::clone(&target), session.client.clone());
        let environment = environment.map(str::to_owned);
        self.known.borrow_mut().push(ConnectedServer { environment, target, session });
        Ok(found)
    }
}

/// Resolves a relative path: against the current directory if the server shares it, otherwise
/// against the server's working directory.
pub(super) async fn absolute(
    path: &Path,
    target: &Target,
    client: &ExecServerClient,
) -> anyhow::Result<PathUri> {
    if let Some(absolute) = PathUri::from_path(path) {
        return Ok(absolute);
    }
    let base = if target.shares_files() {
        own_directory()?
    } else {
        let info = client.environment_info(Empty {}).await;
        info.context("cannot get the working directory of the server")?.cwd.into_path()
    };
    below(&base, path)
}

/// Returns the current directory by its logical name (`PWD`) if that is valid: a server that
/// sandboxes the request must see the symlinks in the path.
pub(super) fn own_directory() -> anyhow::Result<PathBuf> {
    let physical = std::env::current_dir().context("cannot find the current directory")?;
    let logical = std::env::var_os("PWD").map(PathBuf::from);
    let leads_there = |path: &PathBuf| {
        let is_plain =
            path.is_absolute() && !path.components().any(|one| one == Component::ParentDir);
        is_plain && identity(path).is_some_and(|there| identity(&physical) == Some(there))
    };
    Ok(logical.filter(leads_there).unwrap_or(physical))
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let metadata = path.metadata().ok()?;
    Some((metadata.dev(), metadata.ino()))
}

/// `.` and the empty path mean `base` itself.
pub(super) fn below(base: &Path, path: &Path) -> anyhow::Result<PathUri> {
    let is_base = path.as_os_str().is_empty() || path.as_os_str() == ".";
    let path = if is_base { base.to_owned() } else { base.join(path) };
    PathUri::from_path(&path).with_context(|| format!("{path:?} is not a valid path"))
}
