//! The conformance adapter of the Rust client: see clients/conformance/README.md.

use std::collections::HashMap;
use std::io::Write as _;
use std::sync::{Arc, Mutex};

use anyhow::Context as _;
use base64_simd::STANDARD as BASE64;
use exec_server::protocol::{
    Base64Bytes, FsReadFileParams, FsRemoveParams, FsWriteFileParams, OnFull, OutputStream,
    PathUri, StartParams, TerminateMode, WaitParams, WriteStatus,
};
use exec_server::{
    DialUrl, ExecProcessEvent, ExecServerClient, ExecServerError, ExecServerProcess, ProcessEvents,
    RemoteExecServerConnectArgs, SavedProcess,
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::sync::OnceCell;
use tokio::task::LocalSet;

struct Adapter {
    url: String,
    client: OnceCell<ExecServerClient>,
    processes: Mutex<HashMap<String, Arc<Process>>>,
}

struct Process {
    client: ExecServerClient,
    handle: ExecServerProcess,
    output: tokio::sync::Mutex<Output>,
}

/// The reading position in the standard output of a process.
struct Output {
    events: ProcessEvents,
    /// Output that was received and not yet returned.
    buffer: Vec<u8>,
    /// The last event that was returned in full, and the number of bytes returned after it.
    after_seq: u64,
    returned: usize,
    last_seq: u64,
    exit_code: Option<i32>,
    gaps: Vec<u64>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let url = std::env::args().nth(1).context("missing argument: the URL of a server")?;
    let (client, processes) = (OnceCell::new(), Mutex::default());
    let adapter = Arc::new(Adapter { url, client, processes });
    let mut commands = BufReader::new(tokio::io::stdin()).lines();
    // On one thread, tasks start in the order of their commands.
    let tasks = LocalSet::new();
    let reading = async {
        while let Some(line) = commands.next_line().await? {
            let command: Value = serde_json::from_str(&line)?;
            let adapter = Arc::clone(&adapter);
            tasks.spawn_local(async move {
                let id = command["id"].clone();
                let response = match adapter.carry_out(&command).await {
                    Ok(result) => json!({"id": id, "ok": result}),
                    Err(error) => json!({"id": id, "error": describe(&error)}),
                };
                // The test may have closed the pipe.
                let _ = writeln!(std::io::stdout(), "{response}");
            });
        }
        Ok(())
    };
    tasks.run_until(reading).await
}

fn describe(error: &anyhow::Error) -> Value {
    let (kind, code) = match error.downcast_ref() {
        Some(ExecServerError::Interrupted { .. }) => ("disconnected", None),
        Some(ExecServerError::Disconnected(_) | ExecServerError::Closed) => ("sessionLost", None),
        Some(ExecServerError::Server(error)) => ("server", Some(error.code)),
        Some(ExecServerError::Gap { .. }) => ("gap", None),
        _ => ("other", None),
    };
    json!({"kind": kind, "code": code, "message": format!("{error:#}")})
}

impl Adapter {
    async fn carry_out(&self, command: &Value) -> anyhow::Result<Value> {
        let text = |member: &str| {
            command[member].as_str().with_context(|| format!("the command has no {member}"))
        };
        let data = || anyhow::Ok(Base64Bytes::from(BASE64.decode_to_vec(text("data")?)?));
        let path = || {
            let path = text("path")?;
            PathUri::from_path(path).with_context(|| format!("{path:?} is not an absolute path"))
        };
        match text("do")? {
            "start" => {
                let process = self.start(command).await?;
                self.keep(text("process")?, process);
            }
            "write" => {
                let status = self.process(command)?.handle.write(data()?.into_bytes()).await?;
                let accepted = status == WriteStatus::Accepted;
                let name = text("process")?;
                anyhow::ensure!(accepted, "the write to {name} was refused: {status:?}");
            }
            "closeStdin" => drop(self.process(command)?.handle.close_stdin().await?),
            "readLines" => {
                let count = command["count"].as_u64().context("the command has no count")?;
                let process = self.process(command)?;
                let mut output = process.output.lock().await;
                return Ok(json!({"lines": output.lines(count).await?}));
            }
            "collect" => {
                let process = self.process(command)?;
                let mut output = process.output.lock().await;
                let rest = output.rest().await?;
                let hash = Sha256::digest(&rest);
                let sha256: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
                return Ok(json!({
                    "bytes": rest.len(), "sha256": sha256,
                    "exitCode": output.exit_code, "gaps": output.gaps,
                }));
            }
            "wait" => {
                let process = self.process(command)?;
                let process_id = process.handle.process_id().to_owned();
                loop {
                    let params = WaitParams { process_id: process_id.clone(), timeout_ms: None };
                    let waited = process.client.process_wait(params).await?;
                    if waited.exited {
                        return Ok(json!({"exitCode": waited.exit_code}));
                    }
                }
            }
            "signal" => {
                let signal = serde_json::from_value(command["signal"].clone())?;
                self.process(command)?.handle.signal(signal).await?;
            }
            "terminate" => {
                self.process(command)?.handle.terminate(TerminateMode::Force).await?;
            }
            "run" => {
                let process = self.start(command).await?;
                let mut output = process.output.lock().await;
                let stdout = BASE64.encode_to_string(output.rest().await?);
                return Ok(json!({"exitCode": output.exit_code, "stdout": stdout}));
            }
            "readFile" => {
                let params = FsReadFileParams::new(path()?);
                let read = self.client().await?.fs_read_file(params).await?;
                return Ok(json!({"data": BASE64.encode_to_string(&*read.data_base64)}));
            }
            "writeFile" => {
                let params = FsWriteFileParams::new(path()?, data()?);
                self.client().await?.fs_write_file(params).await?;
            }
            "removeFile" => {
                let params = FsRemoveParams {
                    path: path()?,
                    recursive: Some(false),
                    force: None,
                    follow_symlinks: None,
                    sandbox: None,
                };
                self.client().await?.fs_remove(params).await?;
            }
            "save" => {
                let process = self.process(command)?;
                let output = process.output.lock().await;
                let url: DialUrl = self.url.parse()?;
                let saved = SavedProcess::new(&url, &process.handle, output.after_seq);
                let mut state = serde_json::to_value(saved)?;
                state["skipBytes"] = output.returned.into();
                return Ok(json!({"state": state}));
            }
            "resume" => {
                let saved: SavedProcess = serde_json::from_value(command["state"].clone())?;
                let args = RemoteExecServerConnectArgs::new(&self.url, "conformance");
                let (client, handle) = saved.resume(args).await?;
                let process = Process::new(client, handle, saved.after_seq);
                let skipped = command["state"]["skipBytes"].as_u64().unwrap_or(0);
                process.output.lock().await.skip(usize::try_from(skipped)?).await?;
                self.keep(text("process")?, process);
            }
            "close" => self.client().await?.close().await?,
            other => anyhow::bail!("unknown command {other:?}"),
        }
        Ok(json!({}))
    }

    async fn client(&self) -> Result<&ExecServerClient, ExecServerError> {
        let connect = || ExecServerClient::connect(&self.url, "conformance");
        self.client.get_or_try_init(connect).await
    }

    async fn start(&self, command: &Value) -> anyhow::Result<Process> {
        let client = self.client().await?.clone();
        let argv: Vec<String> = serde_json::from_value(command["argv"].clone())?;
        let cwd = PathUri::from_path("/").context("/ is not an absolute path")?;
        let params = StartParams {
            env: [("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into(),
            tty: command["tty"] == true,
            pipe_stdin: command["stdin"] == true,
            on_full: match command["onFull"].as_str() {
                Some("discard") => OnFull::Discard,
                _ => OnFull::Block,
            },
            ..StartParams::new(uuid::Uuid::new_v4().to_string(), argv, cwd)
        };
        let handle = client.start(params).await?;
        Ok(Process::new(client, handle, 0))
    }

    fn keep(&self, name: &str, process: Process) {
        let mut processes = self.processes.lock().expect("no code panics while it holds the lock");
        processes.insert(name.to_owned(), Arc::new(process));
    }

    fn process(&self, command: &Value) -> anyhow::Result<Arc<Process>> {
        let name = command["process"].as_str().context("the command has no process")?;
        let processes = self.processes.lock().expect("no code panics while it holds the lock");
        processes.get(name).cloned().with_context(|| format!("there is no process {name:?}"))
    }
}

impl Process {
    fn new(client: ExecServerClient, handle: ExecServerProcess, after_seq: u64) -> Self {
        let output = Output {
            events: handle.subscribe_events(),
            buffer: Vec::new(),
            after_seq,
            returned: 0,
            last_seq: after_seq,
            exit_code: None,
            gaps: Vec::new(),
        };
        Self { client, handle, output: output.into() }
    }
}

impl Output {
    /// Returns the next `count` lines, or fewer at the end of the output.
    async fn lines(&mut self, count: u64) -> Result<Vec<String>, ExecServerError> {
        let mut lines = Vec::new();
        for _ in 0..count {
            let end = loop {
                match self.buffer.iter().position(|byte| *byte == b'\n') {
                    Some(end) => break end + 1,
                    None if self.advance().await? => {}
                    None => break self.buffer.len(),
                }
            };
            if end == 0 {
                break;
            }
            let line = String::from_utf8_lossy(&self.give(end)).into_owned();
            lines.push(line.trim_end_matches(['\r', '\n']).to_owned());
        }
        Ok(lines)
    }

    async fn rest(&mut self) -> Result<Vec<u8>, ExecServerError> {
        while self.advance().await? {}
        Ok(self.give(self.buffer.len()))
    }

    /// Skips bytes that an earlier reader has returned.
    async fn skip(&mut self, bytes: usize) -> Result<(), ExecServerError> {
        while self.buffer.len() < bytes && self.advance().await? {}
        self.give(bytes.min(self.buffer.len()));
        Ok(())
    }

    fn give(&mut self, bytes: usize) -> Vec<u8> {
        let given: Vec<u8> = self.buffer.drain(..bytes).collect();
        self.returned += bytes;
        if self.buffer.is_empty() {
            (self.after_seq, self.returned) = (self.last_seq, 0);
        }
        given
    }

    /// Returns false at the end of the output.
    async fn advance(&mut self) -> Result<bool, ExecServerError> {
        match self.events.next().await {
            Some(ExecProcessEvent::Output(output)) => {
                self.last_seq = output.seq;
                if output.stream != OutputStream::Stderr {
                    self.buffer.extend_from_slice(&output.chunk);
                }
            }
            Some(ExecProcessEvent::Gap { dropped_bytes }) => self.gaps.push(dropped_bytes),
            Some(ExecProcessEvent::Exited(exit)) => self.exit_code = Some(exit.exit_code),
            Some(ExecProcessEvent::Failed(error)) => return Err(error),
            Some(ExecProcessEvent::Closed { .. }) | None => return Ok(false),
        }
        Ok(true)
    }
}
