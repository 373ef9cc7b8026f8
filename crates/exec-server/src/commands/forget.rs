//! `exec-server forget`: ends the session of a process, so that the server forgets it and its output.

use exec_server_client::ExecServerClient;
use exec_server_protocol::SessionCloseParams;

use super::listing::Listed;

pub(crate) async fn run(
    client: &ExecServerClient,
    listed: &Listed,
    force: bool,
) -> anyhow::Result<()> {
    let name = listed.name();
    let is_alive = listed.process.running || listed.process.descendants > 0;
    anyhow::ensure!(
        force || !is_alive,
        "{name:?} is running; end it with exec-server kill {name}, or use forget -f"
    );
    anyhow::ensure!(
        force || !listed.session.attached,
        "somebody is attached to {name:?}; use forget -f to end it all the same"
    );
    // Only whole sessions can be forgotten, and the others in it may be somebody's work.
    let others = listed.session.processes.len().saturating_sub(1);
    anyhow::ensure!(
        others == 0,
        "{name:?} shares its session {} with {others} more; only its client {:?} can end it",
        listed.short_session(),
        listed.session.client_name,
    );
    let session_id = Some(listed.session.session_id.clone());
    client.session_close(SessionCloseParams { session_id }).await?;
    Ok(())
}
