//! Protected paths inside a writable workspace.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

use exec_server_host::process::launch::LaunchError;
use exec_server_host::sandbox::{Access, CoverKind, Grant, Mount, SandboxStep};

use super::scene::Scene;

pub(crate) async fn protected_paths_cannot_be_changed(scene: &Scene) {
    let plan = scene.plan(&[]);
    scene.all_succeed(&plan, &["echo x > new && rm new", "cat .git/config", "ls .agents"]).await;
    scene
        .all_fail(
            &plan,
            &[
                "echo x > .git/hooks/pre-commit",
                "echo x >> .git/config",
                "rm .git/config",
                "mv .git elsewhere",
                "mv sub .git/sub",
                "rm -r .git/hooks",
                "chmod 777 .git/config",
                "touch .git/config",
                "ln .git/config linked",
                "mkdir .agents",
                "rmdir .agents",
                "mv sub .codex",
                "ln -s sub .codex",
                "echo x > .codex",
                "chmod 755 .codex",
                "mkdir .codex/x",
                "umount .git",
                "chmod 777 /etc/passwd",
                "touch /etc/passwd",
                "echo x > /etc/new",
            ],
        )
        .await;
    assert_eq!(scene.read(".git/config"), "original\n");
}

/// A renamed directory would take the covers below it along, and other content could then take its
/// old name.
pub(crate) async fn directories_above_protected_paths_cannot_be_renamed(scene: &Scene) {
    fs::create_dir(scene.path("sub/nested/.git")).unwrap();
    let plan = scene.plan(&[("sub/nested", Access::Write), ("sub/nested/.git", Access::Read)]);
    let read_only = |mount: &Mount| {
        matches!(mount, Mount::Cover(cover) if cover.kind == CoverKind::ReadOnly
            && cover.path == scene.path("sub/nested/.git"))
    };
    assert!(plan.mounts.iter().any(read_only), "{plan:?}");
    scene.all_succeed(&plan, &["echo x > sub/new", "echo x > sub/nested/new"]).await;
    scene
        .all_fail(
            &plan,
            &[
                "mkdir sub/nested/.git/hooks",
                "mv sub/nested sub/away",
                "mv sub away",
                "mv sub/nested/.git sub/nested/away",
            ],
        )
        .await;
}

pub(crate) async fn denied_paths_cannot_be_read(scene: &Scene) {
    let plan = scene.plan(&[
        ("secret.pem", Access::Deny),
        ("denied", Access::Deny),
        ("absent/deeper", Access::Deny),
    ]);
    scene
        .all_fail(
            &plan,
            &[
                "cat secret.pem",
                "echo x > secret.pem",
                "mv secret.pem x",
                "ln secret.pem x",
                "cp secret.pem x",
                "cat denied/file",
                "echo x > denied/new",
                "mv denied x",
                "mkdir -p absent/deeper",
                "rmdir absent",
                "mv sub absent",
                "grep -r original . --include=secret.pem",
                "test -n \"$(ls -A denied 2>/dev/null)\"",
            ],
        )
        .await;
    assert_eq!(scene.read("secret.pem"), "original\n");
    assert_eq!(scene.read("denied/file"), "original\n");
    assert!(!scene.path("absent").exists());
}

/// If the directory of a denied file were renamed, the pattern would not match, and the next
/// process could read the file.
pub(crate) async fn directories_above_denied_matches_cannot_be_renamed(scene: &Scene) {
    fs::create_dir(scene.path("sub/nested/secrets")).unwrap();
    fs::write(scene.path("sub/nested/secrets/id.key"), "original\n").unwrap();
    let plan = || scene.plan_without("**/secrets/*.key");
    scene
        .all_succeed(&plan(), &["echo x > sub/nested/secrets/new", "mv sub/nested/secrets/new sub"])
        .await;
    let attempts = [
        "cat sub/nested/secrets/id.key",
        "mv sub/nested/secrets/id.key id",
        "mv sub/nested/secrets sub/nested/public",
        "mv sub/nested away",
        "mv sub away",
    ];
    scene.all_fail(&plan(), &attempts).await;
    scene.all_fail(&plan(), &["grep -r original sub"]).await;
}

/// More files than a process can have descriptors, each in its own directory.
pub(crate) async fn a_pattern_may_deny_many_files(scene: &Scene) {
    for n in 0..1500 {
        fs::create_dir(scene.path(&format!("sub/{n}"))).unwrap();
        fs::write(scene.path(&format!("sub/{n}/key.pem")), "original\n").unwrap();
    }
    let plan = scene.plan_without("sub/**/*.pem");
    assert!(plan.mounts.len() > 3000, "{}", plan.mounts.len());
    scene.all_fail(&plan, &["cat sub/0/key.pem", "mv sub/1499 x", "grep -r original sub"]).await;
}

