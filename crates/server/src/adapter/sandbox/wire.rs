//! Converts the sandbox object of a request to a declared policy.

use std::path::{Path, PathBuf};

use exec_server_host::sandbox::{
    Access, DeclaredFiles, DeclaredPolicy, Entry, EntryPath, Network, PolicyContext,
};
use exec_server_protocol::{
    ExternalNetwork, FileSystemPermissions, MissingPath, NetworkPermission, PathUri, Permissions,
    Sandbox, SandboxAccess, SandboxEntry, SandboxEntryPath, SandboxMode, SpecialPath,
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RequestedPolicy {
    /// `None`: no restriction at all.
    pub(super) policy: Option<DeclaredPolicy>,
    pub(super) around: PolicyContext,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum RequestedPolicyError {
    #[error(
        "sandbox: cannot deny the unknown special path {kind:?}; the known ones are root, \
         minimal, tmpdir, slash_tmp, project_roots and current_working_directory"
    )]
    UnknownDenial { kind: String },
    #[error("sandbox: the special path {kind:?} does not take {member:?}; remove it")]
    UnknownMember { kind: String, member: String },
}

/// `cwd` is the working directory of the request, if it has one. Temporary directories are the
/// server's.
pub(super) fn read(
    sandbox: Sandbox,
    cwd: Option<&Path>,
) -> Result<RequestedPolicy, RequestedPolicyError> {
    let tmpdir = own_tmpdir();
    match sandbox {
        Sandbox::Mode(mode) => Ok(from_mode(mode, cwd, tmpdir)),
        Sandbox::Profile(profile) => {
            let cwd = profile.cwd.map(PathUri::into_path).or_else(|| cwd.map(Path::to_owned));
            let workspace_roots =
                profile.workspace_roots.into_iter().map(PathUri::into_path).collect();
            Ok(RequestedPolicy {
                policy: from_permissions(profile.permissions)?,
                around: PolicyContext { cwd, workspace_roots, tmpdir, ..PolicyContext::default() },
            })
        }
    }
}

pub(crate) fn own_tmpdir() -> Option<PathBuf> {
    std::env::var_os("TMPDIR").map(PathBuf::from).filter(|path| path.is_absolute())
}

/// Returns a policy that grants read access to everything and write access to these paths.
pub(super) fn workspace_write(
    writable: impl IntoIterator<Item = EntryPath>,
    network: Network,
) -> DeclaredPolicy {
    let mut entries = vec![entry(EntryPath::Root, Access::Read)];
    entries.extend(writable.into_iter().map(|path| entry(path, Access::Write)));
    restricted(entries, network)
}

pub(super) fn read_only(network: Network) -> DeclaredPolicy {
    restricted(vec![entry(EntryPath::Root, Access::Read)], network)
}

fn from_mode(mode: SandboxMode, cwd: Option<&Path>, tmpdir: Option<PathBuf>) -> RequestedPolicy {
    let cwd = cwd.map(Path::to_owned);
    let around = |cwd| PolicyContext { cwd, tmpdir, ..PolicyContext::default() };
    match mode {
        SandboxMode::DangerFullAccess {} => RequestedPolicy { policy: None, around: around(cwd) },
        SandboxMode::ExternalSandbox { network_access } => {
            let policy = match network_access {
                ExternalNetwork::Restricted => Some(only_network(Network::Restricted)),
                ExternalNetwork::Enabled => None,
            };
            RequestedPolicy { policy, around: around(cwd) }
        }
        SandboxMode::ReadOnly { network_access } => RequestedPolicy {
            policy: Some(read_only(network(network_access))),
            around: around(cwd),
        },
        SandboxMode::WorkspaceWrite {
            writable_roots,
            network_access,
            exclude_tmpdir_env_var,
            exclude_slash_tmp,
            cwd: own_cwd,
        } => {
            let cwd = own_cwd.map(PathUri::into_path).or(cwd);
            let roots = writable_roots.into_iter().map(|root| EntryPath::Path(root.into_path()));
            let writable = std::iter::once(EntryPath::WorkingDirectory).chain(roots);
            let tmpdir = (!exclude_tmpdir_env_var).then_some(EntryPath::Tmpdir);
            let slash_tmp = (!exclude_slash_tmp).then_some(EntryPath::SlashTmp);
            let writable = writable.chain(tmpdir).chain(slash_tmp);
            let policy = workspace_write(writable, network(network_access));
            RequestedPolicy { policy: Some(policy), around: around(cwd) }
        }
    }
}

