//! Finds the current matches of denied patterns, since mounts cover names and not patterns.
//!
//! Only files that exist when a process starts are hidden from it, so it can reach matches created
//! afterwards. Other processes may also rename directories during a scan. A scan that notices this
//! starts over; after several attempts the start is refused. The kernel's own trees are not
//! scanned: their names change all the time.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use super::{Cover, CoverKind, PlanError, devices};
use crate::sandbox::policy::{
    Access, DeniedGlob, Effort, MINIMAL, NameKind, Names, Policy, TooMuch, existing_target,
    real_path,
};

/// The maximum number of scans if names are renamed or removed during each of them.
const ATTEMPTS: usize = 8;

const OF_THE_KERNEL: [&str; 2] = ["/proc", "/sys"];

/// Returns covers for the topmost matches, and for directories that cannot be listed, sorted by
/// path.
pub(super) fn existing_matches(
    policy: &Policy,
    names: &impl Names,
) -> Result<Vec<Cover>, PlanError> {
    let mut by_base: BTreeMap<&Path, Vec<&DeniedGlob>> = BTreeMap::new();
    for glob in policy.denied_globs() {
        by_base.entry(glob.base()).or_default().push(glob);
    }
    let mut scan = Scan { policy, names, effort: Effort::new(), found: BTreeMap::new() };
    let mut attempts = 1;
    loop {
        match by_base.iter().try_for_each(|(base, globs)| scan.below(base, globs)) {
            Ok(()) => return Ok(scan.into_covers()),
            Err(Interrupted::Failed(error)) => return Err(error),
            Err(Interrupted::Vanished { path }) if attempts == ATTEMPTS => {
                return Err(PlanError::Unsteady { path });
            }
            // The name may have moved to a place that was already scanned.
            Err(Interrupted::Vanished { .. }) => {
                attempts += 1;
                scan.effort.start_over();
                scan.found.clear();
            }
        }
    }
}

/// Replaces the cover of each symlink with a cover of its target, which denies more. Drops the
/// cover of a symlink that cannot be resolved, or whose target is denied anyway or is a device that
/// every program gets.
///
/// A process in an earlier sandbox could have created the symlink. The symlink must not hide a path
/// that this sandbox needs, so such a target is an error.
pub(super) fn targets_of_links(
    covers: Vec<Cover>,
    cwd: Option<&Path>,
    policy: &Policy,
    names: &impl Names,
) -> Result<Vec<Cover>, PlanError> {
    let cwd = cwd.and_then(|cwd| real_path(names, cwd));
    let grants = policy.grants();
    let granted = grants.iter().map(|grant| &grant.path).chain(&cwd).map(PathBuf::as_path);
    let needed: Vec<_> =
        granted.chain(policy.denied_globs().iter().map(DeniedGlob::base)).collect();
    let is_needed = |path: &Path, link: &Path| {
        needed.iter().any(|needed| needed.starts_with(path)) || link.starts_with(path)
    };
    let mut by_path = BTreeMap::new();
    for mut cover in covers {
        if cover.kind == CoverKind::HiddenLink {
            let Some((path, found)) = existing_target(names, &cover.path) else { continue };
            if policy.access(&path) == Access::Deny || devices::is_essential(&path) {
                continue;
            }
            if is_needed(&path, &cover.path) || is_of_the_system(&path) {
                return Err(PlanError::NeededTarget { link: cover.path, target: path });
            }
            let is_directory = found == NameKind::Directory;
            cover = Cover { path, kind: CoverKind::Hidden, is_directory, missing: false };
        }
        by_path.insert(cover.path.clone(), cover);
    }
    Ok(by_path.into_values().collect())
}

/// Whether the path is, contains, or is inside a path that programs need to start.
fn is_of_the_system(path: &Path) -> bool {
    MINIMAL.iter().map(Path::new).any(|one| path.starts_with(one) || one.starts_with(path))
}

enum Interrupted {
    Failed(PlanError),
    /// The name was renamed or removed during the scan.
    Vanished {
        path: PathBuf,
    },
}

fn too_much(base: &Path, limit: TooMuch) -> Interrupted {
    Interrupted::Failed(PlanError::TooMuchToScan { base: base.into(), limit })
}

struct Scan<'a, N> {
    policy: &'a Policy,
    names: &'a N,
    effort: Effort,
    found: BTreeMap<PathBuf, NameKind>,
}

impl<N: Names> Scan<'_, N> {
    fn below(&mut self, base: &Path, globs: &[&DeniedGlob]) -> Result<(), Interrupted> {
        let deepest = globs.iter().map(|glob| glob.max_depth()).max().unwrap_or(0);
        let symbols = globs.iter().map(|glob| glob.symbols()).sum();
        let mut pending = vec![(base.to_owned(), 1)];
        while let Some((directory, depth)) = pending.pop() {
            let Some(entries) = self.list(&directory, base)? else {
                self.found.insert(directory, NameKind::Directory);
                continue;
            };
            for (name, kind) in entries {
                let path = directory.join(name);
                let way_len = path.as_os_str().len() - base.as_os_str().len();
                self.effort.spend(symbols, way_len).map_err(|limit| too_much(base, limit))?;
                if kind == NameKind::Missing {
                    return Err(Interrupted::Vanished { path });
                }
                let leads_on = kind == NameKind::Directory && depth < deepest;
                if globs.iter().any(|glob| glob.matches(&path)) {
                    self.found.insert(path, kind);
                } else if leads_on && self.is_worth_a_look(&path) {
                    pending.push((path, depth + 1));
                }
            }
        }
        Ok(())
    }

    fn is_worth_a_look(&self, path: &Path) -> bool {
        !OF_THE_KERNEL.iter().any(|tree| path == Path::new(tree)) && self.policy.may_read_in(path)
    }

    /// Returns `None` if the server may not list the directory. The whole directory must then be
    /// hidden: the process may know a name in it, or change its mode.
    fn list(
        &self,
        directory: &Path,
        base: &Path,
    ) -> Result<Option<Vec<(OsString, NameKind)>>, Interrupted> {
        let max = self.effort.names_to_list().map_err(|limit| too_much(base, limit))?;
        match self.names.list(directory, max) {
            Ok(entries) => Ok(Some(entries)),
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory if directory == base => {
                    Ok(Some(vec![]))
                }
                // Matches in the directory would not be hidden, and its old name may exist again
                // before the process starts.
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                    Err(Interrupted::Vanished { path: directory.into() })
                }
                io::ErrorKind::PermissionDenied => Ok(None),
                _ => Err(Interrupted::Failed(PlanError::Unknown {
                    path: directory.into(),
                    source: error,
                })),
            },
        }
    }

    /// Returns a cover for each path that was found. Skips paths inside another one, whose cover
    /// hides them.
    fn into_covers(self) -> Vec<Cover> {
        let matches: BTreeSet<_> = self.found.keys().cloned().collect();
        let is_topmost =
            |path: &Path| !path.ancestors().skip(1).any(|above| matches.contains(above));
        let cover = |(path, found): (PathBuf, NameKind)| Cover {
            path,
            kind: match found {
                NameKind::Symlink => CoverKind::HiddenLink,
                _ => CoverKind::Hidden,
            },
            is_directory: found == NameKind::Directory,
            missing: false,
        };
        self.found.into_iter().filter(|(path, _)| is_topmost(path)).map(cover).collect()
    }
}
