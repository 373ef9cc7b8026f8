//! Measures the cost of a start relative to a bare spawn, and the cost of a sandbox relative to a
//! start without one, in interleaved rounds.

use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use exec_server_host::process::launch::{Command, Launcher, TreeEvent};
use exec_server_host::sandbox::{NetworkNamespace, Plan};

use super::confinement::Confinement;
use super::shell;

const ROUNDS: usize = 2000;

pub(crate) async fn compare_with_a_bare_spawn(launcher: Launcher) {
    let mut bare = Vec::with_capacity(ROUNDS);
    let mut kept = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let started = Instant::now();
        spawn_and_wait();
        bare.push(started.elapsed());

        let started = Instant::now();
        let command = Command { argv: vec!["/bin/true".into()], ..shell("") };
        let mut launched = launcher.launch(command).await.unwrap();
        assert!(matches!(launched.tree.next_event().await, TreeEvent::Exited(_)));
        kept.push(started.elapsed());
        assert_eq!(launched.tree.next_event().await, TreeEvent::Emptied);
    }
    let (bare, kept) = (median(bare), median(kept));
    let ratio = kept.as_secs_f64() / bare.as_secs_f64();
    println!("bare spawn {bare:?}, start to exit {kept:?}, ratio {ratio:.2}");
}

/// Measures the whole life of a program that does nothing, without a sandbox and in three kinds of
/// sandbox. The last is the ordinary one for a workspace.
pub(crate) async fn compare_sandboxes(launcher: Launcher) {
    let workspace = tempfile::tempdir().unwrap();
    std::fs::create_dir(workspace.path().join(".git")).unwrap();
    let ordinary = Confinement::Namespaces.ordinary(workspace.path());
    let cases: [(&str, Option<Plan>); 4] = [
        ("none", None),
        ("direct", Some(Confinement::Direct.ordinary(workspace.path()))),
        (
            "same network",
            Some(Plan { network_namespace: NetworkNamespace::Inherited, ..ordinary.clone() }),
        ),
        ("namespaces", Some(ordinary)),
    ];
    let cases = cases.map(|(name, plan)| (name, plan.map(Arc::new)));
    let mut times = cases.clone().map(|_| Vec::with_capacity(ROUNDS));
    for _ in 0..ROUNDS / 4 {
        for ((_, sandbox), times) in cases.iter().zip(&mut times) {
            let argv = vec!["/bin/true".into()];
            let command = Command { argv, sandbox: sandbox.clone(), ..shell("") };
            let started = Instant::now();
            let mut launched = launcher.launch(command).await.unwrap();
            while launched.tree.next_event().await != TreeEvent::Emptied {}
            times.push(started.elapsed());
        }
    }
    let medians = times.map(median);
    for ((name, _), median_time) in cases.iter().zip(&medians) {
        let ratio = median_time.as_secs_f64() / medians[0].as_secs_f64();
        println!("{name}: {median_time:?}, {ratio:.2} times the first");
    }
}

fn spawn_and_wait() {
    #[expect(clippy::disallowed_methods, reason = "the bare spawn to compare with")]
    let mut command = std::process::Command::new("/bin/true");
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap().wait().unwrap();
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
