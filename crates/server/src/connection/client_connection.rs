//! A client's connection as sessions and processes see it: a socket, or the same program.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use exec_server_protocol::{ErrorKind, Principal, RpcError, ServerRequestHandler};
use exec_server_transport::{Holding, MemoryShare, Prober};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::outbox::Outbox;
use super::server_requests::ServerRequests;
use crate::ServerConfig;
use crate::adapter::ManagedProcess;
use crate::dispatch::Resources;
use crate::feed::{FeedReader, SocketFeed};

/// Maximum number of processes that one connection observes (`process/observe`).
const MAX_OBSERVED: usize = 1024;

/// A request that probes a client whose transport has no pings.
const PROBE: &str = r#"{"id":"probe","method":"connection/probe","params":{}}"#;

/// Budget for large responses that are being built.
const RESPONSE_KIB: usize = 8 << 10;

/// Budget for the text of names that are being collected from directories and trees. Separate from
/// [`RESPONSE_KIB`], since collecting names may take a long time, or hang.
const NAMES_KIB: usize = 64 << 10;

/// A part of a connection's budget for large responses or for names, released when dropped.
#[derive(Debug, Default)]
pub(crate) struct Reservation {
    _permit: Option<OwnedSemaphorePermit>,
    /// The memory of the response: an estimate until [`Self::set_bytes`].
    memory: Holding,
}

impl Reservation {
    pub(crate) fn set_bytes(&mut self, bytes: usize) {
        self.memory.set(bytes);
    }
}

/// Never reused within a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ConnectionId(pub(crate) u64);

#[derive(Debug)]
pub(crate) struct ClientConnection {
    id: ConnectionId,
    principal: Principal,
    /// The address of a client on TCP.
    address: Option<SocketAddr>,
    /// `None` for a client in this program, whose calls need no flow control.
    socket: Option<Socket>,
    /// Receives requests and notifications for a client in this program, if it wants any.
    handler: OnceLock<Arc<dyn ServerRequestHandler>>,
    requests: Arc<ServerRequests>,
    pub(crate) resources: Resources,
}

/// The additional parts of a connection over a socket: flow control, and feeds that its writer
/// sends.
#[derive(Debug)]
pub(crate) struct Socket {
    outbox: Arc<Outbox>,
    memory: MemoryShare,
    prober: Prober,
    /// Notified when a message arrives.
    heard: Notify,
    feeds: Mutex<Vec<Arc<SocketFeed>>>,
    /// Budget for large responses that are being built, in KiB, so that a client that requests many
    /// and reads none costs bounded memory.
    responses: Arc<Semaphore>,
    /// Budget for responses with names from directories, in KiB.
    names: Arc<Semaphore>,
    names_kib: usize,
}

impl ClientConnection {
    pub(super) fn over_socket(
        id: ConnectionId,
        principal: Principal,
        address: Option<SocketAddr>,
        config: &ServerConfig,
        outbox: Arc<Outbox>,
        memory: MemoryShare,
        prober: Prober,
    ) -> Self {
        // One connection must not collect more at once than the budget allows for a message.
        let names_kib = NAMES_KIB.min(memory.budget().largest() >> 10);
        let socket = Socket {
            outbox,
            memory,
            prober,
            heard: Notify::new(),
            feeds: Mutex::default(),
            responses: Arc::new(Semaphore::new(RESPONSE_KIB)),
            names: Arc::new(Semaphore::new(names_kib)),
            names_kib,
        };
        Self {
            id,
            principal,
            address,
            socket: Some(socket),
            handler: OnceLock::new(),
            requests: Arc::new(ServerRequests::new(false)),
            resources: Resources::limited(config),
        }
    }

    pub(crate) fn in_process(id: ConnectionId) -> Self {
        Self {
            id,
            principal: Principal::local(),
            address: None,
            socket: None,
            handler: OnceLock::new(),
            requests: Arc::new(ServerRequests::new(true)),
            resources: Resources::unlimited(),
        }
    }

    pub(crate) fn id(&self) -> ConnectionId {
        self.id
    }

    pub(crate) fn principal(&self) -> &Principal {
        &self.principal
    }

    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    pub(crate) fn socket(&self) -> Option<&Socket> {
        self.socket.as_ref()
    }

    pub(crate) fn requests(&self) -> &Arc<ServerRequests> {
        &self.requests
    }

    pub(super) fn handler(&self) -> Option<&Arc<dyn ServerRequestHandler>> {
        self.handler.get()
    }

    /// Only the first call has an effect.
    pub(crate) fn set_handler(&self, handler: Arc<dyn ServerRequestHandler>) {
        let _ = self.handler.set(handler);
    }

    /// Returns whether the peer responds to a probe in time. A client in this program is always
    /// alive.
    pub(crate) async fn is_alive(&self, timeout: Duration) -> bool {
        match &self.socket {
            Some(socket) => !socket.outbox.is_closed() && socket.is_alive(timeout).await,
            None => true,
        }
    }

