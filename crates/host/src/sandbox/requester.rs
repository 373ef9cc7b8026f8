//! Whoever wants a sandbox: putting it up stops when nobody waits for it any more.
//!
//! There may be many mounts, each may wait for a file system, and all the while nobody else listens to the one who wants it: the
//! keeper is suspended. So the work itself looks up between its steps.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// The one at the other end of a socket. Until the program runs there is nothing to say but that it is not wanted, so every word
/// means that, and so does the end of all words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requester<'a> {
    socket: BorrowedFd<'a>,
}

impl<'a> Requester<'a> {
    pub(crate) fn at(socket: BorrowedFd<'a>) -> Self {
        Self { socket }
    }

    /// Fails with [`Errno::CANCELED`] if not.
    pub(crate) fn still_waits(self) -> Result<(), Errno> {
        let mut polled = [PollFd::from_borrowed_fd(self.socket, PollFlags::IN | PollFlags::RDHUP)];
        match poll(&mut polled, Some(&AT_ONCE)) {
            Ok(0) | Err(Errno::INTR) => Ok(()),
            Ok(_) => Err(Errno::CANCELED),
            Err(errno) => Err(errno),
        }
    }

    /// Returns when something can be read from `line`. Fails with [`Errno::CANCELED`] if nobody waits for that any more.
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
    fn one_who_says_something_or_goes_waits_no_more() {
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
            let requester = Requester::at(ours.as_fd());
            assert_eq!(requester.still_waits(), Ok(()));
            let _kept = go(theirs);
            assert_eq!(requester.still_waits(), Err(Errno::CANCELED));
        }
    }

    #[test]
    fn what_is_said_on_the_line_comes_first() {
        let (ours, theirs) = pair();
        let (line, other) = pair();
        let requester = Requester::at(ours.as_fd());
        send(&other, b"i", SendFlags::empty()).unwrap();
        assert_eq!(requester.wait_for(&line), Ok(()));
        drop(theirs);
        assert_eq!(requester.wait_for(&line), Ok(()));
        let (silent, _other) = pair();
        assert_eq!(requester.wait_for(&silent), Err(Errno::CANCELED));
    }
}
