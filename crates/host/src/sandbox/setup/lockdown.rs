//! The last restrictions that a process applies to itself, between fork and exec: it drops
//! capabilities and the ways to regain them, and access to most files and most of the kernel.
//!
//! [`Lockdown::prepare`] is ordinary code. The other methods may run in a child that shares its
//! parent's memory, so they only make system calls on prepared data.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs,
};

use crate::sandbox::kernel::landlock::{LandlockError, Ruleset, restrict_self};
use crate::sandbox::plan::Plan;
use crate::sandbox::report::step::{SandboxStep, StepFailure};

/// The capabilities that root keeps: those for files, users, signals and low ports. All others are
/// dropped, such as those for creating devices, mounting and tracing.
const KEPT_BY_ROOT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::NET_BIND_SERVICE);

#[derive(Debug)]
pub(crate) struct Lockdown {
    landlock: Option<OwnedFd>,
    filter: Vec<libc::sock_filter>,
    is_root: bool,
}

impl Lockdown {
    /// Resolves granted paths now, so all mounts must exist. The program may also open `terminals`,
    /// or terminals inside them, whose names no plan can know.
    pub(crate) fn prepare(plan: &Plan, terminals: &[BorrowedFd<'_>]) -> Result<Self, StepFailure> {
        let landlock = match &plan.landlock {
            Some(rules) => Some(
                Ruleset::of_plan(rules, terminals)
                    .and_then(Ruleset::into_fd)
                    .map_err(|error| SandboxStep::Landlock.failed(errno_of(&error)))?,
            ),
            None => None,
        };
        let filter =
            parse_filter(&plan.seccomp).ok_or(SandboxStep::Seccomp.failed(Errno::INVAL))?;
        Ok(Self { landlock, filter, is_root: rustix::process::geteuid().is_root() })
    }

    /// Applies everything except seccomp. The descriptor of the ruleset stays open.
    pub(crate) fn give_up_rights(&self) -> Result<(), StepFailure> {
        set_no_new_privs(true).map_err(|errno| SandboxStep::NoNewPrivileges.failed(errno))?;
        self.drop_capabilities().map_err(|errno| SandboxStep::Capabilities.failed(errno))?;
        let Some(ruleset) = &self.landlock else {
            return Ok(());
        };
        restrict_self(ruleset.as_fd()).map_err(|errno| SandboxStep::Landlock.failed(errno))
    }

    /// Installs the seccomp filter. Must be the last step before exec.
    pub(crate) fn filter_calls(&self) -> Result<(), StepFailure> {
        let program = libc::sock_fprog {
            len: u16::try_from(self.filter.len()).unwrap_or(0),
            filter: self.filter.as_ptr().cast_mut(),
        };
        // SAFETY: the program has the given length, and the kernel only reads it. The kernel
        // refuses a program of length 0.
        let result = unsafe {
            libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program)
        };
        if result == -1 { Err(SandboxStep::Seccomp.failed(last_errno())) } else { Ok(()) }
    }

    /// Drops capabilities, including those from owning a user namespace.
    fn drop_capabilities(&self) -> Result<(), Errno> {
        let kept = if self.is_root { KEPT_BY_ROOT } else { CapabilitySet::empty() };
        let current = capabilities(None)?;
        // With `no_new_privs` an exec does not restore dropped capabilities, so clearing the
        // bounding set is a second line of defence. Root in a container may be unable to do it.
        if self.is_root && current.effective.contains(CapabilitySet::SETPCAP) {
            for number in 0..u64::BITS {
                let capability = CapabilitySet::from_bits_retain(1 << number);
                if kept.contains(capability) {
                    continue;
                }
                match remove_capability_from_bounding_set(capability) {
                    // Past the last capability of this kernel.
                    Err(Errno::INVAL) => break,
                    dropped => dropped?,
                }
            }
        }
        set_capabilities(
            None,
            CapabilitySets {
                effective: current.effective & kept,
                permitted: current.permitted & kept,
                inheritable: CapabilitySet::empty(),
            },
        )
    }
}

fn parse_filter(bytes: &[u8]) -> Option<Vec<libc::sock_filter>> {
    let (instructions, rest) = bytes.as_chunks::<8>();
    if instructions.is_empty() || !rest.is_empty() || u16::try_from(instructions.len()).is_err() {
        return None;
    }
    Some(
        instructions
            .iter()
            .map(|&[code0, code1, jt, jf, k0, k1, k2, k3]| libc::sock_filter {
                code: u16::from_ne_bytes([code0, code1]),
                jt,
                jf,
                k: u32::from_ne_bytes([k0, k1, k2, k3]),
            })
            .collect(),
    )
}

fn errno_of(error: &LandlockError) -> Errno {
    match (error.raw_os_error(), error) {
        (Some(errno), _) => Errno::from_raw_os_error(errno),
        (None, LandlockError::Missing) => Errno::OPNOTSUPP,
        (None, LandlockError::Path { .. } | LandlockError::Terminal { .. }) => Errno::IO,
        (None, LandlockError::Ruleset(_)) => Errno::INVAL,
    }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use exec_server_test_support::skipped;

    use super::*;
    use crate::sandbox::kernel::landlock::{Ruleset, kernel_abi};
    use crate::sandbox::policy::{Access, Grant};

    #[test]
    fn the_kernel_error_is_kept() {
        let Ok(abi) = kernel_abi() else {
            return skipped("this kernel has no Landlock");
        };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("link");
        std::os::unix::fs::symlink("/", &path).unwrap();
        let error = Ruleset::new(&[Grant { path, access: Access::Read }], abi).unwrap_err();
        assert_eq!(errno_of(&error), Errno::LOOP);
        // Nests more Landlock domains than a thread can have.
        let confine = move |_| {
            set_no_new_privs(true).unwrap();
            restrict_self(Ruleset::new(&[], abi).unwrap().into_fd().unwrap().as_fd()).err()
        };
        let errno = std::thread::spawn(move || (0..100).find_map(confine)).join().unwrap();
        assert_eq!(errno, Some(Errno::TOOBIG));
    }

    #[test]
    fn an_incomplete_filter_is_rejected() {
        assert!(parse_filter(&[]).is_none());
        assert!(parse_filter(&[0; 7]).is_none());
        assert!(parse_filter(&[0; 9]).is_none());
        assert!(parse_filter(&vec![0; 8 << 16]).is_none());
        let one = parse_filter(&[6, 0, 1, 2, 0, 0, 255, 127]).unwrap();
        assert_eq!((one[0].code, one[0].jt, one[0].jf, one[0].k), (6, 1, 2, 0x7fff_0000));
    }
}
