//! `exec-server wait`: waits for processes and prints their exit codes.

use exec_server_client::{ExecProcessEvent, ExecServerClient};
use exec_server_protocol::LimitName;
use serde_json::json;
use tokio::time::{Instant, timeout_at};

use super::listing::{self, Listed};
use crate::cli::client::Wait;
use crate::cli::values::limit;
use crate::environment::limit_options;
use crate::program::exit_code::ExitStatus;
use crate::program::say;
use crate::terminal::json_line;

struct Exit {
    exit_code: i32,
    /// Whether the server ended the process at the timeout that was set when it was started.
    timed_out: bool,
    limits_hit: Vec<LimitName>,
}

pub(crate) async fn run(
    client: &ExecServerClient,
    listed: &[Listed],
    options: &Wait,
) -> anyhow::Result<ExitStatus> {
    let timeout = limit(options.timeout);
    // A timeout beyond the range of the clock means no deadline.
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    // Looks up all names first: a wrong name must fail at once.
    let found = options.names.iter().map(|name| listing::find(listed, name));
    let found = found.collect::<Result<Vec<_>, _>>()?;
    let mut last = 0;
    for process in found {
        let waiting = wait(client, process);
        let Exit { exit_code, timed_out, limits_hit } = match deadline {
            None => waiting.await?,
            Some(deadline) => match timeout_at(deadline, waiting).await {
                Ok(exit) => exit?,
                Err(_) => {
                    let after = timeout.unwrap_or_default();
                    say(&format!("{:?} is still running after {after:?}", process.name()));
                    return Ok(ExitStatus::TIMED_OUT);
                }
            },
        };
        if timed_out {
            say(&format!("{} timed out", process.name()));
        }
        for limit in &limits_hit {
            say(&format!("{}: limit reached: {}", process.name(), limit_options::name(*limit)));
        }
        last = exit_code;
        let line = if options.json {
            let (session_id, process_id) = (&process.session.session_id, process.name());
            json_line(&json!({
                "processId": process_id, "sessionId": session_id, "exitCode": exit_code,
                "timedOut": timed_out, "limitsHit": limits_hit,
            }))
        } else {
            format!("{exit_code}\n")
        };
        super::print(line.as_bytes(), &mut std::io::stdout())?;
    }
    Ok(ExitStatus::of_process(last))
}

async fn wait(client: &ExecServerClient, listed: &Listed) -> anyhow::Result<Exit> {
    if let Some(exit_code) = listed.process.exit_code {
        let limits_hit = listed.process.limits_hit.clone();
        return Ok(Exit { exit_code, timed_out: listed.process.timed_out, limits_hit });
    }
    let name = listed.name();
    // Starts after the known events: earlier output is irrelevant, and the exit is not among them.
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
                let (exit_code, timed_out) = (exit.exit_code, exit.timed_out());
                let limits_hit = exit.details.map(|details| details.limits_hit).unwrap_or_default();
                return Ok(Exit { exit_code, timed_out, limits_hit });
            }
            ExecProcessEvent::Failed(error) => anyhow::bail!("cannot follow {name:?}: {error}"),
            ExecProcessEvent::Output(_)
            | ExecProcessEvent::Gap { .. }
            | ExecProcessEvent::Closed { .. } => {}
        }
    }
    anyhow::bail!("{name:?} ended without an exit code")
}
