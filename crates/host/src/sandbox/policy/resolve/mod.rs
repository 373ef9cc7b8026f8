//! Turns entries into rules. The names in entries are resolved only here, when the policy is made.

mod entries;
mod links;
mod protection;

use std::path::{Path, PathBuf};

use self::entries::Resolved;
use super::draft::PolicyDraft;
use super::effective::Policy;
use super::essentials::DEVICES;
use super::resolved_path::{ResolvedPath, real};
use super::rules::Rules;
use super::{Access, DeclaredFiles, DeclaredPolicy, NameKind, Names, PolicyContext, PolicyError};

/// The resolved path of an entry, a match of a granting glob, a device or a protected path.
#[derive(Debug, Clone)]
struct Target {
    path: PathBuf,
    kind: NameKind,
    access: Access,
    links: Vec<PathBuf>,
    /// The paths that an entry names explicitly: the symlink at the end of its path, if there is
    /// one, and the resolved path. Empty for a target without an entry and for a match of a glob.
    named: Vec<PathBuf>,
    origin: Origin,
}

/// Why a path is part of the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    Named,
    WorkingDirectory,
    /// A directory for temporary files. It is not treated as a project.
    TemporaryDirectory,
    /// It is on a fixed list, or is protected. The origin of symlinks to it is not checked: a user
    /// who can replace a name on a list controls the machine anyway, and protection grants nothing.
    System,
}

impl Target {
    fn new(real: ResolvedPath, access: Access, origin: Origin) -> Self {
        let ResolvedPath { path, kind, links, .. } = real;
        Self { path, kind, access, links, named: Vec::new(), origin }
    }

    fn of_entry(real: ResolvedPath, access: Access, origin: Origin) -> Self {
        let named = real.last_link.clone().into_iter().chain([real.path.clone()]).collect();
        Self { named, ..Self::new(real, access, origin) }
    }
}

pub(super) fn resolve(
    declared: &DeclaredPolicy,
    around: &PolicyContext,
    names: &impl Names,
) -> Result<Policy, PolicyError> {
    let DeclaredFiles::Restricted { entries, glob_scan_max_depth } = &declared.files else {
        return Ok(Policy::unrestricted(declared.network));
    };
    let Resolved { mut targets, matches, globs, places } =
        entries::resolve(entries, *glob_scan_max_depth, around, names)?;
    let mut draft = PolicyDraft::default();
    for target in &targets {
        draft.add(&target.path, target.access);
    }
    let matches = matches_that_count(&draft, matches);
    for target in &matches {
        draft.add(&target.path, target.access);
    }
    targets.extend(matches);
    // Devices are added after protection: a device is not a writable root.
    protection::refuse_implicit_roots(&targets, names)?;
    let is_certain = |target: &Target| links::is_certain(target, &draft, around, names);
    let mut protected = protection::protected(&draft, &targets, &places, names, is_certain)?;
    protected.extend(protection::protected_paths(&draft, &around.protected_paths, names)?);
    let devices = devices(&draft, names);
    for device in &devices {
        draft.add(&device.path, device.access);
    }
    for target in &protected {
        draft.protect(&target.path);
    }
    targets.extend(devices.into_iter().chain(protected));
    links::refuse_replaceable(&draft, &targets, &globs)?;
    links::refuse_planted(&targets, around, names)?;
    let links = targets.into_iter().filter(|target| target.access > Access::Deny);
    let links = links.flat_map(|target| target.links).collect();
    let globs = globs.into_iter().map(|(glob, _)| glob).collect();
    Ok(Policy::restricted(declared.network, Rules::new(&draft), globs, links))
}

/// A path is more specific than a glob that starts above it, so matches of the glob below that path
/// are dropped.
fn matches_that_count(paths: &PolicyDraft, matches: Vec<(PathBuf, Target)>) -> Vec<Target> {
    let counts = |(base, target): &(PathBuf, Target)| {
        let mut between = target.path.ancestors().skip(1).take_while(|above| above != base);
        !between.any(|above| paths.contains(above))
    };
    matches.into_iter().filter(counts).map(|(_, target)| target).collect()
}

/// Returns the devices that exist, except those that an entry denies or that are reached through a
/// symlink in a writable directory. A policy that grants nothing gets no devices.
fn devices(draft: &PolicyDraft, names: &impl Names) -> Vec<Target> {
    if !draft.grants_anything() {
        return Vec::new();
    }
    let is_denied = |path: &Path| draft.decided(path) == Some(Access::Deny);
    DEVICES
        .iter()
        .filter_map(|(path, access)| {
            let device = real(names, path.as_ref()).ok()?;
            let replaceable = device.links.iter().any(|link| draft.access(link) == Access::Write);
            let wanted =
                device.kind != NameKind::Missing && !replaceable && !is_denied(&device.path);
            wanted.then(|| Target::new(device, *access, Origin::System))
        })
        .collect()
}
