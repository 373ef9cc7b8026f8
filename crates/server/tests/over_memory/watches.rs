//! The watch of a client that reads slowly.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use exec_server_host::process::launch::Launcher;
use exec_server_protocol::{
    Call, ChangedNotification, EventSink, FsWatchParams, Offered, PathUri, ServerLink,
    ServerNotification, SinkFuture,
};
use exec_server_server::{Server, ServerConfig};
use tokio::sync::{Notify, Semaphore, oneshot};

/// Long enough that only a lost event exceeds it.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A client that has room when the test grants it.
#[derive(Debug)]
struct Client {
    room: Semaphore,
    /// Notified when the server waits for room.
    asked: Notify,
    told: Mutex<Vec<ChangedNotification>>,
    news: Notify,
}

impl Client {
    fn with_room(room: usize) -> Arc<Self> {
        let room = Semaphore::new(room);
        let (asked, told, news) = (Notify::new(), Mutex::default(), Notify::new());
        Arc::new(Self { room, asked, told, news })
    }

    async fn watch(self: &Arc<Self>, link: &dyn ServerLink, id: &str, path: &Path) {
        let params = FsWatchParams {
            path: PathUri::from_path(path).unwrap(),
            watch_id: id.to_owned(),
            recursive: false,
            sandbox: None,
        };
        let (answer, answered) = oneshot::channel();
        let respond = move |response: Result<_, _>| answer.send(response.map(drop)).unwrap();
        link.call(Call::FsWatch(params), Some(self.clone()), Box::new(respond));
        answered.await.unwrap().unwrap();
    }

    fn has_heard_of(&self, path: &Path) -> bool {
        let path = PathUri::from_path(path).unwrap();
        self.told.lock().unwrap().iter().any(|told| told.changed_paths.contains(&path))
    }

    async fn hears_of(&self, path: &Path) {
        while !self.has_heard_of(path) {
            tokio::time::timeout(TIMEOUT, self.news.notified()).await.unwrap();
        }
    }
}

impl EventSink for Client {
    fn offer(&self, notification: ServerNotification) -> Offered {
        let ServerNotification::FsChanged(changed) = notification else {
            panic!("{notification:?}")
        };
        self.told.lock().unwrap().push(changed);
        self.news.notify_one();
        Offered::Accepted
    }

    fn room(&self) -> SinkFuture<'_> {
        self.asked.notify_one();
        Box::pin(async { self.room.acquire().await.unwrap().forget() })
    }

    fn gone(&self) -> SinkFuture<'_> {
        Box::pin(std::future::pending())
    }

    fn end(&self) {}
}

#[tokio::test]
async fn changes_waiting_for_a_client_are_combined() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().canonicalize().unwrap();
    let (gone, last) = (root.join("gone"), root.join("last"));
    let server = Server::new(ServerConfig::default(), Launcher::plain());
    let link = server.connect_in_process("local").unwrap();
    let (slow, fast) = (Client::with_room(0), Client::with_room(100));
    slow.watch(&*link, "slow", &root).await;
    fast.watch(&*link, "fast", &root).await;
    std::fs::write(&gone, "x").unwrap();
    tokio::time::timeout(TIMEOUT, slow.asked.notified()).await.unwrap();
    fast.hears_of(&gone).await;
    std::fs::remove_file(&gone).unwrap();
    std::fs::write(&last, "x").unwrap();
    fast.hears_of(&last).await;
    slow.room.add_permits(100);
    slow.hears_of(&last).await;
    assert!(!slow.has_heard_of(&gone), "{:?}", slow.told);
}
