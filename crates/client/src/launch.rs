//! A server started as a child: reached over its stdin and stdout, and terminated with the client.

use std::process::Stdio;
use std::time::Duration;

use exec_server_transport::lines;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};

use crate::connector::{Connector, Dialing, PostMortem};
use crate::{ConnectError, DisconnectReason, ExecServerLaunchCommand};

/// How long to wait for the exit status: the output of a program ends a moment before its status is
/// available.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct ChildServerConnector {
    command: ExecServerLaunchCommand,
    server: Option<LaunchedServer>,
}

impl ChildServerConnector {
    pub(crate) fn new(command: ExecServerLaunchCommand) -> Self {
        Self { command, server: None }
    }

    fn launch(&mut self) -> Result<exec_server_transport::Connection, ConnectError> {
        let failed = |source| {
            let program = self.command.program.display().to_string();
            ConnectError::Launch { program, source }
        };
        let mut child = spawn(&self.command).map_err(failed)?;
        let stdin = child.stdin.take().expect("stdin was asked for");
        let stdout = child.stdout.take().expect("stdout was asked for");
        self.server = Some(LaunchedServer(child));
        Ok(lines(stdout, stdin))
    }
}

impl Connector for ChildServerConnector {
    fn dial(&mut self) -> Dialing {
        let launched = self.launch();
        Box::pin(async move { launched })
    }

    /// Sessions of a server on stdio end with the server.
    fn can_redial(&self) -> bool {
        false
    }

    fn post_mortem(&mut self) -> PostMortem<'_> {
        Box::pin(async move {
            let Some(LaunchedServer(child)) = &mut self.server else {
                return DisconnectReason::CannotRedial;
            };
            match tokio::time::timeout(EXIT_TIMEOUT, child.wait()).await {
                Ok(Ok(status)) => DisconnectReason::ServerExited {
                    program: self.command.program.display().to_string(),
                    status: status.to_string(),
                },
                Ok(Err(_)) | Err(_) => DisconnectReason::CannotRedial,
            }
        })
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "this crate does not depend on host; this starts a server, not a job"
)]
fn spawn(command: &ExecServerLaunchCommand) -> std::io::Result<Child> {
    let mut launch = Command::new(&command.program);
    launch
        .args(&command.args)
        .envs(&command.env)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // In a separate process group, the child of a wrapper (ssh, a shell) is killed with it, and
        // Ctrl-C in the terminal does not reach the server.
        .process_group(0)
        .kill_on_drop(true);
    if let Some(cwd) = &command.cwd {
        launch.current_dir(cwd);
    }
    launch.spawn()
}

/// Kills the server's whole process group when dropped. The server's keepers then kill everything
/// it had started.
#[derive(Debug)]
struct LaunchedServer(Child);

impl Drop for LaunchedServer {
    fn drop(&mut self) {
        // `id` returns `None` after the child is reaped, so this never kills a foreign group.
        let group = self.0.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        if let Some(group) = group {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}
