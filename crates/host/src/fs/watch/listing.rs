//! What is already in a directory that has only just been noticed.

use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use super::window::{MAX_PATHS, Settled};
use crate::fs::FsError;
use crate::fs::listing::{Listing, own_type};
use crate::fs::resolve::{self, Symlinks};

/// Adds everything below the directory `top` to `found`; nothing if it is not a directory, or not any more. Symlinks
/// are listed and not followed.
pub(super) fn list_into(found: &mut Settled, top: PathBuf) {
    let mut listing = Listing::new();
    let mut waiting = vec![top];
    while let Some(directory) = waiting.pop() {
        if found.lost {
            return;
        }
        // What cannot be listed is gone, or closed to us; its watch cannot tell of it either.
        let _ = list_one(found, &directory, &mut listing, &mut waiting);
    }
}

fn list_one(
    found: &mut Settled,
    path: &Path,
    listing: &mut Listing,
    waiting: &mut Vec<PathBuf>,
) -> Result<(), FsError> {
    let directory = resolve::directory(path, Symlinks::Refuse)?;
    let directory = directory.as_fd();
    let listed = listing.read(directory, |name, listed| {
        if found.listed.len() == MAX_PATHS {
            found.lost = true;
            return ControlFlow::Break(());
        }
        let entry = path.join(OsStr::from_bytes(name.to_bytes()));
        if own_type(directory, name, listed) == Ok(FileType::Directory) {
            waiting.push(entry.clone());
        }
        found.listed.push(entry);
        ControlFlow::Continue(())
    });
    listed.map(drop).map_err(FsError::os("list", path))
}
