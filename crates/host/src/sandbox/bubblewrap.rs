//! The mounts and namespaces of a plan, made by bubblewrap where we may not make them ourselves.
//!
//! Bubblewrap goes by names, and somebody might rename what they stand for at the same time. So what it has done is looked at from the
//! inside, by [`verify`], before anything is started there.

use std::ffi::OsString;
use std::path::Path;

use rustix::fs::{AtFlags, StatVfsMountFlags, StatxAttributes, StatxFlags, fstatvfs, statx};
use rustix::io::Errno;

use super::mounts::{check_kind, open_place};
use super::placeholder::Placeholders;
use super::plan::{Cover, CoverKind, Mount, Plan};
use super::policy::Access;
use super::step::{SandboxStep, StepFailure};

/// Bubblewrap's options. What it runs is not among them.
///
/// It would make what is missing, and leave it there; so what is not as the plan saw it is an error here.
pub(crate) fn options(
    plan: &Plan,
    placeholders: &Placeholders,
) -> Result<Vec<OsString>, StepFailure> {
    let mut options = Options(Vec::new());
    options.add(&["--unshare-pid", "--unshare-ipc"]);
    if !rustix::process::geteuid().is_root() {
        options.add(&["--unshare-user"]);
    }
    if plan.new_network_namespace {
        options.add(&["--unshare-net"]);
    }
    let (root, devices) = (Path::new("/"), Path::new("/dev"));
    if plan.mounts.first().is_some_and(|mount| mount.path() == root) {
        options.bind("--ro-bind", root, root);
        // On other mounts it makes, there are no devices.
        options.bind("--dev-bind", devices, devices);
    } else {
        options.bind("--dev-bind", root, root);
    }
    if plan.fresh_proc {
        options.add(&["--proc", "/proc"]);
    }
    let mut hidden = Vec::new();
    for (index, mount) in plan.mounts.iter().enumerate() {
        let path = mount.path();
        if path == root || placeholders.is_impossible(index) {
            continue;
        }
        let step = SandboxStep::Mount { mount: u32::try_from(index).unwrap_or(u32::MAX) };
        if !is_there(mount).map_err(|errno| step.failed(errno))? {
            continue;
        }
        match mount {
            // Without devices, as is all but what is said to have them.
            Mount::Cover(Cover { kind: CoverKind::ReadOnly | CoverKind::NoDevices, .. }) => {
                options.bind("--ro-bind", path, path);
            }
            Mount::Cover(Cover { is_directory: true, .. }) => {
                let leads_on = plan
                    .mounts
                    .iter()
                    .any(|other| other.path() != path && other.path().starts_with(path));
                options.add(&["--perms", if leads_on { "0111" } else { "0000" }, "--tmpfs"]);
                options.0.push(path.into());
                hidden.push(path);
            }
            Mount::Cover(_) => options.bind("--ro-bind", Path::new("/dev/null"), path),
            // Landlock knows which of them can be written.
            Mount::Regrant(_) if path.starts_with(devices) => {
                options.bind("--dev-bind", path, path);
            }
            Mount::Regrant(regrant) if regrant.access == Access::Write => {
                options.bind("--bind", path, path);
            }
            Mount::Regrant(_) => options.bind("--ro-bind", path, path),
            Mount::Fresh(_) => {
                options.add(&["--perms", "1777", "--tmpfs"]);
                options.0.push(path.into());
            }
        }
    }
    for path in hidden {
        options.add(&["--remount-ro"]);
        options.0.push(path.into());
    }
    Ok(options.0)
}

/// What a plan gives back may have gone since, and the access with it. What is to be covered may not.
fn is_there(mount: &Mount) -> Result<bool, Errno> {
    let is_directory = match mount {
        Mount::Cover(cover) => cover.is_directory,
        Mount::Regrant(regrant) => regrant.is_directory,
        Mount::Fresh(_) => true,
    };
    match open_place(mount.path()).and_then(|place| check_kind(place, is_directory)) {
        Err(Errno::NOENT | Errno::NOTDIR) if matches!(mount, Mount::Regrant(_)) => Ok(false),
        checked => checked.map(|_| true),
    }
}

struct Options(Vec<OsString>);

impl Options {
    fn add(&mut self, words: &[&str]) {
        self.0.extend(words.iter().map(OsString::from));
    }

    fn bind(&mut self, how: &str, from: &Path, to: &Path) {
        self.0.extend([how.into(), from.into(), to.into()]);
    }
}

/// Whether every mount of the plan is where it should be, seen from inside.
pub(crate) fn verify(mounts: &[Mount]) -> Result<(), StepFailure> {
    for (index, mount) in mounts.iter().enumerate() {
        let step = SandboxStep::Mount { mount: u32::try_from(index).unwrap_or(u32::MAX) };
        match verify_one(mount) {
            // Nothing was there, and nothing can be made there.
            Err(Errno::NOENT) if matches!(mount, Mount::Cover(cover) if cover.missing) => {}
            Err(Errno::NOENT | Errno::NOTDIR) if matches!(mount, Mount::Regrant(_)) => {}
            verified => verified.map_err(|errno| step.failed(errno))?,
        }
    }
    Ok(())
}

fn verify_one(mount: &Mount) -> Result<(), Errno> {
    let place = open_place(mount.path())?;
    let status = statx(&place, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
    let is_mount = status.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
    let flags = fstatvfs(&place)?.f_flag;
    let no_devices = StatVfsMountFlags::RDONLY | StatVfsMountFlags::NODEV;
    let is_as_planned = match mount {
        Mount::Cover(Cover { kind: CoverKind::NoDevices, .. }) => {
            is_mount && flags.contains(no_devices)
        }
        Mount::Cover(_) => is_mount && flags.contains(StatVfsMountFlags::RDONLY),
        Mount::Regrant(_) => is_mount,
        Mount::Fresh(_) => is_mount && flags.contains(StatVfsMountFlags::NODEV),
    };
    if is_as_planned { Ok(()) } else { Err(Errno::STALE) }
}
