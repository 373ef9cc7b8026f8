//! Promises about starting programs and killing their trees, tested against the real kernel.
//!
//! This is not a libtest harness: the same executable is also the spawner, which must run before
//! any thread exists.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a test without the test attribute")]

mod limited;
mod sandboxed;
mod support;

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::process::ExitCode;

use exec_server_host::process::launch::{
    Command, Io, LaunchError, Launcher, PtySize, SPAWNER_ARG, Signal, TreeEvent, run_spawner,
};
use exec_server_test_support::{Gate, skipped};
use libtest_mimic::{Arguments, Failed, Trial};
use limited::*;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::confinement::{Confinement, by_bubblewrap, confine};
use support::latency::{compare_sandboxes, compare_with_a_bare_spawn};
use support::{Running, shell};

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some(SPAWNER_ARG) {
        return run_spawner();
    }
    if std::env::args().nth(1).as_deref() == Some(SERVER_ARG) {
        be_a_server();
    }
    if let [_, mode, workspace, detail] = &std::env::args().collect::<Vec<_>>()[..] {
        match mode.as_str() {
            sandboxed::SERVER_ARG => sandboxed::be_a_server(workspace.as_ref(), detail),
            sandboxed::SLOW_SERVER_ARG => sandboxed::be_a_slow_server(workspace.as_ref(), detail),
            _ => {}
        }
    }
    // One at a time: some tests count the descriptors of this process.
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    libtest_mimic::run(&arguments, trials()).exit_code()
}

/// Makes this executable run as a server that a test kills.
const SERVER_ARG: &str = "__server";

/// Runs a test once with the spawner and keepers.
macro_rules! kept {
    ($($test:ident),* $(,)?) => {
        [$(Trial::test(concat!("kept::", stringify!($test)), || {
            run(|| Launcher::with_spawner(std::env::current_exe().unwrap()).unwrap(), $test)
        })),*]
    };
}

macro_rules! plain {
    ($($test:ident),* $(,)?) => {
        [$(Trial::test(concat!("plain::", stringify!($test)), || run(Launcher::plain, $test))),*]
    };
}

/// Runs a test once under each kind of confinement.
macro_rules! confined {
    ($($test:ident),* $(,)?) => {
        Vec::from([$(
            Trial::test(concat!("direct::", stringify!($test)), || {
                run_confined(Confinement::Direct, $test)
            }),
            Trial::test(concat!("namespaces::", stringify!($test)), || {
                run_confined(Confinement::Namespaces, $test)
            }),
            Trial::test(concat!("bubblewrap::", stringify!($test)), || {
                run_confined(Confinement::Bubblewrap, $test)
            }),
        )*])
    };
}

