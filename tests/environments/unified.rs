//! `UnifiedExec`: commands as a model runs them.

use std::time::Duration;

use exec_server::unified_exec::{
    ExecCommand, ExecCommandOutput, ProcessHandleId, UnifiedExec, UnifiedExecEvent,
    UnifiedExecLimits,
};

use super::*;

in_every_environment! {
    a_short_command_returns_at_once,
    a_dialogue_takes_several_calls,
    terminate_all_ends_every_process,
}

const OUTPUT: usize = 10_000;

fn tty(script: &str) -> ExecCommand {
    let yield_time = Duration::from_millis(250);
    ExecCommand { tty: true, yield_time, ..ExecCommand::shell(script) }
}

async fn a_short_command_returns_at_once(backend: Backend) {
    let exec = UnifiedExec::new(backend, UnifiedExecLimits::default());
    let cwd = exec_server::protocol::PathUri::from_path("/usr");
    let command = ExecCommand { cwd, ..ExecCommand::shell("pwd; cat; exit 3") };
    let ExecCommandOutput { output, exit_code, running_id, omitted_bytes, .. } =
        exec.exec_command(command).await.unwrap();
    assert_eq!(output, "/usr\n");
    assert_eq!((exit_code, running_id, omitted_bytes), (Some(3), None, 0));

    let missing = ExecCommand::argv(["/no/such/program"]);
    let error = exec.exec_command(missing).await.unwrap_err().to_string();
    assert!(error.contains("/no/such/program"), "{error}");
}

async fn a_dialogue_takes_several_calls(backend: Backend) {
    let limits = UnifiedExecLimits::default();
    let (exec, mut events) = UnifiedExec::with_events(backend, limits);
    let script = "stty -echo; echo name?; read name; echo hello $name; exit 7";
    let first = exec.exec_command(tty(script)).await.unwrap();
    let id = first.running_id.unwrap();
    assert_eq!((id, first.exit_code), (ProcessHandleId(1), None));
    let mut output = first.output;
    while !output.contains("name?") {
        output += &poll(&exec, id).await.output;
    }
    let mut last = exec.write_stdin(id, "you\n", Duration::ZERO, OUTPUT).await.unwrap();
    let mut output = last.output.clone();
    while last.exit_code.is_none() {
        last = poll(&exec, id).await;
        output += &last.output;
    }
    assert_eq!((output.as_str(), last.exit_code), ("hello you\r\n", Some(7)));
    assert!(exec.write_stdin(id, "x", Duration::ZERO, OUTPUT).await.is_err());

    drop(exec);
    let mut ends = 0;
    let mut deltas = String::new();
    while let Some(event) = events.next().await {
        match event {
            UnifiedExecEvent::OutputDelta { chunk, .. } => {
                deltas.push_str(&String::from_utf8_lossy(&chunk));
            }
            UnifiedExecEvent::End { exit_code, transcript, .. } => {
                ends += 1;
                assert_eq!(exit_code.unwrap(), 7);
                assert_eq!(transcript.to_text(), "name?\r\nhello you\r\n");
            }
            UnifiedExecEvent::Begin { .. } | UnifiedExecEvent::Interaction { .. } => {}
        }
    }
    assert_eq!((ends, deltas.as_str()), (1, "name?\r\nhello you\r\n"));
}

async fn terminate_all_ends_every_process(backend: Backend) {
    let (exec, mut events) = UnifiedExec::with_events(backend, UnifiedExecLimits::default());
    let starts = (0..5).map(|_| exec.exec_command(tty("sleep 1000")));
    for start in starts {
        assert!(start.await.unwrap().running_id.is_some());
    }
    exec.terminate_all().await.unwrap();
    assert_eq!(exec.known(), []);
    let mut ends = 0;
    while ends < 5 {
        if let Some(UnifiedExecEvent::End { exit_code, .. }) = events.next().await {
            assert_eq!(exit_code.unwrap(), 137);
            ends += 1;
        }
    }
}

async fn poll(exec: &UnifiedExec, id: ProcessHandleId) -> ExecCommandOutput {
    exec.write_stdin(id, "", Duration::ZERO, OUTPUT).await.unwrap()
}
