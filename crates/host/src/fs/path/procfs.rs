//! The procfs files of this process. Its environment and memory hold secrets that no client may
//! see, and its threads have the same files under their own numbers. So the content of these files
//! is never read or written for a client, except for the [`PUBLIC`] ones.
//!
//! The kernel checks access to the files of other processes. `resolve` refuses magic links
//! (`/proc/PID/fd/N`, `/proc/PID/root`) if the kernel has `openat2`.

use std::ffi::OsStr;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, PROC_SUPER_MAGIC};
use rustix::io::Errno;
use rustix::path::DecInt;
use rustix::process::{Pid, getpid};

/// Files that reveal only facts that every process of this machine can see. `/proc/net` and
/// `/proc/mounts` are symlinks to two of these files.
const PUBLIC: [&str; 6] = ["cgroup", "limits", "mountinfo", "mounts", "net", "status"];

/// Whether the regular file `node` shows private state of this process. `size` is the size that the
/// file reports: every procfs file about a process reports 0, so a file with a size costs only this
/// comparison.
pub(in crate::fs) fn is_private(node: BorrowedFd<'_>, size: u64) -> Result<bool, Errno> {
    if size > 0 || rustix::fs::fstatfs(node)?.f_type != PROC_SUPER_MAGIC {
        return Ok(false);
    }
    let name = rustix::fs::readlink(own_link(node), Vec::new())?;
    Ok(is_private_name(Path::new(OsStr::from_bytes(name.as_bytes()))))
}

/// Opens the file behind a descriptor again.
pub(in crate::fs) fn open_own(node: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
    match OwnDescriptors::held() {
        Some(directory) => {
            rustix::fs::openat(directory, DecInt::from_fd(node), flags, Mode::empty())
        }
        None => rustix::fs::open(own_link(node), flags, Mode::empty()),
    }
}

/// Returns the kernel's link to the file behind a descriptor. Many system calls take no `O_PATH`
/// descriptor, and the file's name may lead to another file by now.
pub(in crate::fs) fn own_link(node: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", node.as_raw_fd())
}

/// `/proc/self/fd`, held open: resolving that path takes longer than opening a file.
struct OwnDescriptors {
    directory: OwnedFd,
    /// The process whose descriptors `directory` shows. A child inherits `directory` in a fork, but
    /// its own descriptors may differ.
    process: Pid,
}

impl OwnDescriptors {
    /// `None` if procfs is not available, or the descriptors belong to another process.
    fn held() -> Option<BorrowedFd<'static>> {
        static HELD: OnceLock<Option<OwnDescriptors>> = OnceLock::new();
        HELD.get_or_init(|| Self::open().ok()).as_ref()?.of_this_process()
    }

    fn of_this_process(&self) -> Option<BorrowedFd<'_>> {
        (self.process == getpid()).then(|| self.directory.as_fd())
    }

    fn open() -> Result<Self, Errno> {
        let process = getpid();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open("/proc/self/fd", flags, Mode::empty())?;
        Ok(Self { directory, process })
    }
}

/// Whether a real name `PROCFS/NUMBER/...` is that of a private file. `PROCFS` may be any mount of
/// procfs.
fn is_private_name(name: &Path) -> bool {
    let mut procfs = PathBuf::new();
    let mut components = name.iter();
    while let Some(component) = components.next() {
        if is_number(component)
            && let Some(own) = own_number(&procfs)
        {
            return is_of(&procfs, &own, component) && !is_public(components.as_path());
        }
        procfs.push(component);
    }
    false
}

/// Returns the number of this process in the procfs mounted at `procfs`, which may belong to
/// another PID namespace. `None` if that is not a procfs, or this process has no number in it.
fn own_number(procfs: &Path) -> Option<PathBuf> {
    let own = rustix::fs::readlink(procfs.join("self"), Vec::new()).ok()?;
    let own = OsStr::from_bytes(own.as_bytes());
    is_number(own).then(|| own.into())
}

/// Whether `number` is this process or one of its threads. Every thread has an unlisted directory
/// beside that of its process.
fn is_of(procfs: &Path, own: &Path, number: &OsStr) -> bool {
    let thread = procfs.join(own).join("task").join(number);
    let found = rustix::fs::statat(CWD, thread, AtFlags::SYMLINK_NOFOLLOW);
    own == number || !matches!(found, Err(Errno::NOENT))
}

fn is_public(rest: &Path) -> bool {
    let mut rest = rest.iter();
    let first = match rest.next() {
        Some(task) if task == "task" => rest.nth(1),
        first => first,
    };
    first.is_some_and(|first| PUBLIC.iter().any(|public| first == *public))
}

fn is_number(component: &OsStr) -> bool {
    !component.is_empty() && component.as_bytes().iter().all(u8::is_ascii_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_is_reopened_after_its_name_was_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let name = directory.path().join("file");
        std::fs::write(&name, "old").unwrap();
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let node = rustix::fs::open(&name, flags, Mode::empty()).unwrap();
        std::fs::remove_file(&name).unwrap();
        std::fs::write(&name, "new").unwrap();
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let again = std::fs::File::from(open_own(node.as_fd(), flags).unwrap());
        assert_eq!(std::io::read_to_string(again).unwrap(), "old");
    }

    #[test]
    fn descriptors_of_another_process_are_not_used() {
        let own = OwnDescriptors::open().unwrap();
        assert!(own.of_this_process().is_some());
        let parent = rustix::process::getppid().unwrap();
        assert!(OwnDescriptors { process: parent, ..own }.of_this_process().is_none());
    }

    #[test]
    fn only_files_of_this_process_are_private() {
        let own = std::process::id();
        let other = rustix::process::getppid().unwrap().as_raw_nonzero();
        for private in ["environ", "mem", "maps", "cmdline", "task/TASK/environ", "task/TASK/mem"] {
            let name = private.replace("TASK", &own.to_string());
            assert!(is_private_name(Path::new(&format!("/proc/{own}/{name}"))), "{private}");
            assert!(!is_private_name(Path::new(&format!("/proc/{other}/{name}"))), "{private}");
        }
        for public in ["status", "net/dev", "mounts", "task/1/net/tcp"] {
            assert!(!is_private_name(Path::new(&format!("/proc/{own}/{public}"))), "{public}");
        }
        for public in ["/proc/meminfo", "/proc/sys/kernel/hostname", "/proc/irq/0/node", "/1/2/3"] {
            assert!(!is_private_name(Path::new(public)), "{public}");
        }
    }
}
