//! The signals that we get while a process runs in the foreground.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use exec_server_protocol::SignalName;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// A signal, by what it means to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    /// Meant for the process.
    Forward(Forwarded),
    /// The terminal has another size.
    Resized,
    /// We were stopped and go on.
    Continued,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Forwarded {
    pub(crate) name: SignalName,
    pub(crate) number: u8,
    /// Whether it ends a program that does not say otherwise and that a person wants to be rid of.
    pub(crate) asks_to_end: bool,
}

const fn forward(name: SignalName, number: u8, asks_to_end: bool) -> Received {
    Received::Forward(Forwarded { name, number, asks_to_end })
}

fn meanings() -> [(SignalKind, Received); 8] {
    /// The number of SIGCONT wherever this runs.
    const CONTINUE: i32 = if cfg!(target_os = "macos") { 19 } else { 18 };
    [
        (SignalKind::interrupt(), forward(SignalName::Interrupt, 2, true)),
        (SignalKind::terminate(), forward(SignalName::Terminate, 15, true)),
        (SignalKind::hangup(), forward(SignalName::Hangup, 1, true)),
        (SignalKind::quit(), forward(SignalName::Quit, 3, true)),
        (SignalKind::user_defined1(), forward(SignalName::User1, 10, false)),
        (SignalKind::user_defined2(), forward(SignalName::User2, 12, false)),
        (SignalKind::window_change(), Received::Resized),
        (SignalKind::from_raw(CONTINUE), Received::Continued),
    ]
}

pub(crate) struct Signals {
    streams: Vec<(Signal, Received)>,
}

impl Signals {
    /// From here on these signals do not end us. One that we were started to ignore, by `nohup` or as a background
    /// job, stays ignored.
    pub(crate) fn new() -> io::Result<Self> {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let ignored = ignored_signals(&status);
        let wanted = meanings().into_iter().filter(|(kind, _)| {
            let bit = u32::try_from(kind.as_raw_value() - 1).unwrap_or(0);
            ignored & 1_u64.checked_shl(bit).unwrap_or(0) == 0
        });
        let streams = wanted.map(|(kind, meaning)| Ok((signal(kind)?, meaning)));
        Ok(Self { streams: streams.collect::<io::Result<_>>()? })
    }

    /// Cancel-safe.
    pub(crate) async fn next(&mut self) -> Received {
        poll_fn(|context| {
            for (stream, meaning) in &mut self.streams {
                if let Poll::Ready(Some(())) = stream.poll_recv(context) {
                    return Poll::Ready(*meaning);
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// One bit for each signal, the lowest for signal 1.
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
