//! Delivers the events of a process to standard output and standard error.

use std::cell::Cell;

use exec_server_client::{ExecProcessEvent, ExecServerError, ExecServerProcess, ProcessEvents};

use super::output::Outputs;
use super::report::Report;
use super::{Ending, OnGap, TimedOut, show};

/// Writes the output of the process until the process closes. `is_blocked` is true while output
/// waits for the reader of standard output or standard error.
pub(super) async fn deliver(
    process: &ExecServerProcess,
    mut events: ProcessEvents,
    on_gap: OnGap,
    report: Report,
    is_blocked: &Cell<bool>,
) -> Ending {
    let mut outputs = Outputs::open();
    let mut exited = None;
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            error = outputs.failed() => return Ending::OutputFailed(error),
        };
        match event {
            Some(ExecProcessEvent::Output(output)) => {
                is_blocked.set(true);
                let written = outputs.write(output.stream, output.chunk.into_bytes()).await;
                is_blocked.set(false);
                if let Err(error) = written {
                    return Ending::OutputFailed(error);
                }
            }
            Some(ExecProcessEvent::Gap { dropped_bytes }) if on_gap == OnGap::Fail => {
                let process_id = process.process_id().to_owned();
                return Ending::Lost(ExecServerError::Gap { process_id, dropped_bytes });
            }
            // An older server does not report the size.
            Some(ExecProcessEvent::Gap { dropped_bytes: 0 }) => show("[output left out]\n"),
            Some(ExecProcessEvent::Gap { dropped_bytes }) => {
                show(&format!("[{dropped_bytes} bytes left out]\n"));
            }
            Some(ExecProcessEvent::Exited(exit)) => exited = Some(exit),
            Some(ExecProcessEvent::Failed(error)) => {
                let _ = outputs.finish().await;
                return Ending::Lost(error);
            }
            Some(ExecProcessEvent::Closed { .. }) | None => break,
        }
    }
    match (outputs.finish().await, exited) {
        (Err(error), _) => Ending::OutputFailed(error),
        (Ok(()), Some(exit)) => {
            let timed_out = exit.timed_out();
            if exit.server_stopped() {
                show("exec-server: the server stopped; the command was ended\n");
            }
            for line in report.lines(&exit, process.limits()) {
                show(&format!("exec-server: {line}\n"));
            }
            match timed_out {
                true => Ending::TimedOut(TimedOut::Ended),
                false => Ending::Exited { code: exit.exit_code },
            }
        }
        (Ok(()), None) => Ending::Lost(ExecServerError::Closed),
    }
}
