//! What a policy takes away, seen by processes and by requests about files: both must see the same.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::Path;

use serde_json::json;

use super::{
    User, directory_outside_of_tmp, entry_path, ordinary_workspace, profile, refused, uri,
};
use crate::cli_sandbox::no_sandbox;
use crate::support::machine::is_root;
use crate::support::{encoded, shell};

const USERS: [User; 2] = [User::Myself, User::Nobody];

#[test]
fn a_denied_pattern_holds_for_a_symlink_that_matches() {
    if let Some(why) = no_sandbox() {
        return println!("SKIPPED: {why}");
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

#[test]
fn what_another_user_has_under_a_protected_name_stays_as_it_is() {
    if let Some(why) = no_sandbox() {
        return println!("SKIPPED: {why}");
    }
    if !is_root() {
        return println!("SKIPPED: only root can be two users");
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
