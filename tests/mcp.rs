//! An MCP client of the official SDK, an MCP server behind exec-server, and a network that fails
//! between them: no call is lost, repeated or failed, and neither end notices a cut.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use exec_server::process::{StdinWriter, StdoutReader};
use exec_server::protocol::{OutputStream, StartParams};
use exec_server::{ExecProcess, ExecServerClient, RemoteExecServerConnectArgs, RemoteProcess};
use exec_server_test_support::{Cut, FaultProxy};
use rmcp::model::CallToolRequestParams;
use rmcp::service::RunningService;
use rmcp::transport::TokioChildProcess;
use rmcp::{RoleClient, ServiceExt as _};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::support::{Choices, HANG, PROGRAM, Server, command, program};

/// Callers run concurrently; each makes one call after the other.
const CALLERS: u64 = 8;

const CUTS: usize = 150;
const SOAK_CUTS: usize = 2_000;

#[tokio::test(flavor = "multi_thread")]
async fn mcp_calls_through_the_library_survive_cuts() {
    through_the_library(CUTS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mcp_calls_through_run_survive_cuts() {
    through_run(CUTS).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "soak: 2,000 cuts, run by `just soak-counts`"]
async fn soak_mcp_calls_through_the_library_survive_cuts() {
    through_the_library(SOAK_CUTS).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "soak: 2,000 cuts, run by `just soak-counts`"]
async fn soak_mcp_calls_through_run_survive_cuts() {
    through_run(SOAK_CUTS).await;
}

async fn through_the_library(cuts: usize) {
    let site = Site::start().await;
    let client = connect(&site.proxy.url()).await;
    let argv = site.mcp_server();
    let start = program("mcp", &argv.each_ref().map(String::as_str)).with_stdin();
    let params: StartParams = serde_json::from_str(&start.params().to_string()).unwrap();
    let process = client.start(params).await.unwrap();
    let process: Arc<dyn ExecProcess> = Arc::new(RemoteProcess::from(process));
    let stdout = StdoutReader::new(&*process, OutputStream::Stdout);
    let stdin = StdinWriter::new(Arc::clone(&process));
    let mcp = ().serve((stdout, stdin)).await.unwrap();

    site.survive(mcp, cuts).await;

    // The SDK drops its writer, which ends the input as the end of a pipe would.
    assert_eq!(process.wait().await.unwrap().exit_code, 0);
    client.close().await.unwrap();
}

async fn through_run(cuts: usize) {
    let site = Site::start().await;
    let mut run = command(PROGRAM);
    run.args(["run", "--connect", &site.proxy.url(), "--"]).args(site.mcp_server());
    let run = TokioChildProcess::builder(Command::from(run)).stderr(Stdio::piped());
    let (transport, stderr) = run.spawn().unwrap();
    let mcp = ().serve(transport).await.unwrap();

    site.survive(mcp, cuts).await;

    let mut complaints = String::new();
    stderr.expect("it is piped").read_to_string(&mut complaints).await.unwrap();
    // On a loaded machine a reconnect may take long enough to be reported.
    let unexpected = complaints.lines().find(|line| !line.contains("reconnecting"));
    assert_eq!(unexpected, None);
}

async fn connect(url: &str) -> ExecServerClient {
    let mut args = RemoteExecServerConnectArgs::new(url, "mcp");
    // With short pauses, cuts hit more of the attempts to reconnect.
    args.options.recovery.first_pause = Duration::from_millis(1);
    args.options.recovery.longest_pause = Duration::from_millis(20);
    ExecServerClient::connect_websocket(args).await.unwrap()
}

type Mcp = RunningService<RoleClient, ()>;

/// A server behind a bad network, and the log of the calls that the MCP server received.
struct Site {
    _server: Server,
    proxy: FaultProxy,
    directory: TempDir,
}

impl Site {
    async fn start() -> Self {
        let server = Server::start();
        let address = server.url().trim_start_matches("ws://").parse().unwrap();
        let proxy = FaultProxy::start(address).await;
        Self { _server: server, proxy, directory: tempfile::tempdir().unwrap() }
    }

    fn mcp_server(&self) -> [String; 3] {
        let script =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/foreign/mcp_server.py");
        let text = |path: &Path| path.to_str().expect("test paths are text").to_owned();
        ["python3".to_owned(), text(&script), text(&self.log())]
    }

    fn log(&self) -> PathBuf {
        self.directory.path().join("calls")
    }

    /// Makes calls and cuts, and checks that every call was received once and got its response.
    async fn survive(&self, mcp: Mcp, cuts: usize) {
        let tools = mcp.list_all_tools().await.unwrap();
        assert_eq!(tools.len(), 4);
        let load = Arc::new(Load::new(mcp));
        let mut callers = JoinSet::new();
        for caller in 0..CALLERS {
            let load = Arc::clone(&load);
            callers.spawn(async move { load.call(caller).await });
        }
        tokio::select! {
            () = self.cut_between_answers(cuts, load.answers.subscribe()) => {}
            Some(ended) = callers.join_next() => panic!("a caller ended early: {:?}", ended.err()),
        }
        load.enough.store(true, Ordering::Relaxed);
        let calls = callers.join_all().await;
        assert!(self.proxy.connections() > cuts, "each cut ended a connection");
        self.check_received(&calls);
        check_next(&calls);
        let load = Arc::into_inner(load).expect("all callers are done");
        load.mcp.cancel().await.unwrap();
    }

    async fn cut_between_answers(&self, cuts: usize, mut answers: watch::Receiver<u64>) {
        let mut choices = Choices::new(1);
        for _ in 0..cuts {
            // Waits for up to seven more responses. With none, the cut hits the recovery from the
            // previous cut.
            let enough = *answers.borrow() + choices.below(8);
            answers.wait_for(|answers| *answers >= enough).await.expect("a caller runs");
            // Cuts at any moment, not only at that of a response.
            tokio::time::sleep(Duration::from_micros(choices.below(4_000))).await;
            let connections = self.proxy.connections();
            self.proxy.cut(Cut::ALL[choices.below(4) as usize]).await;
            self.proxy.wait_for_connections(connections + 1).await;
        }
    }

    fn check_received(&self, calls: &[Calls]) {
        let log = std::fs::read_to_string(self.log()).unwrap();
        let mut balance: BTreeMap<&str, isize> = BTreeMap::new();
        for tag in log.lines() {
            *balance.entry(tag).or_default() += 1;
        }
        for tag in calls.iter().flat_map(|calls| &calls.tags) {
            *balance.entry(tag).or_default() -= 1;
        }
        balance.retain(|_, surplus| *surplus != 0);
        assert!(balance.is_empty(), "calls that did not arrive exactly once: {balance:?}");
    }
}

/// Checks the numbers that `next` returned: each arrived once, and at each caller in order.
fn check_next(calls: &[Calls]) {
    for calls in calls {
        assert!(calls.numbers.is_sorted(), "{:?}", calls.numbers);
    }
    let mut numbers: Vec<u64> = calls.iter().flat_map(|calls| calls.numbers.clone()).collect();
    numbers.sort_unstable();
    assert!(numbers.iter().copied().eq(1..=numbers.len() as u64), "{numbers:?}");
}

/// The state of the callers, which continue until there have been enough cuts.
struct Load {
    mcp: Mcp,
    answers: watch::Sender<u64>,
    enough: AtomicBool,
}

#[derive(Default)]
struct Calls {
    tags: Vec<String>,
    /// The results of `next`.
    numbers: Vec<u64>,
}

impl Load {
    fn new(mcp: Mcp) -> Self {
        Self { mcp, answers: watch::Sender::new(0), enough: AtomicBool::new(false) }
    }

    async fn call(&self, caller: u64) -> Calls {
        let mut choices = Choices::new(caller + 2);
        let mut calls = Calls::default();
        while !self.enough.load(Ordering::Relaxed) {
            let tag = format!("{caller}.{}", calls.tags.len());
            match choices.below(10) {
                0..3 => {
                    let answer = self.answer("next", json!({"tag": tag})).await;
                    calls.numbers.push(answer.parse().unwrap());
                }
                3..6 => self.call_echo(&tag, choices.below(200)).await,
                6 => self.call_echo(&tag, choices.below(10_000)).await,
                7 => {
                    let ms = choices.below(20);
                    let answer = self.answer("slow", json!({"tag": tag, "ms": ms})).await;
                    assert_eq!(answer, format!("{ms} ms later"));
                }
                _ => self.call_large(&tag, choices.below(100_000) as usize).await,
            }
            calls.tags.push(tag);
        }
        calls
    }

    async fn call_echo(&self, tag: &str, repeats: u64) {
        let text = format!("{tag} \u{e9}\n").repeat(repeats as usize);
        let answer = self.answer("echo", json!({"tag": tag, "text": text})).await;
        assert!(answer == text, "wrong response to {tag}: {answer:.100}");
    }

    async fn call_large(&self, tag: &str, bytes: usize) {
        let answer = self.answer("large", json!({"tag": tag, "bytes": bytes})).await;
        assert_eq!(answer.len(), bytes);
        let expected = tag.bytes().cycle().take(bytes);
        assert!(answer.bytes().eq(expected), "wrong response to {tag}: {answer:.100}");
    }

    async fn answer(&self, tool: &'static str, arguments: Value) -> String {
        let Value::Object(arguments) = arguments else { panic!("the arguments are not an object") };
        let params = CallToolRequestParams::new(tool).with_arguments(arguments);
        let result = timeout(HANG, self.mcp.call_tool(params)).await;
        let result = result.expect("every call gets its response").unwrap();
        self.answers.send_modify(|answers| *answers += 1);
        let [content] = &result.content[..] else { panic!("{result:?}") };
        content.as_text().expect("tools respond with text").text.clone()
    }
}