    /// Returns whether the client waits for events: of watched files, or of observed processes.
    pub(crate) fn is_watching(&self) -> bool {
        let observes = |socket: &Socket| socket.feeds().iter().any(|feed| !feed.is_owner());
        !self.resources.files.watch_tasks.is_empty() || self.socket.as_ref().is_some_and(observes)
    }

    /// Waits for budget for a large response. Hold the reservation until the response is handed
    /// over.
    pub(crate) async fn reserve(&self, bytes: usize) -> Reservation {
        match &self.socket {
            Some(socket) => socket.reserve(bytes).await,
            None => Reservation::default(),
        }
    }

    /// Reserves the whole budget, for a response of any size.
    pub(crate) async fn reserve_all(&self) -> Reservation {
        self.reserve(usize::MAX).await
    }

    /// Like [`Self::reserve`], but fails if there is no budget now.
    pub(crate) fn try_reserve(&self, bytes: usize) -> Option<Reservation> {
        match &self.socket {
            Some(socket) => socket.try_reserve(bytes),
            None => Some(Reservation::default()),
        }
    }

    /// Waits for budget to collect this many bytes of names. Hold the reservation until they are
    /// handed over.
    pub(crate) async fn reserve_names(&self, bytes: usize) -> Reservation {
        match &self.socket {
            Some(socket) => socket.reserve_names(bytes).await,
            None => Reservation::default(),
        }
    }

    /// Like [`Self::reserve_names`], but fails if there is no budget now.
    pub(crate) fn try_reserve_names(&self, bytes: usize) -> Option<Reservation> {
        match &self.socket {
            Some(socket) => socket.try_reserve_names(bytes),
            None => Some(Reservation::default()),
        }
    }

    /// Like [`Self::reserve`], for a response that is already built and counted.
    pub(crate) async fn reserve_to_send(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        match &self.socket {
            Some(socket) => socket.reserve_to_send(bytes).await,
            None => None,
        }
    }

    /// Returns an empty holding that is counted against this connection's share of the memory. A
    /// client in this program has no share, so its holdings are not counted.
    pub(crate) fn hold_memory(&self) -> Holding {
        self.socket.as_ref().map_or_else(Holding::default, |socket| socket.memory.hold())
    }

    /// Records that the session has ended or left this connection: from now on, the connection
    /// neither sends nor confirms the events of the session. A client in this program still gets
    /// the last events of processes that end with the session.
    pub(crate) fn lose_session(&self) {
        if let Some(socket) = &self.socket {
            socket.retire_own_feeds();
        }
    }

    /// Ends the connection. A socket hangs up; a client in this program loses its open resources.
    pub(crate) fn give_up(&self) {
        match &self.socket {
            Some(socket) => socket.outbox.close(),
            None => self.resources.end(),
        }
    }
}

impl Socket {
    pub(super) fn note_heard(&self) {
        self.heard.notify_waiters();
    }

    /// Probes with a ping of the transport or, if it has none, with a request, to which clients
    /// respond that the method is unknown.
    async fn is_alive(&self, timeout: Duration) -> bool {
        if self.prober.can_ask() {
            return self.prober.probe(timeout).await;
        }
        let mut heard = std::pin::pin!(self.heard.notified());
        heard.as_mut().enable();
        self.outbox.push(PROBE.into());
        tokio::time::timeout(timeout, heard).await.is_ok()
    }

    pub(crate) fn outbox(&self) -> &Arc<Outbox> {
        &self.outbox
    }

    async fn reserve(&self, bytes: usize) -> Reservation {
        let _permit = self.reserve_to_send(bytes).await;
        let memory = self.memory_for_response(bytes.min(RESPONSE_KIB << 10)).await;
        Reservation { _permit, memory }
    }

    async fn reserve_to_send(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let permits = response_permits(bytes);
        let permit = Arc::clone(&self.responses).acquire_many_owned(permits).await;
        self.outbox.room().await;
        permit.ok()
    }

    fn try_reserve_to_send(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let permits = response_permits(bytes);
        let permit = Arc::clone(&self.responses).try_acquire_many_owned(permits).ok()?;
        self.outbox.has_room().then_some(permit)
    }

    /// Reserves from the budget that connections share. The size is an estimate, so no response
    /// reserves the whole budget.
    async fn memory_for_response(&self, bytes: usize) -> Holding {
        let mut memory = self.memory.hold_guess();
        tokio::select! {
            () = memory.grow_to(self.guess(bytes)) => {}
            () = self.outbox.closed() => {}
        }
        memory
    }

    fn try_reserve(&self, bytes: usize) -> Option<Reservation> {
        let permit = self.try_reserve_to_send(bytes)?;
        self.with_memory(permit, bytes.min(RESPONSE_KIB << 10))
    }

