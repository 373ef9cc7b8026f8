//! A process's notifications to a client in the same program: a task that reads the log as fast as
//! the client consumes them.

use std::sync::Arc;

use exec_server_host::process::{Budget, Cursor, Delivered, Page};
use exec_server_protocol::EventSink;

use super::FeedReader;
use crate::adapter::{ManagedProcess, event_notification};
use crate::dispatch::{EventStream, Sent};

/// How much is read from the log at a time.
const SLICE: Budget = Budget { bytes: 256 << 10, events: 64 };

/// Runs until the process has closed or the client is gone. Events that the owner has taken are
/// confirmed; a process whose owner is gone is abandoned.
pub(crate) async fn feed_in_process(
    process: Arc<ManagedProcess>,
    reader: FeedReader,
    sink: Arc<dyn EventSink>,
) {
    let log = process.log();
    let (mut cursor, is_owner, observed) = match &reader {
        FeedReader::Owner { .. } => (Cursor::unconfirmed(log), true, None),
        FeedReader::Observer { session_id, after } => {
            (Cursor::after(log, *after), false, Some(session_id.as_str()))
        }
    };
    let events = EventStream::in_process(sink);
    'feeding: loop {
        tokio::select! {
            () = log.wait_beyond(cursor.position()) => {}
            () = events.gone() => break 'feeding,
        }
        let Page { events: slice, complete, progress, .. } = cursor.read(log, SLICE).await;
        for Delivered { entry, dropped } in slice {
            let seq = entry.seq;
            let notification = event_notification(&process, observed, &entry, dropped);
            if events.send(notification).await == Sent::Gone {
                break 'feeding;
            }
            if is_owner {
                log.confirm(seq);
            }
        }
        if complete && progress.closed {
            return;
        }
    }
    if is_owner {
        process.abandon();
    }
}
