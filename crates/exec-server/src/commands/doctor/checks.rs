//! Checks that the server's mechanisms work, by using them.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use exec_server_host::process::launch::{Command, Io, Launched, PtySize, Teardown, TreeEvent};
use exec_server_host::process::limits::{Limits, LimitsSupport, LimitsTier};
use exec_server_host::sandbox::Plan;
use serde::Serialize;

use crate::environment::runtime_paths::ExecServerRuntimePaths;

#[derive(Debug, Serialize)]
pub(super) struct Check {
    pub(super) name: &'static str,
    pub(super) works: bool,
    /// The benefit, or the reason for the failure.
    pub(super) detail: String,
    /// How to get full support, if this works only in part.
    #[serde(flatten)]
    pub(super) upgrade: Option<Upgrade>,
}

/// Why something works only in part, and how to get all of it.
#[derive(Debug, Serialize)]
pub(super) struct Upgrade {
    pub(super) reason: String,
    pub(super) remedy: &'static str,
}

impl Check {
    pub(super) fn works(name: &'static str, detail: impl Into<String>) -> Self {
        Self { name, works: true, detail: detail.into(), upgrade: None }
    }

    pub(super) fn fails(name: &'static str, detail: impl Into<String>) -> Self {
        Self { name, works: false, detail: detail.into(), upgrade: None }
    }
}

const CHECK_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) async fn checks() -> Vec<Check> {
    let pipes = Io::Pipes { stdin: false };
    let terminal = Io::Pty(PtySize { rows: 24, cols: 80 });
    vec![
        check("spawner", "programs start through the spawner", starts(pipes)).await,
        check("terminals", "programs can have a terminal", starts(terminal)).await,
        check("tree teardown", "descendants that call setsid are killed too", escapee_dies()).await,
        limits(),
        check("private memory", "children cannot read the server's memory", async {
            exec_server_host::protect_own_memory()?;
            Ok(())
        })
        .await,
        check("spill files", "output beyond memory goes to a temporary file", async {
            let place = std::env::temp_dir();
            tempfile::tempfile_in(&place)
                .with_context(|| format!("cannot create a file in {}", place.display()))?;
            Ok(())
        })
        .await,
    ]
}

/// Reports the tier of limits. Every tier enforces limits, so a weaker tier is not a failure.
fn limits() -> Check {
    let name = "limits";
    let support = match ExecServerRuntimePaths::this_program().launcher() {
        Ok(launcher) => launcher.limits(),
        Err(error) => return Check::fails(name, error.to_string()),
    };
    let tier = match support.tier {
        LimitsTier::Cgroup => "tier cgroup: the kernel limits whole process trees",
        LimitsTier::Systemd => "tier systemd: the kernel limits whole process trees",
        LimitsTier::Sampling => "tier rlimit: keepers sample the usage of whole process trees",
        LimitsTier::ProcessOnly => "tier rlimit: only each process is limited",
    };
    let upgrade = support
        .obstacle
        .map(|obstacle| Upgrade { reason: obstacle.to_string(), remedy: LimitsSupport::REMEDY });
    Check { upgrade, ..Check::works(name, tier) }
}

pub(super) async fn check(
    name: &'static str,
    gives: &str,
    attempt: impl Future<Output = anyhow::Result<()>>,
) -> Check {
    let outcome = match tokio::time::timeout(CHECK_TIMEOUT, attempt).await {
        Ok(outcome) => outcome,
        Err(_) => Err(anyhow::anyhow!("no result within {} s", CHECK_TIMEOUT.as_secs())),
    };
    match outcome {
        Ok(()) => Check::works(name, gives),
        Err(error) => Check::fails(name, format!("{error:#}")),
    }
}

async fn starts(io: Io) -> anyhow::Result<()> {
    let mut launched = launch("exit 7", io).await?;
    match launched.tree.next_event().await {
        TreeEvent::Exited(exit) if exit.code == 7 => Ok(()),
        other => anyhow::bail!("expected exit code 7, got {other:?}"),
    }
}

/// Returns the exit code of the script.
pub(super) async fn confined(script: &str, cwd: &Path, plan: Plan) -> anyhow::Result<i32> {
    let mut command = command(script, Io::Pipes { stdin: false });
    command.cwd = cwd.to_owned();
    command.sandbox = Some(Arc::new(plan));
    let launcher = ExecServerRuntimePaths::this_program().launcher()?;
    let mut launched = launcher.launch(command).await?;
    match launched.tree.next_event().await {
        TreeEvent::Exited(exit) => Ok(exit.code),
        other => anyhow::bail!("expected the process to exit, got {other:?}"),
    }
}

/// Checks that a grandchild in its own session does not survive.
async fn escapee_dies() -> anyhow::Result<()> {
    let launcher = ExecServerRuntimePaths::this_program().launcher()?;
    anyhow::ensure!(launcher.teardown() == Teardown::WholeTree, "only process groups are killed");
    let mut launched = launch("setsid sleep 1000 & wait", Io::Pipes { stdin: false }).await?;
    while launched.tree.control().descendants().await == 0 {
        tokio::task::yield_now().await;
    }
    launched.tree.control().kill_all();
    while launched.tree.next_event().await != TreeEvent::Emptied {}
    Ok(())
}

async fn launch(script: &str, io: Io) -> anyhow::Result<Launched> {
    let launcher = ExecServerRuntimePaths::this_program().launcher()?;
    Ok(launcher.launch(command(script, io)).await?)
}

fn command(script: &str, io: Io) -> Command {
    let argv = ["/bin/sh", "-c", script].map(OsString::from).to_vec();
    let env = std::env::vars_os().filter(|(name, _)| name == "PATH").collect();
    let cwd = "/".into();
    Command {
        argv,
        arg0: None,
        cwd,
        env,
        io,
        kill_on_exit: false,
        sandbox: None,
        limits: Limits::default(),
    }
}
