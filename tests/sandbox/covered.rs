//! Denied and protected paths, accessed by processes and by file requests, with equal results.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::Path;

use exec_server_test_support::skipped;
use serde_json::json;

use super::arena::Tier;
use super::{
    User, directory_outside_of_tmp, entry_path, ordinary_workspace, profile, refused, uri,
};
use crate::cli_sandbox::no_sandbox;
use crate::support::machine::is_root;
use crate::support::{encoded, eventually, shell};

const USERS: [User; 2] = [User::Myself, User::Nobody];

#[test]
fn a_denied_pattern_applies_to_matching_symlinks() {
    if let Some(why) = no_sandbox() {
        return skipped(why);
    }
    let directory = directory_outside_of_tmp();
    let work = directory.path().join("work");
    fs::create_dir_all(work.join("store/more")).unwrap();
    fs::write(work.join("store/real.key"), "secret").unwrap();
    fs::write(work.join("store/more/file"), "secret").unwrap();
    symlink("store/real.key", work.join("link.pem")).unwrap();
    symlink("store/more", work.join("directory.pem")).unwrap();
    symlink("nowhere", work.join("broken.pem")).unwrap();
    for user in USERS.into_iter().filter(|user| user.obstacle().is_none()) {
        user.own(&work);
        let server = user.server(directory.path()).start();
        let mut client = server.client();
        let glob = json!({"type": "glob_pattern", "pattern": "**/*.pem"});
        for access in ["read", "write"] {
            let entries = [(entry_path(&work), access), (glob.clone(), "deny")];
            let sandbox = profile(&work, &entries, "restricted");
            let script = "! cat link.pem && ! cat directory.pem/file && ! readlink link.pem \
                && ! mv link.pem other && ! rm link.pem && cat store/real.key";
            let start = shell(access, script).with("cwd", uri(&work));
            let end = client.run(&start.with("sandbox", sandbox.clone()));
            assert_eq!(end.exit_code, Some(0), "{user:?} {access}: {}", end.text());
            assert_eq!(end.text().matches("secret").count(), 1, "{}", end.text());
            for (path, is_allowed) in
                [("link.pem", false), ("directory.pem/file", false), ("store/real.key", true)]
            {
                let params = json!({"path": uri(&work.join(path)), "sandbox": sandbox});
                let answer = client.try_call("fs/readFile", params);
                assert_eq!(answer.is_ok(), is_allowed, "{user:?} {access} {path}: {answer:?}");
            }
        }
        assert!(work.join("link.pem").is_symlink());
    }
}

