//! Lays out the mounts of a process: where access is reduced, and where below that it is restored.
//!
//! Pure apart from queries to [`Names`]. This module does not know how a cover is made.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::{Cover, CoverKind, Mount, PlanError, Regrant, devices};
use crate::sandbox::policy::{Access, CarveOut, Grant, NameKind, Names, PROTECTED_NAMES, Policy};

/// Each mount takes some microseconds when a process starts and again when it ends, and the kernel
/// has its own limit.
const MAX_MOUNTS: usize = 10_000;

/// Returns covers for the carve-outs that a process could otherwise access or create, sorted by
/// path.
pub(super) fn covers(policy: &Policy, names: &impl Names) -> Result<Vec<Cover>, PlanError> {
    let carve_outs = policy.carve_outs();
    let names = &WithRoots { names, to_make: missing_roots(policy, &carve_outs, names)? };
    let mut covers: BTreeMap<PathBuf, Cover> = BTreeMap::new();
    for carve_out in &carve_outs {
        if let Some(cover) = cover(policy, carve_out, names)? {
            let same = covers.entry(cover.path.clone()).or_insert_with(|| cover.clone());
            // Two missing paths may start with the same missing directory.
            if cover.kind == CoverKind::Hidden {
                same.kind = CoverKind::Hidden;
            }
        }
    }
    Ok(covers.into_values().collect())
}

/// Returns `None` if the process can neither reach nor create the path.
fn cover(
    policy: &Policy,
    carve_out: &CarveOut,
    names: &WithRoots<'_, impl Names>,
) -> Result<Option<Cover>, PlanError> {
    let kind = match carve_out.access {
        Access::Deny => CoverKind::Hidden,
        Access::Read | Access::Write => CoverKind::ReadOnly,
    };
    let found = match kind_of(&carve_out.path, names.names) {
        // The process runs as the same user as the server, so it cannot reach the path either,
        // unless it can change the mode of the directory that is in the way.
        Err(error) if error.is_permission_denied() && !is_in_writable_place(policy, carve_out) => {
            return Ok(None);
        }
        found => found?,
    };
    if found != NameKind::Missing {
        let is_directory = found == NameKind::Directory;
        let path = carve_out.path.clone();
        return Ok(Some(Cover { path, kind, is_directory, missing: false }));
    }
    let Some((path, obstacle)) = first_missing(&carve_out.path, |path| names.kind_of(path))? else {
        return Ok(None);
    };
    let is_replaceable =
        |path: &Path| path.parent().is_some_and(|parent| policy.access(parent) == Access::Write);
    Ok(match obstacle {
        // A process that may remove the file could create a directory with its name. A mount point
        // cannot be removed.
        Some(file) => is_replaceable(file).then(|| Cover {
            path: file.into(),
            kind: CoverKind::ReadOnly,
            is_directory: false,
            missing: false,
        }),
        None => is_replaceable(path).then(|| Cover {
            path: path.into(),
            kind,
            is_directory: true,
            missing: true,
        }),
    })
}

fn is_in_writable_place(policy: &Policy, carve_out: &CarveOut) -> bool {
    carve_out.path.parent().is_some_and(|parent| policy.access(parent) == Access::Write)
}

/// Returns the first missing name below an existing parent, and that parent if it is a file.
fn first_missing(
    missing: &Path,
    kind_of: impl Fn(&Path) -> Result<NameKind, PlanError>,
) -> Result<Option<(&Path, Option<&Path>)>, PlanError> {
    let mut path = missing;
    while let Some(parent) = path.parent() {
        match kind_of(parent)? {
            NameKind::Missing => path = parent,
            NameKind::Directory => return Ok(Some((path, None))),
            NameKind::File | NameKind::Symlink => return Ok(Some((path, Some(parent)))),
        }
    }
    Ok(None)
}

/// The names as they will be when the mounts are set up.
struct WithRoots<'a, N> {
    names: &'a N,
    to_make: BTreeSet<PathBuf>,
}

impl<N: Names> WithRoots<'_, N> {
    fn kind_of(&self, path: &Path) -> Result<NameKind, PlanError> {
        if self.to_make.contains(path) {
            return Ok(NameKind::Directory);
        }
        kind_of(path, self.names)
    }
}

/// Returns missing writable roots that the process could create, with the missing directories above
/// them. They are created in advance: a placeholder for a protected name in such a root would have
/// to take the place of the root itself and make it unusable.
fn missing_roots(
    policy: &Policy,
    carve_outs: &[CarveOut],
    names: &impl Names,
) -> Result<BTreeSet<PathBuf>, PlanError> {
    let mut to_make = BTreeSet::new();
    let protected = carve_outs.iter().filter(|carve_out| is_protected_name(carve_out));
    for root in protected.filter_map(|carve_out| carve_out.path.parent()) {
        if to_make.contains(root) || !matches!(kind_of(root, names), Ok(NameKind::Missing)) {
            continue;
        }
        let Some((first, None)) = first_missing(root, |path| kind_of(path, names))? else {
            continue;
        };
        let missing = root.ancestors().take_while(|path| path.starts_with(first));
        let Some(above) = first.parent() else { continue };
        let is_writable = |path: &Path| policy.access(path) == Access::Write;
        if missing.clone().chain([above]).all(is_writable) {
            to_make.extend(missing.map(Path::to_owned));
        }
    }
    Ok(to_make)
}

