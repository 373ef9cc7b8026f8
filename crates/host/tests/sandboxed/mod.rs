//! The restrictions of a sandbox, and the cleanup when it ends.

mod abandoned;
mod bubblewrap;
mod covers;
mod devices;
mod endings;
mod gate;
mod missing_roots;
mod placeholders;
mod replaced;
mod scene;

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

use exec_server_host::process::launch::{Command, Launcher};
use exec_server_test_support::skipped;
use libtest_mimic::{Failed, Trial};

use super::support::Running;
pub(crate) use super::support::confinement::Confinement;
use super::support::{self, confinement, shell};
use scene::Scene;

/// Makes this executable a server that runs one sandboxed program until a test kills the server.
pub(crate) const SERVER_ARG: &str = "__sandboxing_server";

/// Makes this executable a server that a test kills while it starts a sandboxed program.
pub(crate) const SLOW_SERVER_ARG: &str = "__slowly_sandboxing_server";

/// Set in the second run of this executable, which the first starts as another user.
const IS_OTHER_USER: &str = "LAUNCH_TEST_AS_OTHER_USER";
/// Not nobody (65534): unmapped users in a user namespace also appear as nobody.
const OTHER_USER: u32 = 54321;
const OTHER_GROUP: u32 = 54322;

/// Runs a test with a new scene under each confinement that has covers.
macro_rules! covered {
    ($($module:ident::$test:ident),* $(,)?) => {
        Vec::from([$(
            Trial::test(concat!("namespaces::", stringify!($test)), || {
                run(Confinement::Namespaces, async |scene| $module::$test(&scene).await)
            }),
            Trial::test(concat!("bubblewrap::", stringify!($test)), || {
                run(Confinement::Bubblewrap, async |scene| $module::$test(&scene).await)
            }),
        )*])
    };
}

/// Runs a test with a new scene under the confinement without mounts.
macro_rules! direct {
    ($($module:ident::$test:ident),* $(,)?) => {
        Vec::from([$(
            Trial::test(concat!("direct::", stringify!($test)), || {
                run(Confinement::Direct, async |scene| $module::$test(&scene).await)
            }),
        )*])
    };
}

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = covered![
        abandoned::a_start_can_be_terminated,
        abandoned::a_start_ends_when_its_future_is_dropped,
        abandoned::a_starting_process_can_be_terminated,
        abandoned::a_start_ends_with_its_server,
        covers::protected_paths_cannot_be_changed,
        covers::directories_above_protected_paths_cannot_be_renamed,
        covers::directories_above_denied_matches_cannot_be_renamed,
        covers::denied_paths_cannot_be_read,
        covers::covers_hold_if_everything_else_is_writable,
        covers::grants_inside_denied_directories_work,
        covers::covers_may_be_nested,
        covers::a_working_directory_may_be_covered,
        covers::a_path_changed_since_planning_is_an_error,
        gate::every_address_leads_to_the_gate,
        gate::datagrams_to_any_name_server_reach_the_gate,
        gate::all_other_connections_fail,
        gate::routes_and_addresses_cannot_be_changed,
        gate::processes_do_not_share_a_network,
        placeholders::placeholders_are_removed_when_the_tree_ends,
        placeholders::placeholders_stay_while_another_process_needs_them,
        placeholders::many_processes_at_once_leave_no_placeholders,
        placeholders::the_next_process_removes_placeholders_left_behind,
        placeholders::directories_in_place_of_placeholders_stay,
        placeholders::a_killed_server_leaves_no_placeholders,
        missing_roots::a_missing_root_is_created_and_protected,
        missing_roots::a_root_that_cannot_be_created_is_left_alone,
        replaced::a_file_that_replaces_a_covered_one_is_not_covered,
        devices::terminals_of_others_are_out_of_reach,
        devices::a_program_can_reopen_its_own_terminal,
        devices::essential_devices_work,
        devices::other_devices_need_an_entry_in_the_policy,
        devices::write_access_to_everything_includes_no_other_devices,
        devices::shared_memory_is_private,
        endings::orphans_are_reaped,
        endings::a_plan_that_cannot_be_enforced_starts_nothing,
        endings::the_search_path_of_the_program_does_not_affect_the_sandbox,
        endings::job_control_works,
        endings::outside_processes_cannot_be_seen,
        endings::outside_processes_cannot_be_signalled,
        endings::the_network_is_empty,
        endings::user_and_groups_are_the_same,
    ];
    trials.push(Trial::test("plain::a_sandbox_is_refused", || {
        run(Confinement::Direct, async |scene| {
            endings::a_plain_launcher_refuses_a_sandbox(&scene).await;
        })
    }));
    trials.push(Trial::test("bubblewrap::a_bubblewrap_that_exits_is_reported", || {
        run(Confinement::Bubblewrap, async |scene| {
            bubblewrap::a_bubblewrap_that_exits_is_reported(&scene).await;
        })
    }));
    trials.push(Trial::test("namespaces::a_pattern_may_deny_many_files", || {
        run(Confinement::Namespaces, async |scene| {
            covers::a_pattern_may_deny_many_files(&scene).await;
        })
    }));
    trials.push(Trial::test("namespaces::a_namespace_dies_with_its_keeper", || {
        run(Confinement::Namespaces, async |scene| {
            endings::a_namespace_dies_with_its_keeper(&scene).await;
        })
    }));
    trials.push(Trial::test("namespaces::new_terminals_are_private", || {
        run(Confinement::Namespaces, async |scene| {
            devices::new_terminals_are_private(&scene).await;
        })
    }));
    trials.extend(direct![
        devices::terminals_of_others_are_out_of_reach,
        devices::a_program_can_reopen_its_own_terminal,
        devices::essential_devices_work,
        devices::other_devices_need_an_entry_in_the_policy,
        endings::outside_processes_cannot_be_signalled,
        abandoned::a_process_still_being_planned_can_be_terminated,
    ]);
    if std::env::var_os(IS_OTHER_USER).is_none() {
        trials.push(Trial::test("all_sandbox_tests_pass_as_another_user", as_another_user));
    }
    trials
}

