//! A connection as sessions and processes see it.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use exec_server_protocol::RpcError;
use exec_server_transport::{Holding, MemoryShare, Prober};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::bodies::ConnectionBodies;
use super::feed::{Audience, Feed};
use super::files::ConnectionFiles;
use super::outbox::Outbox;
use crate::local::LocalProcess;

/// Processes of other sessions that one connection may look at.
const MAX_OBSERVED: usize = 1024;

/// Large answers that are being made at once.
const ROOM_KIB: usize = 8 << 10;

/// Names of directories and trees that are being collected at once, as text. Apart from the rest: this may take long, and hang.
const NAMES_KIB: usize = 64 << 10;

/// A part of the room for large answers.
#[derive(Debug)]
pub(super) struct Room {
    _permit: Option<OwnedSemaphorePermit>,
    /// A guess until the answer is made.
    memory: Holding,
}

impl Room {
    /// The answer is made, and takes so much.
    pub(super) fn set_bytes(&mut self, bytes: usize) {
        self.memory.set(bytes);
    }
}

/// Never reused within a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ConnectionId(pub(crate) u64);

#[derive(Debug)]
pub(crate) struct ConnectionHandle {
    id: ConnectionId,
    outbox: Arc<Outbox>,
    memory: MemoryShare,
    prober: Prober,
    feeds: Mutex<Vec<Arc<Feed>>>,
    /// Room for large answers that are being made, in KiB, so that a client that asks for many and reads none costs a
    /// bounded memory.
    room: Arc<Semaphore>,
    /// The same for answers that are collected from directories.
    names: Arc<Semaphore>,
    /// All of that.
    names_kib: usize,
    pub(super) files: ConnectionFiles,
    pub(super) bodies: ConnectionBodies,
}

impl ConnectionHandle {
    pub(super) fn new(id: ConnectionId, memory: MemoryShare, prober: Prober) -> Self {
        let outbox = Arc::new(Outbox::new(&memory));
        let room = Arc::new(Semaphore::new(ROOM_KIB));
        // One connection must not collect more at once than the budget has for a message.
        let names_kib = NAMES_KIB.min(memory.budget().largest() >> 10);
        let names = Arc::new(Semaphore::new(names_kib));
        let (files, bodies) = (ConnectionFiles::default(), ConnectionBodies::default());
        let feeds = Mutex::default();
        Self { id, outbox, memory, prober, feeds, room, names_kib, names, files, bodies }
    }

    pub(crate) fn id(&self) -> ConnectionId {
        self.id
    }

    pub(crate) fn outbox(&self) -> &Arc<Outbox> {
        &self.outbox
    }

    pub(super) fn memory(&self) -> &MemoryShare {
        &self.memory
    }

    /// Waits until a large answer may be made: hold what is returned until it is handed over.
    pub(super) async fn room_for(&self, bytes: usize) -> Room {
        let permit = self.room_to_send(bytes).await;
        Room { _permit: permit, memory: self.memory_for_answer(bytes.min(ROOM_KIB << 10)).await }
    }

    /// The same for an answer that is made already, and counted.
    pub(super) async fn room_to_send(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let kib = bytes.div_ceil(1 << 10).clamp(1, ROOM_KIB);
        let permits = u32::try_from(kib).unwrap_or(u32::MAX);
        let permit = Arc::clone(&self.room).acquire_many_owned(permits).await;
        self.outbox.room().await;
        permit.ok()
    }

    /// Of the budget that connections share. A size is a guess here, so no answer reserves all of it.
    async fn memory_for_answer(&self, bytes: usize) -> Holding {
        let mut memory = self.memory.hold_guess();
        tokio::select! {
            () = memory.grow_to(self.guess(bytes)) => {}
            () = self.outbox.closed() => {}
        }
        memory
    }

    fn guess(&self, bytes: usize) -> usize {
        bytes.min(self.memory.budget().largest() / 4)
    }

    /// For an answer of any size.
    pub(super) async fn all_room(&self) -> Room {
        self.room_for(usize::MAX).await
    }

    /// Waits until names that may be so much text may be collected: hold what is returned until they are handed over.
    pub(super) async fn room_for_names(&self, bytes: usize) -> Room {
        let permit =
            Arc::clone(&self.names).acquire_many_owned(self.permits_for_names(bytes)).await;
        Room { _permit: permit.ok(), memory: self.memory_for_answer(bytes).await }
    }

