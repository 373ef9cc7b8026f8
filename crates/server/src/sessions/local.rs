//! A session of this program: what a local environment holds instead of a connection. No JSON, the same rules.

use std::sync::Arc;

use exec_server_protocol::{EnvironmentInfo, ListResponse, RpcError, StartParams};
use tokio::sync::oneshot;

use super::session::Session;
use crate::connection::ConnectionId;
use crate::local::{
    Counted, LocalFileSystem, LocalHttp, LocalProcess, environment_info, start_error,
};
use crate::server::Shared;

/// A session that is attached to its holder for as long as it lives: it cannot be resumed by a client, and it
/// never expires. Otherwise it is like every other: counted by `max_sessions`, shown by `session/list`, and open to
/// observers. Dropping it ends it at once and kills its processes; [`Self::close`] also waits for their end.
#[derive(Debug)]
pub struct LocalSession {
    shared: Arc<Shared>,
    session: Arc<Session>,
    holder: ConnectionId,
}

impl LocalSession {
    pub(crate) fn new(shared: Arc<Shared>, session: Arc<Session>, holder: ConnectionId) -> Self {
        Self { shared, session, holder }
    }

    #[must_use]
    pub fn id(&self) -> &str {
        self.session.id()
    }

    /// Starts a process, and returns when its program runs. If the future is dropped before, the process is killed and
    /// forgotten.
    ///
    /// Whoever starts a process must [follow](LocalProcess::follow) it to its end and confirm what it gets: nothing else
    /// makes room in the log, so a process that nobody follows blocks when the log is full, and is not forgotten while
    /// the session lives.
    pub async fn start(&self, params: StartParams) -> Result<Arc<LocalProcess>, RpcError> {
        let shared = &self.shared;
        let (id, claim_name) = (params.process_id.clone(), params.claim_name);
        let start = || LocalProcess::start(shared.start_context(), params);
        let (process, outcome) =
            shared.admit(&self.session, self.holder, &id, claim_name, start)?;
        let unclaimed = Unclaimed(Some(Arc::clone(&process)));
        let (report, started) = oneshot::channel();
        shared.look_after(Arc::clone(&self.session), process, outcome, |outcome| {
            // Nobody waits for it any more: `Unclaimed` has seen to that.
            let _ = report.send(outcome);
        });
        match started.await {
            Ok(Ok(())) => Ok(unclaimed.claim()),
            Ok(Err(error)) => Err(start_error(&id, &error)),
            Err(_) => Err(RpcError::internal(format!("process {id:?}: the server has ended"))),
        }
    }

    /// A process of this session, also one that is still being started or is over and not yet forgotten.
    #[must_use]
    pub fn process(&self, process_id: &str) -> Option<Arc<LocalProcess>> {
        self.check_held().ok()?;
        self.session.find(process_id)
    }

    pub async fn list(&self) -> Result<ListResponse, RpcError> {
        self.check_held()?;
        Counted::new(self.session.processes()).await.list(None)
    }

    pub fn environment_info(&self) -> Result<EnvironmentInfo, RpcError> {
        self.check_held()?;
        environment_info(&self.shared.launcher)
    }

    /// The files of this machine.
    pub fn file_system(&self) -> Result<LocalFileSystem, RpcError> {
        self.check_held()?;
        let shared = &self.shared;
        Ok(LocalFileSystem::new(shared.file_work.clone(), shared.searches.clone()))
    }

    /// HTTP requests from this machine. Each is refused by itself if the operator's sandbox forbids the network.
    pub fn http(&self) -> Result<LocalHttp, RpcError> {
        self.check_held()?;
        Ok(LocalHttp::new(Arc::clone(&self.shared)))
    }

    /// Ends the session, and waits until its processes are gone.
    pub async fn close(&self) {
        self.shared.end_session(&self.session).await;
    }

    fn check_held(&self) -> Result<(), RpcError> {
        self.session.check_attached(self.holder)
    }
}

impl Drop for LocalSession {
    fn drop(&mut self) {
        // All but the waiting is done when the future has been made, so no runtime is needed here.
        drop(self.shared.end_session(&self.session));
    }
}

/// A process that whoever asked for it has not received yet. Dropping it ends the process: nobody else knows that
/// it is there.
struct Unclaimed(Option<Arc<LocalProcess>>);

impl Unclaimed {
    fn claim(mut self) -> Arc<LocalProcess> {
        self.0.take().expect("a process is claimed once, by value")
    }
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        if let Some(process) = &self.0 {
            process.abandon();
        }
    }
}
