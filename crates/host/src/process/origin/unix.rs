//! Finds the process that connected a Unix socket. The kernel remembers it, whichever process holds
//! the socket now.

use std::fs;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use super::{Lineage, Origin};

pub(super) fn trace(socket: BorrowedFd<'_>) -> Origin {
    let lineage = match pidfd_of_peer(socket) {
        Ok(process) => lineage_of(process.as_fd()),
        // Linux before 6.5 reports only a pid, which may belong to another process by now.
        Err(Errno::NOPROTOOPT) => pid_of_peer(socket).and_then(|pid| Lineage::of(pid, || true)),
        Err(_) => None,
    };
    lineage.map_or(Origin::Unknown, |lineage| Origin::Here(vec![lineage]))
}

fn lineage_of(process: BorrowedFd<'_>) -> Option<Lineage> {
    let pid = pid_of(process)?;
    Lineage::of(pid, || pid_of(process) == Some(pid))
}

fn pid_of(process: BorrowedFd<'_>) -> Option<u32> {
    let facts = fs::read_to_string(format!("/proc/self/fdinfo/{}", process.as_raw_fd())).ok()?;
    let pid = facts.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    // -1 if the process is gone, 0 if it is in a namespace invisible to this process.
    pid.trim().parse().ok().filter(|pid| *pid > 0)
}

#[cfg(target_os = "linux")]
fn pidfd_of_peer(socket: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    use std::os::fd::FromRawFd as _;

    let mut pidfd: libc::c_int = -1;
    let mut len = libc::socklen_t::try_from(size_of_val(&pidfd)).map_err(|_| Errno::INVAL)?;
    // SAFETY: the option is an integer, `pidfd` has room for it, and `len` is its size.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERPIDFD,
            (&raw mut pidfd).cast(),
            &raw mut len,
        )
    };
    if outcome == -1 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::INVAL));
    }
    // SAFETY: the kernel has just created the descriptor for this call, with close-on-exec set;
    // nothing else refers to it.
    Ok(unsafe { OwnedFd::from_raw_fd(pidfd) })
}

#[cfg(not(target_os = "linux"))]
fn pidfd_of_peer(_socket: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    Err(Errno::NOPROTOOPT)
}

#[cfg(target_os = "linux")]
fn pid_of_peer(socket: BorrowedFd<'_>) -> Option<u32> {
    let credentials = rustix::net::sockopt::socket_peercred(socket).ok()?;
    u32::try_from(credentials.pid.as_raw_nonzero().get()).ok()
}

#[cfg(not(target_os = "linux"))]
fn pid_of_peer(_socket: BorrowedFd<'_>) -> Option<u32> {
    None
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use exec_server_test_support::skipped;
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket};
    use rustix::process::{
        Pid, Signal, WaitOptions, kill_process, set_parent_process_death_signal, waitpid,
    };

    use super::*;

    /// A connection and the child that made it. Both ends stay open when the child ends.
    struct Connected {
        child: Pid,
        server: OwnedFd,
        _client: OwnedFd,
    }

    /// Returns `None` where a container forbids the system call that creates the child.
    fn connected() -> Option<Connected> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let client = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        let address = SocketAddrUnix::new(&path).unwrap();
        let child = match child(None, || connect(&client, &address)) {
            Err(Errno::NOSYS | Errno::PERM) => {
                skipped("clone3 is not permitted");
                return None;
            }
            child => child.unwrap(),
        };
        let (server, _) = listener.accept().unwrap();
        Some(Connected { child, server: server.into(), _client: client })
    }

    /// Creates a child that does `work`, which must consist of system calls only, and then waits to
    /// be killed. Choosing its pid requires privileges and a free pid.
    fn child<T>(pid: Option<Pid>, work: impl FnOnce() -> T) -> Result<Pid, Errno> {
        let wanted = pid.map(|pid| pid.as_raw_nonzero().get());
        // SAFETY: every field may be 0.
        let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
        // A descriptor table of its own would also hold the descriptors of other tests.
        arguments.flags = u64::try_from(libc::CLONE_FILES).unwrap();
        arguments.exit_signal = u64::try_from(libc::SIGCHLD).unwrap();
        if let Some(wanted) = &wanted {
            arguments.set_tid = std::ptr::from_ref(wanted).expose_provenance() as u64;
            arguments.set_tid_size = 1;
        }
        let size = size_of_val(&arguments);
        // SAFETY: the structure is initialized, and everything it points to outlives the call. The
        // child has a copy of this thread's stack and never returns from this match.
        match unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size) } {
            -1 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap()),
            0 => wait_after(work),
            child => Ok(Pid::from_raw(i32::try_from(child).unwrap()).unwrap()),
        }
    }

    /// Does `work`, then waits to be killed. The kernel kills the process at the latest when the
    /// thread that created it ends.
    fn wait_after<T>(work: impl FnOnce() -> T) -> ! {
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        let _ = work();
        loop {
            // SAFETY: takes no arguments, and returns only after a signal handler has run.
            unsafe { libc::pause() };
        }
    }

    fn end(child: Pid) {
        kill_process(child, Signal::KILL).unwrap();
        waitpid(Some(child), WaitOptions::empty()).unwrap();
    }

    #[test]
    fn the_connecting_process_is_found_whichever_process_holds_the_socket() {
        let Some(connected) = connected() else { return };
        let Origin::Here(lineages) = trace(connected.server.as_fd()) else { panic!() };
        let child = connected.child.as_raw_nonzero().get().cast_unsigned();
        assert!(lineages[0].includes(child) && lineages[0].includes(std::process::id()));
        end(connected.child);
        assert_eq!(trace(connected.server.as_fd()), Origin::Unknown);
    }

    #[test]
    fn a_process_that_reuses_the_pid_is_not_mistaken_for_the_peer() {
        if let Err(Errno::NOPROTOOPT) = pidfd_of_peer(unconnected().as_fd()) {
            return skipped("this kernel identifies a peer only by its pid");
        }
        for _ in 0..100 {
            let Some(connected) = connected() else { return };
            end(connected.child);
            match child(Some(connected.child), || ()) {
                Ok(impostor) => {
                    let by_number = pid_of_peer(connected.server.as_fd()).unwrap();
                    let deceived = Lineage::of(by_number, || true);
                    let traced = trace(connected.server.as_fd());
                    end(impostor);
                    assert!(deceived.is_some());
                    return assert_eq!(traced, Origin::Unknown);
                }
                Err(Errno::EXIST) => {}
                Err(Errno::PERM) => {
                    return skipped("only root can choose a pid");
                }
                Err(errno) => panic!("cannot create a child with a chosen pid: {errno}"),
            }
        }
        panic!("another process took the pid every time");
    }

    fn unconnected() -> OwnedFd {
        socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap()
    }
}
