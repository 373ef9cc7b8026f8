//! Names that a sandboxed program must not write although it may write around them.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::{Origin, Target};
use crate::sandbox::policy::draft::PolicyDraft;
use crate::sandbox::policy::essentials::PROTECTED_NAMES;
use crate::sandbox::policy::resolved_path::{ResolvedPath, real, real_from};
use crate::sandbox::policy::{Access, Hold, NameKind, Names, PolicyError};

/// The maximum number of bytes read from a file that points to a git directory.
const MAX_POINTER_BYTES: usize = 8 << 10;

/// Returns the paths that must be at most readable: the protected names directly below each path
/// that an entry makes writable, each workspace root and the working directory, and below every
/// writable directory above one of these, since git searches for its directory upwards; and the git
/// directories that a `.git` file there names. A temporary directory is not a project, so
/// directories above it are not protected on its account.
///
/// An entry that names a protected path explicitly grants it, unless the entry goes through a
/// symlink that a sandbox could have created (see `is_certain`).
pub(super) fn protected(
    draft: &PolicyDraft,
    targets: &[Target],
    places: &[ResolvedPath],
    names: &impl Names,
    is_certain: impl Fn(&Target) -> bool,
) -> Result<Vec<Target>, PolicyError> {
    let writable = targets.iter().filter(|target| target.access == Access::Write);
    let meant = writable.clone().flat_map(|target| match is_certain(target) {
        true => target.named.as_slice(),
        // If the only symlink is the last component, the entry still names the symlink itself.
        false if target.links.len() == 1 => &target.named[..target.named.len().saturating_sub(1)],
        false => &[],
    });
    let meant: BTreeSet<&Path> = meant.map(PathBuf::as_path).collect();
    let is_temporary = |target: &Target| target.origin == Origin::TemporaryDirectory;
    let temporary: BTreeSet<&Path> =
        targets.iter().filter(|one| is_temporary(one)).map(|one| one.path.as_path()).collect();
    let projects = writable.clone().filter(|one| one.kind != NameKind::File && !is_temporary(one));
    let projects = projects.map(|target| &target.path).chain(places.iter().map(|one| &one.path));
    let above = projects.flat_map(|project| project.ancestors().skip(1));
    let above = above.filter(|path| draft.access(path) == Access::Write);
    let above = above.map(|path| (path, NameKind::Directory, temporary.contains(path)));
    let granted = writable.map(|target| (target.path.as_path(), target.kind, is_temporary(target)));
    let places = places.iter().map(|place| (place.path.as_path(), place.kind, false));
    // The value tells whether the root is only a directory for temporary files.
    let mut roots: BTreeMap<&Path, bool> = BTreeMap::new();
    for (root, kind, is_temporary) in granted.chain(places).chain(above) {
        // A request that may write `.git` itself is trusted with everything inside.
        let is_itself_protected = is_protected_name(root) && meant.contains(root);
        if kind != NameKind::File && !is_itself_protected {
            *roots.entry(root).or_insert(true) &= is_temporary;
        }
    }
    let mut protection = Protection { draft, meant, names, found: Vec::new() };
    for (root, is_temporary) in roots {
        for name in PROTECTED_NAMES {
            protection.name(root, name, is_temporary)?;
        }
    }
    Ok(protection.found)
}

/// Returns those of `paths` that the draft makes writable.
pub(super) fn protected_paths(
    draft: &PolicyDraft,
    paths: &[PathBuf],
    names: &impl Names,
) -> Result<Vec<Target>, PolicyError> {
    let mut protected = Vec::new();
    if !draft.iter().any(|(_, decision)| decision.access == Access::Write) {
        return Ok(protected);
    }
    for path in paths {
        let real = match names.kind(path) {
            // Any user can put a symlink into `/tmp`. Servers and commands ignore a protected path
            // that is such a symlink. It cannot be covered, and must not block a sandbox.
            Ok(NameKind::Symlink) if matches!(names.hold(path), Ok(Hold::OutOfReach)) => continue,
            _ => real(names, path)?,
        };
        if draft.access(&real.path) == Access::Write {
            protected.push(Target::new(real, Access::Read, Origin::System));
        }
    }
    Ok(protected)
}