fn from_permissions(
    permissions: Permissions,
) -> Result<Option<DeclaredPolicy>, RequestedPolicyError> {
    let network = |permission| match permission {
        NetworkPermission::Restricted => Network::Restricted,
        NetworkPermission::Enabled => Network::Enabled,
    };
    let (file_system, network) = match permissions {
        Permissions::Disabled {} => return Ok(None),
        Permissions::External { network: permission } => {
            (FileSystemPermissions::Unrestricted {}, network(permission))
        }
        Permissions::Managed { file_system, network: permission } => {
            (file_system, network(permission))
        }
    };
    match file_system {
        FileSystemPermissions::Unrestricted {} if network == Network::Enabled => Ok(None),
        FileSystemPermissions::Unrestricted {} => Ok(Some(only_network(network))),
        FileSystemPermissions::Restricted { entries, glob_scan_max_depth } => {
            let entries = entries.into_iter().filter_map(|entry| from_entry(entry).transpose());
            let entries = entries.collect::<Result<_, _>>()?;
            let files = DeclaredFiles::Restricted { entries, glob_scan_max_depth };
            Ok(Some(DeclaredPolicy { files, network }))
        }
    }
}

/// Returns `None` for an entry that grants an unknown special path.
fn from_entry(entry: SandboxEntry) -> Result<Option<Entry>, RequestedPolicyError> {
    let access = match entry.access {
        SandboxAccess::Deny => Access::Deny,
        SandboxAccess::Read => Access::Read,
        SandboxAccess::Write => Access::Write,
    };
    let path = match entry.path {
        SandboxEntryPath::Path { path } => EntryPath::Path(path.into_path()),
        SandboxEntryPath::GlobPattern { pattern } => EntryPath::Glob(pattern),
        SandboxEntryPath::Special { value } => match special(value)? {
            Special::Known(path) => path,
            Special::Unknown { kind } if access == Access::Deny => {
                return Err(RequestedPolicyError::UnknownDenial { kind });
            }
            Special::Unknown { kind } => {
                tracing::warn!(kind, "ignoring an unknown special path that a sandbox grants");
                return Ok(None);
            }
        },
    };
    let skip_missing = entry.missing_path_behavior == Some(MissingPath::Skip);
    Ok(Some(Entry { path, access, skip_missing }))
}

enum Special {
    Known(EntryPath),
    Unknown { kind: String },
}

/// Rejects unknown members of a known path: an ignored member might have restricted the path.
fn special(path: SpecialPath) -> Result<Special, RequestedPolicyError> {
    let SpecialPath { kind, subpath, others } = path;
    let is_below_projects = matches!(&*kind, "project_roots" | "current_working_directory");
    let known = match &*kind {
        "root" => EntryPath::Root,
        "minimal" => EntryPath::Minimal,
        "tmpdir" => EntryPath::Tmpdir,
        "slash_tmp" => EntryPath::SlashTmp,
        _ if is_below_projects => {
            EntryPath::ProjectRoots { subpath: subpath.as_ref().map(PathBuf::from) }
        }
        _ => return Ok(Special::Unknown { kind }),
    };
    let misplaced = subpath.filter(|_| !is_below_projects).map(|_| "subpath".to_owned());
    match misplaced.or_else(|| others.into_keys().next()) {
        Some(member) => Err(RequestedPolicyError::UnknownMember { kind, member }),
        None => Ok(Special::Known(known)),
    }
}

fn entry(path: EntryPath, access: Access) -> Entry {
    Entry { path, access, skip_missing: false }
}

fn restricted(entries: Vec<Entry>, network: Network) -> DeclaredPolicy {
    let files = DeclaredFiles::Restricted { entries, glob_scan_max_depth: None };
    DeclaredPolicy { files, network }
}

fn only_network(network: Network) -> DeclaredPolicy {
    DeclaredPolicy { files: DeclaredFiles::Unrestricted, network }
}

fn network(is_enabled: bool) -> Network {
    if is_enabled { Network::Enabled } else { Network::Restricted }
}
