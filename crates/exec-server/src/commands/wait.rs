//! `exec-server wait`: the exit code of a process, as soon as there is one.

use exec_server_client::{ExecProcessEvent, ExecServerClient};

use super::listing::Listed;
use crate::program::say;

pub(crate) async fn run(client: &ExecServerClient, listed: &Listed) -> anyhow::Result<i32> {
    if let Some(code) = listed.process.exit_code {
        return Ok(code);
    }
    let name = listed.name();
    // What was said before we came does not matter; the exit was not.
    let after = listed.process.next_seq.saturating_sub(1);
    let session = &listed.session.session_id;
    let process = client.observe(session, name, Some(after)).await?;
    let mut events = process.subscribe_events();
    while let Some(event) = events.next().await {
        match event {
            ExecProcessEvent::Exited(exit) => {
                if exit.server_stopped() {
                    say(&format!("the server stopped; {name} was ended"));
                }
                return Ok(exit.exit_code);
            }
            ExecProcessEvent::Failed(error) => anyhow::bail!("lost sight of {name:?}: {error}"),
            ExecProcessEvent::Output(_)
            | ExecProcessEvent::Gap { .. }
            | ExecProcessEvent::Closed { .. } => {}
        }
    }
    anyhow::bail!("{name:?} ended without an exit code")
}
