//! Copies one symlink.

use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::{CopyTarget, Source};
use crate::fs::confinement::RequiredAccess;
use crate::fs::error::FsError;
use crate::fs::path::kind::FileKind;
use crate::fs::path::resolve::{self, Identity};
use crate::fs::write::write_lock::WriteLock;

const ATTEMPTS: usize = 8;

/// Replaces an existing symlink at the destination; any other file is an error.
pub(super) fn copy(source: &Source, target: &CopyTarget<'_>) -> Result<(), FsError> {
    let link_text = rustix::fs::readlinkat(&source.node, "", Vec::new())
        .map_err(FsError::os("read the symlink", &source.path))?;
    target.expect(RequiredAccess::Change)?;
    let _name = WriteLock::name_in(target.directory, target.name, &target.path)?;
    for _ in 0..ATTEMPTS {
        match rustix::fs::symlinkat(&link_text, target.directory, target.name) {
            Err(Errno::EXIST) => remove_old(source, target)?,
            made => return made.map_err(FsError::os("create the symlink", &target.path)),
        }
    }
    Err(FsError::Conflict {
        path: target.path.clone(),
        is: "is repeatedly recreated by another program".to_owned(),
    })
}

fn remove_old(source: &Source, target: &CopyTarget<'_>) -> Result<(), FsError> {
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    let stat = match rustix::fs::statat(target.directory, target.name, flags) {
        Err(Errno::NOENT) => return Ok(()),
        stat => stat.map_err(FsError::os("stat", &target.path))?,
    };
    resolve::expect_kind(&target.path, &stat, FileKind::Symlink, "a symlink")?;
    if Identity::from(&stat) == Identity::from(&source.stat) {
        let why = "is the source of the copy";
        return Err(FsError::Unsuitable { path: target.path.clone(), why });
    }
    match rustix::fs::unlinkat(target.directory, target.name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(FsError::os("replace the symlink", &target.path)(errno)),
    }
}
