//! Sets up the mounts of a plan in the namespace of the calling process.
//!
//! A place is opened once, without following symlinks, and then used by its descriptor. If it is
//! renamed in the meantime, it is covered under its new name or the mount fails, but nothing else
//! is covered instead. Either everything in the plan is covered, or the process does not start.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path};

use rustix::fs::{FileType, Mode, OFlags, fstat};
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;

use super::mount_call::{attach, clone_tree, make_private, new_mount, set_attributes};
use super::placeholder::{Identity, Placeholders};
use super::start_cancellation::StartCancellation;
use crate::sandbox::kernel::open_real::open_real;
use crate::sandbox::plan::{Cover, CoverKind, Mount, Regrant};
use crate::sandbox::policy::Access;
use crate::sandbox::report::step::{SandboxStep, StepFailure};

const READ_ONLY: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_RDONLY;

/// For hidden paths. On a mount with NODEV no process can open a device, not even root.
const UNUSABLE: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_RDONLY
    .union(MountAttrFlags::MOUNT_ATTR_NODEV)
    .union(MountAttrFlags::MOUNT_ATTR_NOEXEC)
    .union(MountAttrFlags::MOUNT_ATTR_NOSUID);

const NO_DEVICES: MountAttrFlags =
    MountAttrFlags::MOUNT_ATTR_RDONLY.union(MountAttrFlags::MOUNT_ATTR_NODEV);

/// Stops mount propagation to and from the original namespace. Invariant: nothing is mounted before
/// this call; otherwise the mount might appear outside.
pub(crate) fn isolate() -> Result<(), StepFailure> {
    open_place(Path::new("/"))
        .and_then(|root| make_private(root, MountAttrFlags::empty()))
        .map_err(|errno| SandboxStep::Mounts.failed(errno))
}

pub(crate) fn arrange(
    mounts: &[Mount],
    placeholders: &Placeholders,
    cancellation: StartCancellation<'_>,
) -> Result<(), StepFailure> {
    let failed = |index: usize| {
        let mount = u32::try_from(index).unwrap_or(u32::MAX);
        move |errno| SandboxStep::Mount { mount }.failed(errno)
    };
    let nesting = MountNesting::of(mounts);
    let mut saved = Vec::with_capacity(mounts.len());
    for (index, mount) in mounts.iter().enumerate() {
        cancellation.check().map_err(failed(index))?;
        saved.push(match mount {
            Mount::Regrant(regrant) if nesting.is_in_covered(index) => {
                save(regrant).map_err(failed(index))?
            }
            _ => None,
        });
    }
    for (index, (mount, saved)) in mounts.iter().zip(saved).enumerate() {
        cancellation.check().map_err(failed(index))?;
        match (mount, saved) {
            (Mount::Cover(_), _) if placeholders.is_impossible(index) => Ok(()),
            (Mount::Cover(cover), _) if cover.path == Path::new("/") => {
                open_place(&cover.path).and_then(|root| set_attributes(root, READ_ONLY))
            }
            (Mount::Cover(cover), _) => {
                put_cover(cover, placeholders.identity(index), nesting.restored_in(index))
            }
            (Mount::Regrant(regrant), Some(saved)) => {
                restore(regrant, &saved, nesting.is_in_hidden(index))
            }
            // The path was removed after the plan was made, so there is nothing to restore.
            (Mount::Regrant(_), None) if nesting.is_in_covered(index) => Ok(()),
            (Mount::Regrant(regrant), None) => pin(regrant),
            (Mount::Fresh(path), _) => put_fresh_directory(path),
        }
        .map_err(failed(index))?;
    }
    Ok(())
}

/// A part of the tree as it was before any cover.
struct Saved {
    tree: OwnedFd,
    identity: Identity,
}

fn save(regrant: &Regrant) -> Result<Option<Saved>, Errno> {
    let place = match open_place(&regrant.path) {
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        opened => opened?,
    };
    let identity = check_kind(&place, regrant.is_directory)?;
    let tree = clone_tree(&place)?;
    if regrant.access != Access::Write {
        set_attributes(&tree, READ_ONLY)?;
    }
    Ok(Some(Saved { tree, identity }))
}

