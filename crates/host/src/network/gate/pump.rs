//! Copies bytes between a program and its host, in both directions.
//!
//! An idle connection holds no buffer: bytes are read into a buffer of the thread and written at
//! once. Only bytes that the other socket does not accept are copied, and kept until they are
//! written.

use std::cell::RefCell;
use std::io;
use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rustix::net::Shutdown;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::task::yield_now;

const BUFFER_BYTES: usize = 256 << 10;
/// The size of reads while more than [`MAX_WAITING_BYTES`] wait for slow programs and hosts.
const SMALL_READ_BYTES: usize = 8 << 10;
/// Reads are small while all gates together hold more unwritten bytes than this.
const MAX_WAITING_BYTES: usize = 64 << 20;
const BYTES_BEFORE_YIELD: usize = 1 << 20;

static WAITING_BYTES: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The bytes moved by all connections of a gate.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    up: AtomicU64,
    down: AtomicU64,
}

impl Traffic {
    pub(super) fn count_up(&self, bytes: usize) {
        self.up.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn count_down(&self, bytes: usize) {
        self.down.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn bytes_up(&self) -> u64 {
        self.up.load(Ordering::Relaxed)
    }

    pub(super) fn bytes_down(&self) -> u64 {
        self.down.load(Ordering::Relaxed)
    }
}

/// Copies until both directions have ended. The end of one direction is passed on; an error of one
/// socket resets both.
pub(super) async fn pump(inside: TcpStream, outside: TcpStream, traffic: &Traffic) {
    if let Err(error) = copy_both(&inside, &outside, traffic).await {
        tracing::debug!(%error, "a connection of a managed process was reset");
        reset(inside);
        reset(outside);
    }
}

async fn copy_both(inside: &TcpStream, outside: &TcpStream, traffic: &Traffic) -> io::Result<()> {
    let mut up = pin!(copy(inside, outside, |bytes| traffic.count_up(bytes)));
    let mut down = pin!(copy(outside, inside, |bytes| traffic.count_down(bytes)));
    tokio::select! {
        ended = &mut up => {
            ended?;
            or_error_of(inside, down).await
        }
        ended = &mut down => {
            ended?;
            or_error_of(outside, up).await
        }
    }
}

/// Drives the other direction after `ended` has sent its last byte. Also waits for an error of
/// `ended`: that socket is no longer read, so a reset would go unnoticed while the other direction
/// is idle.
async fn or_error_of(
    ended: &TcpStream,
    other: impl Future<Output = io::Result<()>>,
) -> io::Result<()> {
    tokio::select! {
        biased;
        copied = other => copied,
        error = wait_for_error(ended) => Err(error),
    }
}

/// Closes a connection so that its peer sees a reset.
pub(super) fn reset(stream: TcpStream) {
    stream.set_zero_linger().ok();
    drop(stream);
}

/// Copies one direction until its end, and passes the end on.
async fn copy(from: &TcpStream, to: &TcpStream, count: impl Fn(usize)) -> io::Result<()> {
    let mut since_yield = 0;
    loop {
        from.readable().await?;
        let moved = match move_bytes(from, to, &count) {
            Ok(moved) => moved,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        };
        if moved.read == 0 {
            break;
        }
        write_all(to, &moved.rest.0).await?;
        since_yield += moved.read;
        if since_yield >= BYTES_BEFORE_YIELD {
            since_yield = 0;
            yield_now().await;
        }
    }
    match rustix::net::shutdown(to.as_fd(), Shutdown::Write) {
        // The peer has already closed both directions.
        Ok(()) | Err(rustix::io::Errno::NOTCONN) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

struct Moved {
    read: usize,
    rest: Rest,
}

/// Bytes that were read but not yet written.
struct Rest(Vec<u8>);

impl Rest {
    fn new(bytes: &[u8]) -> Self {
        WAITING_BYTES.fetch_add(bytes.len(), Ordering::Relaxed);
        Self(bytes.to_vec())
    }
}

impl Drop for Rest {
    fn drop(&mut self) {
        WAITING_BYTES.fetch_sub(self.0.len(), Ordering::Relaxed);
    }
}

/// Reads once, and writes as much as the other socket accepts. Bytes are counted before the program
/// can receive them: it may exit at once, and the counters are read then.
fn move_bytes(from: &TcpStream, to: &TcpStream, count: &impl Fn(usize)) -> io::Result<Moved> {
    BUFFER.with_borrow_mut(|buffer| {
        buffer.resize(BUFFER_BYTES, 0);
        let is_over_budget = WAITING_BYTES.load(Ordering::Relaxed) > MAX_WAITING_BYTES;
        let size = if is_over_budget { SMALL_READ_BYTES } else { BUFFER_BYTES };
        let read = from.try_read(&mut buffer[..size])?;
        count(read);
        let mut written = 0;
        while written < read {
            match to.try_write(&buffer[written..read]) {
                Ok(bytes) => written += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(Moved { read, rest: Rest::new(&buffer[written..read]) })
    })
}

pub(super) async fn write_all(to: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        to.writable().await?;
        match to.try_write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

async fn wait_for_error(stream: &TcpStream) -> io::Error {
    match stream.ready(Interest::ERROR).await {
        Ok(_) => {
            let error = stream.take_error().ok().flatten();
            error.unwrap_or_else(|| io::ErrorKind::ConnectionReset.into())
        }
        Err(error) => error,
    }
}

#[cfg(test)]
mod tests;
