//! Copies one regular file.

use std::os::fd::{AsFd as _, OwnedFd};

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::content::{self, Failed, MAX_UNSIZED_BYTES};
use super::overwrite::{self, Existing};
use super::{CopyTarget, Source};
use crate::fs::confinement::RequiredAccess;
use crate::fs::error::FsError;
use crate::fs::path::kind::FileKind;
use crate::fs::path::resolve::{self, Identity};
use crate::fs::read::metadata::size;
use crate::fs::tree::cancel::CancelFlag;
use crate::fs::write::write_file::take_back;
use crate::fs::write::write_lock::WriteLock;

/// The number of attempts to create or open the destination, which other programs may remove or
/// create in between.
const ATTEMPTS: usize = 8;

pub(super) fn copy(
    source: &Source,
    target: &CopyTarget<'_>,
    cancel: &CancelFlag,
) -> Result<(), FsError> {
    cancel.check(&source.path)?;
    // Some files of /proc and /sys block reads until an event occurs.
    let (size, flags) = (size(&source.stat), OFlags::RDONLY | OFlags::NONBLOCK);
    let input = resolve::content("open", &source.path, source.node.as_fd(), size, flags)?;
    let _name = WriteLock::name_in(target.directory, target.name, &target.path)?;
    match open_output(source, target)? {
        Output::New { file, created } => content::copy(input.as_fd(), file.as_fd(), size, cancel)
            .map_err(|failed| {
                take_back(target.directory, target.name, created);
                explain(failed, source, target)
            }),
        Output::Existing(existing) => {
            overwrite::copy(source, input.as_fd(), target, &existing, cancel)
        }
    }
}

pub(super) fn explain(failed: Failed, source: &Source, target: &CopyTarget<'_>) -> FsError {
    match failed {
        Failed::Reading(errno) => FsError::os("read", &source.path)(errno),
        Failed::Writing(errno) => FsError::os("write", &target.path)(errno),
        Failed::TooLarge => FsError::TooLarge { path: source.path.clone(), max: MAX_UNSIZED_BYTES },
        Failed::Abandoned => CancelFlag::abandoned(&source.path),
    }
}

enum Output {
    /// An empty file that already has the permissions of the source, before it has any content to
    /// protect.
    New {
        file: OwnedFd,
        created: Identity,
    },
    Existing(Existing),
}

fn open_output(source: &Source, target: &CopyTarget<'_>) -> Result<Output, FsError> {
    let mode = source.mode();
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let creatable = target.expect(RequiredAccess::Change);
    for _ in 0..ATTEMPTS {
        if let Err(denied) = creatable {
            return match target.node() {
                Ok(node) => open_existing(source, target, &node),
                Err(error) if error.is_not_found() => Err(denied),
                Err(error) => Err(error),
            };
        }
        match rustix::fs::openat(target.directory, target.name, flags, mode) {
            Ok(file) => {
                // The umask may have cleared some bits.
                rustix::fs::fchmod(&file, mode)
                    .map_err(FsError::os("set the permissions of", &target.path))?;
                let created =
                    Identity::of(file.as_fd()).map_err(FsError::os("stat", &target.path))?;
                return Ok(Output::New { file, created });
            }
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(FsError::os("create", &target.path)(errno)),
        }
        match target.node() {
            Ok(node) => return open_existing(source, target, &node),
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    let why = "is a dangling symlink; remove it, or copy to its target";
    Err(FsError::Unsuitable { path: target.path.clone(), why })
}

fn open_existing(
    source: &Source,
    target: &CopyTarget<'_>,
    node: &OwnedFd,
) -> Result<Output, FsError> {
    let stat = rustix::fs::fstat(node).map_err(FsError::os("stat", &target.path))?;
    resolve::expect_kind(&target.path, &stat, FileKind::Regular, "a regular file")?;
    if Identity::from(&stat) == Identity::from(&source.stat) {
        let why = "is the source of the copy";
        return Err(FsError::Unsuitable { path: target.path.clone(), why });
    }
    let file = resolve::content("open", &target.path, node.as_fd(), size(&stat), OFlags::WRONLY)?;
    let _content = WriteLock::content(&stat);
    Ok(Output::Existing(Existing { file, stat, _content }))
}
