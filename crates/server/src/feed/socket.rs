//! A process's live notifications on one connection: a cursor over its log that the writer moves.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use exec_server_host::process::{Budget, Cursor, Delivered, Event, LogListener, Page};
use exec_server_protocol::{ExecExitedNotification, NotificationHeader, notification};
use exec_server_transport::Outgoing;

use super::{ConfirmedBy, FeedReader};
use crate::adapter::{ManagedProcess, NotificationDialect, event_notification, wire_stream};
use crate::connection::Outbox;

#[derive(Debug)]
pub(crate) struct SocketFeed {
    process: Arc<ManagedProcess>,
    outbox: Arc<Outbox>,
    reader: FeedReader,
    header: NotificationHeader,
    /// Whether the outbox already has this feed queued.
    queued: AtomicBool,
    finished: AtomicBool,
    cursor: tokio::sync::Mutex<Cursor>,
    state: Mutex<FeedState>,
    this: Weak<SocketFeed>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FeedState {
    /// Sends nothing before [`SocketFeed::release`]; see [`SocketFeed::subscribe`].
    Held,
    Live,
    /// Neither sends nor confirms: the session has ended or left the connection, or the observer
    /// has started over.
    Retired,
}

/// How long a client that reconnected has to request the events that it missed.
pub(crate) const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum content that a feed sends before the next feed has its turn.
const SLICE: Budget = Budget { bytes: 256 << 10, events: 64 };

impl SocketFeed {
    /// A client that resumes its session gets *held* feeds. If it never acks, it requests the
    /// events that it missed with one `process/read`, and some deployed clients give up on a
    /// process if more than 1 MiB arrives before that response.
    pub(crate) fn subscribe(
        process: &Arc<ManagedProcess>,
        outbox: &Arc<Outbox>,
        reader: FeedReader,
        held: bool,
    ) -> Arc<Self> {
        let header = match (&reader, process.dialect()) {
            (FeedReader::Observer { session_id, .. }, _) => {
                NotificationHeader::output(process.id(), Some(session_id))
            }
            (_, NotificationDialect::Current) => NotificationHeader::output(process.id(), None),
            (_, NotificationDialect::Legacy) => NotificationHeader::legacy_output(process.id()),
        };
        let cursor = match &reader {
            FeedReader::Owner { .. } => Cursor::unconfirmed(process.log()),
            FeedReader::Observer { after, .. } => Cursor::after(process.log(), *after),
        };
        let feed = Arc::new_cyclic(|this| Self {
            process: Arc::clone(process),
            outbox: Arc::clone(outbox),
            reader,
            header,
            queued: AtomicBool::new(false),
            finished: AtomicBool::new(false),
            cursor: tokio::sync::Mutex::new(cursor),
            state: Mutex::new(if held { FeedState::Held } else { FeedState::Live }),
            this: this.clone(),
        });
        let listener: Arc<dyn LogListener> = feed.clone();
        process.log().add_listener(&listener);
        feed
    }

    pub(crate) fn process(&self) -> &Arc<ManagedProcess> {
        &self.process
    }

    pub(crate) fn is_owner(&self) -> bool {
        matches!(self.reader, FeedReader::Owner { .. })
    }

    /// Stops sending and confirming events.
    pub(crate) fn retire(&self) {
        *self.state() = FeedState::Retired;
    }

    /// With `next_seq`, skips the events before that number: the client has just read them.
    pub(crate) async fn release(&self, next_seq: Option<u64>) {
        if *self.state() != FeedState::Held {
            return;
        }
        if let Some(next_seq) = next_seq {
            self.cursor.lock().await.advance_to(self.process.log(), next_seq.saturating_sub(1));
        }
        let mut state = self.state();
        if *state == FeedState::Held {
            *state = FeedState::Live;
            drop(state);
            self.log_grew();
        }
    }

    /// Returns whether the last event has been sent.
    pub(crate) fn finished(&self) -> bool {
        self.finished.load(Ordering::Acquire)
    }

