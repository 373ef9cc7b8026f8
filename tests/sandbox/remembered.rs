//! The write history of earlier sandboxes: all servers of a user share it, no sandbox can change
//! it, and no sandbox can write where its access cannot be recorded.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::Path;

use exec_server_test_support::skipped;
use serde_json::json;

use super::planted_links::{Home, NO_PLACE, attack, works_in};
use super::{User, ordinary_workspace, refused, uri};
use crate::cli_sandbox::no_sandbox;
use crate::support::machine::is_root;
use crate::support::{HISTORY_VARIABLE, Server, ServerBuilder, command, run_command, shell};

/// Returns the reason if a server cannot have private mounts.
fn no_own_mounts() -> Option<&'static str> {
    let mut unshare = command("unshare");
    unshare.args(["--mount", "true"]);
    let works = is_root() && run_command(unshare).code == Some(0);
    (!works).then_some("only root can mount, and not in every container")
}

/// Returns a server that chooses its state directories itself. In its mount namespace all of them
/// are in `home`: root's home directory and `/tmp` are mounted from there. The shell command
/// `mounts` may add mounts on `$STATE`.
fn by_itself(home: &Home, mounts: &str) -> ServerBuilder {
    let path = |name: &str| home.path(name).to_str().unwrap().to_owned();
    let script = format!(
        "STATE={}; mount --bind {} /tmp && mount --bind {} ~root && mount -t tmpfs none /run \
        && {mounts} && exec \"$@\"",
        path("state"),
        path("tmp"),
        path("root"),
    );
    let program = home.program_directory();
    let wrapper = ["unshare", "--mount", "sh", "-c", &script, "sh"];
    let builder = home.user.server_through(&program, &wrapper).copied_to(&program);
    let builder = builder.variable(HISTORY_VARIABLE, "");
    builder.variable("XDG_STATE_HOME", &path("state")).variable("HOME", &path("home"))
}

#[test]
fn servers_with_other_variables_share_the_history() {
    if let Some(why) = no_sandbox().or(no_own_mounts().map(str::to_owned)) {
        return skipped(why);
    }
    for user in Home::users() {
        let home = Home::new(user);
        if !home.needs_memory() {
            return skipped(NO_PLACE);
        }
        let server = by_itself(&home, "true").start();
        home.run(&mut server.client(), "home/proj", "rmdir sub && ln -s ../.ssh sub");
        // The user nobody has no home directory.
        let shared = match user {
            User::Myself => "root/.local/state/exec-server",
            User::Nobody => "tmp/exec-server-65534",
        };
        for place in ["state/exec-server", "home/.local/state/exec-server", shared] {
            let remembered = fs::read_to_string(home.path(place).join("sandbox-roots")).unwrap();
            assert!(remembered.contains("/home/proj\n"), "{user:?} {place}: {remembered}");
        }
        let elsewhere = home.path("data").to_str().unwrap().to_owned();
        let other = by_itself(&home, "true").variable("XDG_STATE_HOME", &elsewhere);
        let other = other.variable("HOME", &elsewhere).start();
        attack(&home, &mut other.client(), &home.path("home/proj/sub"));
    }
}

#[test]
fn a_sandbox_cannot_change_the_history() {
    if let Some(why) = no_sandbox().or(no_own_mounts().map(str::to_owned)) {
        return skipped(why);
    }
    for user in Home::users() {
        let home = Home::new(user);
        let state = home.path("home/.state").to_str().unwrap().to_owned();
        let server = by_itself(&home, "true").variable("XDG_STATE_HOME", &state).start();
        for place in [".state/exec-server", ".local/state/exec-server"] {
            let above = Path::new(place).parent().unwrap().display();
            let attempts = [
                format!(": > {place}/sandbox-roots"),
                format!("rm {place}/sandbox-roots"),
                format!("mv {place} {above}/other"),
                format!("mv {above} other"),
                format!("ln -s /dev/null {place}/another"),
            ];
            let script = attempts.map(|attempt| format!("! ({attempt}) 2>&1")).join(" && ");
            home.run(&mut server.client(), "home", &script);
            if home.needs_memory() {
                let file = home.path("home").join(place).join("sandbox-roots");
                let remembered = fs::read_to_string(&file).unwrap();
                assert!(remembered.contains(home.path("home").to_str().unwrap()), "{remembered}");
            }
        }
    }
}

