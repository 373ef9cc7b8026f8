//! Creates the directories and symlinks of a tree on the destination endpoint.

use std::cell::Cell;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use exec_server_client::ExecServerError;
use exec_server_protocol::{
    ErrorKind, FsCreateDirectoryParams, FsGetMetadataParams, FsReadLinkParams, FsRemoveParams,
    FsRenameParams, FsSetPermissionsParams, FsSymlinkParams, PathUri,
};
use futures_util::{StreamExt as _, stream};

use super::endpoint::Endpoint;
use super::transfer::{Links, PRESERVED_MODE};
use super::tree::Node;

/// The number of directories that are created, or get their final mode, concurrently.
const AT_ONCE: usize = 16;

/// The permissions that the owner needs to fill a directory.
const FILLABLE: u32 = 0o700;

/// The origin of the directories that exist where a copy would create its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Existing {
    /// This copy did not create them; their permissions are kept.
    Foreign,
    /// An interrupted attempt of this copy created them, and may not have set their permissions.
    OfThisCopy,
}

/// A directory of the copy whose final mode denies the owner some access. The mode is set once the
/// directory is filled.
#[derive(Debug)]
pub(super) struct RestrictedDirectory {
    path: PathUri,
    mode: u32,
}

#[derive(Debug, Default)]
pub(super) struct Directories {
    /// Parents precede children.
    pub(super) to_close: Vec<RestrictedDirectory>,
    /// The directories that could not be created or given their permissions, and those below them,
    /// relative to the root. Nothing is copied into them.
    pub(super) missing: HashSet<PathBuf>,
}

impl Directories {
    /// Creates the directories level by level. Passes each error to `tell`, with the path of its
    /// directory.
    pub(super) async fn make(
        endpoint: &Endpoint,
        root: &PathUri,
        nodes: &[Node],
        existing: Existing,
        mut tell: impl FnMut(&PathUri, ExecServerError),
    ) -> Self {
        let mut directories = Self::default();
        let depth = |node: &Node| node.relative.components().count();
        for level in nodes.chunk_by(|a, b| depth(a) == depth(b)) {
            let (impossible, possible): (Vec<_>, Vec<_>) =
                level.iter().partition(|node| directories.is_missing_above(&node.relative));
            directories.missing.extend(impossible.iter().map(|node| node.relative.clone()));
            let mut made = stream::iter(possible)
                .map(async |node| {
                    let path = below(root, &node.relative);
                    let outcome = make(endpoint, &path, node.mode, Links::Refused, existing).await;
                    (node, path, outcome)
                })
                .buffered(AT_ONCE);
            while let Some((node, path, outcome)) = made.next().await {
                match outcome {
                    Ok(closed) => directories.to_close.extend(closed),
                    Err(error) => {
                        tell(&path, error);
                        directories.missing.insert(node.relative.clone());
                    }
                }
            }
        }
        directories
    }

    pub(super) fn is_missing_above(&self, relative: &Path) -> bool {
        relative.parent().is_some_and(|parent| self.missing.contains(parent))
    }
}

/// Creates a directory and sets its permissions before anything is copied into it, so that its
/// content is never visible to users without access. A directory that exists gets them only if it
/// is [`Existing::OfThisCopy`]. Returns the directory if its final mode must be set later.
pub(super) async fn make(
    endpoint: &Endpoint,
    path: &PathUri,
    mode: Option<u32>,
    links: Links,
    existing: Existing,
) -> Result<Option<RestrictedDirectory>, ExecServerError> {
    let is_new = create(endpoint, path, links).await?;
    let Some(mode) = mode
        .filter(|_| is_new || existing == Existing::OfThisCopy)
        .map(|mode| mode & PRESERVED_MODE)
    else {
        return Ok(None);
    };
    set_mode(endpoint, path, mode | FILLABLE, links).await?;
    let is_final = mode & FILLABLE == FILLABLE;
    Ok((!is_final).then(|| RestrictedDirectory { path: path.clone(), mode }))
}

/// Returns whether the directory is new.
async fn create(
    endpoint: &Endpoint,
    path: &PathUri,
    links: Links,
) -> Result<bool, ExecServerError> {
    let was_interrupted = Cell::new(false);
    let act = async || {
        let params = FsCreateDirectoryParams {
            path: path.clone(),
            recursive: Some(false),
            follow_symlinks: links.on_the_wire(),
            sandbox: None,
        };
        let outcome = endpoint.files.create_directory(params).await;
        if let Err(ExecServerError::Interrupted { .. }) = outcome {
            was_interrupted.set(true);
        }
        outcome
    };
    match endpoint.retry_interrupted(act).await {
        Ok(()) => Ok(true),
        Err(error) => {
            let follow_symlinks = links.on_the_wire();
            let params = FsGetMetadataParams { path: path.clone(), follow_symlinks, sandbox: None };
            match endpoint.files.metadata(params).await {
                // After a lost connection, most likely the interrupted call created the directory.
                Ok(found) if found.is_directory => Ok(was_interrupted.get()),
                _ => Err(error),
            }
        }
    }
}

