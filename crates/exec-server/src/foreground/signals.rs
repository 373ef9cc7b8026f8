//! Handles signals while a process runs in the foreground.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use exec_server_protocol::SignalName;
use tokio::signal::unix::{Signal, SignalKind, signal};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReceivedSignal {
    Forward(ForwardedSignal),
    Resized,
    /// A request to stop this program.
    Stopped,
    /// This program continues after a stop.
    Continued,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ForwardedSignal {
    pub(crate) name: SignalName,
    pub(crate) number: u8,
    /// Whether the signal asks a program to end, and by default ends it.
    pub(crate) asks_to_end: bool,
}

impl ReceivedSignal {
    /// Stands for a closed terminal, even if no signal reported that.
    pub(crate) const HANGUP: Self = forward(SignalName::Hangup, 1, true);

    /// Returns the number of a signal that asks to end.
    fn request_to_end(self) -> Option<u8> {
        match self {
            Self::Forward(signal) if signal.asks_to_end => Some(signal.number),
            _ => None,
        }
    }
}

const fn forward(name: SignalName, number: u8, asks_to_end: bool) -> ReceivedSignal {
    ReceivedSignal::Forward(ForwardedSignal { name, number, asks_to_end })
}

fn meanings() -> [(SignalKind, ReceivedSignal); 8] {
    /// The number of SIGCONT on this platform.
    const CONTINUE: i32 = if cfg!(target_os = "macos") { 19 } else { 18 };
    [
        (SignalKind::interrupt(), forward(SignalName::Interrupt, 2, true)),
        (SignalKind::terminate(), forward(SignalName::Terminate, 15, true)),
        (SignalKind::hangup(), ReceivedSignal::HANGUP),
        (SignalKind::quit(), forward(SignalName::Quit, 3, true)),
        (SignalKind::user_defined1(), forward(SignalName::User1, 10, false)),
        (SignalKind::user_defined2(), forward(SignalName::User2, 12, false)),
        (SignalKind::window_change(), ReceivedSignal::Resized),
        (SignalKind::from_raw(CONTINUE), ReceivedSignal::Continued),
    ]
}

pub(crate) struct Signals {
    streams: Vec<(Signal, ReceivedSignal)>,
    /// The signals that this program inherited as ignored: a mask as in [`ignored_signals`].
    ignored: u64,
}

impl Signals {
    /// Handles signals from now on. A signal that was inherited as ignored, from `nohup` or for a
    /// background job, stays ignored.
    pub(crate) fn new() -> io::Result<Self> {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mut signals = Self { streams: Vec::new(), ignored: ignored_signals(&status) };
        for (kind, meaning) in meanings() {
            signals.listen(kind, meaning)?;
        }
        Ok(signals)
    }

    /// Reports requests to stop from now on, instead of stopping, so that the caller can restore
    /// the terminal first.
    pub(crate) fn listen_for_stop(&mut self) -> io::Result<()> {
        const STOP: i32 = if cfg!(target_os = "macos") { 18 } else { 20 };
        self.listen(SignalKind::from_raw(STOP), ReceivedSignal::Stopped)
    }

    /// Cancel-safe.
    pub(crate) async fn next(&mut self) -> ReceivedSignal {
        self.next_that(Some).await
    }

    /// Returns the number of the next signal that asks to end. Other signals stay queued.
    /// Cancel-safe.
    pub(crate) async fn asked_to_end(&mut self) -> u8 {
        self.next_that(ReceivedSignal::request_to_end).await
    }

    /// Runs `work` until a signal asks to end; its number is the error.
    pub(crate) async fn until_asked_to_end<T>(
        &mut self,
        work: impl Future<Output = T>,
    ) -> Result<T, u8> {
        tokio::select! {
            biased;
            done = work => Ok(done),
            number = self.asked_to_end() => Err(number),
        }
    }

    fn listen(&mut self, kind: SignalKind, meaning: ReceivedSignal) -> io::Result<()> {
        let bit = u32::try_from(kind.as_raw_value() - 1).unwrap_or(0);
        if self.ignored & 1_u64.checked_shl(bit).unwrap_or(0) == 0 {
            self.streams.push((signal(kind)?, meaning));
        }
        Ok(())
    }

    async fn next_that<T>(&mut self, wanted: impl Fn(ReceivedSignal) -> Option<T>) -> T {
        poll_fn(|context| {
            for (stream, meaning) in &mut self.streams {
                if let Some(meaning) = wanted(*meaning)
                    && let Poll::Ready(Some(())) = stream.poll_recv(context)
                {
                    return Poll::Ready(meaning);
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// Finds the mask of ignored signals in the text of `/proc/self/status`: one bit per signal; the
/// lowest is signal 1.
fn ignored_signals(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_status() {
        let status = "Name:\tx\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\nSigCgt:\t0\n";
        assert_eq!(ignored_signals(status), 0x1001);
        assert_eq!(ignored_signals(""), 0);
    }
}
