//! The kernel's event queue: inotify calls, and the loop that reads it. Knows descriptors, but no
//! paths.

use std::mem::MaybeUninit;
use std::ops::ControlFlow;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::inotify::{self, CreateFlags, Event, Reader, WatchFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::fs::FsError;
use crate::fs::path::procfs;

/// Much more than the longest event, whose name has 255 bytes.
const BUFFER_BYTES: usize = 16 << 10;

#[derive(Debug)]
pub(super) struct Inotify {
    queue: OwnedFd,
    stop: OwnedFd,
}

impl Inotify {
    pub(super) fn new() -> Result<Self, FsError> {
        let queue = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let failed = |errno| explain("open", Path::new("inotify"), errno);
        Ok(Self { queue: queue.map_err(failed)?, stop: stop.map_err(failed)? })
    }

    /// Watches an open directory, whatever path led to it. A directory that is already watched
    /// keeps its watch descriptor.
    pub(super) fn watch(&self, path: &Path, directory: BorrowedFd<'_>) -> Result<i32, FsError> {
        let flags = WatchFlags::ATTRIB
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::DELETE_SELF
            | WatchFlags::MODIFY
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        inotify::add_watch(&self.queue, procfs::own_link(directory), flags)
            .map_err(|errno| explain("watch", path, errno))
    }

    /// From then on, the kernel queues only `IGNORED` for the descriptor; earlier events may still
    /// be unread.
    pub(super) fn unwatch(&self, descriptor: i32) {
        // Fails if the directory was removed: the kernel has already removed the watch.
        let _ = inotify::remove_watch(&self.queue, descriptor);
    }

    /// Passes on each event until `stop` is called. Blocks.
    pub(super) fn read(&self, mut handle: impl FnMut(&Event<'_>)) -> Result<(), Errno> {
        let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
        let mut reader = Reader::new(&self.queue, &mut buffer);
        loop {
            if reader.is_buffer_empty() && self.wait()?.is_break() {
                return Ok(());
            }
            match reader.next() {
                Ok(event) => handle(&event),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    pub(super) fn stop(&self) {
        // A full counter means that it was already stopped.
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
    }

    /// Breaks once [`Self::stop`] was called.
    fn wait(&self) -> Result<ControlFlow<()>, Errno> {
        let [queue, stop] = [&self.queue, &self.stop].map(|fd| PollFd::new(fd, PollFlags::IN));
        let mut polled = [queue, stop];
        retry_on_intr(|| poll(&mut polled, None))?;
        let is_stopped = !polled[1].revents().is_empty();
        Ok(if is_stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }
}

fn explain(action: &'static str, path: &Path, errno: Errno) -> FsError {
    let limit = match errno {
        Errno::NOSPC => "sysctl fs.inotify.max_user_watches",
        Errno::MFILE => {
            "sysctl fs.inotify.max_user_instances or the server's limit on open files (RLIMIT_NOFILE)"
        }
        other => return FsError::os(action, path)(other),
    };
    FsError::NoWatches { limit }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_limit() {
        let path = Path::new("/p");
        let watches = explain("watch", path, Errno::NOSPC);
        assert!(matches!(watches, FsError::NoWatches { .. }));
        assert!(watches.to_string().contains("fs.inotify.max_user_watches"), "{watches}");
        let queues = explain("open", path, Errno::MFILE);
        assert!(matches!(queues, FsError::NoWatches { .. }));
        assert!(queues.to_string().contains("fs.inotify.max_user_instances"), "{queues}");
    }

    #[test]
    fn a_stopped_reader_returns() {
        let inotify = Inotify::new().unwrap();
        std::thread::scope(|scope| {
            let reader =
                scope.spawn(|| inotify.read(|event| panic!("unexpected event: {event:?}")));
            inotify.stop();
            inotify.stop();
            assert_eq!(reader.join().unwrap(), Ok(()));
        });
    }
}