/// Whether the path ends with a protected name. This excludes a directory such as
/// `.git/worktrees/x`, which a `.git` file names: its parent is not a writable root.
fn is_protected_name(carve_out: &CarveOut) -> bool {
    let name = carve_out.path.file_name();
    carve_out.protected_name
        && name.is_some_and(|name| PROTECTED_NAMES.iter().any(|known| name == *known))
}

/// Returns all mounts in order. `hidden` are the covers for denied globs.
pub(super) fn lay_out(
    policy: &Policy,
    grants: &[Grant],
    covers: Vec<Cover>,
    hidden: Vec<Cover>,
    names: &impl Names,
) -> Result<Vec<Mount>, PlanError> {
    let mut wanted = BTreeMap::new();
    let root = Path::new("/");
    if policy.access(root) != Access::Write {
        let (path, kind) = (root.to_owned(), CoverKind::ReadOnly);
        let everything = Cover { path, kind, is_directory: true, missing: false };
        wanted.insert(root.to_owned(), Mount::Cover(everything));
    }
    for grant in grants.iter().filter(|grant| grant.path != root) {
        let is_directory = match kind_of(&grant.path, names) {
            // The parent of the path grants less, so the process cannot create the path.
            Ok(NameKind::Missing) => continue,
            Err(error) if error.is_permission_denied() => continue,
            kind => kind? == NameKind::Directory,
        };
        let regrant = Regrant { path: grant.path.clone(), access: grant.access, is_directory };
        wanted.insert(grant.path.clone(), Mount::Regrant(regrant));
    }
    let carved: Vec<_> = covers.iter().chain(&hidden).map(|cover| cover.path.clone()).collect();
    for cover in covers.into_iter().chain(hidden) {
        wanted.insert(cover.path.clone(), Mount::Cover(cover));
    }
    for mount in devices::mounts(policy, names)? {
        wanted.insert(mount.path().into(), mount);
    }
    let mut mounts = Layout::of(wanted);
    for path in carved {
        mounts.pin_above(&path);
    }
    if mounts.0.len() > MAX_MOUNTS {
        return Err(PlanError::TooManyMounts { limit: MAX_MOUNTS });
    }
    Ok(mounts.0.into_values().collect())
}

/// Mounts by path, without redundant ones.
struct Layout(BTreeMap<PathBuf, Mount>);

impl Layout {
    fn of(wanted: BTreeMap<PathBuf, Mount>) -> Self {
        let mut layout = Self(BTreeMap::new());
        // Sorted by path, so all mounts above are already decided.
        for (path, mount) in wanted {
            if layout.is_needed(&mount) {
                layout.0.insert(path, mount);
            }
        }
        layout
    }

    fn is_needed(&self, mount: &Mount) -> bool {
        let around = self.around(mount.path());
        let takes_devices =
            |mount: &Mount| matches!(mount, Mount::Cover(Cover { kind: CoverKind::NoDevices, .. }));
        match mount {
            // Inside a hidden or fresh directory there is nothing to cover and no mount point.
            Mount::Cover(_) => around.is_none_or(|around| {
                effect(around) != Access::Deny && !matches!(around, Mount::Fresh(_))
            }),
            Mount::Regrant(_) if around.is_some_and(takes_devices) => true,
            Mount::Regrant(regrant) => match (around.map(effect), regrant.access) {
                (Some(Access::Deny), _) => true,
                // Devices are writable on read-only mounts.
                (Some(Access::Read), Access::Write) => !devices::is_essential(&regrant.path),
                _ => false,
            },
            Mount::Fresh(_) => true,
        }
    }

    /// Returns the nearest mount above the path.
    fn around(&self, path: &Path) -> Option<&Mount> {
        path.ancestors().skip(1).find_map(|above| self.0.get(above))
    }

    /// Pins the writable directories above a cover. A cover moves when a directory above it is
    /// renamed; the process could then create another directory under the old name, with its own
    /// content in place of the protected content. A mount point cannot be renamed.
    fn pin_above(&mut self, path: &Path) {
        let writable = self.around(path).is_none_or(|around| effect(around) == Access::Write);
        if !writable || !self.0.contains_key(path) {
            return;
        }
        let to_pin: Vec<PathBuf> = path
            .ancestors()
            .skip(1)
            .take_while(|above| above.parent().is_some() && !self.0.contains_key(*above))
            .map(Into::into)
            .collect();
        for path in to_pin {
            let pin = Regrant { path: path.clone(), access: Access::Write, is_directory: true };
            self.0.insert(path, Mount::Regrant(pin));
        }
    }
}

/// The access that the mount allows, regardless of other limits.
fn effect(mount: &Mount) -> Access {
    match mount {
        Mount::Cover(Cover { kind: CoverKind::Hidden | CoverKind::HiddenLink, .. }) => Access::Deny,
        Mount::Cover(Cover { kind: CoverKind::ReadOnly | CoverKind::NoDevices, .. }) => {
            Access::Read
        }
        Mount::Regrant(regrant) => regrant.access,
        Mount::Fresh(_) => Access::Write,
    }
}

fn kind_of(path: &Path, names: &impl Names) -> Result<NameKind, PlanError> {
    match names.kind(path) {
        Ok(NameKind::Symlink) => Err(PlanError::Symlink { path: path.into() }),
        Ok(kind) => Ok(kind),
        Err(source) => Err(PlanError::Unknown { path: path.into(), source }),
    }
}