    /// Records that the peer's socket seems to have read everything up to `seq`.
    pub(crate) fn received(&self, seq: u64) {
        // For a client that acks, the socket may have read more than the client has taken: only its
        // acks count.
        let FeedReader::Owner { confirmed_by: ConfirmedBy::Receipt } = self.reader else { return };
        self.process.note_received(seq);
        // Under the lock, so that a connection that lost the session can no longer confirm what its
        // successor has yet to send.
        let state = self.state();
        if *state != FeedState::Retired {
            self.process.log().confirm(seq);
        }
    }

    /// Encodes one slice of new events. Returns the number of the last event, or `None` if there
    /// are no new events or the feed is not live.
    pub(crate) async fn send_slice(&self, outgoing: &mut Outgoing) -> Option<u64> {
        self.queued.store(false, Ordering::Release);
        if *self.state() != FeedState::Live {
            return None;
        }
        let mut cursor = self.cursor.lock().await;
        let Page { events, complete, progress, .. } = cursor.read(self.process.log(), SLICE).await;
        for delivered in &events {
            self.encode(delivered, outgoing);
        }
        if !complete {
            self.log_grew();
        } else if progress.closed {
            self.finished.store(true, Ordering::Release);
        }
        (!events.is_empty()).then(|| cursor.position())
    }

    fn encode(&self, Delivered { entry, dropped }: &Delivered, outgoing: &mut Outgoing) {
        let observed = match &self.reader {
            FeedReader::Observer { session_id, .. } => Some(session_id.as_str()),
            FeedReader::Owner { .. } => None,
        };
        let legacy = observed.is_none() && self.process.dialect() == NotificationDialect::Legacy;
        match &entry.event {
            Event::Output { stream, bytes } => {
                let stream = wire_stream(*stream);
                let len = self.header.len(entry.seq, stream, bytes.len(), *dropped);
                outgoing.push_with(len, |buffer| {
                    self.header.write(buffer, entry.seq, stream, bytes, *dropped);
                });
            }
            Event::Exited(exit) if legacy => {
                let process_id = self.process.id().to_owned();
                let exited = ExecExitedNotification { process_id, exit_code: exit.code };
                outgoing.push(&notification(&exited));
            }
            Event::Closed if legacy => {}
            Event::Exited(_) | Event::Closed => {
                let told = event_notification(&self.process, observed, entry, *dropped);
                outgoing.push(&told.encode());
            }
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, FeedState> {
        self.state.lock().expect("no code panics while it holds a feed's state")
    }
}

impl LogListener for SocketFeed {
    fn log_grew(&self) {
        if !self.queued.swap(true, Ordering::AcqRel)
            && let Some(feed) = self.this.upgrade()
        {
            self.outbox.ready(feed);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {

    use super::*;

    /// Returns a process that printed one line and ended, and the feed of its owner: three events.
    pub(crate) async fn finished(outbox: &Arc<Outbox>) -> (Arc<ManagedProcess>, Arc<SocketFeed>) {
        let start = r#"{"processId":"p","argv":["/bin/sh","-c","echo a"],"cwd":"/"}"#;
        let start = serde_json::from_str(start).unwrap();
        let config = crate::ServerConfig::default();
        let started = ManagedProcess::start_plain(&config, start);
        let process = Arc::new(started.process);
        process.log().wait_closed().await;
        let owner = FeedReader::Owner { confirmed_by: ConfirmedBy::Receipt };
        let feed = SocketFeed::subscribe(&process, outbox, owner, false);
        (process, feed)
    }

    #[tokio::test]
    async fn a_closed_outbox_keeps_no_process_alive() {
        let outbox = Arc::new(Outbox::default());
        let (process, feed) = {
            let (process, feed) = finished(&outbox).await;
            (Arc::downgrade(&process), Arc::downgrade(&feed))
        };
        assert!(feed.upgrade().is_some(), "it has events, so the outbox holds it");
        outbox.close();
        assert!(feed.upgrade().is_none() && process.upgrade().is_none());
    }
}
