//! From entries to rules: every name is made real once, here.

mod entries;
mod protection;

use std::path::{Path, PathBuf};

use self::entries::Resolved;
use super::draft::Draft;
use super::effective::Policy;
use super::essentials::DEVICES;
use super::real::{Real, real};
use super::rules::Rules;
use super::{
    Access, DeclaredFiles, DeclaredPolicy, DeniedGlob, NameKind, Names, PolicyError, Surroundings,
};

/// A path that an entry, or what is protected, comes down to.
#[derive(Debug, Clone)]
struct Target {
    path: PathBuf,
    kind: NameKind,
    access: Access,
    /// On the way to it.
    links: Vec<PathBuf>,
    /// Paths that an entry names itself. A glob names none.
    named: Vec<PathBuf>,
    /// A directory for temporary files: what is in it is nobody's project.
    is_temporary: bool,
}

impl Target {
    fn new(real: Real, access: Access) -> Self {
        let Real { path, kind, links, .. } = real;
        Self { path, kind, access, links, named: Vec::new(), is_temporary: false }
    }

    fn of_entry(real: Real, access: Access) -> Self {
        let named = real.last_link.clone().into_iter().chain([real.path.clone()]).collect();
        Self { named, ..Self::new(real, access) }
    }
}

pub(super) fn resolve(
    declared: &DeclaredPolicy,
    around: &Surroundings,
    names: &impl Names,
) -> Result<Policy, PolicyError> {
    let DeclaredFiles::Restricted { entries, glob_scan_max_depth } = &declared.files else {
        return Ok(Policy::unrestricted(declared.network));
    };
    let Resolved { mut targets, matches, globs, places } =
        entries::resolve(entries, *glob_scan_max_depth, around, names)?;
    let mut draft = Draft::default();
    for target in &targets {
        draft.add(&target.path, target.access);
    }
    let matches = matches_that_count(&draft, matches);
    for target in &matches {
        draft.add(&target.path, target.access);
    }
    targets.extend(matches);
    // Both look at what the entries alone decide: a device is no writable root.
    let protected = protection::protected(&draft, &targets, &places, names)?;
    let devices = devices(&draft, names);
    for device in &devices {
        draft.add(&device.path, device.access);
    }
    for target in &protected {
        draft.protect(&target.path);
    }
    targets.extend(devices.into_iter().chain(protected));
    refuse_replaceable_links(&draft, &targets, &globs)?;
    let links = targets.into_iter().filter(|target| target.access > Access::Deny);
    let links = links.flat_map(|target| target.links).collect();
    let globs = globs.into_iter().map(|(glob, _)| glob).collect();
    Ok(Policy::restricted(declared.network, Rules::new(&draft), globs, links))
}

/// A path is more specific than a glob that starts above it: so what the glob matches below that path does not count.
fn matches_that_count(paths: &Draft, matches: Vec<(PathBuf, Target)>) -> Vec<Target> {
    let counts = |(base, target): &(PathBuf, Target)| {
        let mut between = target.path.ancestors().skip(1).take_while(|above| above != base);
        !between.any(|above| paths.contains(above))
    };
    matches.into_iter().filter(counts).map(|(_, target)| target).collect()
}

/// Those that exist. A policy that grants nothing has none.
fn devices(draft: &Draft, names: &impl Names) -> Vec<Target> {
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
            wanted.then(|| Target::new(device, *access))
        })
        .collect()
}

/// Whoever can write where a symlink is can make it lead elsewhere, and with it, when this policy is resolved the next time, what an
/// entry that passes through it grants or protects. Harmless is only to grant what is granted without that entry.
fn refuse_replaceable_links(
    draft: &Draft,
    targets: &[Target],
    globs: &[(DeniedGlob, Vec<PathBuf>)],
) -> Result<(), PolicyError> {
    let replaceable =
        |links: &[PathBuf]| links.iter().find(|link| draft.access(link) == Access::Write).cloned();
    let mut certain = Draft::default();
    let mut doubtful = Vec::new();
    for target in targets {
        match replaceable(&target.links) {
            None => certain.add(&target.path, target.access),
            Some(link) => doubtful.push((target, link)),
        }
    }
    for (target, link) in doubtful {
        if target.access < Access::Write || certain.access(&target.path) < Access::Write {
            return Err(PolicyError::ReplaceableLink { path: target.path.clone(), link });
        }
    }
    for (glob, links) in globs {
        if let Some(link) = replaceable(links) {
            return Err(PolicyError::ReplaceableLink { path: glob.base().to_owned(), link });
        }
    }
    Ok(())
}
