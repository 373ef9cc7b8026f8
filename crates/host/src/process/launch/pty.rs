//! Opens terminals for programs and operates the master's end.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use bytes::BytesMut;
use rustix::pty::{OpenptFlags, grantpt, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::command::PtySize;
use super::signal::Signal;
use super::stdio::{nonblocking, pending, try_read, try_write};

/// The master's end of a terminal. Dropping it hangs up the terminal.
#[derive(Debug)]
pub struct PtyMaster {
    master: AsyncFd<OwnedFd>,
}

pub(super) fn open(size: PtySize) -> io::Result<(OwnedFd, PtyMaster)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = openpt(flags)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    let terminal = open_terminal(&master, flags)?;
    let interest = Interest::READABLE | Interest::WRITABLE;
    let master = PtyMaster { master: nonblocking(master, interest)? };
    master.resize(size)?;
    Ok((terminal, master))
}

impl PtyMaster {
    /// Resolves when there is output or the last process has closed the terminal.
    pub async fn readable(&self) -> io::Result<()> {
        self.master.readable().await?.retain_ready();
        Ok(())
    }

    /// Appends output to `buffer`, which must have spare capacity. Returns 0 at the end of the
    /// output, and `WouldBlock` if no output is available at the moment.
    pub fn try_read(&self, buffer: &mut BytesMut) -> io::Result<usize> {
        match try_read(&self.master, buffer) {
            // Linux: all output was read, and the terminal is no longer open in any process.
            Err(error) if error.raw_os_error() == Some(libc::EIO) => Ok(0),
            other => other,
        }
    }

    pub async fn writable(&self) -> io::Result<()> {
        self.master.writable().await?.retain_ready();
        Ok(())
    }

    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        try_write(&self.master, bytes)
    }

    /// Returns the number of bytes that wait to be read.
    pub fn pending(&self) -> usize {
        pending(&self.master)
    }

    /// Changes the size and notifies the foreground processes (SIGWINCH).
    pub fn resize(&self, size: PtySize) -> io::Result<()> {
        let size = Winsize { ws_row: size.rows, ws_col: size.cols, ws_xpixel: 0, ws_ypixel: 0 };
        Ok(tcsetwinsize(&self.master, size)?)
    }

    pub fn foreground_is(&self, leader: u32) -> bool {
        rustix::termios::tcgetpgrp(&self.master)
            .is_ok_and(|group| group.as_raw_nonzero().get().cast_unsigned() == leader)
    }

    /// Signals the foreground process group, like the keys ^C and ^\ but in any terminal mode.
    ///
    /// The kernel selects the group and signals it in one step, so a newer group can never be
    /// signalled instead of one that has just ended. Signals other than `Interrupt` and `Quit` fail
    /// with `Unsupported`.
    pub fn signal_foreground(&self, signal: Signal) -> io::Result<()> {
        if !matches!(signal, Signal::Interrupt | Signal::Quit) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let number = libc::c_long::from(signal.as_system().as_raw());
        // SAFETY: TIOCSIG takes the number itself; no memory is involved.
        let result = unsafe { libc::ioctl(self.master.as_raw_fd(), libc::TIOCSIG, number) };
        if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// Opens the terminal through the master: a path under /dev/pts might name a terminal of another
/// mount.
#[cfg(target_os = "linux")]
fn open_terminal(master: &OwnedFd, flags: OpenptFlags) -> io::Result<OwnedFd> {
    Ok(rustix::pty::ioctl_tiocgptpeer(master, flags)?)
}

#[cfg(not(target_os = "linux"))]
fn open_terminal(master: &OwnedFd, _flags: OpenptFlags) -> io::Result<OwnedFd> {
    use rustix::fs::{Mode, OFlags};
    let name = rustix::pty::ptsname(master, Vec::new())?;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(name, flags, Mode::empty())?)
}
