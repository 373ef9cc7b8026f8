//! Resolves each entry to paths and globs.

use std::path::{Component, Path, PathBuf};

use super::protection::is_protected_name;
use super::{Origin, Target};
use crate::sandbox::policy::effort::Effort;
use crate::sandbox::policy::essentials::MINIMAL;
use crate::sandbox::policy::globs::{DEFAULT_MAX_DEPTH, split};
use crate::sandbox::policy::pattern::Pattern;
use crate::sandbox::policy::resolved_path::{ResolvedPath, real};
use crate::sandbox::policy::scan;
use crate::sandbox::policy::{
    Access, DeniedGlob, Entry, EntryPath, NameKind, Names, PolicyContext, PolicyError,
};

/// The maximum number of denying globs, counted once for each start directory. Every requested path
/// is matched against all of them.
const MAX_GLOBS: usize = 1024;
/// The maximum number of symbols of all globs, counted once for each start directory.
const MAX_SYMBOLS: usize = 32 << 10;
/// The maximum number of paths that are looked up for entries, workspace roots and globs.
const MAX_PATHS: usize = 4096;
/// The maximum number of matches of granting globs. Each becomes a rule, and later an open
/// descriptor.
const MAX_MATCHES: usize = 4096;

#[derive(Default)]
pub(super) struct Resolved {
    pub(super) targets: Vec<Target>,
    /// The matches of granting globs, each with the base of its glob.
    pub(super) matches: Vec<(PathBuf, Target)>,
    /// Denying globs, each with the symlinks on the way to its base.
    pub(super) globs: Vec<(DeniedGlob, Vec<PathBuf>)>,
    /// Workspace roots and the working directory, whether or not an entry names them.
    pub(super) places: Vec<ResolvedPath>,
}

pub(super) fn resolve(
    entries: &[Entry],
    glob_scan_max_depth: Option<usize>,
    around: &PolicyContext,
    names: &impl Names,
) -> Result<Resolved, PolicyError> {
    if glob_scan_max_depth == Some(0) {
        return Err(PolicyError::ZeroDepth);
    }
    let mut resolver = Resolver {
        names,
        around,
        max_depth: glob_scan_max_depth.unwrap_or(DEFAULT_MAX_DEPTH),
        paths: 0,
        symbols: 0,
        effort: Effort::new(),
        resolved: Resolved::default(),
    };
    for root in &around.workspace_roots {
        let root = resolver.real(root)?;
        resolver.resolved.places.push(root);
    }
    // A working directory that cannot be resolved is skipped here: this grants nothing, and an
    // entry for it still fails.
    let cwd = around.cwd.iter().filter_map(|cwd| resolver.real(cwd).ok()).collect::<Vec<_>>();
    resolver.resolved.places.extend(cwd);
    for entry in entries {
        resolver.entry(entry)?;
    }
    Ok(resolver.resolved)
}

struct Resolver<'a, N> {
    names: &'a N,
    around: &'a PolicyContext,
    max_depth: usize,
    /// Paths looked up so far.
    paths: usize,
    symbols: usize,
    effort: Effort,
    resolved: Resolved,
}