fn run(confinement: Confinement, test: impl AsyncFnOnce(Scene)) -> Result<(), Failed> {
    if !confinement.is_available() {
        skipped("bubblewrap is not installed");
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { test(Scene::new(confinement)).await });
    Ok(())
}

/// Repeats all tests that use a sandbox as another user, since the rights of root can hide
/// failures.
fn as_another_user() -> Result<(), Failed> {
    use std::os::unix::process::CommandExt;
    if !rustix::process::geteuid().is_root() {
        skipped("only root can become another user");
        return Ok(());
    }
    let directory = tempfile::tempdir()?;
    std::fs::set_permissions(
        directory.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )?;
    let copy = directory.path().join("launch");
    std::fs::copy(std::env::current_exe()?, &copy)?;
    #[expect(clippy::disallowed_methods, reason = "the test itself, as another user")]
    let outcome = std::process::Command::new(copy)
        .args(["--skip", "kept::", "--skip", "plain::"])
        .env(IS_OTHER_USER, "")
        .uid(OTHER_USER)
        .gid(OTHER_GROUP)
        .current_dir("/")
        .stdin(Stdio::null())
        .output()?;
    print!("{}", String::from_utf8_lossy(&outcome.stdout));
    if outcome.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&outcome.stderr);
    Err(format!("as another user, the tests ended with {}: {stderr}", outcome.status).into())
}

/// See [`SERVER_ARG`]: starts a long-running program and prints its pid and that of its keeper.
pub(crate) fn be_a_server(workspace: &Path, confinement: &str) {
    let _confined = confinement::confine(confinement_called(confinement).ordinary(workspace));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let launcher = Launcher::with_spawner(std::env::current_exe().unwrap()).unwrap();
        let running = Running::start(&launcher, shell("exec sleep 1000")).await;
        println!("pid {}\npid {}", running.pid, support::parent_of(running.pid));
        std::future::pending::<()>().await;
    });
}

/// See [`SLOW_SERVER_ARG`].
pub(crate) fn be_a_slow_server(workspace: &Path, confinement: &str) {
    let plan = abandoned::slow(&confinement_called(confinement).ordinary(workspace), workspace);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let launcher = Launcher::with_spawner(std::env::current_exe().unwrap()).unwrap();
        let argv = vec![workspace.join(abandoned::PROGRAM).into()];
        let command = Command { argv, sandbox: Some(Arc::new(plan)), ..shell("") };
        let launched = launcher.launch(command).await;
        panic!("the start ended before the server was killed: {launched:?}");
    });
}

fn confinement_called(name: &str) -> Confinement {
    match name {
        "Namespaces" => Confinement::Namespaces,
        "Bubblewrap" => Confinement::Bubblewrap,
        other => panic!("unknown confinement {other:?}"),
    }
}