fn trials() -> Vec<Trial> {
    let mut trials = Vec::from(kept![
        exit_codes_are_exact,
        fatal_signals_are_reported,
        errors_name_their_subject,
        invalid_requests_are_refused,
        arguments_that_are_too_long_are_refused,
        large_requests_are_received_completely,
        programs_are_looked_up_in_the_path_of_their_environment,
        a_child_has_exactly_three_descriptors,
        a_leaked_descriptor_of_the_server_is_not_inherited,
        the_environment_is_exactly_as_requested,
        signal_dispositions_are_the_defaults,
        stdin_reaches_the_program,
        a_terminal_has_the_requested_size_and_controls_the_session,
        a_terminal_signals_its_foreground,
        signals_reach_the_group,
        daemons_die_with_kill_all,
        a_runner_that_forks_and_exits_dies,
        kill_on_exit_kills_the_remaining_processes,
        a_grandchild_outlives_its_leader,
        dropping_kills_the_tree,
        a_cancelled_launch_leaves_nothing,
        a_tree_dies_with_its_killed_keeper,
        a_killed_spawner_is_replaced,
        children_keep_the_original_descriptor_limit,
        many_runs_leak_nothing,
        concurrent_starts_do_not_mix,
        a_memory_bomb_is_killed,
        memory_counts_for_the_whole_tree,
        shared_memory_is_counted_once,
        a_fork_bomb_is_killed,
        a_cpu_hog_is_killed,
        a_tree_within_its_limits_is_not_killed,
        per_process_limits_are_set,
        a_file_beyond_its_limit_ends_the_writer,
        programs_are_the_first_to_be_killed_when_memory_runs_out,
        a_keeper_without_limits_never_wakes,
        the_end_of_a_keeper_is_noticed,
    ]);
    trials.extend(plain![
        exit_codes_are_exact,
        fatal_signals_are_reported,
        errors_name_their_subject,
        invalid_requests_are_refused,
        arguments_that_are_too_long_are_refused,
        programs_are_looked_up_in_the_path_of_their_environment,
        the_environment_is_exactly_as_requested,
        stdin_reaches_the_program,
        a_terminal_has_the_requested_size_and_controls_the_session,
        signals_reach_the_group,
        dropping_kills_the_group,
        the_trees_of_a_killed_server_die,
        kill_on_exit_kills_the_remaining_processes,
        concurrent_starts_do_not_mix,
        per_process_limits_are_set,
        a_file_beyond_its_limit_ends_the_writer,
        programs_are_the_first_to_be_killed_when_memory_runs_out,
    ]);
    trials.extend(confined![
        exit_codes_are_exact,
        fatal_signals_are_reported,
        errors_name_their_subject,
        arguments_that_are_too_long_are_refused,
        large_requests_are_received_completely,
        programs_are_looked_up_in_the_path_of_their_environment,
        a_child_has_exactly_three_descriptors,
        a_leaked_descriptor_of_the_server_is_not_inherited,
        the_environment_is_exactly_as_requested,
        signal_dispositions_are_the_defaults,
        stdin_reaches_the_program,
        a_terminal_has_the_requested_size_and_controls_the_session,
        a_terminal_signals_its_foreground,
        signals_reach_the_group,
        daemons_die_with_kill_all,
        a_runner_that_forks_and_exits_dies,
        kill_on_exit_kills_the_remaining_processes,
        a_grandchild_outlives_its_leader,
        dropping_kills_the_tree,
        a_cancelled_launch_leaves_nothing,
        a_tree_dies_with_its_killed_keeper,
        a_killed_spawner_is_replaced,
        many_runs_leak_nothing,
        concurrent_starts_do_not_mix,
        a_memory_bomb_is_killed,
        a_fork_bomb_is_killed,
        a_cpu_hog_is_killed,
        a_tree_within_its_limits_is_not_killed,
        per_process_limits_are_set,
        programs_are_the_first_to_be_killed_when_memory_runs_out,
    ]);
    trials.extend(sandboxed::trials());
    trials.extend(
        kept![a_fork_bomb_dies, compare_with_a_bare_spawn, compare_sandboxes]
            .map(|trial| trial.with_ignored_flag(true)),
    );
    trials
}

fn run(launcher: fn() -> Launcher, test: impl AsyncFnOnce(Launcher)) -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { test(launcher()).await });
    Ok(())
}

/// Runs a test whose programs are in the ordinary sandbox of a temporary workspace.
fn run_confined(confinement: Confinement, test: impl AsyncFnOnce(Launcher)) -> Result<(), Failed> {
    if !confinement.is_available() {
        skipped("bubblewrap is not installed");
        return Ok(());
    }
    let workspace = tempfile::tempdir()?;
    let _confined = confine(confinement.ordinary(workspace.path()));
    run(|| Launcher::with_spawner(std::env::current_exe().unwrap()).unwrap(), test)
}

async fn exit_codes_are_exact(launcher: Launcher) {
    for code in [0, 1, 2, 42, 126, 127, 128, 254, 255] {
        let exit = Running::start(&launcher, shell(&format!("exit {code}"))).await.exit().await;
        assert_eq!((exit.code, exit.signal), (code, None));
    }
}

async fn fatal_signals_are_reported(launcher: Launcher) {
    for number in [
        libc::SIGHUP,
        libc::SIGINT,
        libc::SIGQUIT,
        libc::SIGILL,
        libc::SIGTRAP,
        libc::SIGABRT,
        libc::SIGBUS,
        libc::SIGFPE,
        libc::SIGKILL,
        libc::SIGUSR1,
        libc::SIGSEGV,
        libc::SIGUSR2,
        libc::SIGPIPE,
        libc::SIGALRM,
        libc::SIGTERM,
        libc::SIGXCPU,
        libc::SIGXFSZ,
        libc::SIGSYS,
    ] {
        let script = format!("ulimit -c 0; kill -{number} $$; sleep 1000");
        let exit = Running::start(&launcher, shell(&script)).await.exit().await;
        // Bubblewrap turns a signal into an exit code.
        let signal = (!by_bubblewrap()).then_some(number);
        assert_eq!((exit.code, exit.signal), (128 + number, signal));
    }
}