    /// The same if there is room.
    pub(super) fn room_for_names_now(&self, bytes: usize) -> Option<Room> {
        let permit =
            Arc::clone(&self.names).try_acquire_many_owned(self.permits_for_names(bytes)).ok()?;
        let mut memory = self.memory.hold_guess();
        let reserved = memory.try_grow_to(self.guess(bytes));
        reserved.then_some(Room { _permit: Some(permit), memory })
    }

    fn permits_for_names(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.div_ceil(1 << 10).min(self.names_kib)).unwrap_or(u32::MAX)
    }

    /// Sends a process's events to this connection from now on.
    pub(crate) fn feed(&self, process: &Arc<LocalProcess>, audience: Audience, held: bool) {
        let feed = Feed::subscribe(process, &self.outbox, audience, held);
        self.drop_finished_feeds();
        self.feeds().push(feed);
    }

    /// A feed that has sent its last event keeps its process in memory and has no other use.
    pub(crate) fn drop_finished_feeds(&self) {
        let mut feeds = self.feeds();
        let before = feeds.len();
        feeds.retain(|feed| !feed.finished());
        if feeds.len() < before / 2 {
            feeds.shrink_to_fit();
        }
    }

    /// The same for a process of another session. Looking again begins anew.
    pub(super) fn observe(
        &self,
        process: &Arc<LocalProcess>,
        session_id: &str,
        after: u64,
    ) -> Result<(), RpcError> {
        {
            let mut feeds = self.feeds();
            feeds.retain(|feed| {
                let again = !feed.is_owner() && Arc::ptr_eq(feed.process(), process);
                if again {
                    feed.retire();
                }
                !again
            });
            if feeds.iter().filter(|feed| !feed.is_owner()).count() >= MAX_OBSERVED {
                let message = format!("this connection observes {MAX_OBSERVED} processes already");
                return Err(RpcError::invalid_request(message).with_kind("tooManyObserved"));
            }
        }
        let audience = Audience::Observer { session_id: session_id.to_owned(), after };
        self.feed(process, audience, false);
        Ok(())
    }

    /// The feed of a process that this connection's session owns.
    pub(super) fn own_feed(&self, process: &Arc<LocalProcess>) -> Option<Arc<Feed>> {
        let feeds = self.feeds();
        let own = |feed: &&Arc<Feed>| feed.is_owner() && Arc::ptr_eq(feed.process(), process);
        feeds.iter().find(own).cloned()
    }

    /// Lets every held feed go: the client did not ask for what it missed, so it is just sent.
    pub(super) async fn release_feeds(&self) {
        let feeds = self.feeds().clone();
        for feed in feeds {
            feed.release(None).await;
        }
    }

    /// The session is another connection's now, or nobody's: nothing of it is sent or confirmed here.
    pub(crate) fn lose_session(&self) {
        self.feeds().retain(|feed| {
            if feed.is_owner() {
                feed.retire();
            }
            !feed.is_owner()
        });
    }

    /// Asks the peer for a sign of life.
    pub(crate) async fn is_alive(&self, patience: Duration) -> bool {
        !self.outbox.is_closed() && self.prober.probe(patience).await
    }

    pub(crate) fn give_up(&self) {
        self.outbox.close();
    }

    fn feeds(&self) -> MutexGuard<'_, Vec<Arc<Feed>>> {
        self.feeds.lock().expect("no code panics while it holds the feeds")
    }
}

#[cfg(test)]
mod tests {
    use exec_server_transport::{Connection, MemoryBudget, memory};

    use super::*;

    const MIB: usize = 1 << 20;

    #[tokio::test(start_paused = true)]
    async fn room_for_a_listing_is_no_reason_to_close_its_connection() {
        let budget = MemoryBudget::new(8 * MIB);
        let [lists, idle, sends] = [(); 3].map(|()| budget.share());
        let Connection { prober, .. } = memory().0;
        let connection = ConnectionHandle::new(ConnectionId(1), lists.clone(), prober);
        let mut room = connection.room_for_names(usize::MAX).await;
        let mut held = idle.hold();
        held.set(MIB / 2);
        let mut message = sends.hold();
        // The listing is guessed to be larger than what the idle one holds.
        tokio::select! {
            () = lists.exceeded() => panic!("a guess has closed its connection"),
            ((), ()) = async { tokio::join!(message.grow_to(4 * MIB), async {
                idle.exceeded().await;
                drop(held);
            }) } => {}
        }
        drop(message);
        // The listing itself is memory.
        room.set_bytes(9 * MIB);
        lists.exceeded().await;
    }
}
