//! Resolves a path and collects the symlinks on its way.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use super::{NameKind, Names, PolicyError};

/// The kernel's limit on symlinks in one path.
pub(super) const MAX_LINKS: usize = 40;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ResolvedPath {
    /// Without symlinks, as far as it exists. Missing components are kept as written.
    pub(super) path: PathBuf,
    pub(super) kind: NameKind,
    /// The symlinks on the way, each by its own real path, in order.
    pub(super) links: Vec<PathBuf>,
    /// If the path ends in a symlink: that symlink, by its own real path.
    pub(super) last_link: Option<PathBuf>,
}

/// Resolves a path, which must be absolute and have no `..`: after a symlink, `..` leads where few
/// users expect.
pub(super) fn real(names: &impl Names, path: &Path) -> Result<ResolvedPath, PolicyError> {
    if !path.is_absolute() {
        return Err(PolicyError::Relative { path: path.to_owned() });
    }
    if path.components().any(|component| component == Component::ParentDir) {
        return Err(PolicyError::ParentComponent { path: path.to_owned() });
    }
    real_from(names, Path::new("/"), path)
}

/// Resolves a path, even if it does not exist. `None` on failure.
pub(in crate::sandbox) fn real_path(names: &impl Names, path: &Path) -> Option<PathBuf> {
    Some(real(names, path).ok()?.path)
}

/// Resolves a path to something that exists. A path in the `/proc` directory of one process gives
/// `/proc`, because it may lead to another directory for another process.
#[cfg(target_os = "linux")]
pub(in crate::sandbox) fn existing_target(
    names: &impl Names,
    path: &Path,
) -> Option<(PathBuf, NameKind)> {
    match real(names, path) {
        Ok(real) => (real.kind != NameKind::Missing).then_some((real.path, real.kind)),
        Err(PolicyError::OneProcess { .. }) => Some((PathBuf::from("/proc"), NameKind::Directory)),
        Err(_) => None,
    }
}

/// Resolves `way` from the real path `directory`. Unlike the path of an entry, `way` may contain
/// `..`, as the target of a symlink may.
pub(super) fn real_from(
    names: &impl Names,
    directory: &Path,
    way: &Path,
) -> Result<ResolvedPath, PolicyError> {
    let mut walk = Walk {
        names,
        asked: way,
        at: directory.to_owned(),
        kind: NameKind::Directory,
        ahead: Vec::new(),
        links: Vec::new(),
        last_link: None,
    };
    walk.plan(way);
    while let Some(step) = walk.ahead.pop() {
        walk.take(step)?;
    }
    let Walk { at: path, kind, links, last_link, .. } = walk;
    Ok(ResolvedPath { path, kind, links, last_link })
}

enum Step {
    ToRoot,
    Up,
    Down(OsString),
}

struct Walk<'a, N> {
    names: &'a N,
    asked: &'a Path,
    at: PathBuf,
    kind: NameKind,
    /// Steps still to take, the next one last.
    ahead: Vec<Step>,
    links: Vec<PathBuf>,
    last_link: Option<PathBuf>,
}

impl<N: Names> Walk<'_, N> {
    fn plan(&mut self, way: &Path) {
        self.ahead.extend(way.components().rev().filter_map(|component| match component {
            Component::RootDir => Some(Step::ToRoot),
            Component::ParentDir => Some(Step::Up),
            Component::Normal(name) => Some(Step::Down(name.to_owned())),
            Component::CurDir | Component::Prefix(_) => None,
        }));
    }

    fn take(&mut self, step: Step) -> Result<(), PolicyError> {
        match step {
            Step::ToRoot => {
                self.at = PathBuf::from("/");
                self.kind = NameKind::Directory;
                Ok(())
            }
            // A missing name may be created later as a symlink to anywhere.
            Step::Up if self.kind == NameKind::Missing => {
                Err(self.unreadable(io::ErrorKind::NotFound.into()))
            }
            Step::Up => {
                self.at.pop();
                self.kind = NameKind::Directory;
                Ok(())
            }
            Step::Down(name) => self.down(&name),
        }
    }

    fn down(&mut self, name: &OsStr) -> Result<(), PolicyError> {
        if self.at == Path::new("/proc") && is_one_process(name) {
            return Err(PolicyError::OneProcess { path: self.asked.to_owned() });
        }
        self.at.push(name);
        if self.kind == NameKind::Missing {
            return Ok(());
        }
        self.kind = self.names.kind(&self.at).map_err(|error| self.unreadable(error))?;
        if self.kind == NameKind::Symlink { self.follow() } else { Ok(()) }
    }

    fn follow(&mut self) -> Result<(), PolicyError> {
        if self.links.len() == MAX_LINKS {
            return Err(PolicyError::TooManyLinks { path: self.asked.to_owned() });
        }
        let target = self.names.read_link(&self.at).map_err(|error| self.unreadable(error))?;
        if self.ahead.is_empty() && self.last_link.is_none() {
            self.last_link = Some(self.at.clone());
        }
        self.links.push(self.at.clone());
        self.at.pop();
        self.kind = NameKind::Directory;
        self.plan(&target);
        Ok(())
    }

    fn unreadable(&self, source: io::Error) -> PolicyError {
        PolicyError::Unreadable { path: self.asked.to_owned(), at: self.at.clone(), source }
    }
}

/// `/proc/self` is a different directory for the server than in the sandbox, and a process id may
/// be reused.
fn is_one_process(name: &OsStr) -> bool {
    name == "self" || name == "thread-self" || name.as_bytes().iter().all(u8::is_ascii_digit)
}
