//! `exec-server logs`: what is kept of the output of a process, and what comes.

use std::io::{self, Write as _};

use anyhow::Context as _;
use exec_server_client::{ExecProcessEvent, ExecServerClient};
use exec_server_protocol::OutputStream;
use serde_json::json;

use super::listing::Listed;
use crate::exit_code::ExitStatus;
use crate::foreground::Outputs;

/// Prints what there is now; with `follow`, to the end of the process.
pub(crate) async fn run(
    client: &ExecServerClient,
    listed: &Listed,
    follow: bool,
    json: bool,
) -> anyhow::Result<ExitStatus> {
    let last = if follow { u64::MAX } else { listed.process.next_seq.saturating_sub(1) };
    if last == 0 {
        return Ok(ExitStatus::SUCCESS);
    }
    let session = &listed.session.session_id;
    let process = client
        .observe(session, listed.name(), None)
        .await
        .with_context(|| format!("cannot read the output of {:?}", listed.name()))?;
    let mut events = process.subscribe_events();
    let mut outputs = Outputs::open();
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            error = outputs.failed() => return ExitStatus::of_write_error(error),
        };
        let Some(event) = event else { break };
        let seq = match &event {
            ExecProcessEvent::Output(output) => Some(output.seq),
            ExecProcessEvent::Exited(exit) => Some(exit.seq),
            ExecProcessEvent::Closed { seq } => Some(*seq),
            ExecProcessEvent::Gap { .. } => None,
            ExecProcessEvent::Failed(error) => {
                anyhow::bail!("lost sight of {:?}: {error}", listed.name())
            }
        };
        if seq.is_some_and(|seq| seq > last) {
            break;
        }
        let written = if json {
            outputs.write(OutputStream::Stdout, as_json(&event).into()).await
        } else {
            print(event, &mut outputs).await
        };
        match written {
            Ok(()) => {}
            Err(error) => return ExitStatus::of_write_error(error),
        }
        if seq == Some(last) {
            break;
        }
    }
    match outputs.finish().await {
        Ok(()) => Ok(ExitStatus::SUCCESS),
        Err(error) => ExitStatus::of_write_error(error),
    }
}

async fn print(event: ExecProcessEvent, outputs: &mut Outputs) -> io::Result<()> {
    match event {
        ExecProcessEvent::Output(output) => outputs.write(output.stream, output.chunk.0).await,
        ExecProcessEvent::Gap { dropped_bytes } => {
            writeln!(io::stderr(), "[{dropped_bytes} bytes left out]")
        }
        ExecProcessEvent::Exited(_)
        | ExecProcessEvent::Closed { .. }
        | ExecProcessEvent::Failed(_) => Ok(()),
    }
}

/// One line, in the words of the protocol.
fn as_json(event: &ExecProcessEvent) -> String {
    let object = match event {
        ExecProcessEvent::Output(output) => json!({
            "event": "output", "seq": output.seq, "stream": output.stream, "chunk": output.chunk,
        }),
        ExecProcessEvent::Gap { dropped_bytes } => {
            json!({"event": "gap", "droppedBytes": dropped_bytes})
        }
        ExecProcessEvent::Exited(exit) => {
            json!({"event": "exited", "seq": exit.seq, "exitCode": exit.exit_code})
        }
        ExecProcessEvent::Closed { seq } => json!({"event": "closed", "seq": seq}),
        ExecProcessEvent::Failed(error) => json!({"event": "failed", "reason": error.to_string()}),
    };
    object.to_string() + "\n"
}

#[cfg(test)]
mod tests {
    use exec_server_protocol::{Base64Bytes, OutputChunk};

    use super::*;

    #[test]
    fn events_are_lines_of_json() {
        let chunk = Base64Bytes("hi\n".into());
        let output = OutputChunk { seq: 1, stream: OutputStream::Stderr, chunk };
        let line = as_json(&ExecProcessEvent::Output(output));
        assert_eq!(line.matches('\n').count(), 1);
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        let expected = json!({"event": "output", "seq": 1, "stream": "stderr", "chunk": "aGkK"});
        assert_eq!(value, expected);
    }
}
