//! What somebody outside puts in the place of something covered, while a program runs that must not see it.

use std::fs;

use exec_server_host::process::launch::{Command, Io};
use exec_server_host::sandbox::Access;

use super::super::support::Running;
use super::scene::Scene;

/// As every editor saves.
fn save(scene: &Scene, name: &str) {
    let new = scene.path("new");
    fs::write(&new, "replaced\n").unwrap();
    fs::rename(new, scene.path(name)).unwrap();
}

/// A mount goes with the name that it is on, so a cover lasts until that is replaced. What holds is to deny a directory above.
///
/// Nobody wants the first half. It is here so that whoever changes it changes docs/sandbox.md as well.
pub(crate) async fn what_replaces_a_covered_name_is_not_covered(scene: &Scene) {
    let plan = scene.plan(&[("secret.pem", Access::Deny), ("denied", Access::Deny)]);
    let script = "read x; cat secret.pem; cat denied/file; echo a > .git/planted; echo the end";
    let command = scene.command(&plan, &format!("cat secret.pem; echo up; {script}"));
    let command = Command { io: Io::Pipes { stdin: true }, ..command };
    let mut running = Running::start(&scene.launcher, command).await;
    running.wait_for_output("up").await;
    save(scene, "secret.pem");
    save(scene, "denied/file");
    fs::remove_dir_all(scene.path(".git")).unwrap();
    fs::create_dir(scene.path(".git")).unwrap();
    running.close_stdin();
    let (output, _) = running.output().await;
    running.emptied().await;
    assert!(output.contains("the end"), "{output}");
    assert_eq!(output.matches("replaced").count(), 1, "{output}");
    assert!(!output.contains("original"), "{output}");
    assert!(scene.path(".git/planted").exists(), "{output}");
    // The next one is covered again.
    scene
        .all_fail(
            &scene.plan(&[("secret.pem", Access::Deny)]),
            &["cat secret.pem | grep .", "rm .git/planted"],
        )
        .await;
}
