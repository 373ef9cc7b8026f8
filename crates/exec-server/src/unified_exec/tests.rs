//! Tests in virtual time, with processes that the tests control.

use std::collections::VecDeque;

use async_trait::async_trait;
use exec_server_protocol::{
    Capabilities, PathUri, ProcessTeardown, RpcError, ShellInfo, StartParams,
};

use super::*;
use crate::ExecProcess;
use crate::process::FakeProcess;

#[derive(Debug, Default)]
struct FakeBackend {
    /// The processes that the next starts return. When empty, a start returns a new process.
    prepared: Mutex<VecDeque<FakeProcess>>,
    started: Mutex<Vec<StartParams>>,
}

#[async_trait]
impl ExecBackend for FakeBackend {
    async fn start(&self, params: StartParams) -> Result<Arc<dyn ExecProcess>, ExecServerError> {
        if params.argv == ["missing"] {
            return Err(ExecServerError::Server(RpcError::invalid_request("no such program")));
        }
        self.started.lock().unwrap().push(params);
        let prepared = self.prepared.lock().unwrap().pop_front();
        Ok(prepared.unwrap_or_else(FakeProcess::new).handle())
    }

    async fn info(&self) -> Result<EnvironmentInfo, ExecServerError> {
        let root = PathUri::from_path("/").unwrap();
        Ok(EnvironmentInfo {
            shell: ShellInfo { name: "sh".to_owned(), path: "/bin/sh".to_owned() },
            cwd: root.clone(),
            temporary_directories: Vec::new(),
            temp_dir: root,
            capabilities: Capabilities::default(),
            process_teardown: ProcessTeardown::default(),
        })
    }
}

fn with_processes(processes: &[FakeProcess]) -> Arc<FakeBackend> {
    let backend = FakeBackend::default();
    backend.prepared.lock().unwrap().extend(processes.iter().cloned());
    Arc::new(backend)
}

fn limits() -> UnifiedExecLimits {
    UnifiedExecLimits::default()
}

fn command() -> ExecCommand {
    ExecCommand { tty: true, ..ExecCommand::argv(["program"]) }
}

fn end_of(event: UnifiedExecEvent) -> Option<(ProcessHandleId, i32)> {
    match event {
        UnifiedExecEvent::End { id, exit_code, .. } => Some((id, exit_code.unwrap())),
        _ => None,
    }
}

const POLL: &[u8] = b"";
const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_command_that_ends_has_an_exit_code_and_no_id() {
    let process = FakeProcess::new();
    process.print("hello");
    process.exit(3);
    let backend = with_processes(&[process]);
    let exec = UnifiedExec::new(Arc::clone(&backend) as _, limits());
    let output = exec.exec_command(ExecCommand::shell("echo hello; exit 3")).await.unwrap();
    assert_eq!(output.output, "hello");
    assert_eq!((output.exit_code, output.running_id), (Some(3), None));
    assert_eq!(exec.known(), []);
    let started = backend.started.lock().unwrap();
    assert_eq!(started[0].argv, ["/bin/sh", "-c", "echo hello; exit 3"]);
    assert_eq!(started[0].cwd.as_path().to_str(), Some("/"));
}

#[tokio::test(start_paused = true)]
async fn a_running_command_can_be_polled() {
    let process = FakeProcess::new();
    process.print("one é");
    let exec = UnifiedExec::new(with_processes(std::slice::from_ref(&process)), limits());
    let output = exec.exec_command(command()).await.unwrap();
    assert_eq!(output.output, "one é");
    assert_eq!((output.exit_code, output.wall_time), (None, 10 * SECOND));
    let id = output.running_id.unwrap();
    assert_eq!(id, ProcessHandleId(1));

    process.print("two");
    let output = exec.write_stdin(id, "input", SECOND, 1000).await.unwrap();
    assert_eq!((output.output.as_str(), output.running_id), ("two", Some(id)));
    assert_eq!(process.calls(), ["input"]);

    process.print("three");
    process.exit(0);
    let output = exec.write_stdin(id, POLL, SECOND, 1000).await.unwrap();
    assert_eq!((output.output.as_str(), output.exit_code), ("three", Some(0)));
    let error = exec.write_stdin(id, POLL, SECOND, 1000).await.unwrap_err();
    assert_eq!(error.to_string(), "unknown process 1; no process is known");
}

