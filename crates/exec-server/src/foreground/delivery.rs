//! From the events of a process to our standard output and error.

use std::cell::Cell;

use exec_server_client::{ExecProcessEvent, ExecServerError, ProcessEvents};

use super::output::Outputs;
use super::{Ending, OnGap, show};

/// Writes what the process says, to its end. While our reader keeps us waiting, `is_blocked` is true.
pub(super) async fn deliver(
    process_id: &str,
    mut events: ProcessEvents,
    gaps: OnGap,
    is_blocked: &Cell<bool>,
) -> Ending {
    let mut outputs = Outputs::open();
    let mut exit_code = None;
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            error = outputs.failed() => return Ending::OutputFailed(error),
        };
        match event {
            Some(ExecProcessEvent::Output(output)) => {
                is_blocked.set(true);
                let written = outputs.write(output.stream, output.chunk.0).await;
                is_blocked.set(false);
                if let Err(error) = written {
                    return Ending::OutputFailed(error);
                }
            }
            Some(ExecProcessEvent::Gap { dropped_bytes }) if gaps == OnGap::Fail => {
                let process_id = process_id.to_owned();
                return Ending::Lost(ExecServerError::Gap { process_id, dropped_bytes });
            }
            Some(ExecProcessEvent::Gap { dropped_bytes }) => {
                show(&format!("[{dropped_bytes} bytes left out]\n"));
            }
            Some(ExecProcessEvent::Exited(exit)) => exit_code = Some(exit.exit_code),
            Some(ExecProcessEvent::Failed(error)) => {
                let _ = outputs.finish().await;
                return Ending::Lost(error);
            }
            Some(ExecProcessEvent::Closed { .. }) | None => break,
        }
    }
    match (outputs.finish().await, exit_code) {
        (Err(error), _) => Ending::OutputFailed(error),
        (Ok(()), Some(code)) => Ending::Exited { code },
        (Ok(()), None) => Ending::Lost(ExecServerError::Closed),
    }
}
