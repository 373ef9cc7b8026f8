//! What `process/list` says.

use std::sync::Arc;
use std::time::SystemTime;

use exec_server_protocol::{ListResponse, ProcessSummary};
use tokio::task::JoinSet;

use super::process::{LocalProcess, millis};

/// The processes by name.
pub(crate) async fn list(processes: Vec<Arc<LocalProcess>>) -> ListResponse {
    // At once: each asks a keeper of its own.
    let summaries = processes.into_iter().map(|process| async move { process.summary().await });
    let mut processes = summaries.collect::<JoinSet<_>>().join_all().await;
    processes.sort_by(|a, b| a.process_id.cmp(&b.process_id));
    ListResponse { processes }
}

impl LocalProcess {
    pub async fn summary(&self) -> ProcessSummary {
        let progress = self.log().progress();
        let started_at = self.process.started_at().duration_since(SystemTime::UNIX_EPOCH);
        ProcessSummary {
            process_id: self.id().to_owned(),
            argv: self.argv.clone(),
            tty: self.process.tty(),
            running: progress.exit.is_none(),
            exit_code: progress.exit.map(|exit| exit.code),
            started_at_ms: millis(started_at.unwrap_or_default()),
            next_seq: progress.next_seq,
            descendants: self.process.descendants().await as u64,
        }
    }
}