#[tokio::test(start_paused = true)]
async fn yield_times_are_clamped() {
    let exec = UnifiedExec::new(with_processes(&[]), limits());
    let shortest = ExecCommand { yield_time: Duration::ZERO, ..command() };
    let output = exec.exec_command(shortest).await.unwrap();
    assert_eq!(output.wall_time, Duration::from_millis(250));
    let id = output.running_id.unwrap();
    let output = exec.write_stdin(id, POLL, Duration::MAX, 1000).await.unwrap();
    assert_eq!(output.wall_time, 30 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_yield_time_beyond_the_clock_waits_for_the_end() {
    let process = FakeProcess::new();
    process.exit(0);
    let limits = UnifiedExecLimits { max_yield_time: Duration::MAX, ..limits() };
    let exec = UnifiedExec::new(with_processes(&[process]), limits);
    let endless = ExecCommand { yield_time: Duration::MAX, ..command() };
    assert_eq!(exec.exec_command(endless).await.unwrap().exit_code, Some(0));
}

#[tokio::test(start_paused = true)]
async fn output_is_bounded_by_the_call_and_by_the_limits() {
    let process = FakeProcess::new();
    process.print(&"x".repeat(1000));
    let limits = UnifiedExecLimits { max_output: 100, ..limits() };
    let exec = UnifiedExec::new(with_processes(&[process]), limits);
    let output = exec.exec_command(ExecCommand { max_output: 10, ..command() }).await.unwrap();
    assert_eq!(output.omitted_bytes, 990);
    assert_eq!(output.output, "xxxxx\n[… 990 bytes left out …]\nxxxxx");
}

#[tokio::test(start_paused = true)]
async fn a_character_is_not_split_between_calls() {
    let process = FakeProcess::new();
    let exec = UnifiedExec::new(with_processes(std::slice::from_ref(&process)), limits());
    process.print_bytes(b"a\xc3");
    let output = exec.exec_command(command()).await.unwrap();
    assert_eq!(output.output, "a");
    process.print_bytes(b"\xa9b");
    let output = exec.write_stdin(output.running_id.unwrap(), POLL, SECOND, 10).await.unwrap();
    assert_eq!(output.output, "éb");
}

#[tokio::test(start_paused = true)]
async fn refused_input_is_an_error_unless_the_command_ends() {
    let process = FakeProcess::new();
    process.close_input();
    let exec = UnifiedExec::new(with_processes(std::slice::from_ref(&process)), limits());
    let id = exec.exec_command(command()).await.unwrap().running_id.unwrap();
    let error = exec.write_stdin(id, "x", SECOND, 10).await.unwrap_err();
    assert!(matches!(error, UnifiedExecError::InputClosed { .. }), "{error}");
    process.exit(1);
    let output = exec.write_stdin(id, "x", SECOND, 10).await.unwrap();
    assert_eq!(output.exit_code, Some(1));

    let without_terminal = ExecCommand { tty: false, ..command() };
    let id = exec.exec_command(without_terminal).await.unwrap().running_id.unwrap();
    let error = exec.write_stdin(id, "x", SECOND, 10).await.unwrap_err();
    assert!(matches!(error, UnifiedExecError::NoInput { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn unread_input_does_not_block_a_call_forever() {
    let process = FakeProcess::new();
    process.hold_writes();
    let exec = UnifiedExec::new(with_processes(&[process]), limits());
    let id = exec.exec_command(command()).await.unwrap().running_id.unwrap();
    let error = exec.write_stdin(id, "x", SECOND, 10).await.unwrap_err();
    assert!(matches!(error, UnifiedExecError::InputNotRead { .. }), "{error}");
    assert_eq!(exec.known(), [id]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_start_leaves_nothing_behind() {
    let limits = UnifiedExecLimits { max_processes: 1, ..limits() };
    let (exec, mut events) = UnifiedExec::with_events(with_processes(&[]), limits);
    for _ in 0..3 {
        let error = exec.exec_command(ExecCommand::argv(["missing"])).await.unwrap_err();
        assert!(error.to_string().contains("no such program"), "{error}");
    }
    assert_eq!(exec.known(), []);
    drop(exec);
    assert!(events.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_failed_start_ends_no_other_command() {
    let limits = UnifiedExecLimits { max_processes: 1, ..limits() };
    let (exec, mut events) = UnifiedExec::with_events(with_processes(&[]), limits);
    let healthy = exec.exec_command(command()).await.unwrap().running_id.unwrap();
    exec.exec_command(ExecCommand::argv(["missing"])).await.unwrap_err();
    let output = exec.write_stdin(healthy, POLL, SECOND, 10).await.unwrap();
    assert_eq!(output.running_id, Some(healthy));

    let next = exec.exec_command(command()).await.unwrap().running_id.unwrap();
    assert_eq!(exec.known(), [next]);
    let ended = loop {
        if let Some(ended) = end_of(events.next().await.unwrap()) {
            break ended;
        }
    };
    assert_eq!(ended, (healthy, 137), "it is evicted once another command runs");
}

#[tokio::test(start_paused = true)]
async fn ended_commands_are_evicted_before_the_least_recently_used() {
    let processes = [(); 4].map(|()| FakeProcess::new());
    let limits = UnifiedExecLimits { max_processes: 2, ..limits() };
    let (exec, mut events) = UnifiedExec::with_events(with_processes(&processes), limits);
    let start = async || exec.exec_command(command()).await.unwrap().running_id.unwrap();
    let [first, second] = [start().await, start().await];
    processes[1].exit(5);
    let mut ended = Vec::new();
    while ended.is_empty() {
        ended.extend(end_of(events.next().await.unwrap()));
    }
    let third = start().await;
    assert_eq!(exec.known(), [first, third], "the second had ended");
    exec.write_stdin(first, POLL, SECOND, 10).await.unwrap();
    let fourth = start().await;
    assert_eq!(exec.known(), [first, fourth], "the third was used least recently");
    let error = exec.write_stdin(third, POLL, SECOND, 10).await.unwrap_err();
    assert_eq!(error.to_string(), "unknown process 3; known processes: 1, 4");

    exec.terminate_all().await.unwrap();
    assert_eq!(exec.known(), []);
    while ended.len() < 4 {
        ended.extend(end_of(events.next().await.unwrap()));
    }
    ended.sort_unstable();
    assert_eq!(ended, [(first, 137), (second, 5), (third, 137), (fourth, 137)]);
}

#[tokio::test(start_paused = true)]
async fn events_continue_after_the_call() {
    let process = FakeProcess::new();
    let (exec, mut events) =
        UnifiedExec::with_events(with_processes(std::slice::from_ref(&process)), limits());
    process.print("one");
    let id = exec.exec_command(command()).await.unwrap().running_id.unwrap();
    exec.write_stdin(id, "hi", SECOND, 10).await.unwrap();
    process.print("two");
    process.gap(9);
    process.print("three");
    process.exit(4);
    process.close();
    let mut story = Vec::new();
    loop {
        match events.next().await.unwrap() {
            UnifiedExecEvent::Begin { argv, .. } => story.push(format!("begin {argv:?}")),
            UnifiedExecEvent::OutputDelta { chunk, left_out_bytes, .. } => {
                story.push(format!("{left_out_bytes} {}", String::from_utf8_lossy(&chunk)));
            }
            UnifiedExecEvent::Interaction { bytes, .. } => story.push(format!("{bytes:?}")),
            UnifiedExecEvent::End { exit_code, transcript, left_out_bytes, .. } => {
                assert_eq!((exit_code.unwrap(), left_out_bytes), (4, 0));
                assert_eq!(transcript.omitted_bytes, 9);
                break;
            }
        }
    }
    assert_eq!(story, ["begin [\"program\"]", "0 one", "b\"hi\"", "0 two", "9 three"]);
    drop(exec);
    assert!(events.next().await.is_none(), "the end is reported once");
}

#[tokio::test(start_paused = true)]
async fn a_stalled_reader_loses_only_output() {
    const CHUNKS: u64 = 2000;
    let process = FakeProcess::new();
    for _ in 0..CHUNKS {
        process.print("0123456789");
    }
    process.exit(0);
    let (exec, mut events) = UnifiedExec::with_events(with_processes(&[process]), limits());
    exec.exec_command(command()).await.unwrap();
    let (mut begun, mut seen, mut missed) = (0, 0, 0);
    loop {
        match events.next().await.unwrap() {
            UnifiedExecEvent::Begin { .. } => begun += 1,
            UnifiedExecEvent::OutputDelta { chunk, left_out_bytes, .. } => {
                seen += chunk.len() as u64;
                missed += left_out_bytes;
            }
            UnifiedExecEvent::Interaction { .. } => panic!("no input was written"),
            UnifiedExecEvent::End { left_out_bytes, .. } => {
                missed += left_out_bytes;
                break;
            }
        }
    }
    assert_eq!((begun, seen + missed), (1, CHUNKS * 10));
    assert!(missed > 0);
}

#[tokio::test(start_paused = true)]
async fn every_table_size_leaves_room_for_output() {
    const COMMANDS: usize = 600;
    let limits = UnifiedExecLimits {
        max_processes: COMMANDS,
        min_yield_time: Duration::ZERO,
        max_output: 10,
        ..limits()
    };
    let processes: Vec<_> = (0..COMMANDS).map(|_| FakeProcess::new()).collect();
    let (exec, mut events) = UnifiedExec::with_events(with_processes(&processes), limits);
    for _ in 0..COMMANDS {
        let started = ExecCommand { yield_time: Duration::ZERO, ..command() };
        exec.exec_command(started).await.unwrap();
    }
    processes[COMMANDS - 1].print("hello");
    let delta = loop {
        match events.next().await.unwrap() {
            UnifiedExecEvent::Begin { .. } => {}
            other => break other,
        }
    };
    let UnifiedExecEvent::OutputDelta { chunk, .. } = delta else { panic!("{delta:?}") };
    assert_eq!(&chunk[..], b"hello");

    let unlimited = UnifiedExecLimits { max_processes: usize::MAX, ..limits };
    drop(UnifiedExec::with_events(with_processes(&[]), unlimited));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_call_leaves_its_command_in_the_table() {
    let exec = UnifiedExec::new(with_processes(&[]), limits());
    assert!(tokio::time::timeout(SECOND, exec.exec_command(command())).await.is_err());
    assert_eq!(exec.known(), [ProcessHandleId(1)]);
}

#[tokio::test(start_paused = true)]
async fn a_lost_process_is_an_error_once() {
    let process = FakeProcess::new();
    process.fail();
    let exec = UnifiedExec::new(with_processes(&[process]), limits());
    let error = exec.exec_command(command()).await.unwrap_err();
    assert!(matches!(error, UnifiedExecError::Environment(ExecServerError::Closed)));
    assert_eq!(exec.known(), []);
}