async fn errors_name_their_subject(launcher: Launcher) {
    let directory = tempfile::tempdir().unwrap();
    let plain_file = directory.path().join("plain");
    std::fs::write(&plain_file, "").unwrap();
    let script = directory.path().join("script");
    std::fs::write(&script, "#!/does/not/exist\n").unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();

    let fail = async |change: &dyn Fn(&mut Command)| {
        let mut command = shell("true");
        change(&mut command);
        launcher.launch(command).await.unwrap_err()
    };

    let error = fail(&|c| c.cwd = "/no/such/place".into()).await;
    assert_eq!(error.to_string(), "working directory /no/such/place: does not exist");
    let error = fail(&|c| c.cwd.clone_from(&plain_file)).await;
    assert!(matches!(&error, LaunchError::WorkingDirectory { path, .. } if *path == plain_file));
    assert!(error.to_string().ends_with(": not a directory"), "{error}");

    let error = fail(&|c| c.argv = vec!["no-such-program".into()]).await;
    assert_eq!(error.to_string(), "program \"no-such-program\" not found on PATH");
    let error = fail(&|c| c.argv = vec!["".into()]).await;
    assert!(matches!(error, LaunchError::NotFound { .. }), "{error:?}");
    let error = fail(&|c| c.argv = vec![plain_file.clone().into()]).await;
    assert!(matches!(error, LaunchError::NotExecutable { .. }), "{error:?}");
    assert!(error.to_string().ends_with("permission denied"), "{error}");
    let error = fail(&|c| c.argv = vec!["/tmp".into()]).await;
    assert!(matches!(error, LaunchError::NotExecutable { .. }), "{error:?}");
    let error = fail(&|c| c.argv = vec![script.clone().into()]).await;
    assert!(matches!(error, LaunchError::NoInterpreter { .. }), "{error:?}");

    assert_eq!(Running::start(&launcher, shell("exit 3")).await.exit().await.code, 3);
}

async fn invalid_requests_are_refused(launcher: Launcher) {
    let mut command = shell("true");
    command.argv.push("a\0b".into());
    let error = launcher.launch(command).await.unwrap_err();
    assert_eq!(error.to_string(), "argument 3 of \"/bin/sh\" contains a NUL byte");

    let mut command = shell("true");
    command.env.push(("SECRET".into(), "hidden\0".into()));
    let text = launcher.launch(command).await.unwrap_err().to_string();
    assert!(text.contains("SECRET") && !text.contains("hidden"), "{text}");

    let mut command = shell("true");
    command.env.push(("A=B".into(), "".into()));
    let error = launcher.launch(command).await.unwrap_err();
    assert!(matches!(error, LaunchError::EnvironmentName { .. }));

    let mut command = shell("true");
    command.argv.clear();
    assert!(matches!(launcher.launch(command).await, Err(LaunchError::NoProgram)));
}

async fn arguments_that_are_too_long_are_refused(launcher: Launcher) {
    for len in [200 << 10, 7 << 20, 20 << 20] {
        let mut command = shell("true");
        command.argv.push("x".repeat(len).into());
        let error = launcher.launch(command).await.unwrap_err();
        assert!(matches!(error, LaunchError::ArgumentsTooLong { .. }), "{len}: {error:?}");
    }
}