fn restore(regrant: &Regrant, saved: &Saved, below_hidden: bool) -> Result<(), Errno> {
    let place = open_place(&regrant.path)?;
    let found = check_kind(&place, regrant.is_directory)?;
    // In a hidden directory the place is a new mount point, with another identity.
    if !below_hidden && found != saved.identity {
        return Err(Errno::STALE);
    }
    attach(&saved.tree, place)
}

/// Makes the path a mount point.
fn pin(regrant: &Regrant) -> Result<(), Errno> {
    match save(regrant)? {
        Some(saved) => restore(regrant, &saved, false),
        // The cover below the pin is then unnecessary, or its mount will fail.
        None => Ok(()),
    }
}

fn put_cover(
    cover: &Cover,
    expected: Option<Identity>,
    to_restore: &[&Regrant],
) -> Result<(), Errno> {
    let place = open_place(&cover.path)?;
    if cover.kind == CoverKind::HiddenLink {
        if FileType::from_raw_mode(fstat(&place)?.st_mode) != FileType::Symlink {
            return Err(Errno::STALE);
        }
        return attach(clone_with(open_place(Path::new("/dev/null"))?, UNUSABLE)?, place);
    }
    let found = check_kind(&place, cover.is_directory)?;
    if expected.is_some_and(|expected| expected != found) {
        return Err(Errno::STALE);
    }
    let mount = match cover.kind {
        CoverKind::ReadOnly => clone_with(&place, READ_ONLY)?,
        CoverKind::NoDevices => clone_with(&place, NO_DEVICES)?,
        CoverKind::Hidden if cover.is_directory => empty_directory(&cover.path, to_restore)?,
        CoverKind::Hidden | CoverKind::HiddenLink => {
            clone_with(open_place(Path::new("/dev/null"))?, UNUSABLE)?
        }
    };
    attach(mount, place)
}

fn clone_with(place: impl AsFd, attributes: MountAttrFlags) -> Result<OwnedFd, Errno> {
    let tree = clone_tree(place)?;
    set_attributes(&tree, attributes)?;
    Ok(tree)
}

fn put_fresh_directory(path: &Path) -> Result<(), Errno> {
    let place = open_place(path)?;
    check_kind(&place, true)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOSUID;
    attach(new_mount("tmpfs", &[("mode", "1777")], attributes)?, place)
}

/// Creates a directory that contains only the mount points of the regrants below it.
fn empty_directory(path: &Path, to_restore: &[&Regrant]) -> Result<OwnedFd, Errno> {
    let mode = if to_restore.is_empty() { "000" } else { "111" };
    let mount = new_mount("tmpfs", &[("mode", mode)], MountAttrFlags::empty())?;
    for regrant in to_restore {
        let way = regrant.path.strip_prefix(path).map_err(|_| Errno::INVAL)?;
        make_way(&mount, way, regrant.is_directory)?;
    }
    set_attributes(&mount, UNUSABLE)?;
    Ok(mount)
}

fn make_way(root: &OwnedFd, way: &Path, to_directory: bool) -> Result<(), Errno> {
    let searchable = Mode::from_raw_mode(0o111);
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut directory = rustix::fs::openat(root, c".", flags, Mode::empty())?;
    let mut names = way.components().peekable();
    while let Some(Component::Normal(name)) = names.next() {
        if names.peek().is_none() && !to_directory {
            let made =
                rustix::fs::mknodat(&directory, name, FileType::RegularFile, Mode::empty(), 0);
            return made.or_else(existing);
        }
        rustix::fs::mkdirat(&directory, name, searchable).or_else(existing)?;
        // The umask may have removed permissions that other users need to pass.
        rustix::fs::chmodat(&directory, name, searchable, rustix::fs::AtFlags::empty())?;
        directory = rustix::fs::openat(&directory, name, flags, Mode::empty())?;
    }
    Ok(())
}

fn existing(errno: Errno) -> Result<(), Errno> {
    if errno == Errno::EXIST { Ok(()) } else { Err(errno) }
}

/// For each mount, the mount that contains its path.
struct MountNesting<'a> {
    mounts: &'a [Mount],
    around: Vec<Option<usize>>,
    /// The regrants directly below each mount, with no other mount in between.
    restored: Vec<Vec<&'a Regrant>>,
}

