//! Terminals for programs: opening a pair, and our end of it.

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

/// The side of a terminal where a person would sit. Dropping it hangs the terminal up.
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
    /// Resolves when there is output, or when the last user of the terminal is gone.
    pub async fn readable(&self) -> io::Result<()> {
        self.master.readable().await?.retain_ready();
        Ok(())
    }

    /// Fills the spare capacity of `buffer`, which must not be empty. 0 is the end; `WouldBlock`
    /// means that there is nothing now.
    pub fn try_read(&self, buffer: &mut BytesMut) -> io::Result<usize> {
        match try_read(&self.master, buffer) {
            // Linux: everything was read and no process has the terminal open any more.
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

    /// How many bytes wait to be read.
    pub fn pending(&self) -> usize {
        pending(&self.master)
    }

    /// Changes the size and tells the foreground processes (SIGWINCH).
    pub fn resize(&self, size: PtySize) -> io::Result<()> {
        let size = Winsize { ws_row: size.rows, ws_col: size.cols, ws_xpixel: 0, ws_ypixel: 0 };
        Ok(tcsetwinsize(&self.master, size)?)
    }

    /// Whether the process group of that leader is in the foreground now.
    pub fn foreground_is(&self, leader: u32) -> bool {
        rustix::termios::tcgetpgrp(&self.master)
            .is_ok_and(|group| group.as_raw_nonzero().get().cast_unsigned() == leader)
    }

    /// Signals the foreground process group, as the keys ^C and ^\ would in any terminal mode.
    ///
    /// The kernel picks the group and signals it in one step, so a group that ends in between is
    /// never confused with a newer one. It offers that for `Interrupt` and `Quit`; others are
    /// `Unsupported`.
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

/// Asks the master for its peer: a path under /dev/pts might name another mount's terminal.
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