async fn large_requests_are_received_completely(launcher: Launcher) {
    let mut command = shell(r#"printf '%s' "$*" | wc -c"#);
    command.argv.push("argv0".into());
    command.argv.extend((0..15).map(|_| OsString::from("x".repeat(100_000))));
    let (output, exit) = Running::start(&launcher, command).await.output().await;
    assert_eq!((output.trim(), exit.code), ("1500014", 0));
}

async fn programs_are_looked_up_in_the_path_of_their_environment(launcher: Launcher) {
    let directory = tempfile::tempdir().unwrap();
    for (place, mode) in [("denied", 0o644), ("found", 0o755)] {
        let path = directory.path().join(place);
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("tool"), "#!/bin/sh\necho \"$0\"\n").unwrap();
        std::fs::set_permissions(path.join("tool"), PermissionsExt::from_mode(mode)).unwrap();
    }
    let command = |search_path: &str| Command {
        argv: vec!["tool".into()],
        cwd: directory.path().join("found"),
        env: vec![(
            "PATH".into(),
            search_path.replace('@', directory.path().to_str().unwrap()).into(),
        )],
        ..shell("")
    };
    for (search_path, found) in
        [("/nowhere:@/denied:@/found", "@/found/tool"), ("/nowhere:", "./tool|tool")]
    {
        let (output, _) = Running::start(&launcher, command(search_path)).await.output().await;
        let found = found.replace('@', directory.path().to_str().unwrap());
        assert!(found.split('|').any(|found| found == output.trim()), "{search_path}: {output}");
    }
    let error = launcher.launch(command("/nowhere:@/denied:/nowhere")).await.unwrap_err();
    assert!(matches!(error, LaunchError::NotExecutable { .. }), "{error:?}");

    let mut without_path = shell("echo found");
    without_path.argv[0] = "sh".into();
    without_path.env.clear();
    assert_eq!(Running::start(&launcher, without_path).await.output().await.0, "found\n");
}

async fn a_child_has_exactly_three_descriptors(launcher: Launcher) {
    for io in [Io::Pipes { stdin: false }, Io::Pipes { stdin: true }, Io::Pty(SIZE)] {
        // `ls` has the listed directory open as descriptor 3.
        let command = Command { io, ..shell("exec ls /proc/self/fd") };
        let (output, _) = Running::start(&launcher, command).await.output().await;
        assert_eq!(output.split_whitespace().collect::<Vec<_>>(), ["0", "1", "2", "3"]);
    }
}

async fn a_leaked_descriptor_of_the_server_is_not_inherited(launcher: Launcher) {
    // Without CLOEXEC, as a careless library would open it.
    let _leaked = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDONLY, 0.into()).unwrap();
    a_child_has_exactly_three_descriptors(launcher).await;
}

async fn the_environment_is_exactly_as_requested(launcher: Launcher) {
    let env: Vec<(OsString, OsString)> =
        vec![("B".into(), "2=3".into()), ("A".into(), "".into()), ("ü".into(), "\n".into())];
    let command = Command { argv: vec!["/usr/bin/env".into(), "-0".into()], env, ..shell("") };
    let (output, _) = Running::start(&launcher, command).await.output().await;
    let mut variables: Vec<_> = output.split_terminator('\0').collect();
    variables.sort_unstable();
    assert_eq!(variables, ["A=", "B=2=3", "ü=\n"]);

    let named = Command { arg0: Some("other-name".into()), ..shell("echo \"$0\"") };
    assert_eq!(Running::start(&launcher, named).await.output().await.0, "other-name\n");
}

async fn signal_dispositions_are_the_defaults(launcher: Launcher) {
    let script = "exec grep -E 'Sig(Blk|Ign)' /proc/self/status";
    let (output, _) = Running::start(&launcher, shell(script)).await.output().await;
    for line in output.lines() {
        let mask = line.split_whitespace().nth(1).unwrap();
        assert_eq!(u64::from_str_radix(mask, 16), Ok(0), "{line}");
    }
    assert_eq!(output.lines().count(), 2);
}

async fn stdin_reaches_the_program(launcher: Launcher) {
    let command = Command { io: Io::Pipes { stdin: true }, ..shell("cat") };
    let mut running = Running::start(&launcher, command).await;
    running.type_in(b"hello").await;
    running.close_stdin();
    let (output, exit) = running.output().await;
    assert_eq!((output.as_str(), exit.code), ("hello", 0));

    let (output, _) = Running::start(&launcher, shell("cat; echo end")).await.output().await;
    assert_eq!(output, "end\n");
}

const SIZE: PtySize = PtySize { rows: 33, cols: 77 };

async fn a_terminal_has_the_requested_size_and_controls_the_session(launcher: Launcher) {
    let script = "stty size; stty size </dev/tty; read -r line; stty size; echo \"$line\"";
    let command = Command { io: Io::Pty(SIZE), ..shell(script) };
    let mut running = Running::start(&launcher, command).await;
    running.wait_for_output("33 77\r\n33 77\r\n").await;
    running.resize(PtySize { rows: 10, cols: 20 });
    running.type_in(b"typed\n").await;
    let (output, exit) = running.output().await;
    assert!(output.ends_with("10 20\r\ntyped\r\n"), "{output:?}");
    assert_eq!(exit.code, 0);
}

