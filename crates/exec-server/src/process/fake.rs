//! A fake process that tests control.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use exec_server_client::{
    ExecServerError, GapPolicy, MirrorEvent, Offer, ProcessEvents, ProcessMirror,
};
use exec_server_protocol::{
    OutputStream, ReadResponse, SignalName, TerminalSize, TerminateMode, WriteStatus,
};
use tokio::sync::{Semaphore, watch};

use crate::ExecProcess;

#[derive(Debug, Clone)]
pub(crate) struct FakeProcess {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    mirror: ProcessMirror,
    calls: Mutex<Vec<String>>,
    /// Notifies of every new entry in `calls`.
    noted: watch::Sender<()>,
    /// Each write takes a permit.
    writes: Semaphore,
    stdin: Mutex<WriteStatus>,
}

impl FakeProcess {
    pub(crate) fn new() -> Self {
        let shared = Shared {
            mirror: ProcessMirror::new("fake", GapPolicy::Declared),
            calls: Mutex::default(),
            noted: watch::Sender::new(()),
            writes: Semaphore::new(Semaphore::MAX_PERMITS),
            stdin: Mutex::new(WriteStatus::Accepted),
        };
        Self { shared: Arc::new(shared) }
    }

    pub(crate) fn handle(&self) -> Arc<dyn ExecProcess> {
        Arc::new(self.clone())
    }

    pub(crate) fn output(&self, stream: OutputStream, text: &str) {
        let chunk = Bytes::copy_from_slice(text.as_bytes());
        self.append(MirrorEvent::Output { stream, chunk });
    }

    pub(crate) fn print(&self, text: &str) {
        self.output(OutputStream::Stdout, text);
    }

    pub(crate) fn print_bytes(&self, bytes: &'static [u8]) {
        let chunk = Bytes::from_static(bytes);
        self.append(MirrorEvent::Output { stream: OutputStream::Stdout, chunk });
    }

    pub(crate) fn gap(&self, dropped_bytes: u64) {
        let mirror = &self.shared.mirror;
        mirror.skip_to(mirror.next_seq() + 1, dropped_bytes).unwrap();
    }

    pub(crate) fn exit(&self, exit_code: i32) {
        self.append(MirrorEvent::Exited {
            exit_code,
            sandbox_denied: false,
            denied: None,
            details: None,
        });
    }

    pub(crate) fn close(&self) {
        self.append(MirrorEvent::Closed);
    }

    pub(crate) fn fail(&self) {
        self.shared.mirror.fail(ExecServerError::Closed);
    }

    pub(crate) fn close_input(&self) {
        *self.shared.stdin.lock().unwrap() = WriteStatus::StdinClosed;
    }

    /// Makes writes wait for [`Self::accept_write`].
    pub(crate) fn hold_writes(&self) {
        self.shared.writes.forget_permits(Semaphore::MAX_PERMITS);
    }

    pub(crate) fn accept_write(&self) {
        self.shared.writes.add_permits(1);
    }

    pub(crate) fn calls(&self) -> Vec<String> {
        self.shared.calls.lock().unwrap().clone()
    }

    /// Resolves once `calls` has this entry: written text, or `close`.
    pub(crate) async fn called(&self, call: &str) {
        let mut noted = self.shared.noted.subscribe();
        noted.wait_for(|()| self.calls().iter().any(|noted| noted == call)).await.unwrap();
    }

    fn append(&self, event: MirrorEvent) {
        let mirror = &self.shared.mirror;
        assert_eq!(mirror.offer(mirror.next_seq(), event), Offer::Accepted);
    }

    fn note(&self, call: String) {
        self.shared.calls.lock().unwrap().push(call);
        self.shared.noted.send_replace(());
    }
}

#[async_trait]
impl ExecProcess for FakeProcess {
    fn process_id(&self) -> &str {
        self.shared.mirror.process_id()
    }

    async fn read(
        &self,
        after_seq: Option<u64>,
        max_bytes: Option<u64>,
        _wait: Option<Duration>,
    ) -> Result<ReadResponse, ExecServerError> {
        let (after, max) = (after_seq.unwrap_or(0), max_bytes.unwrap_or(u64::MAX));
        let mirror = &self.shared.mirror;
        Ok(mirror.read(after, max).unwrap_or_else(|| mirror.read_retained(max)))
    }

    async fn write(&self, chunk: Bytes) -> Result<WriteStatus, ExecServerError> {
        self.shared.writes.acquire().await.unwrap().forget();
        let status = *self.shared.stdin.lock().unwrap();
        if status == WriteStatus::Accepted {
            self.note(String::from_utf8(chunk.into()).unwrap());
        }
        Ok(status)
    }

    async fn close_stdin(&self) -> Result<WriteStatus, ExecServerError> {
        self.note("close".to_owned());
        Ok(*self.shared.stdin.lock().unwrap())
    }

    async fn resize(&self, _size: TerminalSize) -> Result<(), ExecServerError> {
        Ok(())
    }

    async fn signal(&self, _signal: SignalName) -> Result<(), ExecServerError> {
        Ok(())
    }

    async fn terminate(&self, _mode: TerminateMode) -> Result<bool, ExecServerError> {
        let running = self.shared.mirror.exit().is_none();
        if running {
            self.exit(137);
            self.close();
        }
        Ok(running)
    }

    fn subscribe_wake(&self) -> watch::Receiver<u64> {
        self.shared.mirror.wake()
    }

    fn subscribe_events(&self) -> ProcessEvents {
        self.shared.mirror.subscribe()
    }
}
