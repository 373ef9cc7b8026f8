//! Other users can create files in `/tmp` and hold locks on files that they can open. That must not
//! block any sandbox.

use exec_server_test_support::skipped;

use super::{NOBODY, User, directory_outside_of_tmp, ordinary_workspace, uri};
use crate::support::machine::is_root;
use crate::support::shell;

/// Runs the given command with a private `/tmp`, in which another user and a killed keeper of this
/// user have left files. The command inherits the locks on `.git` and `.agents`.
const PLANT: &str = r#"
mount -t tmpfs -o mode=1777 planted /tmp || exit 99
ln -s /etc "/tmp/exec-server-$OWNER" && chown -h daemon: "/tmp/exec-server-$OWNER"
ln -s /etc /tmp/.codex && chown -h daemon: /tmp/.codex
mkdir -m 1555 /tmp/.git && chown daemon: /tmp/.git
mkdir -m 1555 /tmp/.agents && chown "$OWNER" /tmp/.agents
exec 8< /tmp/.git 9< /tmp/.agents && flock -x 8 && flock -x 9
exec "$@"
"#;

#[test]
fn names_and_locks_in_tmp_do_not_block_a_sandbox() {
    if !is_root() {
        return skipped("only root can run as two users");
    }
    for user in [User::Myself, User::Nobody] {
        let directory = directory_outside_of_tmp();
        let workspace = directory.path().join("workspace");
        std::fs::create_dir(&workspace).unwrap();
        user.own(&workspace);
        let owner = if user.is_root() { 0 } else { NOBODY };
        let plant = PLANT.replace("$OWNER", &owner.to_string());
        let builder =
            user.server_through(directory.path(), &["unshare", "-m", "sh", "-c", &plant, "sh"]);
        // The target directory may be below `/tmp`, which the private one hides.
        let server = builder.copied_to(directory.path()).start();
        assert_ne!(server.url(), "", "no private /tmp");
        let mut client = server.client();
        let script = "ls -A /tmp; : > made && ! mkdir .git/hooks && ! touch /tmp/.agents/x";
        let start = shell("p", script).with("cwd", uri(&workspace));
        let end = client.run(&start.with("sandbox", ordinary_workspace()));
        assert_eq!(end.exit_code, Some(0), "{user:?}: {}", end.text());
        // The locked placeholder has become permanent, and the other user's files are unchanged.
        let look = "cat /tmp/.agents/README && stat -c %u:%a /tmp/.git && readlink /tmp/.codex";
        let end = client.run(&shell("look", look));
        assert!(
            end.text().ends_with("removed by hand.\n1:1555\n/etc\n"),
            "{user:?}: {}",
            end.text()
        );
    }
}
