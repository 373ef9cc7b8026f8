//! The open files, watches and searches of one connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use exec_server_host::fs::OpenFile;
use exec_server_protocol::{ErrorCode, MAX_HANDLE_ID_BYTES, MAX_WATCH_ID_BYTES, RpcError};
use tokio::sync::oneshot;

use super::named::{NameRules, Named};
use crate::local::{FilePool, Upload, Watches};

const MAX_HANDLES: usize = 128;
const MAX_WATCHES: usize = 1000;
/// As many as may run at once by default.
const MAX_SEARCHES: usize = 64;

#[derive(Debug)]
pub(super) struct ConnectionFiles {
    pub(super) handles: Arc<Named<Handle>>,
    pub(super) watches: Arc<Watches>,
    /// What stops each watch when it is dropped.
    pub(super) watch_names: Arc<Named<oneshot::Sender<()>>>,
    /// What cancels each search.
    pub(super) searches: Arc<Named<Arc<AtomicBool>>>,
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
            duplicate: ErrorCode::InvalidRequest,
        };
        Self {
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
            None => Err(unknown(id)),
        }
    }

    pub(super) fn writing(&self, id: &str) -> Result<Arc<Upload>, RpcError> {
        match self.handles.get(id) {
            Some(Handle::Writing(upload)) => Ok(upload),
            Some(Handle::Reading(_)) => Err(other_way(id, "reading")),
            None => Err(unknown(id)),
        }
    }

    /// The connection is over. Uploads that nobody can finish are removed.
    pub(super) fn end(&self, pool: &FilePool) {
        for cancelled in self.searches.end() {
            cancelled.store(true, Ordering::Relaxed);
        }
        drop(self.watch_names.end());
        let handles = self.handles.end();
        if handles.is_empty() {
            return;
        }
        pool.run(move || {
            for handle in handles {
                if let Handle::Writing(upload) = handle {
                    upload.abandon();
                }
            }
        });
    }
}

fn unknown(id: &str) -> RpcError {
    RpcError::invalid_request(format!("handleId {id:?} is not open on this connection"))
        .with_kind("unknownHandle")
}

fn other_way(id: &str, way: &str) -> RpcError {
    RpcError::invalid_request(format!("handleId {id:?} is open for {way}"))
}
