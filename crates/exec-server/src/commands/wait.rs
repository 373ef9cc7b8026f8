//! `exec-server wait`: the exit code of a process, as soon as there is one.

use exec_server_client::{ExecProcessEvent, ExecServerClient};

use super::listing::Listed;
use crate::program::say;

pub(crate) struct Waited {
    pub(crate) exit_code: i32,
    /// The server ended it at the deadline of its start.
    pub(crate) timed_out: bool,
}

pub(crate) async fn run(client: &ExecServerClient, listed: &Listed) -> anyhow::Result<Waited> {
    let waited = wait(client, listed).await?;
    if waited.timed_out {
        say(&format!("{} timed out", listed.name()));
    }
    Ok(waited)
}

async fn wait(client: &ExecServerClient, listed: &Listed) -> anyhow::Result<Waited> {
    if let Some(exit_code) = listed.process.exit_code {
        return Ok(Waited { exit_code, timed_out: listed.process.timed_out });
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
                return Ok(Waited { exit_code: exit.exit_code, timed_out: exit.timed_out() });
            }
            ExecProcessEvent::Failed(error) => anyhow::bail!("lost sight of {name:?}: {error}"),
            ExecProcessEvent::Output(_)
            | ExecProcessEvent::Gap { .. }
            | ExecProcessEvent::Closed { .. } => {}
        }
    }
    anyhow::bail!("{name:?} ended without an exit code")
}
