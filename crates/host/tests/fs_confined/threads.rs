//! The effects of a confinement on a thread.

use std::io;
use std::sync::Arc;

use exec_server_host::fs::watch::Watcher;
use exec_server_host::fs::{Confinement, ConfinementError, is_confined};
use exec_server_host::sandbox::{Access, WITHOUT_VARIABLE};

use crate::scene::{Scene, User, policy};

#[test]
fn the_kernel_confines_the_thread_as_well() {
    for &user in User::all() {
        let scene = Scene::new();
        let outside = scene.at("outside");
        let attempts = || {
            [
                std::fs::read(outside.join("file")).map(drop),
                std::fs::write(outside.join("file"), "changed"),
                std::fs::write(outside.join("new"), ""),
                std::fs::create_dir(outside.join("directory")),
                std::fs::rename(outside.join("link"), outside.join("renamed")),
                std::fs::read_dir(&outside).map(drop),
                std::fs::remove_file(outside.join("sub/inner")),
            ]
        };
        let before = scene.snapshot();
        for outcome in scene.confined(&scene.policy(), user, attempts) {
            assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        }
        assert_eq!(scene.snapshot(), before);
        for outcome in attempts() {
            outcome.unwrap();
        }
    }
}

#[test]
fn a_thread_is_confined_once_and_other_threads_are_not() {
    let scene = Scene::new();
    let other = Arc::new(Confinement::new(scene.policy()).unwrap());
    scene.confined(&scene.policy(), User::Own, || {
        assert!(is_confined());
        assert!(matches!(other.enter(), Err(ConfinementError::Confined)));
        // A watcher starts a thread, which would be confined as well.
        assert!(Watcher::new().is_err());
    });
    assert!(!is_confined());
    std::fs::read(scene.at("outside/file")).unwrap();
}

#[test]
fn several_threads_share_a_confinement() {
    let scene = Scene::new();
    let confinement = Arc::new(Confinement::new(scene.policy()).unwrap());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                confinement.enter().unwrap();
                assert!(std::fs::read(scene.at("outside/file")).is_err());
                std::fs::read(scene.at("work/plain/file")).unwrap();
            });
        }
    });
}

#[test]
fn a_confinement_detects_replaced_grants() {
    let scene = Scene::new();
    let more = [(scene.at("outside/later"), Access::Write)];
    let confinement = Confinement::new(scene.policy_with(&more)).unwrap();
    assert!(confinement.is_current());
    std::fs::write(scene.at("work/plain/file"), "changed").unwrap();
    assert!(confinement.is_current());
    std::fs::create_dir(scene.at("outside/later")).unwrap();
    assert!(!confinement.is_current());
    std::fs::remove_dir(scene.at("outside/later")).unwrap();
    assert!(confinement.is_current());
    std::fs::rename(scene.at("ro"), scene.at("old")).unwrap();
    std::fs::create_dir(scene.at("ro")).unwrap();
    assert!(!confinement.is_current());
}

#[test]
fn a_policy_that_grants_nothing_allows_nothing() {
    let scene = Scene::new();
    let nothing = policy(&scene.at("work"), &[], &[]);
    for (operation, _, run) in crate::operations::OPERATIONS {
        let (plain, work) = (scene.at("work/plain"), scene.at("work"));
        let outcome = scene.confined(&nothing, User::Own, || run(&plain, &work));
        let error = outcome.expect_err(operation);
        assert!(matches!(error, exec_server_host::fs::FsError::Denied { .. }), "{error}");
    }
}

/// The probe of the machine's mechanisms reads the same variable.
#[test]
fn an_operator_can_turn_landlock_off_and_unknown_names_are_errors() {
    for (without, expected) in [
        ("seccomp, bubblewrap", "confined"),
        ("bubblewrap, landlock", "turned off"),
        ("landlok", "\"landlok\""),
    ] {
        #[expect(clippy::disallowed_methods, reason = "all threads share one environment")]
        let mut itself = std::process::Command::new(std::env::current_exe().unwrap());
        let arguments = ["--exact", "threads::attempt", "--ignored", "--nocapture"];
        let output = itself.args(arguments).env(WITHOUT_VARIABLE, without).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let said = said.lines().find_map(|line| line.split_once("outcome: ")).unwrap().1;
        assert!(said.contains(expected), "{without}: {said}");
    }
}

#[test]
#[ignore = "started by another test"]
fn attempt() {
    match Confinement::new(Scene::new().policy()) {
        Ok(_) => println!("outcome: confined"),
        Err(error) => println!("outcome: {error}"),
    }
}
