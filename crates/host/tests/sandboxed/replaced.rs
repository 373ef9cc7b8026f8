//! Covered files that an outside process replaces while a confined program runs.

use std::fs;

use exec_server_host::process::launch::{Command, Io};
use exec_server_host::sandbox::Access;

use super::super::support::Running;
use super::scene::Scene;

/// Saves a file as editors do, by renaming a new one.
fn save(scene: &Scene, name: &str) {
    let new = scene.path("new");
    fs::write(&new, "replaced\n").unwrap();
    fs::rename(new, scene.path(name)).unwrap();
}

/// A mount belongs to the directory entry that it covers, so a cover ends when the entry is
/// replaced. Denying a directory above is reliable.
///
/// That a cover can end is a known limitation, not a goal. If this test fails, update
/// docs/sandbox.md.
pub(crate) async fn a_file_that_replaces_a_covered_one_is_not_covered(scene: &Scene) {
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
    // In the next process the files are covered again.
    scene
        .all_fail(
            &scene.plan(&[("secret.pem", Access::Deny)]),
            &["cat secret.pem | grep .", "rm .git/planted"],
        )
        .await;
}
