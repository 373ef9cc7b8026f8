//! A process in the foreground: its streams are ours, signals that we get are its own, and a lost connection is
//! waited for. Knows process handles, the terminal and this process; how the process was started is not known here.

mod delivery;
mod input;
mod orders;
mod output;
mod report;
mod signals;
mod stdin;

pub(crate) use input::{OnStreamEnd, Source};
pub(crate) use output::{OutputError, Outputs};
pub(crate) use report::Report;
pub(crate) use signals::Signals;

use std::cell::Cell;
use std::io::{self, Write as _};
use std::time::Duration;

use exec_server_client::{ExecServerClient, ExecServerError, ExecServerProcess, ProcessEvents};
use exec_server_protocol::{SignalName, TerminalSize, WaitParams};
use rustix::process::{Signal, getpid, kill_process};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::terminal::outage;
use crate::terminal::{self, RawModeGuard, printable_lines};
use delivery::deliver;
use input::InputEnd;
use orders::{KILL_AFTER, Order, graceful, perform};
use signals::ReceivedSignal;

/// How long a process may take to be gone after its KILL.
const END_TIMEOUT: Duration = Duration::from_secs(1);
/// What Ctrl-C sends.
const INTERRUPT: u8 = 2;
/// Orders to the process that wait for the connection. Full: the newest is dropped.
const ORDERS: usize = 16;

/// How to be the foreground of a process.
#[derive(Debug)]
pub(crate) struct Foreground {
    /// `None`: nothing is read.
    pub(crate) stdin: Option<Source>,
    /// The process has a terminal, which follows the size of ours.
    pub(crate) terminal: bool,
    pub(crate) on_signal: OnSignal,
    pub(crate) on_gap: OnGap,
    pub(crate) report: Report,
    pub(crate) timeout: Option<Duration>,
}

/// What a signal that asks a program to end does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnSignal {
    /// The process gets it and decides.
    Forward,
    /// The same, but the end of our terminal is not the end of the process.
    ForwardButHangup,
    /// It ends us: whoever sends it means this window, not what runs in it.
    Leave,
}

/// What to make of output that is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnGap {
    /// The command promises every byte.
    Fail,
    /// Tell the user: a late attach may find output missing.
    Warn,
}

/// How it ended.
#[derive(Debug)]
pub(crate) enum Ending {
    /// The process has ended, and all its output is written.
    Exited {
        code: i32,
    },
    TimedOut(TimedOut),
    /// What the process was to read cannot be read.
    InputFailed(io::Error),
    /// The server refused a part of the input.
    InputRefused(ExecServerError),
    /// Nobody reads our output any more, or it cannot be written.
    OutputFailed(OutputError),
    /// The person typed `~.`.
    Left,
    /// This signal ended us, not the process.
    Signalled {
        number: u8,
    },
    /// The person did not want to wait for the connection.
    GaveUp {
        number: u8,
    },
    /// The process is lost to us.
    Lost(ExecServerError),
}

/// How much is known about the end of a process that timed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimedOut {
    Ended,
    /// Its end was not seen; the server sees to it.
    LeftToServer,
    /// Its end was not seen, and the server does not know of the time limit.
    MayRun,
}

impl TimedOut {
    /// Follows "… timed out".
    pub(crate) fn in_words(self) -> &'static str {
        match self {
            Self::Ended => "",
            Self::LeftToServer => "; the server ends it, though its end was not seen from here",
            Self::MayRun => "; its end was not seen, and it may still be running",
        }
    }
}

