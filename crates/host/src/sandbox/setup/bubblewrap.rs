//! Sets up the mounts and namespaces of a plan through bubblewrap, where this process may not
//! create them itself.
//!
//! Bubblewrap works with names, and another process might rename files at the same time. So
//! [`verify`] checks the result from inside before a program is started there.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, StatVfsMountFlags, StatxAttributes, StatxFlags, fstatvfs, statx};
use rustix::io::Errno;

use super::mounts::{check_kind, open_place};
use super::placeholder::Placeholders;
use crate::sandbox::plan::{Cover, CoverKind, Mount, NetworkNamespace, Plan, PlanError};
use crate::sandbox::policy::Access;
use crate::sandbox::report::step::{SandboxStep, StepFailure};

/// Bubblewrap's limit on the number of its arguments.
const MAX_WORDS: usize = 9_000;
/// Enough for all arguments except those of the mounts.
const OTHER_WORDS: usize = 32;

/// Checks that bubblewrap can set up these mounts and start a program there.
pub(in crate::sandbox) fn check(mounts: &[Mount]) -> Result<(), PlanError> {
    let mut options = Options::default();
    for (index, mount) in mounts.iter().enumerate() {
        if hides_proc(mount) {
            return Err(PlanError::HiddenProc);
        }
        options.mount(mounts, index);
        if options.len() + OTHER_WORDS > MAX_WORDS {
            return Err(PlanError::TooManyMounts { limit: index });
        }
    }
    Ok(())
}

/// Whether the mount hides `/proc`. Bubblewrap starts the inner process through the path of a
/// descriptor in `/proc`.
fn hides_proc(mount: &Mount) -> bool {
    let is_hidden = matches!(mount, Mount::Cover(cover) if cover.kind == CoverKind::Hidden);
    is_hidden && mount.path() == Path::new("/proc")
}

/// Returns bubblewrap's options, without the command to run.
///
/// Bubblewrap would create missing paths and leave them behind, so each path is checked first.
pub(crate) fn options(
    plan: &Plan,
    placeholders: &Placeholders,
) -> Result<Vec<OsString>, StepFailure> {
    let mut options = Options::default();
    options.namespaces(plan);
    for (index, mount) in plan.mounts.iter().enumerate() {
        if mount.path() == Path::new("/") || placeholders.is_impossible(index) {
            continue;
        }
        let step = SandboxStep::Mount { mount: u32::try_from(index).unwrap_or(u32::MAX) };
        if is_there(mount).map_err(|errno| step.failed(errno))? {
            options.mount(&plan.mounts, index);
        }
    }
    Ok(options.into_words())
}

/// Checks the place of a mount, and returns whether it exists. A path to regrant may have been
/// removed after the plan was made; a path to cover must still exist.
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

#[derive(Default)]
struct Options {
    words: Vec<OsString>,
    /// Directories to remount read-only once all mounts in them are done.
    hidden: Vec<PathBuf>,
}

impl Options {
    fn namespaces(&mut self, plan: &Plan) {
        self.add(&["--unshare-pid", "--unshare-ipc"]);
        if !rustix::process::geteuid().is_root() {
            self.add(&["--unshare-user"]);
        }
        if plan.network_namespace != NetworkNamespace::Inherited {
            self.add(&["--unshare-net"]);
        }
        if let NetworkNamespace::Gated(_) = plan.network_namespace {
            // For the inner process, which drops them before it executes the program.
            self.add(&["--cap-add", "CAP_NET_ADMIN", "--cap-add", "CAP_NET_BIND_SERVICE"]);
        }
        let (root, devices) = (Path::new("/"), Path::new("/dev"));
        if plan.mounts.first().is_some_and(|mount| mount.path() == root) {
            self.bind("--ro-bind", root, root);
            // Bubblewrap's other mounts exclude devices.
            self.bind("--dev-bind", devices, devices);
        } else {
            self.bind("--dev-bind", root, root);
        }
        if plan.fresh_proc {
            self.add(&["--proc", "/proc"]);
        }
    }

    fn mount(&mut self, mounts: &[Mount], index: usize) {
        let mount = &mounts[index];
        let path = mount.path();
        match mount {
            // Excludes devices, like every bind except `--dev-bind`.
            Mount::Cover(Cover { kind: CoverKind::ReadOnly | CoverKind::NoDevices, .. }) => {
                self.bind("--ro-bind", path, path);
            }
            Mount::Cover(Cover { is_directory: true, .. }) => {
                // Sorted by path, so mounts below come next.
                let leads_on =
                    mounts.get(index + 1).is_some_and(|next| next.path().starts_with(path));
                self.add(&["--perms", if leads_on { "0111" } else { "0000" }, "--tmpfs"]);
                self.words.push(path.into());
                self.hidden.push(path.into());
            }
            Mount::Cover(_) => self.bind("--ro-bind", Path::new("/dev/null"), path),
            // Landlock decides which devices are writable.
            Mount::Regrant(_) if path.starts_with("/dev") => self.bind("--dev-bind", path, path),
            Mount::Regrant(regrant) if regrant.access == Access::Write => {
                self.bind("--bind", path, path);
            }
            Mount::Regrant(_) => self.bind("--ro-bind", path, path),
            Mount::Fresh(_) => {
                self.add(&["--perms", "1777", "--tmpfs"]);
                self.words.push(path.into());
            }
        }
    }

    fn len(&self) -> usize {
        self.words.len() + 2 * self.hidden.len()
    }

    fn into_words(mut self) -> Vec<OsString> {
        for path in self.hidden {
            self.words.extend(["--remount-ro".into(), path.into()]);
        }
        self.words
    }

    fn add(&mut self, words: &[&str]) {
        self.words.extend(words.iter().map(OsString::from));
    }

    fn bind(&mut self, how: &str, from: &Path, to: &Path) {
        self.words.extend([how.into(), from.into(), to.into()]);
    }
}

/// Checks from inside that every mount of the plan is in place.
pub(crate) fn verify(mounts: &[Mount]) -> Result<(), StepFailure> {
    for (index, mount) in mounts.iter().enumerate() {
        let step = SandboxStep::Mount { mount: u32::try_from(index).unwrap_or(u32::MAX) };
        match verify_one(mount) {
            // The path did not exist and cannot be created.
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
