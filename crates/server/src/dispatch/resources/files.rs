//! The open files, watches and searches of one connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use exec_server_host::fs::{CancelFlag, OpenFile};
use exec_server_protocol::{
    ErrorCode, ErrorKind, MAX_HANDLE_ID_BYTES, MAX_WATCH_ID_BYTES, RpcError,
};
use tokio::sync::oneshot;

use super::id_table::{IdRules, IdTable};
use crate::ServerConfig;
use crate::adapter::{Upload, Watches};

/// Maximum number of concurrent searches: the default of `concurrent_requests`.
const MAX_SEARCHES: usize = 64;

#[derive(Debug)]
pub(crate) struct Files {
    /// Set when the connection ends, to stop long file operations.
    pub(crate) stop: CancelFlag,
    pub(crate) handles: Arc<IdTable<FileHandle>>,
    pub(crate) watches: Arc<Watches>,
    pub(crate) watch_tasks: Arc<IdTable<WatchTask>>,
    /// The cancel flag of each search.
    pub(crate) searches: Arc<IdTable<Arc<AtomicBool>>>,
}

/// Sends changes until `stop` is dropped. `ended` resolves after the last one.
#[derive(Debug)]
pub(crate) struct WatchTask {
    pub(crate) stop: oneshot::Sender<()>,
    pub(crate) ended: oneshot::Receiver<()>,
}

#[derive(Debug, Clone)]
pub(crate) enum FileHandle {
    Reading(Arc<OpenFile>),
    Writing(Arc<Upload>),
}

impl Files {
    pub(crate) fn limited(config: &ServerConfig) -> Self {
        let (handles, watches) =
            (config.max_handles_per_connection, config.max_watches_per_connection);
        Self::with_limits(handles, watches, MAX_SEARCHES)
    }

    pub(crate) fn unlimited() -> Self {
        Self::with_limits(usize::MAX, usize::MAX, usize::MAX)
    }

    fn with_limits(handles: usize, watches: usize, searches: usize) -> Self {
        let rules = |member, max_bytes, max_entries| IdRules {
            member,
            max_bytes,
            max_entries,
            bad_id: ErrorCode::InvalidRequest,
        };
        Self {
            stop: CancelFlag::default(),
            handles: IdTable::new(rules("handleId", MAX_HANDLE_ID_BYTES, handles)),
            watches: Arc::default(),
            watch_tasks: IdTable::new(rules("watchId", MAX_WATCH_ID_BYTES, watches)),
            searches: IdTable::new(rules("searchId", MAX_WATCH_ID_BYTES, searches)),
        }
    }

    pub(crate) fn reading(&self, id: &str) -> Result<Arc<OpenFile>, RpcError> {
        match self.handles.get(id) {
            Some(FileHandle::Reading(file)) => Ok(file),
            Some(FileHandle::Writing(_)) => Err(other_way(id, "writing")),
            None => Err(self.unknown(id)),
        }
    }

    pub(crate) fn writing(&self, id: &str) -> Result<Arc<Upload>, RpcError> {
        match self.handles.get(id) {
            Some(FileHandle::Writing(upload)) => Ok(upload),
            Some(FileHandle::Reading(_)) => Err(other_way(id, "reading")),
            None => Err(self.unknown(id)),
        }
    }

    fn unknown(&self, id: &str) -> RpcError {
        self.handles.check_id(id).err().unwrap_or_else(|| {
            let message = format!("handleId {id:?} is not open on this connection");
            RpcError::new(ErrorCode::NotFound, message).with_kind(ErrorKind::UnknownHandle)
        })
    }

    /// Cancels all searches: their results would have no reader.
    pub(crate) fn cancel_searches(&self) {
        for cancelled in self.searches.end() {
            cancelled.store(true, Ordering::Relaxed);
        }
    }

    /// Called when the connection has ended. Removes uploads that cannot be resumed.
    pub(crate) fn end(&self) {
        self.stop.request();
        self.cancel_searches();
        drop(self.watch_tasks.end());
        self.watches.close();
        for handle in self.handles.end() {
            if let FileHandle::Writing(upload) = handle {
                let executor = upload.executor().clone();
                executor.run(move |_| upload.abandon());
            }
        }
    }
}

fn other_way(id: &str, way: &str) -> RpcError {
    RpcError::invalid_request(format!("handleId {id:?} is open only for {way}"))
}