#[test]
fn with_a_damaged_history_no_link_is_trusted_and_the_damage_is_reported() {
    if let Some(why) = no_sandbox() {
        return skipped(why);
    }
    let home = Home::new(User::Myself);
    let code = home.path("home/code");
    symlink("../data/code", &code).unwrap();
    let server = home.server().start();
    home.run(&mut server.client(), "home/proj", "true");
    drop(server);
    fs::create_dir_all(home.history()).unwrap();
    fs::write(home.history().join("sandbox-roots"), "nonsense\n").unwrap();
    let mut server = home.server().capture_stderr().start();
    assert!(!works_in(&home, &server, &code));
    // Sandboxes that do not depend on the history still work.
    home.run(&mut server.client(), "home/proj", "true");
    server.signal(rustix::process::Signal::TERM);
    let said = server.stderr();
    assert!(said.contains("sandbox-roots is damaged in line 1"), "{said}");
}

/// Expects that the start of a process that may write in an unrecorded directory is refused.
#[track_caller]
fn refused_by(home: &Home, server: &Server) -> String {
    let start = shell("p", "true").with("cwd", uri(&home.path("home/elsewhere")));
    let mut client = server.client();
    let params = start.with("sandbox", ordinary_workspace()).params();
    let refusal = refused(&mut client, "process/start", params);
    assert_eq!(refusal.kind.as_deref(), Some("sandboxUnavailable"), "{refusal:?}");
    // A read-only sandbox needs no history.
    let start = shell("r", "true").with("cwd", uri(&home.path("home/elsewhere")));
    let end = client.run(&start.with("sandbox", json!({"type": "read-only"})));
    assert_eq!(end.exit_code, Some(0), "{}", end.text());
    refusal.message
}

#[test]
fn without_a_place_for_the_history_writable_sandboxes_are_refused() {
    if let Some(why) = no_sandbox() {
        return skipped(why);
    }
    for user in Home::users() {
        let home = Home::new(user);
        if !home.needs_memory() {
            return skipped(NO_PLACE);
        }
        let server = home.server().variable(HISTORY_VARIABLE, "/proc/nonexistent").start();
        let message = refused_by(&home, &server);
        assert!(message.contains("/proc/nonexistent"), "{message}");
        assert!(message.contains("XDG_STATE_HOME"), "{message}");
    }
}

#[test]
fn a_sandbox_that_one_history_file_cannot_record_is_refused() {
    if let Some(why) = no_sandbox().or(no_own_mounts().map(str::to_owned)) {
        return skipped(why);
    }
    for user in Home::users() {
        let home = Home::new(user);
        if !home.needs_memory() {
            return skipped(NO_PLACE);
        }
        let server = by_itself(&home, "true").start();
        home.run(&mut server.client(), "home/proj", "true");
        drop(server);
        let read_only = "mount --bind $STATE $STATE && mount -o remount,bind,ro $STATE";
        let owner = fs::metadata(home.path("state")).unwrap().uid();
        let full = &*format!("mount -t tmpfs -o nr_inodes=1,uid={owner} none $STATE");
        for (mounts, why) in [(read_only, "Read-only file system"), (full, "No space left")] {
            let message = refused_by(&home, &by_itself(&home, mounts).start());
            assert!(message.contains("state/exec-server/sandbox-roots"), "{message}");
            assert!(message.contains(why), "{user:?}: {message}");
        }
        // A state directory that has no history file, and in which none can be created, is skipped.
        let empty = "mount -t tmpfs -o ro none $STATE";
        for mounts in ["true", empty] {
            let server = by_itself(&home, mounts).start();
            home.run(&mut server.client(), "home/elsewhere", "true");
        }
    }
}
