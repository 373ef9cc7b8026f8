//! `exec-server forget`: ends the session of a process, so that the server discards the process and
//! its output.

use exec_server_client::ExecServerClient;
use exec_server_protocol::SessionCloseParams;

use super::listing::Listed;
use super::run::DETACHED_CLIENT_NAME;
use super::wording::one_line;
use crate::program::exit_code::ExitStatus;
use crate::program::say;
use crate::terminal::printable;

/// Forgets every finished process of `run --detach`, unless a client is attached. Sessions of other
/// clients are kept, because those clients may reconnect for unread output.
pub(crate) async fn all(
    client: &ExecServerClient,
    listed: &[Listed],
) -> anyhow::Result<ExitStatus> {
    let mut status = ExitStatus::SUCCESS;
    let is_detached = |one: &&Listed| one.session.client_name == DETACHED_CLIENT_NAME;
    let is_left = |one: &&Listed| !is_alive(one) && !one.session.attached;
    for finished in listed.iter().filter(is_detached).filter(is_left) {
        match run(client, finished, false).await {
            Ok(()) => {
                let line = format!("{}\n", printable(finished.name()));
                super::print(line.as_bytes(), &mut std::io::stdout())?;
            }
            Err(error) => {
                say(&one_line(&error));
                status = ExitStatus::FAILURE;
            }
        }
    }
    Ok(status)
}

fn is_alive(listed: &Listed) -> bool {
    listed.process.running || listed.process.descendants > 0
}

pub(crate) async fn run(
    client: &ExecServerClient,
    listed: &Listed,
    force: bool,
) -> anyhow::Result<()> {
    let name = listed.name();
    anyhow::ensure!(
        force || !listed.process.running,
        "{name:?} is running; end it with exec-server kill {name}, or use forget -f"
    );
    let descendants = listed.process.descendants;
    anyhow::ensure!(
        force || descendants == 0,
        "{name:?} has exited, but has running descendants ({descendants}); end them with \
         exec-server kill {name}, or use forget -f"
    );
    anyhow::ensure!(
        force || !listed.session.attached,
        "another client is attached to {name:?}; use forget -f to forget it anyway"
    );
    // Only whole sessions can be forgotten, and other processes in the session may still be needed.
    let others = listed.session.processes.len().saturating_sub(1);
    anyhow::ensure!(
        others == 0,
        "{name:?} shares its session {} with other processes ({others}); only the client {:?} can \
         end the session",
        listed.short_session(),
        listed.session.client_name,
    );
    let session_id = Some(listed.session.session_id.clone());
    client.session_close(SessionCloseParams { session_id }).await?;
    Ok(())
}