    fn with_memory(&self, permit: OwnedSemaphorePermit, bytes: usize) -> Option<Reservation> {
        let mut memory = self.memory.hold_guess();
        let reserved = memory.try_grow_to(self.guess(bytes));
        reserved.then_some(Reservation { _permit: Some(permit), memory })
    }

    fn guess(&self, bytes: usize) -> usize {
        bytes.min(self.memory.budget().largest() / 4)
    }

    async fn reserve_names(&self, bytes: usize) -> Reservation {
        let permits = self.name_permits(bytes);
        let permit = Arc::clone(&self.names).acquire_many_owned(permits).await;
        Reservation { _permit: permit.ok(), memory: self.memory_for_response(bytes).await }
    }

    fn try_reserve_names(&self, bytes: usize) -> Option<Reservation> {
        let permit =
            Arc::clone(&self.names).try_acquire_many_owned(self.name_permits(bytes)).ok()?;
        self.with_memory(permit, bytes)
    }

    pub(crate) fn feed(&self, process: &Arc<ManagedProcess>, reader: FeedReader, held: bool) {
        let feed = SocketFeed::subscribe(process, &self.outbox, reader, held);
        self.drop_finished_feeds();
        self.feeds().push(feed);
    }

    /// Drops the feeds that have sent their last event: they only keep their processes in memory.
    pub(crate) fn drop_finished_feeds(&self) {
        let mut feeds = self.feeds();
        let before = feeds.len();
        feeds.retain(|feed| !feed.finished());
        if feeds.len() < before / 2 {
            feeds.shrink_to_fit();
        }
    }

    /// Starts to send the events of a process of this or another session after the event `after`.
    /// A second call for the same process starts over.
    pub(crate) fn observe(
        &self,
        process: &Arc<ManagedProcess>,
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
                let message = format!(
                    "this connection already observes {MAX_OBSERVED} processes; observe more on \
                     another connection"
                );
                return Err(
                    RpcError::invalid_request(message).with_kind(ErrorKind::TooManyObserved)
                );
            }
        }
        let reader = FeedReader::Observer { session_id: session_id.to_owned(), after };
        self.feed(process, reader, false);
        Ok(())
    }

    /// Returns the feed of a process that this connection's session owns.
    pub(crate) fn own_feed(&self, process: &Arc<ManagedProcess>) -> Option<Arc<SocketFeed>> {
        let feeds = self.feeds();
        let own = |feed: &&Arc<SocketFeed>| feed.is_owner() && Arc::ptr_eq(feed.process(), process);
        feeds.iter().find(own).cloned()
    }

    /// Releases every feed that is still held, with the events that its client missed.
    pub(crate) async fn release_feeds(&self) {
        let feeds = self.feeds().clone();
        for feed in feeds {
            feed.release(None).await;
        }
    }

    fn retire_own_feeds(&self) {
        self.feeds().retain(|feed| {
            if feed.is_owner() {
                feed.retire();
            }
            !feed.is_owner()
        });
    }

    fn name_permits(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.div_ceil(1 << 10).min(self.names_kib)).unwrap_or(u32::MAX)
    }

    fn feeds(&self) -> MutexGuard<'_, Vec<Arc<SocketFeed>>> {
        self.feeds.lock().expect("no code panics while it holds the feeds")
    }
}

fn response_permits(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(1 << 10).clamp(1, RESPONSE_KIB)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use exec_server_transport::{Connection, MemoryBudget, memory};

    use super::*;

    const MIB: usize = 1 << 20;

    #[tokio::test(start_paused = true)]
    async fn an_estimated_listing_does_not_close_its_connection() {
        let budget = MemoryBudget::new(8 * MIB);
        let [lists, idle, sends] = [(); 3].map(|()| budget.share());
        let Connection { prober, .. } = memory().0;
        let outbox = Arc::new(Outbox::new(&lists));
        let (id, principal) = (ConnectionId(1), Principal::local());
        let connection = {
            let config = ServerConfig::default();
            ClientConnection::over_socket(
                id,
                principal,
                None,
                &config,
                outbox,
                lists.clone(),
                prober,
            )
        };
        let mut reserved = connection.reserve_names(usize::MAX).await;
        let mut held = idle.hold();
        held.set(MIB / 2);
        let mut message = sends.hold();
        // The estimate for the listing exceeds what the idle connection holds.
        tokio::select! {
            () = lists.exceeded() => panic!("an estimate has closed its connection"),
            ((), ()) = async { tokio::join!(message.grow_to(4 * MIB), async {
                idle.exceeded().await;
                drop(held);
            }) } => {}
        }
        drop(message);
        // The finished listing counts as memory.
        reserved.set_bytes(9 * MIB);
        lists.exceeded().await;
    }
}
