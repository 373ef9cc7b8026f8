//! The owner's way through the log of a local process: what `process/output`, `process/exited`, `process/closed` and
//! `process/ack` are to a client.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use exec_server_host::process::{Budget, Cursor, Delivered, Event, Page};
use exec_server_protocol::{Denial, ExitDetails, OutputStream};

use super::process::{LocalProcess, exit_details, wire_stream};

/// Events of one process, in order, each once, from the oldest that is not confirmed.
///
/// A process has one follower at a time: what one confirms, another no longer sees.
pub struct Follower {
    process: Arc<LocalProcess>,
    reading: Reading,
    /// Read, and not returned yet.
    ready: VecDeque<Followed>,
    /// Number of the last event returned.
    returned: u64,
    finished: bool,
}

/// A read under way stays here when [`Follower::next`] is dropped, so that what it has taken from the log is not lost.
type Reading = Pin<Box<dyn Future<Output = (Cursor, Page)> + Send + Sync>>;

/// One event of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Followed {
    pub seq: u64,
    /// Bytes of output that are missing just before this event.
    pub dropped_bytes: u64,
    pub event: FollowedEvent,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FollowedEvent {
    Output {
        stream: OutputStream,
        chunk: Bytes,
    },
    /// The machine lost track of the process. It has no number of its own: `seq` is that of the event before. The exit
    /// that follows is the best that is known.
    Failed(String),
    Exited {
        exit_code: i32,
        /// What its sandbox seems to have denied.
        denied: Option<Denial>,
        details: ExitDetails,
    },
    /// The last event.
    Closed,
}

/// What is read from the log at once.
const SLICE: Budget = Budget { bytes: 256 << 10, events: 64 };

impl LocalProcess {
    /// Follows the process as its owner.
    #[must_use]
    pub fn follow(self: &Arc<Self>) -> Follower {
        let cursor = Cursor::unconfirmed(self.log());
        Follower {
            process: Arc::clone(self),
            returned: cursor.position(),
            reading: read_on(Arc::clone(self), cursor),
            ready: VecDeque::new(),
            finished: false,
        }
    }
}

impl Follower {
    /// Waits for the next event; `None` after the last. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Followed> {
        loop {
            if let Some(followed) = self.ready.pop_front() {
                self.returned = followed.seq;
                return Some(followed);
            }
            if self.finished {
                return None;
            }
            let (cursor, page) = self.reading.as_mut().await;
            self.reading = read_on(Arc::clone(&self.process), cursor);
            self.finished = page.complete && page.progress.closed;
            self.take(page);
        }
    }

    /// Everything up to `seq` has been dealt with and need not be kept. What has not been returned is never meant.
    pub fn confirm(&self, seq: u64) {
        self.process.log().confirm(seq.min(self.returned));
    }

    fn take(&mut self, page: Page) {
        let mut before = self.returned;
        for Delivered { entry, dropped } in page.events {
            let event = match entry.event {
                Event::Output { stream, bytes } => {
                    FollowedEvent::Output { stream: wire_stream(stream), chunk: bytes }
                }
                Event::Exited(exit) => {
                    // Recorded before the exit, so it is known by now.
                    if let Some(why) = &page.progress.failure {
                        let event = FollowedEvent::Failed(why.clone());
                        self.ready.push_back(Followed { seq: before, dropped_bytes: 0, event });
                    }
                    FollowedEvent::Exited {
                        exit_code: exit.code,
                        denied: self.process.denial(),
                        details: exit_details(&exit),
                    }
                }
                Event::Closed => FollowedEvent::Closed,
            };
            before = entry.seq;
            self.ready.push_back(Followed { seq: entry.seq, dropped_bytes: dropped, event });
        }
    }
}

fn read_on(process: Arc<LocalProcess>, mut cursor: Cursor) -> Reading {
    Box::pin(async move {
        let log = process.log();
        log.wait_beyond(cursor.position()).await;
        let page = cursor.read(log, SLICE).await;
        (cursor, page)
    })
}

impl fmt::Debug for Follower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Follower")
            .field("process", &self.process.id())
            .field("returned", &self.returned)
            .field("finished", &self.finished)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    #[tokio::test]
    async fn a_failure_is_told_before_the_exit_and_takes_no_number() {
        let start = r#"{"processId":"p","argv":["/bin/echo","a"],"cwd":"/"}"#;
        let start = serde_json::from_str(start).unwrap();
        let config = crate::ServerConfig::default();
        let started = LocalProcess::start_plain(&config, start);
        let process = Arc::new(started.process);
        let log = process.log();
        log.wait_closed().await;
        let mut page = Cursor::after(log, 0).read(log, SLICE).await;
        page.progress.failure = Some("lost".to_owned());
        let mut follower = process.follow();
        follower.take(page);
        let failed = FollowedEvent::Failed("lost".to_owned());
        let numbers: Vec<_> = follower.ready.iter().map(|followed| followed.seq).collect();
        assert_eq!(numbers, [1, 1, 2, 3]);
        assert_eq!(follower.ready[1].event, failed);
    }
}
