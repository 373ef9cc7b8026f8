//! Limits of trees and processes, tested against real bombs. On a machine with a delegated cgroup
//! the kernel enforces most limits; elsewhere the keeper does. The promises are the same.

use std::fs;
use std::time::Duration;

use exec_server_host::process::launch::{Command, ExitRecord, Io, Launcher};
use exec_server_host::process::limits::{Limit, Limits};

use super::support::{Running, shell};

/// Returns a value that no other process has in its environment.
fn marker(name: &str) -> String {
    format!("{name}{}", std::process::id())
}

fn with_marker(marker: &str) -> usize {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let environments = processes.filter_map(|entry| fs::read(entry.path().join("environ")).ok());
    let has_marker =
        |bytes: &Vec<u8>| bytes.windows(marker.len()).any(|part| part == marker.as_bytes());
    environments.filter(has_marker).count()
}

fn limited(script: &str, limits: Limits) -> Command {
    Command { limits, ..shell(script) }
}

async fn end_of(launcher: &Launcher, script: &str, limits: Limits) -> ExitRecord {
    let mut running = Running::start(launcher, limited(script, limits)).await;
    while running.read_more().await > 0 {}
    running.emptied().await;
    running.exit().await
}

fn hit(exit: &ExitRecord) -> Vec<Limit> {
    exit.limits_hit.iter().collect()
}

pub(crate) async fn a_memory_bomb_is_killed(launcher: Launcher) {
    let limits = Limits { memory_bytes: Some(64 << 20), ..Limits::default() };
    let exit = end_of(&launcher, "tail /dev/zero; exit 3", limits).await;
    assert_eq!(hit(&exit), [Limit::Memory], "{exit:?}");
    assert_eq!(exit.signal, Some(libc::SIGKILL));
    assert!(exit.tree_use.unwrap().peak_memory_bytes > 32 << 20, "{exit:?}");
}

/// Each process is below the limit, but their sum exceeds it.
pub(crate) async fn memory_counts_for_the_whole_tree(launcher: Launcher) {
    let limits = Limits { memory_bytes: Some(64 << 20), ..Limits::default() };
    let script = "hold() { v=$(head -c 24000000 /dev/zero | tr '\\0' x); read line < /dev/zero; }
        for i in 1 2 3 4 5 6; do hold & done; wait; exit 3";
    let exit = end_of(&launcher, script, limits).await;
    assert_eq!(hit(&exit), [Limit::Memory], "{exit:?}");
}

/// Children share their parent's memory until one of them writes to it.
pub(crate) async fn shared_memory_is_counted_once(launcher: Launcher) {
    let limits = Limits { memory_bytes: Some(160 << 20), ..Limits::default() };
    let script = "v=$(head -c 30000000 /dev/zero | tr '\\0' x)
        for i in 1 2 3 4 5 6 7 8 9; do (sleep 0.6; :) & done; wait; echo fine";
    let mut running = Running::start(&launcher, limited(script, limits)).await;
    let (text, exit) = running.output().await;
    assert_eq!((text.as_str(), hit(&exit)), ("fine\n", Vec::new()), "{exit:?}");
    assert!(exit.tree_use.unwrap().peak_memory_bytes > 20 << 20, "{exit:?}");
}

pub(crate) async fn a_fork_bomb_is_killed(launcher: Launcher) {
    let limits = Limits { pids: Some(40), ..Limits::default() };
    for (name, bomb) in [
        ("each_forks_two", "b() { b & b & wait; }; b"),
        ("sessions", "while :; do setsid sh -c 'sleep 1000' & done"),
        ("chain", "b() { (b & wait); }; b"),
    ] {
        // Where the kernel makes forks fail, only the bomb `sessions` ends.
        if launcher.limits().is_kept_by_kernel() && name != "sessions" {
            continue;
        }
        let variable = ("LIMITED".into(), marker(name).into());
        let mut command = limited(bomb, limits);
        command.env.push(variable);
        let mut running = Running::start(&launcher, command).await;
        let exit = running.exit().await;
        assert_eq!(hit(&exit), [Limit::Pids], "{name}: {exit:?}");
        running.control.kill_all();
        running.emptied().await;
        assert_eq!(with_marker(&marker(name)), 0, "{name}");
    }
}

pub(crate) async fn a_cpu_hog_is_killed(launcher: Launcher) {
    let limits = Limits { cpu_time: Some(Duration::from_millis(300)), ..Limits::default() };
    for script in [
        "while :; do :; done",
        "(while :; do :; done) & (while :; do :; done) & wait; exit 3",
        // Each process lives only for a moment.
        "while :; do sh -c 'i=0; while [ $i -lt 1000 ]; do i=$((i+1)); done'; done",
    ] {
        let exit = end_of(&launcher, script, limits).await;
        assert_eq!(hit(&exit), [Limit::CpuTime], "{script}: {exit:?}");
        assert!(exit.tree_use.unwrap().cpu >= Duration::from_millis(300), "{exit:?}");
    }
}

