//! Checks a whole tree before it is copied, moved or removed: if the policy of this thread forbids
//! that for any entry, nothing is changed.
//!
//! The tree may change after the check. So copying and removing check each entry again; a rename,
//! which is a single step, cannot.

use std::ffi::{CStr, OsStr, OsString};
use std::ops::ControlFlow;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::FileType;
use rustix::io::Errno;

use super::cancel::CancelFlag;
use crate::fs::confinement::{self, Confinement, RequiredAccess};
use crate::fs::error::FsError;
use crate::fs::path::descent::{TreeDescent, open_directory};
use crate::fs::read::listing::{Listing, own_type};
use crate::sandbox::Access;

/// The current or future place of a tree, and the access that its entries need there.
#[derive(Debug)]
pub(in crate::fs) struct CheckedTree {
    pub(in crate::fs) place: PathBuf,
    /// The caller's path for the place, for errors.
    path: PathBuf,
    /// The access that directories need. If that is `MakeDirectory`, other entries need `Change`.
    pub(in crate::fs) required: RequiredAccess,
}

impl CheckedTree {
    fn required_of(&self, is_directory: bool) -> RequiredAccess {
        match self.required {
            RequiredAccess::MakeDirectory if !is_directory => RequiredAccess::Change,
            required => required,
        }
    }

    pub(in crate::fs) fn of(
        directory: BorrowedFd<'_>,
        name: &OsStr,
        required: RequiredAccess,
        path: &Path,
    ) -> Result<Self, FsError> {
        let directory = confinement::real_path(directory)
            .map_err(FsError::os("resolve the directory of", path))?;
        Ok(Self { place: directory.join(name), path: path.to_owned(), required })
    }

    pub(in crate::fs) fn open(
        directory: BorrowedFd<'_>,
        required: RequiredAccess,
        path: &Path,
    ) -> Result<Self, FsError> {
        let place = confinement::real_path(directory).map_err(FsError::os("resolve", path))?;
        Ok(Self { place, path: path.to_owned(), required })
    }
}

/// Fails if this thread lacks the required access, at any of the `sites`, to an entry of the tree
/// `name` in `directory`. `path` is the caller's name for the tree. A name that is missing or not a
/// directory is left to the operation itself.
pub(in crate::fs) fn expect(
    directory: BorrowedFd<'_>,
    name: &OsStr,
    sites: &[CheckedTree],
    path: &Path,
    cancel: &CancelFlag,
) -> Result<(), FsError> {
    let Some(confinement) = confinement::in_force() else { return Ok(()) };
    let policy = confinement.policy();
    if sites.iter().all(|site| !policy.may_vary_below(&site.place)) {
        return Ok(());
    }
    match open_directory(directory, name) {
        Ok(root) => {
            let descent = TreeDescent::new(path, root);
            let precheck =
                Precheck { confinement, sites, path, cancel, descent, way: PathBuf::new() };
            precheck.run()
        }
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(()),
        Err(errno) => Err(FsError::os("open the directory", path)(errno)),
    }
}

struct Precheck<'a> {
    confinement: Arc<Confinement>,
    sites: &'a [CheckedTree],
    path: &'a Path,
    cancel: &'a CancelFlag,
    descent: TreeDescent,
    /// From the root to the current directory of the descent.
    way: PathBuf,
}

impl Precheck<'_> {
    fn run(mut self) -> Result<(), FsError> {
        let mut listing = Listing::new();
        let mut levels = vec![self.list(&mut listing)?];
        while let Some(waiting) = levels.last_mut() {
            let Some(name) = waiting.pop() else {
                levels.pop();
                self.way.pop();
                self.descent.leave()?;
                continue;
            };
            match self.descent.enter(&name) {
                Ok(()) => {
                    self.way.push(&name);
                    levels.push(self.list(&mut listing)?);
                }
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(errno) => {
                    let path = self.descent.path_of(&name);
                    return Err(FsError::os("open the directory", &path)(errno));
                }
            }
        }
        Ok(())
    }

    /// Checks the entries of the current directory. Returns its subdirectories.
    fn list(&self, listing: &mut Listing) -> Result<Vec<OsString>, FsError> {
        self.cancel.check(self.path)?;
        let here = self.descent.here();
        let mut directories = Vec::new();
        let outcome = listing.read(here, |name: &CStr, listed| {
            let is_directory = own_type(here, name, listed) == Ok(FileType::Directory);
            let name = OsStr::from_bytes(name.to_bytes());
            if let Some(denied) = self.refusal(name, is_directory) {
                return ControlFlow::Break(denied);
            }
            if is_directory {
                directories.push(name.to_owned());
            }
            ControlFlow::Continue(())
        });
        match outcome {
            Ok(ControlFlow::Continue(())) => Ok(directories),
            Ok(ControlFlow::Break(denied)) => Err(denied),
            Err(errno) => Err(FsError::os("read the directory", &self.descent.path())(errno)),
        }
    }

    /// Returns the error for an entry, or `None` if the entry is allowed. The error names the entry
    /// at the site that denies it, but only if this thread may read it in the source.
    fn refusal(&self, name: &OsStr, is_directory: bool) -> Option<FsError> {
        let way = self.way.join(name);
        let denied = |site: &&CheckedTree| {
            !self.confinement.has(&site.place.join(&way), site.required_of(is_directory))
        };
        let site = self.sites.iter().find(denied)?;
        let required = site.required_of(is_directory);
        let may_be_named = self.sites.first().is_some_and(|source| {
            self.confinement.policy().access(&source.place.join(&way)) >= Access::Read
        });
        Some(match may_be_named {
            true => FsError::denied(&site.path.join(way), required),
            false => FsError::denied_inside(&site.path, required),
        })
    }
}