async fn set_mode(
    endpoint: &Endpoint,
    path: &PathUri,
    mode: u32,
    links: Links,
) -> Result<(), ExecServerError> {
    let params = || FsSetPermissionsParams {
        path: path.clone(),
        mode,
        follow_symlinks: links.on_the_wire(),
        sandbox: None,
    };
    endpoint.retry_interrupted(async || endpoint.files.set_permissions(params()).await).await
}

/// Sets the final modes of filled directories, children first: the final mode of a parent may deny
/// access to its children.
pub(super) async fn close(
    endpoint: &Endpoint,
    mut directories: Vec<RestrictedDirectory>,
    mut tell: impl FnMut(&PathUri, ExecServerError),
) {
    let depth = |closed: &RestrictedDirectory| closed.path.as_path().components().count();
    directories.sort_by_key(|closed| std::cmp::Reverse(depth(closed)));
    for level in directories.chunk_by(|a, b| depth(a) == depth(b)) {
        let mut closed = stream::iter(level)
            .map(async |closed| {
                (closed, set_mode(endpoint, &closed.path, closed.mode, Links::Refused).await)
            })
            .buffer_unordered(AT_ONCE);
        while let Some((closed, outcome)) = closed.next().await {
            if let Err(error) = outcome {
                tell(&closed.path, error);
            }
        }
    }
}

/// Copies the symlink `source` to `path`. Atomically replaces a symlink or file there, but not a
/// directory.
pub(super) async fn link(
    from: &Endpoint,
    source: &PathUri,
    to: &Endpoint,
    path: &PathUri,
) -> Result<(), ExecServerError> {
    let target = from.files.read_link(read_link(source)).await?;
    match to.retry_interrupted(async || to.files.symlink(symlink(path, &target)).await).await {
        Err(error) if error.kind() == Some(&ErrorKind::Conflict) => {
            if to.files.read_link(read_link(path)).await.is_ok_and(|present| present == target) {
                return Ok(());
            }
            replace_by_link(to, path, &target).await
        }
        outcome => outcome,
    }
}

async fn replace_by_link(
    endpoint: &Endpoint,
    path: &PathUri,
    target: &OsStr,
) -> Result<(), ExecServerError> {
    let name = format!(".exec-server-{}.tmp", uuid::Uuid::new_v4().simple());
    let parent = path.as_path().parent().unwrap_or(path.as_path());
    let temporary = PathUri::from_path(parent.join(name)).expect("a name below an absolute path");
    match endpoint
        .retry_interrupted(async || endpoint.files.symlink(symlink(&temporary, target)).await)
        .await
    {
        // The name is unique, so a conflict means that an interrupted attempt created the link.
        Err(error) if error.kind() != Some(&ErrorKind::Conflict) => return Err(error),
        _ => {}
    }
    let rename = || FsRenameParams {
        source_path: temporary.clone(),
        destination_path: path.clone(),
        replace: Some(true),
        follow_symlinks: Links::Refused.on_the_wire(),
        sandbox: None,
    };
    let renamed = endpoint.retry_interrupted(async || endpoint.files.rename(rename()).await).await;
    let Err(error) = renamed else { return Ok(()) };
    // An interrupted attempt may have renamed the link.
    if endpoint.files.read_link(read_link(path)).await.is_ok_and(|present| present == target) {
        return Ok(());
    }
    let remove = FsRemoveParams {
        path: temporary,
        recursive: Some(false),
        force: Some(true),
        // `Links::Refused` would also refuse to remove this link. Its random name is unique.
        follow_symlinks: None,
        sandbox: None,
    };
    let _ = endpoint.files.remove(remove).await;
    Err(error)
}

fn read_link(path: &PathUri) -> FsReadLinkParams {
    FsReadLinkParams { path: path.clone(), follow_symlinks: None, sandbox: None }
}

fn symlink(path: &PathUri, target: &OsStr) -> FsSymlinkParams {
    let mut params = FsSymlinkParams::new(path.clone(), target);
    params.follow_symlinks = Links::Refused.on_the_wire();
    params
}

pub(super) fn below(root: &PathUri, relative: &Path) -> PathUri {
    let path = root.as_path().join(relative);
    PathUri::from_path(path).expect("a relative path below an absolute one")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_copied_below_a_missing_directory() {
        let missing = HashSet::from([PathBuf::from("a/b")]);
        let directories = Directories { to_close: Vec::new(), missing };
        assert!(directories.is_missing_above(Path::new("a/b/c")));
        assert!(!directories.is_missing_above(Path::new("a/b")));
        assert!(!directories.is_missing_above(Path::new("x")));
    }
}
