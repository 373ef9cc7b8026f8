//! From the events of a process to our standard output and error.

use std::cell::Cell;

use exec_server_client::{ExecProcessEvent, ExecServerError, ProcessEvents};
use exec_server_protocol::Denial;

use super::output::Outputs;
use super::{Ending, OnGap, TimedOut, show};
use crate::terminal::printable;

/// Writes what the process says, to its end. While our reader keeps us waiting, `is_blocked` is true.
pub(super) async fn deliver(
    process_id: &str,
    mut events: ProcessEvents,
    on_gap: OnGap,
    report_denials: bool,
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
                let process_id = process_id.to_owned();
                return Ending::Lost(ExecServerError::Gap { process_id, dropped_bytes });
            }
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
            if exit.sandbox_denied && report_denials {
                let denied = denied(exit.denied.unwrap_or_default());
                show(&format!("exec-server: the sandbox seems to have denied {denied}\n"));
            }
            match timed_out {
                true => Ending::TimedOut(TimedOut::Ended),
                false => Ending::Exited { code: exit.exit_code },
            }
        }
        (Ok(()), None) => Ending::Lost(ExecServerError::Closed),
    }
}

/// What `--network` would allow.
const NETWORK_CALLS: [&str; 4] = ["socket", "connect", "bind", "sendto"];

/// The program's own words, which must not move the cursor.
fn denied(denial: Denial) -> String {
    match (denial.path, denial.call) {
        (Some(path), _) => printable(&path),
        (None, Some(call)) if NETWORK_CALLS.contains(&&*call) => {
            format!("the network (system call {call}); run --network allows it")
        }
        (None, Some(call)) => format!("the system call {}", printable(&call)),
        (None, None) => "something".to_owned(),
    }
}
