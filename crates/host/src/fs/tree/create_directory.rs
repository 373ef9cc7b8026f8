//! Creates directories.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Component, Path};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::fs::confinement::{self, RequiredAccess};
use crate::fs::error::FsError;
use crate::fs::path::kind::FileKind;
use crate::fs::path::resolve::{self, Symlinks};

/// Subject to the umask.
const MODE: Mode = Mode::from_raw_mode(0o777);

/// With `recursive`, also creates missing parents, and an existing directory is not an error.
pub fn create_directory(path: &Path, recursive: bool, symlinks: Symlinks) -> Result<(), FsError> {
    if recursive {
        return create_all(path, symlinks);
    }
    let parent = resolve::parent(path, symlinks, RequiredAccess::MakeDirectory)?;
    match rustix::fs::mkdirat(&parent.directory, &parent.name, MODE) {
        Err(Errno::EXIST) => Err(FsError::already_exists(path)),
        made => made.map_err(FsError::os("create the directory", path)),
    }
}

/// Creates directories from the lowest existing one downwards. Each new directory is entered at
/// once, and never through a symlink, which only another program could have put in its place.
fn create_all(path: &Path, symlinks: Symlinks) -> Result<(), FsError> {
    let (above, mut here) = lowest_existing(path, symlinks)?;
    expect_directory(above, &here)?;
    let missing =
        path.strip_prefix(above).expect("`lowest_existing` returns an ancestor of the path");
    let mut so_far = above.to_owned();
    for component in missing.components() {
        so_far.push(component);
        if let Component::Normal(name) = component {
            confinement::expect(here.as_fd(), name, RequiredAccess::MakeDirectory, path)?;
            match rustix::fs::mkdirat(&here, name, MODE) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(FsError::os("create the directory", &so_far)(errno)),
            }
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        here = rustix::fs::openat(&here, component.as_os_str(), flags, Mode::empty())
            .map_err(FsError::os("open the directory", &so_far))?;
        expect_directory(&so_far, &here)?;
    }
    Ok(())
}

fn lowest_existing(path: &Path, symlinks: Symlinks) -> Result<(&Path, OwnedFd), FsError> {
    let mut lowest = path;
    loop {
        match (resolve::node(lowest, symlinks, RequiredAccess::Pass), lowest.parent()) {
            (Err(FsError::Denied { .. }), _) => {
                return Err(FsError::denied(path, RequiredAccess::MakeDirectory));
            }
            (Ok(node), _) => return Ok((lowest, node)),
            (Err(error), Some(above)) if error.is_not_found() => lowest = above,
            (Err(error), _) => return Err(error),
        }
    }
}

fn expect_directory(path: &Path, node: &OwnedFd) -> Result<(), FsError> {
    let stat = rustix::fs::fstat(node.as_fd()).map_err(FsError::os("stat", path))?;
    resolve::expect_kind(path, &stat, FileKind::Directory, "a directory")
}
