//! One symlink.

use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::{Place, Source};
use crate::fs::confinement::Need;
use crate::fs::error::FsError;
use crate::fs::kind::FileKind;
use crate::fs::resolve::{self, Identity};
use crate::fs::write_lock::WriteLock;

const ATTEMPTS: usize = 8;

/// A symlink that has the name already is replaced, and anything else is an error.
pub(super) fn copy(source: &Source, place: &Place<'_>) -> Result<(), FsError> {
    let target = rustix::fs::readlinkat(&source.node, "", Vec::new())
        .map_err(FsError::os("read the symlink", &source.path))?;
    place.expect(Need::Change)?;
    let _place = WriteLock::place(place.directory, place.name, &place.path)?;
    for _ in 0..ATTEMPTS {
        match rustix::fs::symlinkat(&target, place.directory, place.name) {
            Err(Errno::EXIST) => remove_old(source, place)?,
            made => return made.map_err(FsError::os("create the symlink", &place.path)),
        }
    }
    Err(FsError::Conflict { path: place.path.clone(), is: "is created again and again".to_owned() })
}

fn remove_old(source: &Source, place: &Place<'_>) -> Result<(), FsError> {
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    let stat = match rustix::fs::statat(place.directory, place.name, flags) {
        Err(Errno::NOENT) => return Ok(()),
        stat => stat.map_err(FsError::os("look at", &place.path))?,
    };
    resolve::expect_kind(&place.path, &stat, FileKind::Symlink, "a symlink")?;
    if Identity::from(&stat) == Identity::from(&source.stat) {
        let why = "is the symlink that is to be copied there";
        return Err(FsError::Unsuitable { path: place.path.clone(), why });
    }
    match rustix::fs::unlinkat(place.directory, place.name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(FsError::os("replace the symlink", &place.path)(errno)),
    }
}
