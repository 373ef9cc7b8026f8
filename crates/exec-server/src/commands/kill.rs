//! `exec-server kill`: ends a process and all its descendants, or sends it a signal.

use exec_server_client::ExecServerClient;
use exec_server_protocol::{SignalName, SignalParams, TerminateMode, TerminateParams};

use super::listing::Listed;

/// The time between TERM and KILL.
const GRACE_MS: u64 = 3_000;

pub(crate) async fn run(
    client: &ExecServerClient,
    listed: &Listed,
    signal: Option<SignalName>,
) -> anyhow::Result<()> {
    let process_id = listed.name().to_owned();
    let session_id = Some(listed.session.session_id.clone());
    let (is_running, descendants) = (listed.process.running, listed.process.descendants);
    anyhow::ensure!(is_running || descendants > 0, "{process_id:?} is not running");
    // Descendants that outlive a process can be ended, but not signalled.
    anyhow::ensure!(
        is_running || signal.is_none(),
        "{process_id:?} has exited, and its descendants ({descendants} running) cannot be \
         signalled; omit the signal to end them"
    );
    match signal {
        Some(signal) => {
            client.process_signal(SignalParams { process_id, signal, session_id }).await?;
        }
        None => {
            let mode = TerminateMode::Graceful { timeout_ms: GRACE_MS };
            client.process_terminate(TerminateParams { process_id, mode, session_id }).await?;
        }
    }
    Ok(())
}
