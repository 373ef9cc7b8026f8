//! Writable roots that do not exist.

use std::sync::Arc;

use exec_server_host::sandbox::{Access, EntryPath};
use exec_server_test_support::skipped;

use super::scene::Scene;

pub(crate) async fn a_missing_root_is_created_and_protected(scene: &Scene) {
    let entries = [("build/out", Access::Write), ("build/out/secret/key", Access::Deny)];
    let plan = scene.plan(&entries);
    let use_it =
        "mkdir -p build/out/deep && echo mine > build/out/deep/file && cat build/out/deep/file";
    scene.all_succeed(&plan, &[use_it]).await;
    assert_eq!(scene.read("build/out/deep/file"), "mine\n");
    for plan in [plan, scene.plan(&entries)] {
        let attempts = [
            "mkdir build/out/.git/hooks",
            "echo > build/out/.codex",
            "rmdir build/out/.git",
            "mv build/out build/other",
            "mv build other",
            "mkdir -p build/out/secret/key",
        ];
        scene.all_fail(&plan, &attempts).await;
        scene.all_succeed(&plan, &["echo again > build/out/file", "echo > build/file"]).await;
    }
    for left in [".git", ".agents", ".codex", "secret"] {
        assert!(!scene.path("build/out").join(left).exists(), "{left}");
    }
}

/// The policy grants write access, but this user cannot create the root, so nothing there needs
/// protection.
pub(crate) async fn a_root_that_cannot_be_created_is_left_alone(scene: &Scene) {
    if rustix::process::geteuid().is_root() {
        return skipped("root can create any directory");
    }
    let missing = EntryPath::Path("/no-such-directory/out".into());
    let entries = vec![(EntryPath::Root, Access::Write), (missing, Access::Write)];
    let plan = Arc::new(scene.confinement.plan(scene.root(), entries));
    scene.all_succeed(&plan, &["true"]).await;
    scene.all_fail(&plan, &["mkdir -p /no-such-directory/out/.git"]).await;
}
