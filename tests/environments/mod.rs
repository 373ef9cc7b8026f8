//! The promises of every environment: the same tests for this machine, for a server over a
//! WebSocket, for a server that is launched on demand, and for a server behind a relay.

mod connecting;
mod cuts;
mod events;
mod files;
mod finding;
mod helpers;
mod http;
mod streams;
mod talking;
mod unified;

use std::sync::Arc;

use exec_server::environment::RemoteServer;
use exec_server::protocol::{OutputStream, PathUri};
use exec_server::{
    Environment, ExecBackend, ExecProcess, ExecProcessEvent, ExecServerLaunchCommand,
    ExecServerRuntimePaths, ProcessEvents, ServerConfig,
};

use crate::support::{HANG, PROGRAM, Relay, Server, Start};

/// Makes a test of each case for each kind of environment. Cases take a `Backend`, or, after
/// `whole:`, the environment itself.
macro_rules! in_every_environment {
    (whole: $($case:ident,)*) => {
        crate::environments::in_every_environment! { @run_whole $($case,)* }
    };
    (@$run:ident $($case:ident,)*) => {
        mod local {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                crate::environments::Site::local().$run(super::$case).await;
            })*
        }

        mod websocket {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                crate::environments::Site::websocket().$run(super::$case).await;
            })*
        }

        mod launched {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                crate::environments::Site::launched().$run(super::$case).await;
            })*
        }

        mod relayed {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                crate::environments::Site::relayed().$run(super::$case).await;
            })*
        }
    };
    ($($case:ident,)*) => {
        crate::environments::in_every_environment! { @run $($case,)* }
    };
}
use in_every_environment;

type Backend = Arc<dyn ExecBackend>;

struct Site {
    environment: Environment,
    _server: Behind,
}

#[expect(dead_code, reason = "they are kept alive")]
enum Behind {
    Nothing,
    Server(Server),
    Relay(Box<Relay>),
}

impl Site {
    fn local() -> Self {
        Self::local_with(ServerConfig::default())
    }

    fn local_with(config: ServerConfig) -> Self {
        let paths = ExecServerRuntimePaths::with_spawner(PROGRAM);
        Self { environment: Environment::local_with(paths, config), _server: Behind::Nothing }
    }

    fn websocket() -> Self {
        Self::websocket_with(&[])
    }

    fn websocket_with(flags: &[&str]) -> Self {
        let server = Server::with(flags);
        let remote = RemoteServer::at(server.url()).unwrap();
        let _server = Behind::Server(server);
        Self { environment: Environment::remote("remote", remote), _server }
    }

    fn launched() -> Self {
        Self::launched_with(&[])
    }

    fn launched_with(flags: &[&str]) -> Self {
        let args = ["--log", "warn", "--listen", "stdio"].iter().chain(flags);
        let remote = RemoteServer::launched(ExecServerLaunchCommand {
            program: PROGRAM.into(),
            args: args.map(ToString::to_string).collect(),
            ..ExecServerLaunchCommand::default()
        });
        Self { environment: Environment::remote("launched", remote), _server: Behind::Nothing }
    }

    fn relayed() -> Self {
        Self::relayed_with(&[])
    }

    fn relayed_with(flags: &[&str]) -> Self {
        let relay = Relay::with(flags);
        let environment = Environment::remote("relayed", relay.remote_server());
        Self { environment, _server: Behind::Relay(Box::new(relay)) }
    }

    fn every() -> [Self; 4] {
        [Self::local(), Self::websocket(), Self::launched(), Self::relayed()]
    }

    /// Returns sites whose logs are not spilled to disk.
    fn every_without_spill() -> [Self; 4] {
        let flags = ["--spill-output-bytes-per-process", "0"];
        let config = ServerConfig { spill_output_bytes_per_process: 0, ..ServerConfig::default() };
        [
            Self::local_with(config),
            Self::websocket_with(&flags),
            Self::launched_with(&flags),
            Self::relayed_with(&flags),
        ]
    }

    fn backend(&self) -> Backend {
        Arc::new(self.environment.clone())
    }

    async fn run(self, case: impl AsyncFnOnce(Backend)) {
        let outcome = tokio::time::timeout(HANG, case(self.backend())).await;
        outcome.expect("the case finishes");
    }

    async fn run_whole(self, case: impl AsyncFnOnce(Environment)) {
        let outcome = tokio::time::timeout(HANG, case(self.environment.clone())).await;
        outcome.expect("the case finishes");
    }
}

struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: impl AsRef<std::path::Path>) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    fn uri(&self, name: impl AsRef<std::path::Path>) -> PathUri {
        PathUri::from_path(self.path(name)).unwrap()
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), content).unwrap();
    }

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }
}

/// Returns bytes that depend on their position.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|place| (place % 251) as u8).collect()
}

async fn start(backend: &Backend, start: &Start) -> Arc<dyn ExecProcess> {
    backend.start(start.typed()).await.unwrap()
}

/// All events of a process.
#[derive(Debug, Default, PartialEq)]
struct Story {
    /// The numbers of all events except gaps.
    seqs: Vec<u64>,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    terminal: Vec<u8>,
    lost: u64,
    exit_code: Option<i32>,
}

impl Story {
    async fn of(mut events: ProcessEvents) -> Self {
        let mut story = Self::default();
        while let Some(event) = events.next().await {
            story.add(event);
        }
        story
    }

    fn add(&mut self, event: ExecProcessEvent) {
        match event {
            ExecProcessEvent::Output(output) => {
                self.seqs.push(output.seq);
                let stream = match output.stream {
                    OutputStream::Stdout => &mut self.stdout,
                    OutputStream::Stderr => &mut self.stderr,
                    OutputStream::Pty => &mut self.terminal,
                };
                stream.extend_from_slice(&output.chunk);
            }
            ExecProcessEvent::Gap { dropped_bytes } => self.lost += dropped_bytes,
            ExecProcessEvent::Exited(exit) => {
                self.seqs.push(exit.seq);
                self.exit_code = Some(exit.exit_code);
            }
            ExecProcessEvent::Closed { seq } => self.seqs.push(seq),
            ExecProcessEvent::Failed(error) => panic!("the process has failed: {error}"),
        }
    }

    fn is_contiguous(&self) -> bool {
        self.seqs.iter().copied().eq(1..=self.seqs.len() as u64)
    }
}

/// Reads events until the process has written `text`, and returns all that it wrote.
async fn until_written(events: &mut ProcessEvents, text: &str) -> String {
    let mut written = String::new();
    while !written.contains(text) {
        match events.next().await {
            Some(ExecProcessEvent::Output(output)) => {
                written.push_str(&String::from_utf8_lossy(&output.chunk));
            }
            Some(ExecProcessEvent::Gap { .. }) => {}
            other => panic!("{other:?} after {written:?}"),
        }
    }
    written
}
