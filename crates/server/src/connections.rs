//! The connections that are being served, without those of clients in this program.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use crate::connection::{ClientConnection, ConnectionId};

#[derive(Debug, Default)]
pub(crate) struct Connections {
    by_id: Arc<Mutex<HashMap<ConnectionId, Weak<ClientConnection>>>>,
}

/// Unregisters a connection when dropped.
#[derive(Debug)]
pub(crate) struct Registered {
    id: ConnectionId,
    by_id: Arc<Mutex<HashMap<ConnectionId, Weak<ClientConnection>>>>,
}

impl Connections {
    pub(crate) fn register(&self, connection: &Arc<ClientConnection>) -> Registered {
        let id = connection.id();
        lock(&self.by_id).insert(id, Arc::downgrade(connection));
        Registered { id, by_id: Arc::clone(&self.by_id) }
    }

    pub(crate) fn all(&self) -> Vec<Arc<ClientConnection>> {
        lock(&self.by_id).values().filter_map(Weak::upgrade).collect()
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        lock(&self.by_id).remove(&self.id);
    }
}

type ById = HashMap<ConnectionId, Weak<ClientConnection>>;

fn lock(by_id: &Mutex<ById>) -> MutexGuard<'_, ById> {
    by_id.lock().expect("no code panics while it holds the connections")
}