pub(crate) async fn a_tree_within_its_limits_is_not_killed(launcher: Launcher) {
    let limits = Limits {
        memory_bytes: Some(1 << 30),
        pids: Some(1000),
        cpu_time: Some(Duration::from_secs(1000)),
        cpu_thousandths: Some(8000),
        ..Limits::default()
    };
    let mut running =
        Running::start(&launcher, limited("sleep 0.1 & wait; echo fine", limits)).await;
    let (text, exit) = running.output().await;
    assert_eq!((text.as_str(), exit.code, hit(&exit)), ("fine\n", 0, Vec::new()));
    assert!(exit.tree_use.is_some());
    let most = Limits {
        memory_bytes: Some(u64::MAX),
        pids: Some(u64::MAX),
        cpu_time: Some(Duration::from_millis(u64::MAX)),
        cpu_thousandths: Some(1_000_000_000),
        open_files: Some(u64::MAX),
        file_size_bytes: Some(u64::MAX),
        core_size_bytes: Some(u64::MAX),
    };
    let mut running = Running::start(&launcher, limited("echo fine", most)).await;
    assert_eq!(running.output().await.0, "fine\n");
}

pub(crate) async fn per_process_limits_are_set(launcher: Launcher) {
    let limits = Limits {
        open_files: Some(37),
        core_size_bytes: Some(0),
        file_size_bytes: Some(1 << 20),
        ..Limits::default()
    };
    let script = "sh -c 'ulimit -n; ulimit -Hn; ulimit -c; ulimit -f'";
    let mut running = Running::start(&launcher, limited(script, limits)).await;
    let (text, exit) = running.output().await;
    // The shell counts in blocks of 512 bytes.
    assert_eq!(text, "37\n37\n0\n2048\n");
    assert_eq!(hit(&exit), []);
}

pub(crate) async fn a_file_beyond_its_limit_ends_the_writer(launcher: Launcher) {
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let file = directory.path().join("large");
    fs::write(&file, "").unwrap();
    let limits = Limits { file_size_bytes: Some(1000), ..Limits::default() };
    let script = format!("exec dd if=/dev/zero of={} bs=4096 count=9", file.display());
    let mut running = Running::start(&launcher, limited(&script, limits)).await;
    let exit = running.exit().await;
    assert_eq!((exit.signal, hit(&exit)), (Some(libc::SIGXFSZ), vec![Limit::FileSize]), "{exit:?}");
    assert_eq!(fs::metadata(&file).unwrap().len(), 1000);
}

pub(crate) async fn programs_are_the_first_to_be_killed_when_memory_runs_out(launcher: Launcher) {
    let own: i32 = fs::read_to_string("/proc/self/oom_score_adj").unwrap().trim().parse().unwrap();
    let io = Io::Pipes { stdin: true };
    let script = "read line; while :; do cat /proc/self/oom_score_adj; sleep 0.05; done";
    let mut running = Running::start(&launcher, Command { io, ..shell(script) }).await;
    running.close_stdin();
    // For an ordinary user the keeper raises the score once the program has been executed.
    running.wait_for_output(&format!("{}\n", (own + 200).min(1000))).await;
    if let Some(keeper) = running.control.keeper() {
        let adjusted = fs::read_to_string(format!("/proc/{keeper}/oom_score_adj")).unwrap();
        assert_eq!(adjusted.trim(), own.to_string());
    }
    running.control.kill_all();
    running.emptied().await;
}

/// If a server did not notice the end of a keeper, it could not locate the keeper's tree, and would
/// refuse every client that might belong to the tree.
pub(crate) async fn the_end_of_a_keeper_is_noticed(launcher: Launcher) {
    let io = Io::Pipes { stdin: true };
    let mut running = Running::start(&launcher, Command { io, ..shell("read line") }).await;
    assert!(running.control.keeper().is_some() && !running.control.has_lost_keeper());
    running.close_stdin();
    running.emptied().await;
    // The keeper's pid is released once the spawner has reaped it.
    while running.control.keeper().is_some() {
        tokio::task::yield_now().await;
    }
    assert!(running.control.has_lost_keeper());
}

/// A keeper that has no limits to check sleeps until its program ends.
pub(crate) async fn a_keeper_without_limits_never_wakes(launcher: Launcher) {
    let io = Io::Pipes { stdin: true };
    let mut running =
        Running::start(&launcher, Command { io, ..shell("sleep 0.3; echo now; read line") }).await;
    let wakes = |keeper: u32| {
        let status = fs::read_to_string(format!("/proc/{keeper}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.unwrap().trim().parse::<u64>().unwrap()
    };
    let keeper = running.control.keeper().unwrap();
    // The keeper goes to sleep once the program runs.
    let before = wakes(keeper);
    running.wait_for_output("now").await;
    assert!(wakes(keeper) <= before + 1);
    running.close_stdin();
    running.emptied().await;
}
