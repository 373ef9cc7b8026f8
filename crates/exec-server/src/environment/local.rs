//! This machine as an environment: straight into the server, without a connection and without JSON.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use exec_server_client::{
    ConnectError, ExecServerError, Gaps, MirrorEvent, Offer, ProcessEvents, ProcessMirror,
};
use exec_server_protocol::{
    EnvironmentInfo, OnFull, ReadParams, ReadResponse, SignalName, StartParams, TerminalSize,
    TerminateMode, WriteParams, WriteStatus,
};
use exec_server_server::{Followed, FollowedEvent, Follower, LocalSession, ServerConfig};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::backend::{ExecBackend, ExecProcess};
use super::local_files::LocalFileSystem;
use super::local_http::LocalHttpClient;
use crate::runtime_paths::ExecServerRuntimePaths;
use crate::serve::new_server;

/// A larger write is accepted piece by piece, as far as the process reads.
const MAX_PIECE: usize = 256 << 10;

/// A session of this program. Clones share it; the last one, of these and of the process handles, ends it and its
/// processes.
#[derive(Debug, Clone)]
pub(super) struct LocalBackend {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    session: LocalSession,
    files: LocalFileSystem,
    http: LocalHttpClient,
    /// One brings the events of each process to its mirror. Not the handle's: a process whose handle was dropped
    /// must not block on a log that nobody empties.
    pumps: Mutex<JoinSet<()>>,
}

/// A process of this machine.
#[derive(Debug)]
pub struct LocalProcess {
    process: Arc<exec_server_server::LocalProcess>,
    mirror: ProcessMirror,
    /// Held for a whole write, so that two writes do not mix.
    writing: tokio::sync::Mutex<()>,
    _session: Arc<Shared>,
}

impl LocalBackend {
    pub(super) fn open(
        paths: &ExecServerRuntimePaths,
        config: ServerConfig,
    ) -> Result<Self, ExecServerError> {
        let launcher = paths.launcher().map_err(|source| {
            let program = "the spawner of processes".to_owned();
            ConnectError::Launch { program, source }
        })?;
        let server = new_server(config, launcher);
        let session = server.open_session("local environment").map_err(ExecServerError::Server)?;
        let files = session.file_system().map(LocalFileSystem::new);
        let http = session.http().map(LocalHttpClient::new);
        let (files, http) =
            (files.map_err(ExecServerError::Server)?, http.map_err(ExecServerError::Server)?);
        Ok(Self { shared: Arc::new(Shared { session, files, http, pumps: Mutex::default() }) })
    }

    pub(super) fn file_system(&self) -> LocalFileSystem {
        self.shared.files.clone()
    }

    pub(super) fn http(&self) -> LocalHttpClient {
        self.shared.http.clone()
    }
}

#[async_trait]
impl ExecBackend for LocalBackend {
    async fn start(&self, params: StartParams) -> Result<Arc<dyn ExecProcess>, ExecServerError> {
        let gaps = match params.on_full {
            OnFull::Block => Gaps::Fatal,
            OnFull::Discard => Gaps::Declared,
        };
        let process = self.shared.session.start(params).await.map_err(ExecServerError::Server)?;
        let mirror = ProcessMirror::new(process.id(), gaps);
        self.shared.pump(Pump {
            session: Arc::downgrade(&self.shared),
            follower: process.follow(),
            mirror: mirror.clone(),
        });
        Ok(Arc::new(LocalProcess {
            process,
            mirror,
            writing: tokio::sync::Mutex::default(),
            _session: Arc::clone(&self.shared),
        }))
    }

    async fn info(&self) -> Result<EnvironmentInfo, ExecServerError> {
        self.shared.session.environment_info().map_err(ExecServerError::Server)
    }
}

#[async_trait]
impl ExecProcess for LocalProcess {
    fn process_id(&self) -> &str {
        self.process.id()
    }