impl<'a> MountNesting<'a> {
    /// The mounts must be sorted by path. Takes linear time: a plan may have thousands of mounts,
    /// and this runs during the start of a process.
    fn of(mounts: &'a [Mount]) -> Self {
        let mut around = Vec::with_capacity(mounts.len());
        let mut restored = vec![Vec::new(); mounts.len()];
        let mut above: Vec<usize> = Vec::new();
        for (index, mount) in mounts.iter().enumerate() {
            while above.pop_if(|last| !is_below(mount, &mounts[*last])).is_some() {}
            if let (Some(last), Mount::Regrant(regrant)) = (above.last(), mount) {
                restored[*last].push(regrant);
            }
            around.push(above.last().copied());
            above.push(index);
        }
        Self { mounts, around, restored }
    }

    fn restored_in(&self, index: usize) -> &[&'a Regrant] {
        &self.restored[index]
    }

    fn is_in_hidden(&self, index: usize) -> bool {
        matches!(self.around(index), Some(Mount::Cover(Cover { kind: CoverKind::Hidden, .. })))
    }

    /// Whether a regrant must be saved before its surroundings are covered. Other regrants are pins
    /// and are not saved in advance: each would take a descriptor, and there may be many.
    fn is_in_covered(&self, index: usize) -> bool {
        match self.around(index) {
            None => false,
            Some(Mount::Regrant(around)) => around.access != Access::Write,
            Some(Mount::Cover(_) | Mount::Fresh(_)) => true,
        }
    }

    fn around(&self, index: usize) -> Option<&Mount> {
        self.around[index].map(|around| &self.mounts[around])
    }
}

fn is_below(mount: &Mount, other: &Mount) -> bool {
    mount.path() != other.path() && mount.path().starts_with(other.path())
}

pub(in crate::sandbox) fn open_place(path: &Path) -> Result<OwnedFd, Errno> {
    open_real(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC)
}

/// Returns the identity of a place, if its kind is as the plan expects.
pub(in crate::sandbox) fn check_kind(
    place: impl AsFd,
    is_directory: bool,
) -> Result<Identity, Errno> {
    let status = fstat(place)?;
    let found = FileType::from_raw_mode(status.st_mode);
    if (found == FileType::Directory) != is_directory || found == FileType::Symlink {
        return Err(Errno::STALE);
    }
    Ok(Identity::of(&status))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cover(path: &str, kind: CoverKind) -> Mount {
        Mount::Cover(Cover { path: path.into(), kind, is_directory: true, missing: false })
    }

    fn regrant(path: &str, access: Access) -> Mount {
        Mount::Regrant(Regrant { path: path.into(), access, is_directory: true })
    }

    #[test]
    fn the_nearest_mount_above_decides() {
        let mounts = [
            cover("/", CoverKind::ReadOnly),
            cover("/a", CoverKind::Hidden),
            regrant("/a/b/c", Access::Read),
            cover("/a/b/c/d", CoverKind::Hidden),
            regrant("/a/b/c/d/e", Access::Read),
            regrant("/a/b/c/e", Access::Write),
            regrant("/a/b/c/e/f", Access::Write),
            regrant("/ab", Access::Write),
        ];
        let nesting = MountNesting::of(&mounts);
        let around = [None, Some(0), Some(1), Some(2), Some(3), Some(2), Some(5), Some(0)];
        assert_eq!(nesting.around, around);
        let restored: Vec<_> = nesting.restored_in(1).iter().map(|one| one.path.clone()).collect();
        assert_eq!(restored, [Path::new("/a/b/c")]);
        let which = |holds: &dyn Fn(usize) -> bool| -> Vec<usize> {
            (0..mounts.len()).filter(|index| holds(*index)).collect()
        };
        assert_eq!(which(&|index| nesting.is_in_hidden(index)), [2, 4]);
        // The regrants that are left out only pin a path in a writable place.
        assert_eq!(which(&|index| nesting.is_in_covered(index)), [1, 2, 3, 4, 5, 7]);
    }

    /// A quadratic algorithm would take far too long.
    #[test]
    fn a_plan_may_have_many_mounts() {
        let hidden = |n: usize| cover(&format!("/a/{n:06}"), CoverKind::Hidden);
        let mounts: Vec<_> =
            [regrant("/a", Access::Write)].into_iter().chain((0..200_000).map(hidden)).collect();
        let nesting = MountNesting::of(&mounts);
        assert!(nesting.around[1..].iter().all(|around| *around == Some(0)));
    }
}