/// A sandboxed process can create a symlink whose name the pattern denies. Later sandboxes hide the
/// symlink, but not its target, which may be or contain the workspace. Bubblewrap could only hide
/// the target, so there the start of later processes is refused.
#[test]
fn a_planted_symlink_that_a_pattern_denies_hides_no_workspace() {
    let tiers = [Tier::Namespaces, Tier::Bubblewrap];
    for (user, tier) in USERS.into_iter().flat_map(|user| tiers.map(|tier| (user, tier))) {
        if let Some(why) = user.obstacle().or_else(|| tier.obstacle()) {
            skipped(format_args!("{tier:?} as {user:?}: {why}"));
            continue;
        }
        let directory = directory_outside_of_tmp();
        let work = directory.path().join("work");
        fs::create_dir_all(work.join("sub")).unwrap();
        fs::write(work.join("file"), "content").unwrap();
        user.own(&work);
        let without = if tier == Tier::Bubblewrap { "namespaces" } else { "" };
        let builder = user.server(directory.path());
        let server = builder.variable("EXEC_SERVER_SANDBOX_WITHOUT", without).start();
        let mut client = server.client();
        let glob = json!({"type": "glob_pattern", "pattern": "**/*.pem"});
        let entries = [(entry_path(&work), "write"), (glob, "deny")];
        let sandbox = profile(&work, &entries, "restricted");
        let start = |id: &str, script: &str| {
            shell(id, script).with("cwd", uri(&work)).with("sandbox", sandbox.clone())
        };
        let targets = ["..", ".", "/", "/usr/bin", "/etc", "/proc/self/cwd"];
        for (index, target) in targets.into_iter().enumerate() {
            let (plant, id) = (format!("plant{index}"), format!("later{index}"));
            let script = format!("rm -f sub/a.pem; ln -s {target} sub/a.pem");
            // Runs without a sandbox, in which the pattern would deny replacing the previous link.
            let end = client.run(&shell(&plant, &script).with("cwd", uri(&work)));
            assert_eq!(end.exit_code, Some(0), "{}", end.text());
            let later = start(&id, "cat file && ! ls sub/a.pem/.");
            if tier == Tier::Bubblewrap {
                let refusal = refused(&mut client, "process/start", later.params());
                assert_eq!(refusal.kind.as_deref(), Some("sandboxUnavailable"), "{refusal:?}");
                assert!(refusal.message.contains("sub/a.pem"), "{refusal:?}");
            } else {
                let end = client.run(&later);
                assert_eq!(end.exit_code, Some(0), "{user:?} {target}: {}", end.text());
            }
            let read = |name: &str| json!({"path": uri(&work.join(name)), "sandbox": sandbox});
            client.try_call("fs/readFile", read("file")).unwrap();
            refused(&mut client, "fs/getMetadata", read("sub/a.pem/."));
        }
        // The same holds for a link outside the workspace that leads to it.
        let elsewhere = directory.path().join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        symlink(&work, elsewhere.join("a.pem")).unwrap();
        let pattern = format!("{}/*.pem", elsewhere.display());
        let glob = json!({"type": "glob_pattern", "pattern": pattern});
        let sandbox = profile(&elsewhere, &[(glob, "deny")], "restricted");
        let later = shell("cwd", "cat file").with("cwd", uri(&work)).with("sandbox", sandbox);
        if tier == Tier::Bubblewrap {
            let refusal = refused(&mut client, "process/start", later.params());
            assert!(refusal.message.contains("elsewhere/a.pem"), "{refusal:?}");
        } else {
            assert_eq!(client.run(&later).exit_code, Some(0), "{user:?}");
        }
    }
}

#[test]
fn protected_names_of_other_users_cannot_be_changed() {
    if let Some(why) = no_sandbox() {
        return skipped(why);
    }
    if !is_root() {
        return skipped("only root can run as two users");
    }
    const DAEMON: u32 = 1;
    let mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    for user in USERS {
        let directory = directory_outside_of_tmp();
        let sticky = directory.path().join("sticky");
        let git = sticky.join(".git");
        fs::create_dir_all(&git).unwrap();
        fs::write(sticky.join(".agents"), "theirs").unwrap();
        mode(&sticky, 0o1777);
        for (name, bits) in [(".git", 0o777), (".agents", 0o666)] {
            chown(sticky.join(name), Some(DAEMON), Some(DAEMON)).unwrap();
            mode(&sticky.join(name), bits);
        }
        let work = directory.path().join("work");
        fs::create_dir(&work).unwrap();
        user.own(&work);
        let server = user.server(directory.path()).start();
        let mut client = server.client();
        let script = format!(
            "cd {} && : > free && ! touch .git/hook && ! echo x > .agents && cat .agents",
            sticky.display()
        );
        let mut sandbox = ordinary_workspace();
        sandbox["writable_roots"] = json!([uri(&sticky)]);
        let start = shell("p", &script).with("cwd", uri(&work));
        let end = client.run(&start.with("sandbox", sandbox.clone()));
        assert_eq!(end.exit_code, Some(0), "{user:?}: {}", end.text());
        for name in [".git/hook", ".agents"] {
            let path = uri(&sticky.join(name));
            let params = json!({"path": path, "dataBase64": encoded("x"), "sandbox": sandbox});
            let refusal = refused(&mut client, "fs/writeFile", params);
            assert_eq!(refusal.kind.as_deref(), Some("sandboxDenied"), "{user:?}: {refusal:?}");
        }
        assert_eq!(fs::read_dir(&git).unwrap().count(), 0, "{user:?}");
        assert_eq!(fs::read_to_string(sticky.join(".agents")).unwrap(), "theirs");
    }
}

