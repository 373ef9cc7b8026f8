//! Starts adapters and exchanges commands and responses with them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin};
use tokio::sync::oneshot;

use crate::foreign_client::python;
use crate::support::{PROGRAM, command};

#[derive(Debug, Clone, Copy)]
pub(super) enum Language {
    Rust,
    Python,
    TypeScript,
}

#[derive(Debug)]
pub(super) struct AdapterProgram {
    argv: Vec<PathBuf>,
    variable: Option<(&'static str, PathBuf)>,
}

impl Language {
    /// Returns the program, or the reason why this machine cannot run it.
    pub(super) fn adapter(self) -> Result<AdapterProgram, String> {
        let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients");
        match self {
            Self::Rust => {
                let examples = Path::new(PROGRAM).with_file_name("examples");
                let adapter = examples.join("conformance_adapter");
                let how = "cargo build --package exec-server --example conformance_adapter";
                assert!(adapter.exists(), "{} is missing: {how}", adapter.display());
                Ok(AdapterProgram { argv: vec![adapter], variable: None })
            }
            Self::Python => {
                let adapter = clients.join("python/conformance/adapter.py");
                let sources = clients.join("python/src");
                let imports = "import exec_server";
                let mut check = command(python().to_str().unwrap());
                check.args(["-c", imports]).env("PYTHONPATH", &sources);
                let output = check.output().unwrap();
                if !adapter.exists() || !output.status.success() {
                    let error = String::from_utf8_lossy(&output.stderr);
                    let error = error.lines().last().unwrap_or("it has no adapter").to_owned();
                    return Err(format!("cannot run the Python client: {error}"));
                }
                let variable = Some(("PYTHONPATH", sources));
                Ok(AdapterProgram { argv: vec![python(), adapter], variable })
            }
            Self::TypeScript => {
                let adapter = clients.join("typescript/dist-conformance/conformance/adapter.js");
                let has_node = command("node").arg("--version").output().is_ok();
                if !has_node || !adapter.exists() {
                    let how = "needs Node.js, npm install and npm run build in clients/typescript";
                    return Err(format!("the TypeScript client {how}"));
                }
                Ok(AdapterProgram { argv: vec!["node".into(), adapter], variable: None })
            }
        }
    }
}

pub(super) struct Adapter {
    child: Child,
    stdin: Option<ChildStdin>,
    waiting: Waiting,
    last_id: u64,
}

/// Awaited responses, by the id of the command.
type Waiting = Arc<Mutex<HashMap<u64, oneshot::Sender<Value>>>>;

impl Adapter {
    pub(super) fn start(program: &AdapterProgram, url: &str) -> Self {
        let mut adapter = command(program.argv[0].to_str().unwrap());
        adapter.args(&program.argv[1..]).arg(url).envs(program.variable.clone());
        adapter.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = tokio::process::Command::from(adapter).kill_on_drop(true).spawn().unwrap();
        let waiting = Waiting::default();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        tokio::spawn({
            let waiting = Arc::clone(&waiting);
            async move {
                while let Ok(Some(line)) = lines.next_line().await {
                    let response: Value = serde_json::from_str(&line).expect(&line);
                    let id = response["id"].as_u64().expect(&line);
                    let waits =
                        waiting.lock().unwrap().remove(&id).expect("one response for each command");
                    // The step may have timed out.
                    let _ = waits.send(response);
                }
                // Drops the senders, so that waiting steps fail.
                waiting.lock().unwrap().clear();
            }
        });
        Self { stdin: child.stdin.take(), child, waiting, last_id: 0 }
    }

    /// Sends a command. Its response arrives later.
    pub(super) async fn send(&mut self, mut command: Value) -> oneshot::Receiver<Value> {
        self.last_id += 1;
        command["id"] = self.last_id.into();
        let (sender, receiver) = oneshot::channel();
        self.waiting.lock().unwrap().insert(self.last_id, sender);
        let line = format!("{command}\n");
        let stdin = self.stdin.as_mut().expect("the adapter was not ended");
        stdin.write_all(line.as_bytes()).await.expect("the adapter reads its commands");
        receiver
    }

    pub(super) async fn end(&mut self) {
        self.stdin = None;
        let status = self.child.wait().await.unwrap();
        assert!(status.success(), "the adapter ended with {status}");
    }

    pub(super) async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }
}
