//! Starts that are terminated, dropped or lose their server before their sandbox is set up.

use std::ffi::OsString;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use exec_server_host::process::launch::{Command, LaunchError, Launcher};
use exec_server_host::process::{LogLimits, OnFull, Process, Terminate};
use exec_server_host::sandbox::{Cover, CoverKind, Mount, Plan};
use rustix::fs::inotify;
use rustix::io::Errno;

use super::super::support::{self, Running, shell};
use super::scene::Scene;

/// Enough mounts that each change of all of them takes some time.
const MOUNTS: usize = 2_000;
/// Enough changes of all mounts that the setup never finishes during a test.
const CHANGES_OF_ALL: usize = 200_000;

pub(crate) const PROGRAM: &str = "program";

/// Returns a plan whose setup creates the placeholders first and then practically never ends.
pub(crate) fn slow(plan: &Plan, workspace: &Path) -> Plan {
    let cover = |path: PathBuf| {
        Mount::Cover(Cover { path, kind: CoverKind::ReadOnly, is_directory: true, missing: false })
    };
    let mut mounts = vec![cover(workspace.join("sub")); MOUNTS];
    mounts.extend(plan.mounts.iter().cloned());
    mounts.extend(vec![cover("/".into()); CHANGES_OF_ALL]);
    Plan { mounts, ..plan.clone() }
}

/// A program, and an inotify watch that shows whether it was executed.
struct Program {
    path: OsString,
    events: OwnedFd,
}

impl Program {
    fn new(scene: &Scene) -> Self {
        let path = scene.path(PROGRAM);
        fs::copy("/bin/true", &path).unwrap();
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        let events = inotify::init(flags).unwrap();
        inotify::add_watch(&events, &path, inotify::WatchFlags::OPEN).unwrap();
        Self { path: path.into(), events }
    }

    fn command(&self, scene: &Scene) -> Command {
        let plan = Arc::new(slow(&scene.plan(&[]), scene.root()));
        Command { argv: vec![self.path.clone()], ..scene.command(&plan, "") }
    }

    fn was_executed(&self) -> bool {
        rustix::io::read(&self.events, &mut [0; 256]) != Err(Errno::AGAIN)
    }
}

async fn being_put_up(scene: &Scene) {
    while !scene.path(".codex").exists() {
        tokio::task::yield_now().await;
    }
}

pub(crate) async fn a_start_can_be_terminated(scene: &Scene) {
    let program = Program::new(scene);
    let launch = scene.launcher.launch_unless(being_put_up(scene), program.command(scene));
    let error = launch.await.unwrap_err();
    assert!(matches!(error, LaunchError::Terminated { .. }), "{error:?}");
    assert!(!scene.path(".codex").exists());
    assert!(!program.was_executed());
    support::spawner_is_idle(&scene.launcher).await;
}

pub(crate) async fn a_start_ends_when_its_future_is_dropped(scene: &Scene) {
    let program = Program::new(scene);
    tokio::select! {
        launched = scene.launcher.launch(program.command(scene)) => panic!("{launched:?}"),
        () = being_put_up(scene) => {}
    }
    support::spawner_is_idle(&scene.launcher).await;
    assert!(!scene.path(".codex").exists());
    assert!(!program.was_executed());
}

pub(crate) async fn a_starting_process_can_be_terminated(scene: &Scene) {
    for how in [Terminate::Force, Terminate::Graceful(Duration::ZERO)] {
        let program = Program::new(scene);
        let limits = LogLimits {
            memory_bytes: 1 << 10,
            spill_bytes: 0,
            on_full: OnFull::Block,
            totals: Arc::default(),
        };
        let command = program.command(scene);
        let (process, outcome) =
            Process::start(scene.launcher.clone(), command, None, limits, None);
        being_put_up(scene).await;
        assert!(process.terminate(how));
        let error = outcome.await.unwrap().unwrap_err();
        assert!(matches!(error, LaunchError::Terminated { .. }), "{error:?}");
        assert!(!scene.path(".codex").exists());
        assert!(!program.was_executed());
    }
}

pub(crate) async fn a_process_still_being_planned_can_be_terminated(scene: &Scene) {
    let limits = LogLimits {
        memory_bytes: 1 << 10,
        spill_bytes: 0,
        on_full: OnFull::Block,
        totals: Arc::default(),
    };
    let never = Box::pin(std::future::pending());
    let command = Command { sandbox: None, ..shell("exit 3") };
    let (process, outcome) =
        Process::start(scene.launcher.clone(), command, Some(never), limits, None);
    assert!(process.terminate(Terminate::Force));
    let error = outcome.await.unwrap().unwrap_err();
    assert!(matches!(error, LaunchError::Terminated { .. }), "{error:?}");
    assert!(process.is_gone());
}

pub(crate) async fn a_start_ends_with_its_server(scene: &Scene) {
    let program = Program::new(scene);
    let argv = vec![
        std::env::current_exe().unwrap().into(),
        super::SLOW_SERVER_ARG.into(),
        scene.root().into(),
        format!("{:?}", scene.confinement).into(),
    ];
    // Started by the plain launcher: a keeper would end the processes of the server itself.
    let server = Command { argv, sandbox: None, ..shell("") };
    let server = Running::start(&Launcher::plain(), server).await;
    being_put_up(scene).await;
    let helpers = support::watch(&support::descendants_of(server.pid));
    // Spawner, keeper, stage and possibly init.
    assert!(helpers.len() >= 2);
    support::kill(server.pid);
    support::all_end(helpers).await;
    assert!(!program.was_executed());
    assert!(!scene.path(".codex").exists());
}
