//! Devices are not files: access to everything includes neither disks nor terminals of other
//! processes.
//!
//! An entry for `/` includes only the devices that every program gets; any other device needs an
//! entry with more access than `/` has. If `/` is only readable, Landlock can express this: it
//! grants the names in `/` one by one. If `/` is writable, new names may appear in it, and only a
//! grant of `/` itself covers those; then a mount makes the other devices unusable. If the policy
//! has no carve-outs, there may be no mounts: then a program that may write every file on a disk
//! may use the disk itself.

use std::path::{Path, PathBuf};

use super::{Cover, CoverKind, Mount, PlanError, Regrant};
use crate::sandbox::policy::{Access, DEVICES, Grant, NameKind, Names, Policy};

const ROOT: &str = "/";
const ALL: &str = "/dev";
const SHARED_MEMORY: &str = "/dev/shm";
const TERMINALS: &str = "/dev/pts";

/// Whether the path is one of the devices that every program gets.
pub(super) fn is_essential(path: &Path) -> bool {
    DEVICES.iter().any(|(device, _)| path == Path::new(device))
}

/// Returns the grants for Landlock, and the directories in which only listing names is granted.
pub(super) fn narrow(
    policy: &Policy,
    mut grants: Vec<Grant>,
    names: &impl Names,
) -> Result<(Vec<Grant>, Vec<PathBuf>), PlanError> {
    let root = Path::new(ROOT);
    let of_root = |grant: &Grant| grant.path == root && grant.access == Access::Read;
    let Some(at) = grants.iter().position(of_root) else {
        return Ok((grants, vec![]));
    };
    grants.remove(at);
    let mut readable = essentials(policy, names)?;
    let unknown = |source| PlanError::Unknown { path: root.into(), source };
    for (name, kind) in names.list(root, usize::MAX).map_err(unknown)? {
        let path = root.join(name);
        // The target of a symlink is granted at its own path.
        let is_file = matches!(kind, NameKind::Directory | NameKind::File);
        if is_file && path != Path::new(ALL) && policy.access(&path) >= Access::Read {
            readable.push(Grant { path, access: Access::Read });
        }
    }
    readable.retain(|one| !grants.iter().any(|grant| grant.path == one.path));
    grants.extend(readable);
    grants.sort_by(|one, other| one.path.cmp(&other.path));
    Ok((grants, vec![root.into()]))
}

pub(super) fn mounts(policy: &Policy, names: &impl Names) -> Result<Vec<Mount>, PlanError> {
    let mut mounts = Vec::new();
    let all = Path::new(ALL);
    let takes_away = policy.access(Path::new(ROOT)) == Access::Write
        && policy.access(all) >= Access::Read
        && kind_of(all, names)? == NameKind::Directory;
    if takes_away {
        let (path, kind) = (all.to_owned(), CoverKind::NoDevices);
        mounts.push(Mount::Cover(Cover { path, kind, is_directory: true, missing: false }));
        mounts.extend(essentials(policy, names)?.into_iter().map(|Grant { path, access }| {
            Mount::Regrant(Regrant { path, access, is_directory: false })
        }));
    }
    let shared_memory = Path::new(SHARED_MEMORY);
    if can_be_replaced(policy, shared_memory)
        && kind_of(shared_memory, names)? == NameKind::Directory
    {
        mounts.push(Mount::Fresh(shared_memory.into()));
    }
    Ok(mounts)
}

/// Whether the program may have a private `/dev/pts`.
pub(super) fn can_have_terminals(policy: &Policy, names: &impl Names) -> Result<bool, PlanError> {
    let terminals = Path::new(TERMINALS);
    Ok(can_be_replaced(policy, terminals) && kind_of(terminals, names)? == NameKind::Directory)
}

/// Whether the policy grants the place only as part of `/`, without a rule for `/dev`, for the
/// place itself or for a path in it.
fn can_be_replaced(policy: &Policy, place: &Path) -> bool {
    let is_meant = |path: &Path| path == Path::new(ALL) || path.starts_with(place);
    policy.access(Path::new(ROOT)) >= Access::Read
        && policy.access(place) >= Access::Read
        && !policy.rules().iter().any(|rule| is_meant(&rule.path))
}

fn essentials(policy: &Policy, names: &impl Names) -> Result<Vec<Grant>, PlanError> {
    let mut found = Vec::new();
    for (device, _) in DEVICES {
        let path = PathBuf::from(device);
        let access = policy.access(&path);
        if access >= Access::Read && kind_of(&path, names)? == NameKind::File {
            found.push(Grant { path, access });
        }
    }
    Ok(found)
}

fn kind_of(path: &Path, names: &impl Names) -> Result<NameKind, PlanError> {
    names.kind(path).map_err(|source| PlanError::Unknown { path: path.into(), source })
}
