//! One direction of a connection: bytes wait here until they are due and the receiver has room.

use std::collections::VecDeque;
use std::future;
use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::sync::Arc;

use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::frames::FramePosition;
use super::plan::{CutPlan, Due};
use super::{Conditions, Cut, Way};

const READ_CHUNK: usize = 16 << 10;

/// While this many bytes or more are waiting, nothing is read from the sender.
const MAX_WAITING: usize = 256 << 10;

pub(super) struct Direction {
    way: Way,
    waiting: VecDeque<Chunk>,
    waiting_bytes: usize,
    input: Input,
    plan: Arc<CutPlan>,
    /// The receiver's position in the frames.
    position: FramePosition,
    /// The number of bytes written to the receiver's socket so far.
    moved: u64,
}

struct Chunk {
    due: Instant,
    content: Content,
}

enum Content {
    Bytes {
        bytes: Vec<u8>,
        /// How many of the bytes have been written to the receiver's socket.
        written: usize,
    },
    /// The sender's FIN. Nothing follows it.
    End,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Input {
    #[default]
    Open,
    Ended,
}

/// The reason why both directions end early.
#[derive(Debug)]
pub(super) enum Ended {
    /// One of the sockets was reset, so the other must be reset, too.
    Reset,
    /// A cut is planned for the next message.
    Planned(Cut),
}

enum Progress {
    GoesOn,
    Ended,
}

impl Direction {
    pub(super) fn new(way: Way, plan: Arc<CutPlan>) -> Self {
        Self {
            way,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            input: Input::default(),
            plan,
            position: FramePosition::default(),
            moved: 0,
        }
    }

    /// Relays until the end of `from` has been forwarded to `to`. Cancel-safe.
    pub(super) async fn run(
        &mut self,
        from: &TcpStream,
        to: &TcpStream,
        mut conditions: watch::Receiver<Conditions>,
    ) -> Result<(), Ended> {
        loop {
            let now = *conditions.borrow_and_update();
            let allowance = now.limit.map_or(u64::MAX, |limit| limit.saturating_sub(self.moved));
            let flows = now.flows(self.way) && allowance > 0;
            let has_room = self.input == Input::Open && self.waiting_bytes < MAX_WAITING;
            let due = self.waiting.front().map(|chunk| chunk.due);
            tokio::select! {
                () = changed(&mut conditions) => {}
                readable = from.readable(), if flows && has_room => {
                    readable.map_err(|_| Ended::Reset)?;
                    self.read(from, now)?;
                }
                writable = writable_at(to, due), if flows && due.is_some() => {
                    writable.map_err(|_| Ended::Reset)?;
                    if let Progress::Ended = self.write(to, allowance)? {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Forwards part of the available bytes, too few to complete a frame, without waiting.
    pub(super) fn forward_part_of_a_frame(&mut self, from: &TcpStream, to: &TcpStream) {
        let bytes = match self.waiting.pop_front() {
            Some(Chunk { content: Content::Bytes { bytes, written }, .. }) => {
                bytes[written..].to_vec()
            }
            Some(Chunk { content: Content::End, .. }) => return,
            None => {
                // tokio's `try_read` fails until its reactor has run, so this reads from the kernel
                // directly.
                let mut bytes = vec![0; READ_CHUNK];
                let count = (&*SockRef::from(from)).read(&mut bytes).unwrap_or(0);
                bytes.truncate(count);
                bytes
            }
        };
        let part = self.position.len_within_frame(&bytes).div_ceil(2);
        // A receiver with a full window gets nothing more, like one behind a dead link.
        let _ = (&*SockRef::from(to)).write(&bytes[..part]);
    }

    fn read(&mut self, from: &TcpStream, now: Conditions) -> Result<(), Ended> {
        let mut bytes = vec![0; READ_CHUNK];
        let content = match from.try_read(&mut bytes) {
            Ok(0) => {
                self.input = Input::Ended;
                Content::End
            }
            Ok(count) => {
                bytes.truncate(count);
                self.waiting_bytes += count;
                Content::Bytes { bytes, written: 0 }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(_) => return Err(Ended::Reset),
        };
        self.waiting.push_back(Chunk { due: Instant::now() + now.delay, content });
        Ok(())
    }

    fn write(&mut self, to: &TcpStream, allowance: u64) -> Result<Progress, Ended> {
        let Some(Chunk { content, .. }) = self.waiting.front_mut() else {
            return Ok(Progress::GoesOn);
        };
        let Content::Bytes { bytes, written } = content else {
            SockRef::from(to).shutdown(Shutdown::Write).map_err(|_| Ended::Reset)?;
            return Ok(Progress::Ended);
        };
        let rest = &bytes[*written..];
        let rest = &rest[..rest.len().min(usize::try_from(allowance).unwrap_or(usize::MAX))];
        let rest = match self.plan.judge(self.way, &self.position, rest) {
            Due::Forward { len } => &rest[..len],
            Due::Cut(how) => return Err(Ended::Planned(how)),
        };
        match to.try_write(rest) {
            Ok(count) => {
                self.moved += count as u64;
                self.plan.passed(self.way, self.position.advance(&rest[..count]));
                self.waiting_bytes -= count;
                *written += count;
                if *written == bytes.len() {
                    self.waiting.pop_front();
                }
                Ok(Progress::GoesOn)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Progress::GoesOn),
            Err(_) => Err(Ended::Reset),
        }
    }
}

async fn changed(conditions: &mut watch::Receiver<Conditions>) {
    if conditions.changed().await.is_err() {
        // The proxy is being dropped, and this task with it.
        future::pending::<()>().await;
    }
}

async fn writable_at(to: &TcpStream, due: Option<Instant>) -> io::Result<()> {
    // Even a timer that is already due takes up to a millisecond.
    if let Some(due) = due.filter(|due| *due > Instant::now()) {
        sleep_until(due).await;
    }
    to.writable().await
}
