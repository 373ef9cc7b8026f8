//! The response to `process/list`.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use exec_server_protocol::{ErrorKind, ListResponse, ProcessSummary, RpcError};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::process::{ManagedProcess, millis, timed_out};

/// Maximum total size of the argv of all processes. Each may be megabytes, and there may be
/// thousands.
const MAX_ARGV_BYTES: usize = 16 << 20;

/// Processes with the number of descendants of each.
pub(crate) struct Counted(Vec<(Arc<ManagedProcess>, u64)>);

impl Counted {
    pub(crate) async fn new(processes: Vec<Arc<ManagedProcess>>) -> Self {
        // Concurrent: each count comes from a different keeper.
        let counts = processes.into_iter().map(|process| async move {
            let descendants = process.process.descendants().await as u64;
            (process, descendants)
        });
        let mut counted = counts.collect::<JoinSet<_>>().join_all().await;
        counted.sort_by(|(a, _), (b, _)| a.id().cmp(b.id()));
        Self(counted)
    }

    /// Lists the processes by id. With `within`, reports the number of the first event of each
    /// process in the last `within`.
    pub(crate) fn list(&self, within: Option<Duration>) -> Result<ListResponse, RpcError> {
        let argv = self.0.iter().flat_map(|(process, _)| &process.argv);
        let bytes: usize = argv.map(String::len).sum();
        if bytes > MAX_ARGV_BYTES {
            let message = format!(
                "the arguments of the session's {} processes total {bytes} bytes; the limit is \
                 {MAX_ARGV_BYTES}; list again after some have been forgotten",
                self.0.len()
            );
            return Err(RpcError::internal(message).with_kind(ErrorKind::AnswerTooLarge));
        }
        let summary = |(process, descendants): &(Arc<ManagedProcess>, u64)| ProcessSummary {
            first_seq_within: within.map(|within| process.first_seq_within(within)),
            ..process.summary_with(*descendants)
        };
        Ok(ListResponse { processes: self.0.iter().map(summary).collect() })
    }
}

impl ManagedProcess {
    fn summary_with(&self, descendants: u64) -> ProcessSummary {
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
            descendants,
            timed_out: progress.exit.is_some_and(timed_out),
            limits_hit: progress.exit.map(|exit| self.limits_hit(&exit)).unwrap_or_default(),
            first_seq_within: None,
        }
    }

    /// Returns the number of the first event in the last `within`, or 1 if that reaches back beyond
    /// the start of the clock.
    fn first_seq_within(&self, within: Duration) -> u64 {
        let at = Instant::now().checked_sub(within);
        at.map_or(1, |at| self.log().first_since(at))
    }
}
