//! Who connected to a Unix socket, which the kernel remembers whoever holds the socket since.

use std::fs;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use super::{Lineage, Origin};

pub(super) fn trace(socket: BorrowedFd<'_>) -> Origin {
    let lineage = match pidfd_of_peer(socket) {
        Ok(process) => lineage_of(process.as_fd()),
        // Linux before 6.5 knows only a number, which may be another process's by now.
        Err(Errno::NOPROTOOPT) => pid_of_peer(socket).and_then(|pid| Lineage::of(pid, || true)),
        Err(_) => None,
    };
    lineage.map_or(Origin::Unknown, |lineage| Origin::Here(vec![lineage]))
}

fn lineage_of(process: BorrowedFd<'_>) -> Option<Lineage> {
    let pid = pid_of(process)?;
    Lineage::of(pid, || pid_of(process) == Some(pid))
}

/// `None` once the process is gone, and its pid free for another.
fn pid_of(process: BorrowedFd<'_>) -> Option<u32> {
    let facts = fs::read_to_string(format!("/proc/self/fdinfo/{}", process.as_raw_fd())).ok()?;
    let pid = facts.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    // -1 of one that is gone, 0 of one in a namespace that we do not see into.
    pid.trim().parse().ok().filter(|pid| *pid > 0)
}

#[cfg(target_os = "linux")]
fn pidfd_of_peer(socket: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    use std::os::fd::FromRawFd as _;

    let mut pidfd: libc::c_int = -1;
    let mut len = libc::socklen_t::try_from(size_of_val(&pidfd)).map_err(|_| Errno::INVAL)?;
    // SAFETY: the option is an integer, `pidfd` has room for it, and `len` says how much.
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
    // SAFETY: the kernel has just made the descriptor for us, and nobody else knows it. It is closed on exec.
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

    /// A connection, and the child that has made it. Our end stays open when the child ends, and so does the other.
    struct Connected {
        child: Pid,
        server: OwnedFd,
        _client: OwnedFd,
    }

    /// `None` where a container forbids the system call that makes such a child.
    fn connected() -> Option<Connected> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let client = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        let address = SocketAddrUnix::new(&path).unwrap();
        let child = match child(None, || connect(&client, &address)) {
            Err(Errno::NOSYS | Errno::PERM) => {
                skipped("clone3 is forbidden here");
                return None;
            }
            child => child.unwrap(),
        };
        let (server, _) = listener.accept().unwrap();
        Some(Connected { child, server: server.into(), _client: client })
    }

    /// Does the work, which is nothing but system calls, and waits to be killed. Only privileged processes can choose its pid, and
    /// only if nobody has it.
    fn child<T>(pid: Option<Pid>, work: impl FnOnce() -> T) -> Result<Pid, Errno> {
        let wanted = pid.map(|pid| pid.as_raw_nonzero().get());
        // SAFETY: all of it may be 0.
        let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
        // With descriptors of its own it would hold those of other tests, too.
        arguments.flags = u64::try_from(libc::CLONE_FILES).unwrap();
        arguments.exit_signal = u64::try_from(libc::SIGCHLD).unwrap();
        if let Some(wanted) = &wanted {
            arguments.set_tid = std::ptr::from_ref(wanted).expose_provenance() as u64;
            arguments.set_tid_size = 1;
        }
        let size = size_of_val(&arguments);
        // SAFETY: the structure is whole and what it points to outlives the call. The child has a copy of this thread's stack, and
        // never returns from here.
        match unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size) } {
            -1 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap()),
            0 => wait_after(work),
            child => Ok(Pid::from_raw(i32::try_from(child).unwrap()).unwrap()),
        }
    }

    /// Until it is killed, at the latest by the end of the thread that made it.
    fn wait_after<T>(work: impl FnOnce() -> T) -> ! {
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        let _ = work();
        loop {
            // SAFETY: takes nothing, and returns only if a signal has been handled.
            unsafe { libc::pause() };
        }
    }

    fn end(child: Pid) {
        kill_process(child, Signal::KILL).unwrap();
        waitpid(Some(child), WaitOptions::empty()).unwrap();
    }

    #[test]
    fn who_connected_is_known_whoever_holds_the_socket() {
        let Some(connected) = connected() else { return };
        let Origin::Here(lineages) = trace(connected.server.as_fd()) else { panic!() };
        let child = connected.child.as_raw_nonzero().get().cast_unsigned();
        assert!(lineages[0].includes(child) && lineages[0].includes(std::process::id()));
        end(connected.child);
        assert_eq!(trace(connected.server.as_fd()), Origin::Unknown);
    }

    #[test]
    fn whoever_gets_the_pid_of_who_connected_is_not_taken_for_him() {
        if let Err(Errno::NOPROTOOPT) = pidfd_of_peer(connected_to_nobody().as_fd()) {
            return skipped("this kernel does not tell who connected but by a number");
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
                Err(errno) => panic!("{errno}"),
            }
        }
        panic!("somebody else takes every pid");
    }

    fn connected_to_nobody() -> OwnedFd {
        socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap()
    }
}