impl<N: Names> Resolver<'_, N> {
    fn entry(&mut self, entry: &Entry) -> Result<(), PolicyError> {
        match &entry.path {
            EntryPath::Path(path) => self.path(path, entry, Origin::Named),
            EntryPath::Glob(pattern) if entry.access == Access::Deny => self.denied_glob(pattern),
            EntryPath::Glob(pattern) => self.granted_glob(pattern, entry.access),
            EntryPath::Root => self.path(Path::new("/"), entry, Origin::Named),
            EntryPath::Minimal => {
                let entry = Entry { skip_missing: true, ..entry.clone() };
                MINIMAL.iter().try_for_each(|path| {
                    match self.path(path.as_ref(), &entry, Origin::System) {
                        // A program could not use the path either.
                        Err(PolicyError::Unreadable { .. }) if entry.access > Access::Deny => {
                            Ok(())
                        }
                        result => result,
                    }
                })
            }
            EntryPath::WorkingDirectory => {
                let cwd = self.around.cwd.as_slice();
                self.known(cwd, "the working directory", entry, |_| Origin::WorkingDirectory)
            }
            EntryPath::ProjectRoots { subpath } => {
                self.project_root_entries(subpath.as_deref(), entry)
            }
            EntryPath::Tmpdir => {
                let tmpdir = self.around.tmpdir.as_slice();
                let is_set = tmpdir.iter().any(|path| !path.as_os_str().is_empty());
                self.known(
                    if is_set { tmpdir } else { &[] },
                    "the directory for temporary files",
                    entry,
                    |_| Origin::TemporaryDirectory,
                )
            }
            EntryPath::SlashTmp => self.path(Path::new("/tmp"), entry, Origin::TemporaryDirectory),
        }
    }

    fn path(&mut self, path: &Path, entry: &Entry, origin: Origin) -> Result<(), PolicyError> {
        let real = self.real(path)?;
        if real.kind != NameKind::Missing || !entry.skip_missing {
            self.resolved.targets.push(Target::of_entry(real, entry.access, origin));
        }
        Ok(())
    }

    fn real(&mut self, path: &Path) -> Result<ResolvedPath, PolicyError> {
        self.paths += 1;
        if self.paths > MAX_PATHS {
            return Err(PolicyError::TooManyPaths { max: MAX_PATHS });
        }
        real(self.names, path)
    }

    fn project_root_entries(
        &mut self,
        subpath: Option<&Path>,
        entry: &Entry,
    ) -> Result<(), PolicyError> {
        let subpath = subpath.unwrap_or(Path::new(""));
        let stays_below = |component| matches!(component, Component::Normal(_) | Component::CurDir);
        if !subpath.components().all(stays_below) {
            return Err(PolicyError::Subpath { subpath: subpath.to_owned() });
        }
        let roots = &self.around.workspace_roots;
        let paths: Vec<_> = roots.iter().map(|root| root.join(subpath)).collect();
        let cwd = self.around.cwd.as_deref();
        // Clients usually list the working directory as a root without meaning to write below a
        // protected name.
        self.known(&paths, "project roots", entry, |path| match Some(path) == cwd {
            true => Origin::WorkingDirectory,
            false => Origin::Named,
        })
    }

    /// Resolves an entry whose paths come from the context. If there are none, the entry grants
    /// nothing; a denying entry is an error.
    fn known(
        &mut self,
        paths: &[PathBuf],
        what: &'static str,
        entry: &Entry,
        origin: impl Fn(&Path) -> Origin,
    ) -> Result<(), PolicyError> {
        if paths.is_empty() && entry.access == Access::Deny {
            return Err(PolicyError::NothingToDeny { what });
        }
        paths.iter().try_for_each(|path| self.path(path, entry, origin(path)))
    }

    fn denied_glob(&mut self, glob: &str) -> Result<(), PolicyError> {
        for (base, pattern) in self.bases(glob)? {
            let max_depth = pattern.reach(self.max_depth);
            let ResolvedPath { path, links, .. } = base;
            self.resolved.globs.push((DeniedGlob::new(path, max_depth, pattern), links));
            if self.resolved.globs.len() > MAX_GLOBS {
                return Err(PolicyError::TooManyGlobs { max: MAX_GLOBS });
            }
        }
        Ok(())
    }

    fn granted_glob(&mut self, glob: &str, access: Access) -> Result<(), PolicyError> {
        let whole = || glob.to_owned();
        for (base, pattern) in self.bases(glob)? {
            let max_depth = pattern.reach(self.max_depth);
            let found =
                scan::existing(self.names, &base.path, &pattern, max_depth, &mut self.effort)
                    .map_err(|limit| PolicyError::TooMuchToScan { pattern: whole(), limit })?;
            if self.resolved.matches.len() + found.len() > MAX_MATCHES {
                return Err(PolicyError::TooManyMatches { pattern: whole(), max: MAX_MATCHES });
            }
            for (path, kind) in found {
                // Write access to a protected name needs an entry that names it explicitly.
                let access =
                    if is_protected_name(&path) { access.min(Access::Read) } else { access };
                let links = base.links.clone();
                let real = ResolvedPath { path, kind, links, last_link: None };
                self.resolved
                    .matches
                    .push((base.path.clone(), Target::new(real, access, Origin::Named)));
            }
        }
        Ok(())
    }

    /// Returns the start directories of the glob, each with the pattern relative to it.
    fn bases(&mut self, glob: &str) -> Result<Vec<(ResolvedPath, Pattern)>, PolicyError> {
        let (way, pattern) = split(glob)?;
        let starts = if way.is_absolute() { vec![PathBuf::from("/")] } else { self.starts() };
        if starts.is_empty() {
            return Err(PolicyError::GlobWithoutBase { pattern: glob.to_owned() });
        }
        self.symbols += pattern.symbols() * starts.len();
        if self.symbols > MAX_SYMBOLS {
            return Err(PolicyError::GlobsTooLong { max: MAX_SYMBOLS });
        }
        starts
            .into_iter()
            .map(|start| Ok((self.real(&start.join(&way))?, pattern.clone())))
            .collect()
    }

    fn starts(&self) -> Vec<PathBuf> {
        self.around.cwd.iter().chain(&self.around.workspace_roots).cloned().collect()
    }
}