pub(crate) async fn covers_hold_if_everything_else_is_writable(scene: &Scene) {
    let mut plan = (*scene.plan(&[("denied", Access::Deny)])).clone();
    assert_eq!(plan.mounts.remove(0).path(), Path::new("/"));
    let everything = Grant { path: "/".into(), access: Access::Write };
    plan.landlock.as_mut().unwrap().grants = Some(vec![everything]);
    let plan = Arc::new(plan);
    let elsewhere = tempfile::tempdir().unwrap();
    let outside = elsewhere.path().join("file");
    scene.all_succeed(&plan, &[&format!("echo x > {}", outside.display())]).await;
    assert_eq!(fs::read_to_string(outside).unwrap(), "x\n");
    scene.all_fail(&plan, &["cat denied/file", "echo x > .git/config", "mkdir .codex"]).await;
}

pub(crate) async fn grants_inside_denied_directories_work(scene: &Scene) {
    let plan = scene.plan(&[
        ("denied", Access::Deny),
        ("denied/again/deep", Access::Write),
        ("denied/one", Access::Read),
        (".git/hooks", Access::Write),
    ]);
    scene
        .all_succeed(
            &plan,
            &[
                "cat denied/one",
                "echo changed > denied/again/deep/file",
                "echo x > .git/hooks/pre-commit",
            ],
        )
        .await;
    assert_eq!(scene.read("denied/again/deep/file"), "changed\n");
    assert_eq!(scene.read(".git/hooks/pre-commit"), "x\n");
    scene
        .all_fail(
            &plan,
            &[
                "cat denied/file",
                "echo x > denied/one",
                "ls denied/below",
                "mv denied/again/deep x",
                "echo x > .git/config",
            ],
        )
        .await;
}

pub(crate) async fn covers_may_be_nested(scene: &Scene) {
    let plan = scene.plan(&[
        (".git/config", Access::Deny),
        ("denied", Access::Deny),
        ("denied/again", Access::Read),
        ("denied/again/deep", Access::Deny),
    ]);
    let visible = ["ls .git/hooks", "test \"$(ls denied/again)\" = deep"];
    scene.all_succeed(&plan, &visible).await;
    scene
        .all_fail(
            &plan,
            &[
                "cat .git/config",
                "echo x > .git/new",
                "cat denied/file",
                "echo x > denied/again/new",
                "cat denied/again/deep/file",
                "mv denied/again x",
            ],
        )
        .await;
    // `mv` copies what it cannot rename, so `x/deep` has the mode of its cover. An ordinary user
    // could not remove it.
    let _ = fs::set_permissions(scene.path("x/deep"), fs::Permissions::from_mode(0o755));
}

pub(crate) async fn a_working_directory_may_be_covered(scene: &Scene) {
    let plan = scene.plan(&[]);
    let mut command = scene.command(&plan, "pwd; cat config; echo x > new");
    command.cwd = scene.path(".git");
    let mut running = super::super::support::Running::start(&scene.launcher, command).await;
    let (output, exit) = running.output().await;
    assert!(output.contains("original"), "{output}");
    assert!(output.starts_with(scene.path(".git").to_str().unwrap()), "{output}");
    assert_ne!(exit.code, 0);
}

/// Either exactly the paths of the plan are covered, or nothing starts.
pub(crate) async fn a_path_changed_since_planning_is_an_error(scene: &Scene) {
    let plan = scene.plan(&[("secret.pem", Access::Deny)]);
    fs::rename(scene.path("secret.pem"), scene.path("moved")).unwrap();
    let script = "echo ran > sub/proof";
    let error = scene.launcher.launch(scene.command(&plan, script)).await.unwrap_err();
    let is_about = |error: &LaunchError| match error {
        LaunchError::Sandbox { step, path, .. } => (*step, path.clone()),
        other => panic!("{other:?}"),
    };
    if scene.confinement == super::Confinement::Namespaces {
        let (step, path) = is_about(&error);
        assert!(matches!(step, SandboxStep::Mount { .. }), "{error}");
        assert_eq!(path, Some(scene.path("secret.pem")));
    }
    std::os::unix::fs::symlink(scene.path("moved"), scene.path("secret.pem")).unwrap();
    let error = scene.launcher.launch(scene.command(&plan, script)).await.unwrap_err();
    is_about(&error);

    // A directory above the path is gone, and then leads elsewhere.
    let plan = scene.plan(&[("sub/nested", Access::Deny)]);
    fs::rename(scene.path("sub"), scene.path("gone")).unwrap();
    is_about(&scene.launcher.launch(scene.command(&plan, script)).await.unwrap_err());
    std::os::unix::fs::symlink("gone", scene.path("sub")).unwrap();
    is_about(&scene.launcher.launch(scene.command(&plan, script)).await.unwrap_err());
    assert!(!scene.path("sub/proof").exists());
    for name in [".agents", ".codex"] {
        assert!(!scene.path(name).exists(), "{name} was left by a failed start");
    }
}
