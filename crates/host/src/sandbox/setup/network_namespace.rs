//! Network namespaces of sandboxes, created by the spawner and kept alive by descriptors.
//!
//! Creating a network namespace takes as long as the rest of the setup of a sandbox. So processes
//! without a network share an empty namespace, and each managed process gets its own from a small
//! pool. There every address leads to the sockets of its gate. All these namespaces belong to one
//! user namespace, unless the server may administer mounts and needs none. This gives sandboxes no
//! power over each other: none of their programs has a capability there or may enter a namespace.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use rustix::process::{DumpableBehavior, Pid, WaitOptions, set_dumpable_behavior, waitpid};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::{local_routes, namespaces};
use crate::sandbox::report::step::{SandboxStep, StepFailure};

/// The number of namespaces prepared for managed processes, several of which may start at once.
const PREPARED: usize = 4;

#[derive(Debug, Default)]
pub(crate) struct NetworkNamespaces {
    /// The user namespace that owns all network namespaces. `None` before the first is created, and
    /// always if this process may administer mounts.
    user: Option<Rc<OwnedFd>>,
    empty: Option<NetworkNamespaceFds>,
    prepared: Vec<NetworkNamespaceFds>,
}

#[derive(Debug, Clone)]
pub(crate) struct NetworkNamespaceFds {
    user: Option<Rc<OwnedFd>>,
    network: Rc<OwnedFd>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// No network at all; not even loopback is up.
    Empty,
    /// Every address is local.
    Managed,
}

impl NetworkNamespaces {
    /// Returns the namespace that all processes without a network share. `None` if it cannot be
    /// created.
    ///
    /// # Safety
    /// Only for a process with one thread.
    pub(crate) unsafe fn empty(&mut self) -> Option<NetworkNamespaceFds> {
        if self.empty.is_none() {
            // SAFETY: the caller guarantees a single thread.
            self.empty = unsafe { self.make(Purpose::Empty) }.ok();
        }
        self.empty.clone()
    }

    /// Returns a namespace for one managed process. `None` if none is prepared: the process then
    /// creates its own, without delaying the next starts.
    pub(crate) fn take_managed(&mut self) -> Option<NetworkNamespaceFds> {
        self.prepared.pop()
    }

    /// Prepares one namespace for a managed process. Returns whether to prepare more: `false` once
    /// there are enough, and after a failure.
    ///
    /// # Safety
    /// Only for a process with one thread.
    pub(crate) unsafe fn prepare(&mut self) -> bool {
        // SAFETY: the caller guarantees a single thread.
        match unsafe { self.make(Purpose::Managed) } {
            Ok(namespace) => self.prepared.push(namespace),
            Err(_) => return false,
        }
        self.prepared.len() < PREPARED
    }

    /// Makes a child enter a new namespace, and keeps the namespace alive with a descriptor after
    /// the child has exited.
    ///
    /// # Safety
    /// Only for a process with one thread.
    unsafe fn make(&mut self, purpose: Purpose) -> io::Result<NetworkNamespaceFds> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        // SAFETY: this process has one thread, so the child may run ordinary code.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                drop(ours);
                let _ = stay_inside(&theirs, self.user.as_deref(), purpose);
                // SAFETY: ends the process, which needs no cleanup.
                unsafe { libc::_exit(0) }
            }
            pid => {
                drop(theirs);
                let namespace = self.open_of_child(pid, &ours);
                drop(ours);
                let _ = waitpid(Pid::from_raw(pid), WaitOptions::empty());
                Ok(namespace?)
            }
        }
    }

    fn open_of_child(
        &mut self,
        pid: libc::pid_t,
        line: &OwnedFd,
    ) -> Result<NetworkNamespaceFds, Errno> {
        let mut message = [0];
        if recv(line, &mut message, RecvFlags::empty())?.1 != message.len() {
            return Err(Errno::PERM);
        }
        let open = |kind: &str| {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            rustix::fs::openat(CWD, format!("/proc/{pid}/ns/{kind}"), flags, Mode::empty())
        };
        if self.user.is_none() && !namespaces::administers_mounts()? {
            self.user = Some(Rc::new(open("user")?));
        }
        Ok(NetworkNamespaceFds { user: self.user.clone(), network: Rc::new(open("net")?) })
    }
}

impl NetworkNamespaceFds {
    pub(crate) fn join(&self) -> Result<(), Errno> {
        if let Some(user) = &self.user {
            move_into_link_name_space(user.as_fd(), Some(LinkNameSpaceType::User))?;
        }
        move_into_link_name_space(self.network.as_fd(), Some(LinkNameSpaceType::Network))
    }
}

/// Enters a new namespace and stays there until the parent has opened it.
fn stay_inside(
    line: &OwnedFd,
    user: Option<&OwnedFd>,
    purpose: Purpose,
) -> Result<(), StepFailure> {
    let failed = |errno| SandboxStep::Namespaces.failed(errno);
    if let Some(user) = user {
        move_into_link_name_space(user.as_fd(), Some(LinkNameSpaceType::User)).map_err(failed)?;
    }
    namespaces::enter_new_network()?;
    if purpose == Purpose::Managed {
        local_routes::route_everything_to_loopback()?;
    }
    // Otherwise the parent could not open the namespaces in /proc.
    set_dumpable_behavior(DumpableBehavior::Dumpable).map_err(failed)?;
    send(line, b"i", SendFlags::NOSIGNAL).map_err(failed)?;
    recv(line, &mut [0], RecvFlags::empty()).map(drop).map_err(failed)
}
