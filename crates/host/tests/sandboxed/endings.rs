//! Starts and exits of sandboxed programs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use exec_server_host::process::launch::{Command, Io, LaunchError, Launcher, PtySize};
use exec_server_host::sandbox::{NetworkNamespace, Plan, SandboxStep};

use super::super::support::confinement::confine;
use super::super::support::{self, Running, shell};
use super::scene::Scene;

pub(crate) async fn orphans_are_reaped(scene: &Scene) {
    let script = "for i in $(seq 20); do (setsid sh -c true &); done
        while [ $(ls /proc | grep -c '^[0-9]') -gt 8 ]; do :; done
        while cat /proc/[0-9]*/stat 2>/dev/null | grep -q ') Z '; do :; done; echo collected";
    let (output, _) = scene.run(&scene.plan(&[]), script).await;
    assert_eq!(output.trim(), "collected");
}

/// Each plan has one step that must fail.
pub(crate) async fn a_plan_that_cannot_be_enforced_starts_nothing(scene: &Scene) {
    let plan = scene.plan(&[]);
    let mut broken = vec![Plan { seccomp: vec![], ..(*plan).clone() }];
    broken.push(Plan { seccomp: vec![0xff; 8], ..(*plan).clone() });
    let mut unknown_abi = (*plan).clone();
    unknown_abi.landlock.as_mut().unwrap().abi = 0;
    broken.push(unknown_abi);
    for plan in broken {
        let command = scene.command(&Arc::new(plan), "echo ran > sub/proof");
        let error = scene.launcher.launch(command).await.unwrap_err();
        let LaunchError::Sandbox { step, .. } = error else { panic!("{error:?}") };
        assert!(matches!(step, SandboxStep::Seccomp | SandboxStep::Landlock), "{step:?}");
    }
    assert!(!scene.path("sub/proof").exists());
    assert!(!scene.path(".codex").exists());
    assert_eq!(scene.run(&plan, "exit 3").await.1.code, 3);
}

/// The search path is a directory with a fake `bwrap`. `LD_PRELOAD` and `BWRAP` name the fake as
/// well.
pub(crate) async fn the_search_path_of_the_program_does_not_affect_the_sandbox(scene: &Scene) {
    for name in ["bwrap", "true"] {
        let fake = scene.path(name);
        fs::write(&fake, "#!/bin/sh\necho fake $0 > sub/proof\n").unwrap();
        fs::set_permissions(&fake, PermissionsExt::from_mode(0o755)).unwrap();
    }
    let mut command = scene.command(&scene.plan(&[]), "");
    command.argv = vec!["true".into()];
    command.env = vec![
        ("PATH".into(), scene.root().into()),
        ("LD_PRELOAD".into(), scene.path("bwrap").into()),
        ("BWRAP".into(), scene.path("bwrap").into()),
    ];
    let mut running = Running::start(&scene.launcher, command).await;
    assert_eq!(running.exit().await.code, 0);
    assert!(scene.read("sub/proof").trim().ends_with("true"), "{}", scene.read("sub/proof"));
}

pub(crate) async fn job_control_works(scene: &Scene) {
    let script = "set -m; sleep 1000 & kill -STOP %1; wait %1; echo status $?
        bg %1; kill %1; wait %1; echo status $?; sh -c 'exit 7'; echo status $?; tty";
    let io = Io::Pty(PtySize { rows: 24, cols: 80 });
    let command = scene.command(&scene.plan(&[]), script);
    let mut running = Running::start(&scene.launcher, Command { io, ..command }).await;
    let (output, _) = running.output().await;
    for expected in ["status 147", "status 143", "status 7", "/dev/pts/"] {
        assert!(output.contains(expected), "{output}");
    }
    assert!(!output.contains("can't access tty"), "{output}");
}

