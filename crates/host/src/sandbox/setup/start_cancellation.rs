//! Ends the setup of a sandbox early when the server cancels the start.
//!
//! There may be many mounts, and each may wait for a file system. During the setup the keeper is
//! suspended and cannot read its socket. So the setup itself checks the socket between its steps.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// The socket to the server. Until the program runs, the only message is the cancellation. So any
/// message means cancellation, and so does the end of the connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StartCancellation<'a> {
    socket: BorrowedFd<'a>,
}

impl<'a> StartCancellation<'a> {
    pub(crate) fn at(socket: BorrowedFd<'a>) -> Self {
        Self { socket }
    }

    /// Fails with [`Errno::CANCELED`] if the start is cancelled.
    pub(crate) fn check(self) -> Result<(), Errno> {
        let mut polled = [PollFd::from_borrowed_fd(self.socket, PollFlags::IN | PollFlags::RDHUP)];
        match poll(&mut polled, Some(&AT_ONCE)) {
            Ok(0) | Err(Errno::INTR) => Ok(()),
            Ok(_) => Err(Errno::CANCELED),
            Err(errno) => Err(errno),
        }
    }

    /// Returns when `line` is readable or closed. Fails with [`Errno::CANCELED`] if the start is
    /// cancelled first.
    pub(crate) fn wait_for(self, line: impl AsFd) -> Result<(), Errno> {
        loop {
            let mut polled = [
                PollFd::new(&line, PollFlags::IN),
                PollFd::from_borrowed_fd(self.socket, PollFlags::IN | PollFlags::RDHUP),
            ];
            match poll(&mut polled, None) {
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
                Ok(_) if !polled[0].revents().is_empty() => return Ok(()),
                Ok(_) => return Err(Errno::CANCELED),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use rustix::net::{
        AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType, send, shutdown, socketpair,
    };

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn a_message_or_a_closed_connection_cancels_the_start() {
        let goes: [fn(OwnedFd) -> Option<OwnedFd>; 3] = [
            |theirs| {
                send(&theirs, b"k", SendFlags::empty()).unwrap();
                Some(theirs)
            },
            |theirs| {
                shutdown(&theirs, Shutdown::Write).unwrap();
                Some(theirs)
            },
            |_| None,
        ];
        for go in goes {
            let (ours, theirs) = pair();
            let cancellation = StartCancellation::at(ours.as_fd());
            assert_eq!(cancellation.check(), Ok(()));
            let _kept = go(theirs);
            assert_eq!(cancellation.check(), Err(Errno::CANCELED));
        }
    }

    #[test]
    fn a_readable_line_takes_precedence_over_cancellation() {
        let (ours, theirs) = pair();
        let (line, other) = pair();
        let cancellation = StartCancellation::at(ours.as_fd());
        send(&other, b"i", SendFlags::empty()).unwrap();
        assert_eq!(cancellation.wait_for(&line), Ok(()));
        drop(theirs);
        assert_eq!(cancellation.wait_for(&line), Ok(()));
        let (silent, _other) = pair();
        assert_eq!(cancellation.wait_for(&silent), Err(Errno::CANCELED));
    }
}