async fn a_terminal_signals_its_foreground(launcher: Launcher) {
    let script = "stty raw; trap 'echo interrupted; exit 5' INT; echo ready; while :; do :; done";
    let mut running =
        Running::start(&launcher, Command { io: Io::Pty(SIZE), ..shell(script) }).await;
    running.wait_for_output("ready").await;
    running.signal_foreground(Signal::Interrupt).unwrap();
    assert!(running.signal_foreground(Signal::User1).is_err());
    let (output, exit) = running.output().await;
    assert!(output.contains("interrupted"), "{output:?}");
    assert_eq!(exit.code, 5);
}

async fn signals_reach_the_group(launcher: Launcher) {
    // The second `wait` returns only if the background member of the group received the signal as
    // well.
    let script = "trap 'echo leader' USR1
        sh -c 'trap \"echo member; exit\" USR1; echo up; while :; do sleep 0.01; done' &
        wait; wait; exit 6";
    let mut running = Running::start(&launcher, shell(script)).await;
    running.wait_for_output("up").await;
    running.control.signal(Signal::User1);
    let (output, exit) = running.output().await;
    assert!(output.contains("leader") && output.contains("member"), "{output:?}");
    assert_eq!(exit.code, 6);
    running.control.signal(Signal::Kill);
}

async fn daemons_die_with_kill_all(launcher: Launcher) {
    let mut running = Running::start(&launcher, shell(&support::daemons(50))).await;
    let pids = running.wait_for_pids(50).await;
    assert!(running.control.descendants().await >= 50);
    running.control.kill_all();
    running.emptied().await;
    support::assert_gone(&pids);
}

async fn a_runner_that_forks_and_exits_dies(launcher: Launcher) {
    let command =
        Command { argv: vec!["perl".into(), "-e".into(), support::RUNNER.into()], ..shell("") };
    let mut running = Running::start(&launcher, command).await;
    running.wait_for_output("running").await;
    running.control.kill_all();
    running.emptied().await;
}

/// Ignored by default: root has no process limit, so the bomb would take down the whole machine.
async fn a_fork_bomb_dies(launcher: Launcher) {
    assert!(!rustix::process::getuid().is_root(), "run this test as an ordinary user");
    let script = format!("ulimit -u 400; exec perl -e '{}'", support::FORK_BOMB);
    let command = Command { argv: vec!["bash".into(), "-c".into(), script.into()], ..shell("") };
    let mut running = Running::start(&launcher, command).await;
    running.wait_for_output("full").await;
    running.control.kill_all();
    running.emptied().await;
}

async fn kill_on_exit_kills_the_remaining_processes(launcher: Launcher) {
    let script = "sleep 1000 & echo pid $!; read x; exit 4";
    let io = Io::Pipes { stdin: true };
    let mut running =
        Running::start(&launcher, Command { io, kill_on_exit: true, ..shell(script) }).await;
    let pids = running.wait_for_pids(1).await;
    running.close_stdin();
    assert_eq!(running.exit().await.code, 4);
    running.emptied().await;
    support::assert_gone(&pids);
}

async fn a_grandchild_outlives_its_leader(launcher: Launcher) {
    let gate = Gate::new();
    let script = format!("(setsid sh -c 'echo pid $$; read x < {}' &) ; exit 0", gate.path());
    let mut running = Running::start(&launcher, shell(&script)).await;
    let pids = running.wait_for_pids(1).await;
    assert_eq!(running.exit().await.code, 0);
    assert_eq!(running.control.descendants().await, 1);
    gate.open();
    running.emptied().await;
    support::assert_gone(&pids);
    assert_eq!(running.control.descendants().await, 0);
}

async fn dropping_kills_the_tree(launcher: Launcher) {
    let mut running = Running::start(&launcher, shell(&support::daemons(5))).await;
    let pids = running.wait_for_pids(5).await;
    let watched = support::watch(&pids);
    drop(running);
    support::all_end(watched).await;
}

async fn dropping_kills_the_group(launcher: Launcher) {
    let mut running = Running::start(&launcher, shell("sleep 1000 & echo pid $!; wait")).await;
    let pids = running.wait_for_pids(1).await;
    let watched = support::watch(&pids);
    drop(running);
    support::all_end(watched).await;
}