impl Foreground {
    /// Stays until the process or the wish to see it ends. `events` must have been subscribed to before the process
    /// could say more than is retained.
    pub(crate) async fn stay(
        self,
        client: &ExecServerClient,
        process: &ExecServerProcess,
        events: ProcessEvents,
        signals: &mut Signals,
    ) -> io::Result<Ending> {
        let raw_mode = self.enter_raw_mode(signals)?;
        let state = client.connection_state();
        let is_away = || outage::is_away(&state.borrow());
        let (orders, queue) = mpsc::channel(ORDERS);
        let is_blocked = Cell::new(false);
        let output = deliver(process, events, self.on_gap, self.report, &is_blocked);
        let input = async {
            match self.stdin {
                Some(source) => {
                    input::forward(process, self.terminal, stdin::read(), source, is_away).await
                }
                None => InputEnd::Finished,
            }
        };
        let performing = perform(client, process, queue, &is_blocked);
        let tell = |text: &str| show(&format!("exec-server: {text}\n"));
        let outages = outage::report(client.connection_state(), tell);
        tokio::pin!(output, input, performing, outages);
        let mut input_ended = false;
        let mut limit = TimeLimit::new(self.timeout);
        let unseen = || match process.has_deadline() {
            true => Ending::TimedOut(TimedOut::LeftToServer),
            false => Ending::TimedOut(TimedOut::MayRun),
        };
        loop {
            let received = tokio::select! {
                ending = &mut output => {
                    return Ok(match ending {
                        // A server that keeps the deadline says in the exit whether it passed.
                        Ending::Exited { .. } if limit.is_over && !process.has_deadline() => {
                            Ending::TimedOut(TimedOut::Ended)
                        }
                        Ending::Lost(_) if limit.is_over => unseen(),
                        ending => ending,
                    });
                }
                end = &mut input, if !input_ended => {
                    input_ended = true;
                    match end {
                        InputEnd::Finished => continue,
                        InputEnd::HungUp => ReceivedSignal::HANGUP,
                        InputEnd::Failed(error) => return Ok(Ending::InputFailed(error)),
                        InputEnd::Refused(error) => return Ok(Ending::InputRefused(error)),
                        InputEnd::Left => {
                            // What comes next on the screen is not the program's.
                            show("\n");
                            return Ok(Ending::Left);
                        }
                        InputEnd::GaveUp => return Ok(Ending::GaveUp { number: INTERRUPT }),
                    }
                }
                received = signals.next() => received,
                () = limit.passed() => {
                    match process.has_deadline() {
                        // The server ends the process. Its exit, or output that comes before it, may
                        // still be under way; only without a connection will neither be seen.
                        true if !limit.is_over || !is_away() => {}
                        false if !limit.is_over => drop(orders.try_send(Order::Terminate)),
                        _ => return Ok(unseen()),
                    }
                    limit.grant_last_moment();
                    continue;
                }
                number = &mut performing => return Ok(Ending::Signalled { number }),
                never = &mut outages => match never {},
            };
            follow(received, raw_mode.as_ref());
            if let Some(ending) = self.on_signal.ending(received, is_away()) {
                return Ok(ending);
            }
            if let Some(order) = Order::from_signal(received, self.terminal) {
                let _ = orders.try_send(order);
            }
        }
    }

    /// For a person at a terminal who types to a terminal.
    fn enter_raw_mode(&self, signals: &mut Signals) -> io::Result<Option<RawModeGuard>> {
        let (Some(Source::Keyboard(_)), true) = (&self.stdin, self.terminal) else {
            return Ok(None);
        };
        signals.listen_for_stop()?;
        RawModeGuard::enter().map(Some)
    }
}

/// Stops and continues as a program without a terminal in raw mode would by itself. A terminal that is gone, which also
/// continues those it leaves behind, needs no mode; whoever reads it finds out.
fn follow(received: ReceivedSignal, raw_mode: Option<&RawModeGuard>) {
    match (received, raw_mode) {
        (ReceivedSignal::Stopped, Some(raw_mode)) => {
            let _ = raw_mode.suspend();
            let _ = kill_process(getpid(), Signal::STOP);
        }
        (ReceivedSignal::Continued, Some(raw_mode)) => drop(raw_mode.apply()),
        _ => {}
    }
}

/// When patience with the process ends; after that, when it ends with its end.
#[derive(Debug)]
struct TimeLimit {
    deadline: Option<Instant>,
    is_over: bool,
}

impl TimeLimit {
    fn new(timeout: Option<Duration>) -> Self {
        // One that no clock can hold is none.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        Self { deadline, is_over: false }
    }