#[test]
fn protected_names_above_the_working_directory_and_writable_roots_are_protected() {
    if let Some(why) = no_sandbox() {
        return skipped(why);
    }
    for user in USERS.into_iter().filter(|user| user.obstacle().is_none()) {
        let programs = directory_outside_of_tmp();
        let elsewhere = programs.path().join("work");
        let repository = tempfile::tempdir_in("/tmp").unwrap();
        let root = repository.path();
        fs::set_permissions(root, fs::Permissions::from_mode(0o755)).unwrap();
        let below = root.join("a/b");
        for directory in [&root.join(".git/hooks"), &below, &elsewhere] {
            fs::create_dir_all(directory).unwrap();
        }
        user.own(root);
        user.own(&elsewhere);
        let server = user.server(programs.path()).start();
        let mut client = server.client();
        let script = format!(
            "cd {} && : > ../../free && ! touch ../../.git/hooks/x && ! mv ../../.git ../../g \
            && ! touch ../.git/config && ! touch ../../.codex/x && ! mv ../../a ../../c",
            below.display()
        );
        for (id, cwd, roots) in [("cwd", &below, vec![]), ("root", &elsewhere, vec![uri(&below)])] {
            let sandbox =
                json!({"type": "workspace-write", "cwd": uri(cwd), "writable_roots": roots});
            let start = shell(id, &script).with("cwd", uri(cwd));
            let end = client.run(&start.with("sandbox", sandbox.clone()));
            assert_eq!(end.exit_code, Some(0), "{user:?} {id}: {}", end.text());
            for name in [".git/hooks/x", "a/.git", ".codex"] {
                let path = uri(&root.join(name));
                let params = json!({"path": path, "dataBase64": encoded("x"), "sandbox": sandbox});
                let refusal = refused(&mut client, "fs/writeFile", params);
                let kind = refusal.kind.as_deref();
                assert_eq!(kind, Some("sandboxDenied"), "{id} {name}: {refusal:?}");
            }
        }
        assert_eq!(fs::read_dir(root.join(".git/hooks")).unwrap().count(), 0);
        eventually("placeholders are removed", || {
            !root.join(".codex").exists() && !root.join("a/.git").exists()
        });
    }
}

#[test]
fn without_workspace_roots_no_project_is_granted() {
    if let Some(why) = no_sandbox() {
        return skipped(why);
    }
    let directory = directory_outside_of_tmp();
    let file = directory.path().join("file");
    fs::write(&file, "secret").unwrap();
    let server = User::Myself.server(directory.path()).start();
    let mut client = server.client();
    let special = |kind: &str| json!({"type": "special", "value": {"kind": kind}});
    for roots in [None, Some(json!([])), Some(json!([uri(directory.path())]))] {
        for kind in ["project_roots", "current_working_directory"] {
            let mut sandbox = json!({
                "permissions": {
                    "type": "managed",
                    "file_system": {"type": "restricted", "entries": [
                        {"path": special("minimal"), "access": "read"},
                        {"path": special(kind), "access": "write"},
                    ]},
                    "network": "restricted",
                },
                "cwd": uri(directory.path()),
            });
            let is_granted = roots.as_ref().is_some_and(|roots| roots != &json!([]));
            if let Some(roots) = &roots {
                sandbox["workspaceRoots"] = roots.clone();
            }
            let read = json!({"path": uri(&file), "sandbox": sandbox});
            assert_eq!(client.try_call("fs/readFile", read).is_ok(), is_granted, "{sandbox}");
            let start = shell(kind, "cat file").with("cwd", uri(directory.path()));
            let start = start.with("sandbox", sandbox.clone());
            match client.try_call("process/start", start.params()) {
                Ok(_) => assert!(is_granted && client.finish_process(kind).exit_code == Some(0)),
                Err(failure) => {
                    assert!(!is_granted, "{failure:?}");
                    assert_eq!(failure.kind.as_deref(), Some("sandboxDenied"), "{failure:?}");
                }
            }
        }
    }
}
