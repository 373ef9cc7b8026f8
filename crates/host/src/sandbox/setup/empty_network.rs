//! A network with nothing in it, not even loopback that is up, shared by all sandboxes of one spawner that may not use any.
//!
//! A network namespace takes as long to make as all else about a sandbox, and they would all be alike. It belongs to a user namespace,
//! so whoever is not root shares that as well. Sandboxes gain nothing by that over each other: none of their programs has a
//! capability there, may enter a namespace, or may make a socket.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use rustix::process::{DumpableBehavior, Pid, WaitOptions, set_dumpable_behavior, waitpid};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::namespaces;

#[derive(Debug)]
pub(crate) struct EmptyNetwork {
    /// `None` for root, who needs no other.
    user: Option<OwnedFd>,
    network: OwnedFd,
}

impl EmptyNetwork {
    /// Has a child enter new namespaces, and keeps them by descriptors when it is gone.
    ///
    /// # Safety
    /// Only for a process with one thread.
    pub(crate) unsafe fn make() -> io::Result<Self> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        // SAFETY: this process has one thread, so the child may go on as ordinary code.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                drop(ours);
                let _ = stay_inside(&theirs);
                // SAFETY: ends the process; nothing of it needs to be tidied up.
                unsafe { libc::_exit(0) }
            }
            pid => {
                drop(theirs);
                let network = Self::of(pid, &ours);
                drop(ours);
                let _ = waitpid(Pid::from_raw(pid), WaitOptions::empty());
                Ok(network?)
            }
        }
    }

    fn of(pid: libc::pid_t, line: &OwnedFd) -> Result<Self, Errno> {
        let mut message = [0];
        if recv(line, &mut message, RecvFlags::empty())?.1 != message.len() {
            return Err(Errno::PERM);
        }
        let open = |kind: &str| {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            rustix::fs::openat(CWD, format!("/proc/{pid}/ns/{kind}"), flags, Mode::empty())
        };
        let user = if namespaces::administers_mounts()? { None } else { Some(open("user")?) };
        Ok(Self { user, network: open("net")? })
    }

    /// Moves the calling process there.
    pub(crate) fn join(&self) -> Result<(), Errno> {
        if let Some(user) = &self.user {
            move_into_link_name_space(user.as_fd(), Some(LinkNameSpaceType::User))?;
        }
        move_into_link_name_space(self.network.as_fd(), Some(LinkNameSpaceType::Network))
    }
}

/// Until the parent has what it needs.
fn stay_inside(line: &OwnedFd) -> Result<(), Errno> {
    namespaces::enter_new_network().map_err(|failure| Errno::from_raw_os_error(failure.errno))?;
    // Or else the parent could not look into /proc for us.
    set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    send(line, b"i", SendFlags::NOSIGNAL)?;
    recv(line, &mut [0], RecvFlags::empty()).map(drop)
}