    async fn passed(&self) {
        match self.deadline {
            Some(deadline) => sleep_until(deadline).await,
            None => std::future::pending().await,
        }
    }

    fn grant_last_moment(&mut self) {
        self.is_over = true;
        self.deadline = Some(Instant::now() + KILL_AFTER + END_TIMEOUT);
    }
}

impl OnSignal {
    /// What the signal ends, if it is not just passed on.
    fn ending(self, received: ReceivedSignal, is_away: bool) -> Option<Ending> {
        let ReceivedSignal::Forward(signal) = received else { return None };
        let number = signal.number;
        let ends_command = match self {
            Self::Forward => false,
            Self::ForwardButHangup => signal.name == SignalName::Hangup,
            Self::Leave => true,
        };
        match signal.asks_to_end {
            true if is_away => Some(Ending::GaveUp { number }),
            true if ends_command => Some(Ending::Signalled { number }),
            _ => None,
        }
    }
}

/// Asks a process to end and waits until it has, or will not.
pub(crate) async fn end(client: &ExecServerClient, process: &ExecServerProcess) {
    let process_id = process.process_id().to_owned();
    let exited = client.process_wait(WaitParams { process_id, timeout_ms: None });
    let mut events = process.subscribe_events();
    let gone = async {
        let _ = process.terminate(graceful()).await;
        tokio::select! {
            _ = exited => {}
            // What it still says must not stand in the way of its end.
            () = async { while events.next().await.is_some() {} } => {}
        }
    };
    let _ = tokio::time::timeout(KILL_AFTER + END_TIMEOUT, gone).await;
}

pub(crate) fn terminal_size() -> Option<TerminalSize> {
    terminal::size().map(|(rows, cols)| TerminalSize { rows, cols })
}

/// Tells the person something; nothing is left to do when even that fails.
fn show(text: &str) {
    // In raw mode a newline alone does not return to the first column.
    let newline = if terminal::is_stdin_a_terminal() { "\r\n" } else { "\n" };
    let text = printable_lines(text).replace('\n', newline);
    let _ = io::stderr().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::signals::ForwardedSignal;
    use super::*;

    const INTERRUPT: ReceivedSignal = ReceivedSignal::Forward(ForwardedSignal {
        name: SignalName::Interrupt,
        number: 2,
        asks_to_end: true,
    });
    const HANGUP: ReceivedSignal = ReceivedSignal::Forward(ForwardedSignal {
        name: SignalName::Hangup,
        number: 1,
        asks_to_end: true,
    });
    const USER1: ReceivedSignal = ReceivedSignal::Forward(ForwardedSignal {
        name: SignalName::User1,
        number: 10,
        asks_to_end: false,
    });

    #[test]
    fn the_process_gets_the_signals_of_a_command() {
        for signal in [INTERRUPT, USER1, ReceivedSignal::Resized] {
            assert!(OnSignal::Forward.ending(signal, false).is_none());
        }
    }

    #[test]
    fn a_shell_is_left() {
        assert!(OnSignal::Leave.ending(USER1, false).is_none());
        let ending = OnSignal::Leave.ending(INTERRUPT, false);
        assert!(matches!(ending, Some(Ending::Signalled { number: 2 })));
    }

    #[test]
    fn the_end_of_our_terminal_does_not_end_what_we_are_attached_to() {
        assert!(OnSignal::ForwardButHangup.ending(INTERRUPT, false).is_none());
        let ending = OnSignal::ForwardButHangup.ending(HANGUP, false);
        assert!(matches!(ending, Some(Ending::Signalled { number: 1 })));
        assert!(OnSignal::Forward.ending(HANGUP, false).is_none());
    }

    #[test]
    fn an_interrupt_gives_up_while_the_connection_is_away() {
        for policy in [OnSignal::Forward, OnSignal::ForwardButHangup, OnSignal::Leave] {
            assert!(policy.ending(USER1, true).is_none());
            let ending = policy.ending(INTERRUPT, true);
            assert!(matches!(ending, Some(Ending::GaveUp { number: 2 })));
        }
    }
}
