//! The open files, watches and searches of one connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use exec_server_host::fs::{OpenFile, Stop};
use exec_server_protocol::{ErrorCode, MAX_HANDLE_ID_BYTES, MAX_WATCH_ID_BYTES, RpcError};
use tokio::sync::oneshot;

use super::named::{NameRules, Named};
use crate::local::{Upload, Watches};

const MAX_HANDLES: usize = 128;
const MAX_WATCHES: usize = 1000;
/// As many as may run at once by default.
const MAX_SEARCHES: usize = 64;

#[derive(Debug)]
pub(super) struct ConnectionFiles {
    /// Requested when the connection is over.
    pub(super) stop: Stop,
    pub(super) handles: Arc<Named<Handle>>,
    pub(super) watches: Arc<Watches>,
    pub(super) watch_names: Arc<Named<WatchTask>>,
    /// What cancels each search.
    pub(super) searches: Arc<Named<Arc<AtomicBool>>>,
}

/// Tells of changes until `stop` is dropped. `ended` then says that the last has been told.
#[derive(Debug)]
pub(super) struct WatchTask {
    pub(super) stop: oneshot::Sender<()>,
    pub(super) ended: oneshot::Receiver<()>,
}

#[derive(Debug, Clone)]
pub(super) enum Handle {
    Reading(Arc<OpenFile>),
    Writing(Arc<Upload>),
}

impl Default for ConnectionFiles {
    fn default() -> Self {
        let rules = |member, max_bytes, max_names| NameRules {
            member,
            max_bytes,
            max_names,
            bad_name: ErrorCode::InvalidRequest,
        };
        Self {
            stop: Stop::default(),
            handles: Named::new(rules("handleId", MAX_HANDLE_ID_BYTES, MAX_HANDLES)),
            watches: Arc::default(),
            watch_names: Named::new(rules("watchId", MAX_WATCH_ID_BYTES, MAX_WATCHES)),
            searches: Named::new(rules("searchId", MAX_WATCH_ID_BYTES, MAX_SEARCHES)),
        }
    }
}

impl ConnectionFiles {
    pub(super) fn reading(&self, id: &str) -> Result<Arc<OpenFile>, RpcError> {
        match self.handles.get(id) {
            Some(Handle::Reading(file)) => Ok(file),
            Some(Handle::Writing(_)) => Err(other_way(id, "writing")),
            None => Err(self.unknown(id)),
        }
    }

    pub(super) fn writing(&self, id: &str) -> Result<Arc<Upload>, RpcError> {
        match self.handles.get(id) {
            Some(Handle::Writing(upload)) => Ok(upload),
            Some(Handle::Reading(_)) => Err(other_way(id, "reading")),
            None => Err(self.unknown(id)),
        }
    }

    fn unknown(&self, id: &str) -> RpcError {
        self.handles.check_name(id).err().unwrap_or_else(|| {
            let message = format!("handleId {id:?} is not open on this connection");
            RpcError::new(ErrorCode::NotFound, message).with_kind("unknownHandle")
        })
    }

    /// Nobody will read what they find.
    pub(super) fn cancel_searches(&self) {
        for cancelled in self.searches.end() {
            cancelled.store(true, Ordering::Relaxed);
        }
    }

    /// The connection is over. Uploads that nobody can finish are removed.
    pub(super) fn end(&self) {
        self.stop.request();
        self.cancel_searches();
        drop(self.watch_names.end());
        self.watches.close();
        for handle in self.handles.end() {
            if let Handle::Writing(upload) = handle {
                let lane = upload.lane().clone();
                lane.run(move |_| upload.abandon());
            }
        }
    }
}

fn other_way(id: &str, way: &str) -> RpcError {
    RpcError::invalid_request(format!("handleId {id:?} is open for {way}"))
}