pub(crate) async fn outside_processes_cannot_be_signalled(scene: &Scene) {
    let of_all_files = |abi| Arc::new(scene.confinement.of_all_files(abi));
    let plans = if scene.confinement == super::Confinement::Direct {
        vec![Arc::new(scene.confinement.ordinary(scene.root())), of_all_files(7)]
    } else {
        // In the second plan Landlock cannot confine signals; the third does not use Landlock.
        vec![scene.plan(&[]), of_all_files(5), of_all_files(0)]
    };
    for plan in plans {
        expect_outside_processes_cannot_be_signalled(scene, &plan).await;
    }
}

async fn expect_outside_processes_cannot_be_signalled(scene: &Scene, plan: &Arc<Plan>) {
    let io = Io::Pipes { stdin: true };
    let command = scene.command(plan, "read keeper; kill -9 $keeper; echo still here");
    let mut running = Running::start(&scene.launcher, Command { io, ..command }).await;
    let keeper = support::parent_of(running.pid);
    running
        .type_in(
            format!("{keeper} {} {}\n", support::parent_of(keeper), std::process::id()).as_bytes(),
        )
        .await;
    let (output, exit) = running.output().await;
    assert!(output.contains("still here"), "{output}");
    assert_eq!(exit.code, 0);
    running.emptied().await;
}

/// After the deaths of the spawner and the keeper, only the kernel can end the tree.
pub(crate) async fn a_namespace_dies_with_its_keeper(scene: &Scene) {
    let _confined = confine((*scene.plan(&[])).clone());
    let script = support::daemons(5);
    let mut running = Running::start(&scene.launcher, shell(&script)).await;
    let mut pids = running.wait_for_pids(5).await;
    pids.push(running.pid);
    let watched = support::watch(&pids);
    let keeper = support::parent_of(running.pid);
    support::kill(support::parent_of(keeper));
    support::kill(keeper);
    support::all_end(watched).await;
}

pub(crate) async fn a_plain_launcher_refuses_a_sandbox(scene: &Scene) {
    let plan = Arc::new(scene.confinement.ordinary(scene.root()));
    let command = scene.command(&plan, "echo ran > sub/proof");
    let error = Launcher::plain().launch(command).await.unwrap_err();
    assert!(matches!(error, LaunchError::SandboxWithoutKeeper), "{error:?}");
    assert!(!scene.path("sub/proof").exists());
}

pub(crate) async fn the_network_is_empty(scene: &Scene) {
    let plan = scene.plan(&[]);
    let own = fs::read_link("/proc/self/ns/net").unwrap();
    for _ in 0..2 {
        let script = "readlink /proc/self/ns/net; tail -n +3 /proc/net/dev | cut -d: -f1";
        let (inside, _) = scene.run(&plan, script).await;
        let (network, interfaces) = inside.split_once('\n').unwrap();
        let has_own = plan.network_namespace != NetworkNamespace::Inherited;
        assert_eq!(network != own.to_str().unwrap(), has_own, "{inside}");
        assert_eq!(interfaces.trim() == "lo", has_own, "{inside}");
    }
}

pub(crate) async fn user_and_groups_are_the_same(scene: &Scene) {
    let script = "id -u; id -g; stat -c %u:%g secret.pem; echo x > new; stat -c %u:%g new";
    let (inside, _) = scene.run(&scene.plan(&[]), script).await;
    let user = rustix::process::geteuid();
    let group = rustix::process::getegid();
    assert_eq!(inside, format!("{user}\n{group}\n{user}:{group}\n{user}:{group}\n"));
}

/// Init shares its memory with the keeper and must be just as inaccessible.
pub(crate) async fn outside_processes_cannot_be_seen(scene: &Scene) {
    let plan = scene.plan(&[]);
    let (output, _) = scene.run(&plan, "ls /proc | grep -c '^[0-9]'").await;
    assert!(output.trim().parse::<usize>().unwrap() < 8, "{output}");
    let attempts = [
        "cat /proc/1/environ",
        "cat /proc/1/maps",
        "head -c 1 /proc/1/mem",
        "readlink /proc/1/fd/0",
        "ls /proc/1/root/",
        "ls /proc/1/cwd/",
        "echo 1000 > /proc/self/oom_score_adj",
        "echo x > /proc/sys/kernel/core_pattern",
    ];
    scene.all_fail(&plan, &attempts).await;
}
