//! The server's side of one keeper: its reports, and the orders to it.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown};
use rustix::process::{Signal as ProcessSignal, pidfd_send_signal};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

use super::super::signal::Signal;
use super::super::tree::{ExitRecord, TreeEvent};
use super::passing;
use super::wire::{Order, REPORT_LEN, Report};

/// A connection to a keeper. Dropping it orders the keeper to kill the tree.
#[derive(Debug)]
pub(in super::super) struct KeeperLink {
    socket: AsyncFd<OwnedFd>,
    /// The pidfd of the program, to kill it if its keeper is killed.
    leader: OwnedFd,
    /// The keeper, if it reported its own pidfd.
    keeper: Option<OwnedFd>,
    inbox: Mutex<Inbox>,
    /// Notified whenever the inbox changes: the task that reads the socket may receive a report for
    /// which another task waits.
    changed: Notify,
    tickets: AtomicU32,
}

impl KeeperLink {
    pub(super) fn new(socket: AsyncFd<OwnedFd>, leader: OwnedFd, keeper: Option<OwnedFd>) -> Self {
        Self {
            socket,
            leader,
            keeper,
            inbox: Mutex::new(Inbox::new()),
            changed: Notify::new(),
            tickets: AtomicU32::new(0),
        }
    }

    pub(in super::super) async fn next_event(&self) -> TreeEvent {
        self.wait_for(|inbox| inbox.exited.take().map(TreeEvent::Exited).or(inbox.end)).await
    }

    pub(in super::super) async fn descendants(&self) -> usize {
        let ticket = self.tickets.fetch_add(1, Ordering::Relaxed);
        self.wake_keeper();
        if self.order(Order::Count { ticket }).is_err() {
            return 0;
        }
        let counted = self.wait_for(|inbox| {
            // The count for a later request is just as good.
            let answer = inbox.count.filter(|(answered, _)| *answered >= ticket);
            answer.map(|(_, descendants)| descendants).or(inbox.end.map(|_| 0))
        });
        counted.await as usize
    }

    pub(in super::super) fn signal(&self, signal: Signal) {
        if self.order(Order::Signal(signal.as_system())) == Err(Errno::AGAIN) {
            let keeper = self.keeper();
            tracing::warn!(
                ?signal,
                keeper,
                "dropped a signal: the keeper does not respond, and its socket buffer is full"
            );
        }
    }

    pub(in super::super) fn kill_all(&self) {
        self.wake_keeper();
        if self.order(Order::KillAll) == Err(Errno::AGAIN) {
            // The socket buffer has no room for an order. A shutdown needs no room, and the keeper
            // then kills the tree too.
            let _ = rustix::net::shutdown(&self.socket, Shutdown::Write);
        }
    }

    /// Returns the keeper's pid as the server sees it, read from the received pidfd in /proc: in a
    /// container the keeper may see a different one.
    pub(in super::super) fn keeper(&self) -> Option<u32> {
        let keeper = self.keeper.as_ref()?.as_raw_fd();
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{keeper}")).ok()?;
        info.lines().find_map(|line| line.strip_prefix("Pid:"))?.trim().parse().ok()
    }

    /// Whether the keeper has ended. Once it has been reaped, [`keeper`](Self::keeper) returns
    /// `None`.
    pub(in super::super) fn has_lost_keeper(&self) -> bool {
        self.keeper.as_ref().is_some_and(|keeper| {
            let mut ended = [PollFd::new(keeper, PollFlags::IN)];
            matches!(poll(&mut ended, Some(&Timespec::default())), Ok(1))
        })
    }

    /// Continues the keeper, which a process of its tree may have stopped.
    fn wake_keeper(&self) {
        if let Some(keeper) = &self.keeper {
            let _ = pidfd_send_signal(keeper, ProcessSignal::CONT);
        }
    }

    fn order(&self, order: Order) -> Result<(), Errno> {
        passing::send(&self.socket, &order.encode(), &[]).map(|_| ())
    }

    /// Resolves when `take` finds something in the inbox. Cancel safe: a report stays in the inbox
    /// until it is taken.
    async fn wait_for<T>(&self, mut take: impl FnMut(&mut Inbox) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(found) = take(&mut self.inbox()) {
                return found;
            }
            tokio::select! {
                () = changed => {}
                ready = self.socket.readable() => match ready {
                    Ok(_) => self.receive(),
                    // The runtime is shutting down and will not wake this task again.
                    Err(_) => self.inbox().end = Some(TreeEvent::Lost),
                },
            }
        }
    }

    /// Moves the keeper's pending reports into the inbox.
    fn receive(&self) {
        let mut inbox = self.inbox();
        while inbox.end.is_none() {
            let filled = inbox.filled;
            let partial = &mut inbox.partial[filled..];
            let received = self.socket.try_io(Interest::READABLE, |socket| {
                Ok(rustix::net::recv(socket, partial, RecvFlags::empty())?.1)
            });
            match received {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(count) if count > 0 => inbox.accept(count),
                Ok(_) | Err(_) => inbox.end = Some(TreeEvent::Lost),
            }
        }
        if inbox.end == Some(TreeEvent::Lost) {
            let _ = pidfd_send_signal(&self.leader, ProcessSignal::KILL);
        }
        drop(inbox);
        self.changed.notify_waiters();
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for KeeperLink {
    fn drop(&mut self) {
        // The socket closes right after this; a stopped keeper would not notice.
        self.wake_keeper();
    }
}

/// Reports that were received and not yet taken.
#[derive(Debug)]
struct Inbox {
    exited: Option<ExitRecord>,
    /// `Emptied` or `Lost`; nothing follows.
    end: Option<TreeEvent>,
    /// The highest ticket answered so far, and its count.
    count: Option<(u32, u32)>,
    partial: [u8; REPORT_LEN],
    filled: usize,
}

impl Inbox {
    fn new() -> Self {
        Self { exited: None, end: None, count: None, partial: [0; REPORT_LEN], filled: 0 }
    }

    fn accept(&mut self, count: usize) {
        self.filled += count;
        if self.filled < REPORT_LEN {
            return;
        }
        self.filled = 0;
        match Report::decode(&self.partial) {
            Some(Report::Exited { status, duration, cpu, max_rss_bytes, hit, tree }) => {
                let record = ExitRecord::new(status, duration, cpu, max_rss_bytes);
                self.exited = Some(ExitRecord { limits_hit: hit, tree_use: tree, ..record });
            }
            Some(Report::Emptied) => self.end = Some(TreeEvent::Emptied),
            Some(Report::Counted { ticket, descendants }) => {
                self.count = self.count.max(Some((ticket, descendants)));
            }
            Some(Report::Started { .. } | Report::Failed { .. }) | None => {
                self.end = Some(TreeEvent::Lost);
            }
        }
    }
}
