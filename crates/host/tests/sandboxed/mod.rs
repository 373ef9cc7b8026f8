//! What a sandbox takes away from a program, and what is left when it ends.

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

/// Makes this executable a server with one sandboxed program, there to be killed.
pub(crate) const SERVER_ARG: &str = "__sandboxing_server";

/// Makes this executable a server that is there to be killed while it starts a sandboxed program.
pub(crate) const SLOW_SERVER_ARG: &str = "__slowly_sandboxing_server";

/// Set in the run as another user, which is started by this one.
const IS_OTHER_USER: &str = "LAUNCH_TEST_AS_OTHER_USER";
/// Not nobody (65534): that is also what a user without a name in a namespace looks like.
const OTHER_USER: u32 = 54321;
const OTHER_GROUP: u32 = 54322;

/// Runs a test with a fresh scene in each way that has covers.
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

/// Runs a test with a fresh scene where nothing is mounted.
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
        abandoned::a_start_can_be_ended,
        abandoned::a_start_ends_when_nobody_waits,
        abandoned::a_process_that_starts_can_be_terminated,
        abandoned::a_start_ends_with_its_server,
        covers::what_is_protected_cannot_be_changed,
        covers::the_way_to_what_is_protected_stays,
        covers::the_way_to_what_a_pattern_denies_stays,
        covers::what_is_denied_cannot_be_read,
        covers::covers_hold_where_all_else_is_writable,
        covers::what_is_granted_inside_is_there,
        covers::covers_may_lie_in_one_another,
        covers::a_working_directory_may_be_covered,
        covers::what_has_changed_since_is_an_error,
        gate::every_address_leads_to_the_gate,
        gate::datagrams_for_any_name_server_do_too,
        gate::nothing_else_leads_anywhere,
        gate::routes_and_addresses_cannot_be_changed,
        gate::processes_do_not_share_a_network,
        placeholders::they_go_when_the_tree_is_gone,
        placeholders::they_stay_for_whoever_needs_them,
        placeholders::many_at_once_leave_none,
        placeholders::the_next_one_removes_those_left_behind,
        placeholders::what_took_their_place_stays,
        placeholders::a_killed_server_leaves_none,
        missing_roots::one_that_could_be_made_is_made_and_protected,
        missing_roots::one_that_nobody_can_make_is_no_obstacle,
        replaced::what_replaces_a_covered_name_is_not_covered,
        devices::terminals_of_others_are_out_of_reach,
        devices::its_own_terminal_can_be_opened_again,
        devices::what_every_program_needs_is_there,
        devices::devices_need_a_word_of_the_policy,
        devices::who_may_write_everything_has_no_more_devices,
        devices::shared_memory_is_its_own,
        endings::orphans_are_collected,
        endings::a_plan_that_cannot_be_kept_starts_nothing,
        endings::the_search_path_of_the_program_changes_nothing,
        endings::job_control_works,
        endings::nothing_outside_can_be_seen,
        endings::nothing_outside_can_be_signalled,
        endings::the_network_is_empty,
        endings::user_and_groups_are_the_same,
    ];
    trials.push(Trial::test("plain::a_sandbox_is_refused", || {
        run(Confinement::Direct, async |scene| endings::plain_refuses(&scene).await)
    }));
    trials.push(Trial::test("bubblewrap::one_that_ends_by_itself_is_said_to", || {
        run(Confinement::Bubblewrap, async |scene| {
            bubblewrap::one_that_ends_by_itself_is_said_to(&scene).await;
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
    trials.push(Trial::test("namespaces::new_terminals_are_its_own", || {
        run(Confinement::Namespaces, async |scene| {
            devices::new_terminals_are_its_own(&scene).await;
        })
    }));
    trials.extend(direct![
        devices::terminals_of_others_are_out_of_reach,
        devices::its_own_terminal_can_be_opened_again,
        devices::what_every_program_needs_is_there,
        devices::devices_need_a_word_of_the_policy,
        endings::nothing_outside_can_be_signalled,
        abandoned::a_process_that_is_planned_can_be_terminated,
    ]);
    if std::env::var_os(IS_OTHER_USER).is_none() {
        trials.push(Trial::test("as_another_user", as_another_user));
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

/// Everything sandboxed once more: what root may do hides what others may not.
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
    if outcome.status.success() { Ok(()) } else { Err("it failed as another user".into()) }
}

/// See [`SERVER_ARG`]: starts a program that stays, and says who it and its keeper are.
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
        panic!("{launched:?}");
    });
}

fn confinement_called(name: &str) -> Confinement {
    match name {
        "Namespaces" => Confinement::Namespaces,
        "Bubblewrap" => Confinement::Bubblewrap,
        other => panic!("{other}"),
    }
}
