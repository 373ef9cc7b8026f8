//! Runs a process in the foreground: connects its streams and signals to this program, and keeps
//! waiting while the connection is lost. Knows process handles, the terminal and this program, but
//! not how the process was started.

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

/// How long this program waits after the KILL of a process to observe its end.
const END_TIMEOUT: Duration = Duration::from_secs(1);
/// The signal of Ctrl-C.
const INTERRUPT: u8 = 2;
/// The maximum number of orders that wait for the one being executed, as while the connection is
/// lost. Further orders are dropped.
const ORDERS: usize = 16;

#[derive(Debug)]
pub(crate) struct Foreground {
    /// `None`: standard input is not read.
    pub(crate) stdin: Option<Source>,
    /// Whether the process has a terminal, which follows the size of the local one.
    pub(crate) terminal: bool,
    pub(crate) on_signal: OnSignal,
    pub(crate) on_gap: OnGap,
    pub(crate) report: Report,
    pub(crate) timeout: Option<Duration>,
}

/// The effect of a signal that asks a program to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnSignal {
    /// The process receives the signal and decides.
    Forward,
    /// Like `Forward`, but a hangup, the end of the local terminal, ends only this program.
    ForwardButHangup,
    /// Ends this program: the signal is for the local window, not for the process in it.
    Leave,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnGap {
    /// Ends with an error, because the command guarantees every byte.
    Fail,
    /// Warns the user: a late attach may miss output.
    Warn,
}

#[derive(Debug)]
pub(crate) enum Ending {
    /// The process has ended, and all its output is written.
    Exited {
        code: i32,
    },
    TimedOut(TimedOut),
    InputFailed(io::Error),
    InputRefused(ExecServerError),
    /// The reader of the output is gone, or writing it failed.
    OutputFailed(OutputError),
    /// The user typed `~.`.
    Left,
    /// This signal ends this program, whether or not the process has ended.
    Signalled {
        number: u8,
    },
    /// The user gave up waiting for the connection.
    GaveUp {
        number: u8,
    },
    /// The process can no longer be observed, or a part of its output is missing ([`OnGap::Fail`]).
    Lost(ExecServerError),
}

/// The known facts about the end of a process that timed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimedOut {
    Ended,
    /// The exit was not observed; the server enforces the timeout.
    LeftToServer,
    /// The exit was not observed, and the server does not enforce the timeout.
    MayRun,
}

impl TimedOut {
    /// Returns the suffix for "… timed out".
    pub(crate) fn in_words(self) -> &'static str {
        match self {
            Self::Ended => "",
            Self::LeftToServer => "; the server ends it, but its exit was not observed",
            Self::MayRun => "; its exit was not observed, and it may still be running",
        }
    }
}

impl Foreground {
    /// Stays in the foreground until the process ends or the user leaves. Subscribe to `events`
    /// before the process can write more than is retained.
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
        // In raw mode the text would be drawn over the screen of the program, whose output shows by
        // itself that the connection is back.
        let outages = outage::report(client.connection_state(), tell, raw_mode.is_none());
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
                        // A server that enforces the deadline says in the exit whether the deadline
                        // has passed.
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
                            // Separates the following output from the program's.
                            show("\n");
                            return Ok(Ending::Left);
                        }
                        InputEnd::GaveUp => return Ok(Ending::GaveUp { number: INTERRUPT }),
                    }
                }
                received = signals.next() => received,
                () = limit.passed() => {
                    match process.has_deadline() {
                        // The server ends the process, so wait on for its exit. Give up only if
                        // there is no connection when the extra time is over.
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

    /// Enters raw mode if a user at a terminal types to a process with a terminal.
    fn enter_raw_mode(&self, signals: &mut Signals) -> io::Result<Option<RawModeGuard>> {
        let (Some(Source::Keyboard(_)), true) = (&self.stdin, self.terminal) else {
            return Ok(None);
        };
        signals.listen_for_stop()?;
        RawModeGuard::enter().map(Some)
    }
}

/// Stops and continues like a program that is not in raw mode. Errors are ignored: if the terminal
/// has closed, which also continues stopped programs, the next read fails.
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

/// The deadline of the process or, once that has passed, the deadline for its exit to be observed.
#[derive(Debug)]
struct TimeLimit {
    deadline: Option<Instant>,
    is_over: bool,
}

impl TimeLimit {
    fn new(timeout: Option<Duration>) -> Self {
        // A timeout beyond the range of the clock means no deadline.
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
    /// Returns the ending that the signal causes, unless it is only forwarded.
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

/// Asks a process to end and waits until it has ended or a timeout passes.
pub(crate) async fn end(client: &ExecServerClient, process: &ExecServerProcess) {
    let process_id = process.process_id().to_owned();
    let exited = client.process_wait(WaitParams { process_id, timeout_ms: None });
    let mut events = process.subscribe_events();
    let gone = async {
        let _ = process.terminate(graceful()).await;
        tokio::select! {
            _ = exited => {}
            // Reads the output, because unread output could keep the process from ending.
            () = async { while events.next().await.is_some() {} } => {}
        }
    };
    let _ = tokio::time::timeout(KILL_AFTER + END_TIMEOUT, gone).await;
}

pub(crate) fn terminal_size() -> Option<TerminalSize> {
    terminal::size().map(|(rows, cols)| TerminalSize { rows, cols })
}

/// Shows a message to the user. Ignores a failure: there is no other place to report it.
fn show(text: &str) {
    // In raw mode a newline does not return to the first column.
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
    fn signals_of_a_command_are_forwarded() {
        for signal in [INTERRUPT, USER1, ReceivedSignal::Resized] {
            assert!(OnSignal::Forward.ending(signal, false).is_none());
        }
    }

    #[test]
    fn an_interrupt_leaves_a_shell() {
        assert!(OnSignal::Leave.ending(USER1, false).is_none());
        let ending = OnSignal::Leave.ending(INTERRUPT, false);
        assert!(matches!(ending, Some(Ending::Signalled { number: 2 })));
    }

    #[test]
    fn a_hangup_does_not_end_an_attached_process() {
        assert!(OnSignal::ForwardButHangup.ending(INTERRUPT, false).is_none());
        let ending = OnSignal::ForwardButHangup.ending(HANGUP, false);
        assert!(matches!(ending, Some(Ending::Signalled { number: 1 })));
        assert!(OnSignal::Forward.ending(HANGUP, false).is_none());
    }

    #[test]
    fn an_interrupt_gives_up_while_the_connection_is_lost() {
        for policy in [OnSignal::Forward, OnSignal::ForwardButHangup, OnSignal::Leave] {
            assert!(policy.ending(USER1, true).is_none());
            let ending = policy.ending(INTERRUPT, true);
            assert!(matches!(ending, Some(Ending::GaveUp { number: 2 })));
        }
    }
}
