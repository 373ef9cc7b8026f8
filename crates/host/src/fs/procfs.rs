//! What procfs shows of this very process. Its environment has the secrets that no client is to see, its memory has the rest,
//! and its threads have the same under their own numbers; so no content below them is handed out or written.
//!
//! Of other processes procfs shows what the kernel allows. Links of the kernel (`/proc/PID/fd/N`, `/proc/PID/root`) are the
//! business of `resolve`, which follows none.

use std::ffi::OsStr;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, PROC_SUPER_MAGIC};
use rustix::io::Errno;

/// These say nothing but what every process of this machine sees: `/proc/net` and `/proc/mounts` lead to them.
const PUBLIC: [&str; 6] = ["cgroup", "limits", "mountinfo", "mounts", "net", "status"];

/// Whether the content of the regular file `node` is this process's own business. `size` is what the file says of itself: every
/// file that procfs has of a process says 0, so that a look at it is all that other files cost.
pub(super) fn is_private(node: BorrowedFd<'_>, size: u64) -> Result<bool, Errno> {
    if size > 0 || rustix::fs::fstatfs(node)?.f_type != PROC_SUPER_MAGIC {
        return Ok(false);
    }
    let link = format!("/proc/self/fd/{}", node.as_raw_fd());
    let name = rustix::fs::readlink(link, Vec::new())?;
    Ok(is_private_name(Path::new(OsStr::from_bytes(name.as_bytes()))))
}

/// The real name of a file on procfs, wherever that is mounted: `PROCFS/NUMBER/...`.
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

/// What this process is called there: another procfs may count from elsewhere.
fn own_number(procfs: &Path) -> Option<PathBuf> {
    let own = rustix::fs::readlink(procfs.join("self"), Vec::new()).ok()?;
    let own = OsStr::from_bytes(own.as_bytes());
    is_number(own).then(|| own.into())
}

/// Every thread has a directory beside the process's own, though no listing shows it.
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
    fn only_what_is_this_process_is_private() {
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
