//! Accepts the connections of one listener, within a limit that listeners may share and the limit
//! of all gates.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::sleep;

use super::pump::reset;

/// The pause after an error such as EMFILE, which an immediate retry would hit again.
const BACKOFF: Duration = Duration::from_millis(100);

/// Serves each connection in its own task. A connection that exceeds a limit, or that `is_welcome`
/// rejects, is reset. After `closing` is set, the connections that the kernel has accepted by then
/// are still served, and the function returns when all connections have ended. Dropping the future
/// ends all connections.
pub(super) async fn accept_all<F>(
    listener: TcpListener,
    slots: Arc<Semaphore>,
    mut closing: watch::Receiver<bool>,
    is_welcome: impl Fn(&TcpStream) -> bool,
    serve: impl Fn(TcpStream) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let mut connections = JoinSet::new();
    let serve_if_possible = move |stream: TcpStream, connections: &mut JoinSet<()>| {
        let slot = if is_welcome(&stream) { Slot::take(&slots) } else { None };
        let Some(slot) = slot else { return reset(stream) };
        stream.set_nodelay(true).ok();
        let connection = serve(stream);
        connections.spawn(async move {
            connection.await;
            drop(slot);
        });
    };
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => serve_if_possible(stream, &mut connections),
                Err(error) => wait_after(&error, &listener).await,
            },
            Some(ended) = connections.join_next() => report_panic(ended),
            () = closes(&mut closing) => break,
        }
    }
    for stream in accepted_by_kernel(listener) {
        serve_if_possible(stream, &mut connections);
    }
    while let Some(ended) = connections.join_next().await {
        report_panic(ended);
    }
}

/// Accepts from the kernel directly: the reactor may not know of the last connections yet.
fn accepted_by_kernel(listener: TcpListener) -> Vec<TcpStream> {
    let Ok(listener) = listener.into_std() else { return Vec::new() };
    let accept = || {
        let (stream, _) = listener.accept().ok()?;
        stream.set_nonblocking(true).ok()?;
        TcpStream::from_std(stream).ok()
    };
    std::iter::from_fn(accept).collect()
}

/// Resolves when the gate closes or is dropped.
async fn closes(closing: &mut watch::Receiver<bool>) {
    let _ = closing.wait_for(|is_closing| *is_closing).await;
}

/// The permit for one connection, within the limits of its gate and of all gates.
struct Slot {
    _of_gate: OwnedSemaphorePermit,
    _of_all: SemaphorePermit<'static>,
}

impl Slot {
    fn take(of_gate: &Arc<Semaphore>) -> Option<Self> {
        let _of_gate = Arc::clone(of_gate).try_acquire_owned().ok()?;
        let _of_all = all_slots().try_acquire().ok()?;
        Some(Self { _of_gate, _of_all })
    }
}

/// Returns the slots for the connections of all gates. Each connection takes two descriptors, and
/// half of the server's descriptors stay available for clients and files.
fn all_slots() -> &'static Semaphore {
    static SLOTS: OnceLock<Semaphore> = OnceLock::new();
    SLOTS.get_or_init(|| {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let slots = usize::try_from(descriptors / 4).unwrap_or(usize::MAX);
        Semaphore::new(slots.clamp(1, Semaphore::MAX_PERMITS))
    })
}

async fn wait_after(error: &io::Error, listener: &TcpListener) {
    // These errors concern one connection; the next may succeed.
    if !matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
        let listener = listener.local_addr().ok();
        tracing::warn!(%error, ?listener, "cannot accept a connection of a managed process");
        sleep(BACKOFF).await;
    }
}

pub(super) fn report_panic(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "the task of a managed process's connection panicked");
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn a_connection_beyond_the_limit_is_reset() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let slots = Arc::new(Semaphore::new(1));
        let (_open, closing) = watch::channel(false);
        let mut accepting = JoinSet::new();
        accepting.spawn(accept_all(
            listener,
            Arc::clone(&slots),
            closing,
            |_| true,
            |mut stream| async move {
                stream.read_u8().await.ok();
            },
        ));
        let first = TcpStream::connect(address).await.unwrap();
        // The reset may arrive before `connect` returns.
        let second = async { TcpStream::connect(address).await?.read_u8().await };
        assert_eq!(second.await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        drop(first);
        // The slot is free again once the task of the first connection has ended.
        drop(slots.acquire().await.unwrap());
    }

    #[tokio::test]
    async fn a_closing_listener_serves_earlier_connections() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        // Accepted by the kernel, not yet by the gate.
        let mut early = std::net::TcpStream::connect(address).unwrap();
        std::io::Write::write_all(&mut early, b"x").unwrap();
        drop(early);
        let (close, closing) = watch::channel(true);
        let (served, mut bytes) = tokio::sync::mpsc::channel(1);
        let slots = Arc::new(Semaphore::new(8));
        accept_all(
            listener,
            slots,
            closing,
            |_| true,
            move |mut stream| {
                let served = served.clone();
                async move { served.send(stream.read_u8().await.unwrap()).await.unwrap() }
            },
        )
        .await;
        assert_eq!(bytes.recv().await, Some(b'x'));
        drop(close);
    }
}