    async fn read(
        &self,
        after_seq: Option<u64>,
        max_bytes: Option<u64>,
        wait: Option<Duration>,
    ) -> Result<ReadResponse, ExecServerError> {
        self.mirror.expect_no_subscriber();
        let after = after_seq.unwrap_or(0);
        if let Some(wait) = wait.filter(|wait| !wait.is_zero()) {
            let _ = tokio::time::timeout(wait, self.mirror.news_beyond(after)).await;
        }
        // The mirror first, so that a reader never sees what a subscriber cannot have.
        if let Some(response) = self.mirror.read(after, max_bytes.unwrap_or(u64::MAX)) {
            return Ok(response);
        }
        let process_id = self.process_id().to_owned();
        let params = ReadParams { process_id, after_seq, max_bytes, wait_ms: None };
        Ok(self.process.read(&params).await)
    }

    async fn write(&self, mut chunk: Bytes) -> Result<WriteStatus, ExecServerError> {
        let _order = self.writing.lock().await;
        loop {
            let piece = chunk.split_to(chunk.len().min(MAX_PIECE));
            let process_id = self.process_id().to_owned();
            let params = WriteParams { process_id, chunk: piece.into(), write_id: None };
            let written = self.process.write(params).await.map_err(ExecServerError::Server)?;
            if written.status != WriteStatus::Accepted || chunk.is_empty() {
                return Ok(written.status);
            }
        }
    }

    async fn close_stdin(&self) -> Result<WriteStatus, ExecServerError> {
        let _order = self.writing.lock().await;
        self.process.close_stdin().map_err(ExecServerError::Server)
    }

    async fn resize(&self, size: TerminalSize) -> Result<(), ExecServerError> {
        self.process.resize(size).map_err(ExecServerError::Server)
    }

    async fn signal(&self, signal: SignalName) -> Result<(), ExecServerError> {
        self.process.signal(signal);
        Ok(())
    }

    async fn terminate(&self, mode: TerminateMode) -> Result<bool, ExecServerError> {
        Ok(self.process.terminate(mode))
    }

    fn subscribe_wake(&self) -> watch::Receiver<u64> {
        self.mirror.wake()
    }

    fn subscribe_events(&self) -> ProcessEvents {
        self.mirror.subscribe()
    }
}

impl Shared {
    fn pump(&self, pump: Pump) {
        let mut pumps = self.pumps.lock().expect("no code panics while it holds the pumps");
        while pumps.try_join_next().is_some() {}
        pumps.spawn(pump.run());
    }
}

/// Brings events from a process's log to its mirror.
struct Pump {
    session: Weak<Shared>,
    follower: Follower,
    mirror: ProcessMirror,
}

impl Pump {
    async fn run(mut self) {
        while let Some(followed) = self.follower.next().await {
            // Invariant: the last reference goes before the session is ended, so an exit that comes from
            // that end finds none. Subscribers get `Failed` instead, when this is dropped.
            if self.session.strong_count() == 0 {
                return;
            }
            let seq = followed.seq;
            self.bring(followed).await;
            self.follower.confirm(seq);
        }
    }

    async fn bring(&self, Followed { seq, dropped_bytes, event }: Followed) {
        let event = match event {
            FollowedEvent::Output { stream, chunk } => MirrorEvent::Output { stream, chunk },
            FollowedEvent::Exited { exit_code, denied, details } => {
                let sandbox_denied = denied.is_some();
                MirrorEvent::Exited { exit_code, sandbox_denied, denied, details: Some(details) }
            }
            FollowedEvent::Closed => MirrorEvent::Closed,
            // Subscribers get the exit that follows; the reason is in what `read` answers.
            FollowedEvent::Failed(_) => return,
        };
        if dropped_bytes > 0
            && let Err(gap) = self.mirror.skip_to(seq, dropped_bytes)
        {
            self.mirror.fail(gap);
        }
        // What is offered after a failure is a duplicate, so the process still runs to its end.
        while self.mirror.offer(seq, event.clone()) == Offer::Full {
            self.mirror.has_room().await;
        }
    }
}

impl Drop for LocalProcess {
    fn drop(&mut self) {
        self.mirror.expect_no_subscriber();
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        // Nothing to say about a process that has closed; subscribers of any other would wait for ever.
        self.mirror.fail(ExecServerError::Closed);
    }
}
