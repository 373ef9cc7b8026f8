//! Access rights of a file that replaces another: the same as before if possible, and never wider
//! unless the caller requests a mode.
//!
//! Owner, group, permission bits and access lists are inherited. Other extended attributes,
//! including capabilities, are not.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, Gid, Mode, Stat, Uid, XattrFlags};

use super::claim::Existing;
use crate::fs::error::FsError;
use crate::fs::path::procfs;

const ACCESS_LIST: &str = "system.posix_acl_access";
/// The largest attribute that Linux allows.
const MAX_ATTRIBUTE_BYTES: usize = 64 << 10;

/// Fails unless this process may write the old file. Write permission for the directory is enough
/// to replace a file, but a file that this process may not write must not be replaced.
pub(in crate::fs) fn expect_writable(path: &Path, old: &Existing) -> Result<(), FsError> {
    let link = procfs::own_link(old.node.as_fd());
    rustix::fs::accessat(CWD, link, Access::WRITE_OK, AtFlags::EACCESS)
        .map_err(FsError::os("replace", path))
}

/// `mode` is the requested mode; it applies regardless of the owner.
pub(in crate::fs) fn inherit(
    path: &Path,
    file: BorrowedFd<'_>,
    old: Option<&Existing>,
    mode: Option<Mode>,
) -> Result<(), FsError> {
    let Some(old) = old else { return mode.map_or(Ok(()), |mode| set_mode(path, file, mode)) };
    let own = rustix::fs::fstat(file).map_err(FsError::os("stat", path))?;
    let ownership = take_ownership(file, &own, &old.stat);
    let list = take_access_list(file, old);
    set_mode(path, file, mode.unwrap_or_else(|| no_wider(&old.stat, ownership, list)))
}

/// Whether the new file has the user and group of the old one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ownership {
    user: bool,
    group: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AccessList {
    /// Both files have the same list, or none.
    Same,
    /// The old list could not be inherited. Without it, the old mode may grant more than before.
    Lost,
}

fn take_ownership(file: BorrowedFd<'_>, own: &Stat, old: &Stat) -> Ownership {
    let same = Ownership { user: own.st_uid == old.st_uid, group: own.st_gid == old.st_gid };
    if same.user && same.group {
        return same;
    }
    let (user, group) = (Uid::from_raw(old.st_uid), Gid::from_raw(old.st_gid));
    if rustix::fs::fchown(file, Some(user), Some(group)).is_ok() {
        return Ownership { user: true, group: true };
    }
    // An owner may give a file to any group of which they are a member.
    let group = same.group || rustix::fs::fchown(file, None, Some(group)).is_ok();
    Ownership { group, ..same }
}

/// Gives the file the access list of the old one. The new file may have inherited a default list
/// from its directory, which the old file did not have.
fn take_access_list(file: BorrowedFd<'_>, old: &Existing) -> AccessList {
    let mut list = vec![0; MAX_ATTRIBUTE_BYTES];
    let link = procfs::own_link(old.node.as_fd());
    let taken = match rustix::fs::getxattr(link, ACCESS_LIST, &mut list) {
        Ok(len) => rustix::fs::fsetxattr(file, ACCESS_LIST, &list[..len], XattrFlags::empty()),
        Err(rustix::io::Errno::NODATA) => match rustix::fs::fremovexattr(file, ACCESS_LIST) {
            Err(rustix::io::Errno::NODATA) => Ok(()),
            removed => removed,
        },
        // The file system has no access lists.
        Err(rustix::io::Errno::NOTSUP) => Ok(()),
        Err(errno) => Err(errno),
    };
    if taken.is_ok() { AccessList::Same } else { AccessList::Lost }
}

/// Returns a mode that grants no more than before. If the group changed or the access list was
/// lost, the bits for the group and those for others now apply to different users, so both become
/// their intersection. Set-id bits are dropped if they would lend the rights of another owner or
/// group.
fn no_wider(old: &Stat, ownership: Ownership, list: AccessList) -> Mode {
    let mut mode = old.st_mode & 0o7777;
    if !ownership.user {
        mode &= !0o4000;
    }
    if !ownership.group {
        mode &= !0o2000;
    }
    if !ownership.group || list == AccessList::Lost {
        let both = (mode >> 3) & mode & 0o007;
        mode = (mode & !0o077) | (both << 3) | both;
    }
    Mode::from_raw_mode(mode)
}

fn set_mode(path: &Path, file: BorrowedFd<'_>, mode: Mode) -> Result<(), FsError> {
    rustix::fs::fchmod(file, mode).map_err(FsError::os("set the permissions of", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_that_would_apply_to_other_users_are_dropped() {
        let file = tempfile::tempfile().unwrap();
        let mut stat = rustix::fs::fstat(&file).unwrap();
        let all = Ownership { user: true, group: true };
        let no_group = Ownership { user: true, group: false };
        let no_user = Ownership { user: false, group: true };
        for (old, ownership, list, new) in [
            (0o6755, all, AccessList::Same, 0o6755),
            (0o6755, no_group, AccessList::Same, 0o4755),
            (0o6755, no_user, AccessList::Same, 0o2755),
            (0o640, no_group, AccessList::Same, 0o600),
            (0o664, no_group, AccessList::Same, 0o644),
            (0o604, no_group, AccessList::Same, 0o600),
            (0o660, all, AccessList::Lost, 0o600),
            (0o660, no_user, AccessList::Same, 0o660),
        ] {
            stat.st_mode = 0o100_000 | old;
            let mode = no_wider(&stat, ownership, list).as_raw_mode();
            assert_eq!(mode, new, "{old:o} {ownership:?} {list:?}");
        }
    }
}
