//! Placeholders for protected names that are missing: there while a program runs, and gone afterwards.

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

pub(crate) async fn they_go_when_the_tree_is_gone(scene: &Scene) {
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

pub(crate) async fn they_stay_for_whoever_needs_them(scene: &Scene) {
    let plan = scene.plan(&[]);
    let mut first = waiting(scene, &plan).await;
    // What it sees as existing are the placeholders of the first.
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

pub(crate) async fn many_at_once_leave_none(scene: &Scene) {
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

/// Its keeper was killed and could not remove them.
pub(crate) async fn the_next_one_removes_those_left_behind(scene: &Scene) {
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

/// What a user makes in their place is not theirs to remove.
pub(crate) async fn what_took_their_place_stays(scene: &Scene) {
    let mut running = waiting(scene, &scene.plan(&[])).await;
    fs::remove_dir(scene.path(".codex")).unwrap();
    fs::create_dir(scene.path(".codex")).unwrap();
    running.control.kill_all();
    running.emptied().await;
    assert!(scene.path(".codex").exists());
    assert!(!scene.path(".agents").exists());
}

/// The server is killed, and the keepers tidy up.
pub(crate) async fn a_killed_server_leaves_none(scene: &Scene) {
    let argv = vec![
        std::env::current_exe().unwrap().into(),
        super::SERVER_ARG.into(),
        scene.root().into(),
        format!("{:?}", scene.confinement).into(),
    ];
    // By the plain launcher: no keeper is to end what the server itself has started.
    let mut server =
        Running::start(&Launcher::plain(), Command { argv, sandbox: None, ..shell("") }).await;
    let [leader, keeper] = server.wait_for_plain_pids(2).await[..] else { panic!("two pids") };
    assert!(exist(scene));
    let watched = support::watch(&[leader, keeper]);
    support::kill(server.pid);
    support::all_end(watched).await;
    assert!(!exist(scene));
}
