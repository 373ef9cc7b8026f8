//! Placeholders for missing protected names: they exist while a program runs and are removed
//! afterwards.

use std::fs;
use std::sync::Arc;

use exec_server_host::process::launch::{Command, Io, Launcher, TreeEvent};
use exec_server_host::sandbox::Plan;

use super::super::support::{self, Running, shell};
use super::scene::Scene;

const NAMES: [&str; 2] = [".agents", ".codex"];

fn exist(scene: &Scene) -> bool {
    NAMES.iter().any(|name| scene.path(name).exists())
}

async fn waiting(scene: &Scene, plan: &Arc<Plan>) -> Running {
    let command = scene.command(plan, "echo up; read x; mkdir .codex && echo escaped");
    let io = Io::Pipes { stdin: true };
    let mut running = Running::start(&scene.launcher, Command { io, ..command }).await;
    running.wait_for_output("up").await;
    running
}

pub(crate) async fn placeholders_are_removed_when_the_tree_ends(scene: &Scene) {
    let plan = scene.plan(&[]);
    let mut running = waiting(scene, &plan).await;
    assert!(exist(scene));
    running.close_stdin();
    running.emptied().await;
    assert!(!exist(scene));

    let mut running = waiting(scene, &plan).await;
    running.control.kill_all();
    running.emptied().await;
    assert!(!exist(scene));
}

pub(crate) async fn placeholders_stay_while_another_process_needs_them(scene: &Scene) {
    let plan = scene.plan(&[]);
    let mut first = waiting(scene, &plan).await;
    // This plan sees the placeholders of the first process as existing directories.
    let mut second = waiting(scene, &scene.plan(&[])).await;
    first.close_stdin();
    first.emptied().await;
    assert!(exist(scene));
    second.close_stdin();
    let (output, _) = second.output().await;
    assert!(!output.contains("escaped"), "{output}");
    second.emptied().await;
    assert!(!exist(scene));
}

pub(crate) async fn many_processes_at_once_leave_no_placeholders(scene: &Scene) {
    for _ in 0..5 {
        let plan = scene.plan(&[]);
        let mut running = Vec::new();
        for _ in 0..8 {
            running.push(scene.start(&plan, "mkdir .codex && echo escaped").await);
        }
        for mut running in running {
            let (output, _) = running.output().await;
            assert!(!output.contains("escaped"), "{output}");
            running.emptied().await;
        }
        assert!(!exist(scene));
    }
}

/// The keeper was killed and could not remove its placeholders.
pub(crate) async fn the_next_process_removes_placeholders_left_behind(scene: &Scene) {
    let mut running = waiting(scene, &scene.plan(&[])).await;
    let leader = support::watch(&[running.pid]);
    support::kill(support::parent_of(running.pid));
    assert_eq!(running.next_event().await, TreeEvent::Lost);
    support::all_end(leader).await;
    support::spawner_is_idle(&scene.launcher).await;
    assert!(exist(scene));
    scene.run(&scene.plan(&[]), "true").await;
    assert!(!exist(scene));
}

pub(crate) async fn directories_in_place_of_placeholders_stay(scene: &Scene) {
    let mut running = waiting(scene, &scene.plan(&[])).await;
    fs::remove_dir(scene.path(".codex")).unwrap();
    fs::create_dir(scene.path(".codex")).unwrap();
    running.control.kill_all();
    running.emptied().await;
    assert!(scene.path(".codex").exists());
    assert!(!scene.path(".agents").exists());
}

pub(crate) async fn a_killed_server_leaves_no_placeholders(scene: &Scene) {
    let argv = vec![
        std::env::current_exe().unwrap().into(),
        super::SERVER_ARG.into(),
        scene.root().into(),
        format!("{:?}", scene.confinement).into(),
    ];
    // Started by the plain launcher: a keeper would end the processes of the server itself.
    let mut server =
        Running::start(&Launcher::plain(), Command { argv, sandbox: None, ..shell("") }).await;
    let [leader, keeper] = server.wait_for_plain_pids(2).await[..] else {
        panic!("expected two pids");
    };
    assert!(exist(scene));
    let watched = support::watch(&[leader, keeper]);
    support::kill(server.pid);
    support::all_end(watched).await;
    assert!(!exist(scene));
}