async fn a_cancelled_launch_leaves_nothing(launcher: Launcher) {
    let descriptors = support::open_descriptors();
    for polls in 0..200 {
        let mut launch = Box::pin(launcher.launch(shell("exec sleep 1000")));
        for _ in 0..polls % 4 {
            tokio::select! { biased; _ = &mut launch => break, () = tokio::task::yield_now() => {} }
        }
    }
    assert_eq!(support::open_descriptors(), descriptors);
    support::spawner_is_idle(&launcher).await;
}

async fn a_tree_dies_with_its_killed_keeper(launcher: Launcher) {
    let mut running = Running::start(&launcher, shell(&support::daemons(5))).await;
    let mut pids = running.wait_for_pids(5).await;
    pids.push(running.pid);
    let watched = support::watch(&pids);
    support::kill(support::parent_of(running.pid));
    assert_eq!(running.next_event().await, TreeEvent::Lost);
    assert_eq!(running.next_event().await, TreeEvent::Lost);
    support::all_end(watched).await;
    assert_eq!(running.control.descendants().await, 0);
}

async fn a_killed_spawner_is_replaced(launcher: Launcher) {
    let waits = Command { io: Io::Pipes { stdin: true }, ..shell("read x; exit 9") };
    let mut survivor = Running::start(&launcher, waits).await;
    support::kill(support::parent_of(support::parent_of(survivor.pid)));
    for _ in 0..3 {
        assert_eq!(Running::start(&launcher, shell("exit 7")).await.exit().await.code, 7);
    }
    survivor.close_stdin();
    assert_eq!(survivor.exit().await.code, 9);
    survivor.emptied().await;
}

async fn the_trees_of_a_killed_server_die(launcher: Launcher) {
    let server = Command {
        argv: vec![std::env::current_exe().unwrap().into(), SERVER_ARG.into()],
        ..shell("")
    };
    // Started with the plain launcher, so that no keeper kills the server's own children.
    let mut server = Running::start(&launcher, server).await;
    let watched = support::watch(&server.wait_for_pids(20).await);
    support::kill(server.pid);
    support::all_end(watched).await;
}

fn be_a_server() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let launcher = Launcher::with_spawner(std::env::current_exe().unwrap()).unwrap();
        let mut running = Running::start(&launcher, shell(&support::daemons(20))).await;
        for pid in running.wait_for_pids(20).await {
            println!("pid {pid}");
        }
        std::future::pending::<()>().await;
    });
}

async fn children_keep_the_original_descriptor_limit(launcher: Launcher) {
    let original = getrlimit(Resource::Nofile);
    let soft = original.current.unwrap();
    let changed = Rlimit { current: Some(soft - 1), ..original };
    setrlimit(Resource::Nofile, changed).unwrap();
    // A spawner started now inherits the changed limit, and must not pass it on.
    let running = Running::start(&launcher, shell("exec sleep 1000")).await;
    support::kill(support::parent_of(support::parent_of(running.pid)));
    let (output, _) = Running::start(&launcher, shell("ulimit -n")).await.output().await;
    setrlimit(Resource::Nofile, original).unwrap();
    assert_eq!(output.trim(), soft.to_string());
}

async fn many_runs_leak_nothing(launcher: Launcher) {
    Running::start(&launcher, shell("true")).await.emptied().await;
    let descriptors = support::open_descriptors();
    for run in 0..200 {
        let io = if run % 4 == 0 { Io::Pty(SIZE) } else { Io::Pipes { stdin: run % 2 == 0 } };
        let mut running = Running::start(&launcher, Command { io, ..shell("true & exit 0") }).await;
        running.emptied().await;
    }
    assert_eq!(support::open_descriptors(), descriptors);
    support::spawner_is_idle(&launcher).await;
}

async fn concurrent_starts_do_not_mix(launcher: Launcher) {
    let mut running = Vec::new();
    for number in 0..40 {
        let launcher = launcher.clone();
        running.push(tokio::spawn(async move {
            let script = format!("echo {number}; exit {number}");
            let (output, exit) = Running::start(&launcher, shell(&script)).await.output().await;
            assert_eq!((output, exit.code), (format!("{number}\n"), number));
        }));
    }
    for task in running {
        task.await.unwrap();
    }
}