/// Refuses implicit write access below a protected name: a process that starts in `.git/hooks` may
/// write there only if an entry names that directory. A repository that is kept below a protected
/// name is a workspace like any other.
pub(super) fn refuse_implicit_roots(
    targets: &[Target],
    names: &impl Names,
) -> Result<(), PolicyError> {
    for target in targets.iter().filter(|target| target.access == Access::Write) {
        let what = match target.origin {
            Origin::WorkingDirectory => "the working directory",
            Origin::TemporaryDirectory => "the directory for temporary files (TMPDIR)",
            Origin::Named | Origin::System => continue,
        };
        let Some(protected) = target.path.ancestors().find(|above| is_protected_name(above)) else {
            continue;
        };
        let mut inside = target.path.ancestors().take_while(|above| *above != protected);
        let is_repository = |path: &Path| {
            matches!(names.kind(&path.join(".git")), Ok(NameKind::Directory | NameKind::File))
        };
        if !inside.any(is_repository) {
            let (path, protected) = (target.path.clone(), protected.to_owned());
            return Err(PolicyError::ImplicitRoot { what, path, protected });
        }
    }
    Ok(())
}

pub(super) fn is_protected_name(path: &Path) -> bool {
    path.file_name().is_some_and(|name| PROTECTED_NAMES.iter().any(|known| name == *known))
}

struct Protection<'a, N> {
    draft: &'a PolicyDraft,
    /// Paths that an entry explicitly makes writable, protected or not.
    meant: BTreeSet<&'a Path>,
    names: &'a N,
    found: Vec<Target>,
}

impl<N: Names> Protection<'_, N> {
    fn name(&mut self, root: &Path, name: &str, is_temporary: bool) -> Result<(), PolicyError> {
        let path = root.join(name);
        let is_writable = self.is_writable(root) || self.is_writable(&path);
        if !is_writable || self.meant.contains(path.as_path()) {
            return Ok(());
        }
        let hold = self.names.hold(&path).map_err(|source| unreadable(&path, source))?;
        let kind = self.kind(&path)?;
        match (hold, kind) {
            // Any user can put a name into `/tmp`. That must not affect protection elsewhere or
            // block the sandbox: a symlink cannot be covered, and the process cannot replace it.
            (Hold::OutOfReach, NameKind::Symlink) => return Ok(()),
            // This user could replace the symlink, but a temporary directory holds no project.
            (Hold::Foreign { .. }, NameKind::Symlink) if is_temporary => return Ok(()),
            (Hold::Foreign { owner }, NameKind::Symlink) => {
                return Err(PolicyError::ForeignLink { path, owner });
            }
            (Hold::Ours, NameKind::Symlink) => return Err(PolicyError::ProtectedLink { path }),
            (Hold::Ours, NameKind::File) if name == ".git" && !is_temporary => {
                self.git_directory_of(root, &path)?;
            }
            _ => {}
        }
        self.add(ResolvedPath { path, kind, links: Vec::new(), last_link: None });
        Ok(())
    }

    /// Protects the git directory of a worktree or submodule, whose `.git` is a file. Hooks and
    /// settings are in the directory that the file names, or in the common directory of all
    /// worktrees.
    fn git_directory_of(&mut self, root: &Path, file: &Path) -> Result<(), PolicyError> {
        let Some(directory) = self.pointer(file, b"gitdir: ")? else { return Ok(()) };
        let directory = real_from(self.names, root, &directory)?;
        let common = directory.path.join("commondir");
        if self.kind(&common)? == NameKind::File
            && let Some(common) = self.pointer(&common, b"")?
        {
            let common = real_from(self.names, &directory.path, &common)?;
            self.protect_git_directory(common);
        }
        self.protect_git_directory(directory);
        Ok(())
    }

    fn protect_git_directory(&mut self, directory: ResolvedPath) {
        if self.is_writable(&directory.path) && !self.meant.contains(directory.path.as_path()) {
            self.add(directory);
        }
    }

    /// Reads the path after `prefix` in a one-line file. Returns `None` if the file does not begin
    /// with `prefix` or the path is empty.
    fn pointer(&self, file: &Path, prefix: &[u8]) -> Result<Option<PathBuf>, PolicyError> {
        let content = self
            .names
            .read_start(file, MAX_POINTER_BYTES)
            .map_err(|source| unreadable(file, source))?;
        // Strips exactly the bytes that git strips. Otherwise the protected directory might not be
        // the one that git uses.
        let Some(path) = content.strip_prefix(prefix) else { return Ok(None) };
        let end = path.iter().rposition(|byte| !matches!(byte, b'\n' | b'\r'));
        Ok(end.map(|last| PathBuf::from(OsStr::from_bytes(&path[..=last]))))
    }

    fn is_writable(&self, path: &Path) -> bool {
        self.draft.access(path) == Access::Write
    }

    fn kind(&self, path: &Path) -> Result<NameKind, PolicyError> {
        self.names.kind(path).map_err(|source| unreadable(path, source))
    }

    fn add(&mut self, real: ResolvedPath) {
        self.found.push(Target::new(real, Access::Read, Origin::System));
    }
}

fn unreadable(path: &Path, source: std::io::Error) -> PolicyError {
    PolicyError::UnreadableProtected { path: path.to_owned(), source }
}
