//! A sandboxed process leaves a symlink behind, and a later request names it. No form of request,
//! on any server, is granted access through the link.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use exec_server_test_support::skipped;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{User, entry_path, ordinary_workspace, refused, uri};
use crate::cli_sandbox::no_sandbox;
use crate::support::machine::is_root;
use crate::support::{
    Client, HISTORY_VARIABLE, PROGRAM, Server, ServerBuilder, command, encoded, run_command, shell,
};

pub(super) const NO_PLACE: &str =
    "this needs root and /srv: other places are temporary or in a workspace";

/// A home directory with a project. If possible, only the write history shows to which directories
/// a sandbox could write ([`Self::needs_memory`]).
pub(super) struct Home {
    directory: TempDir,
    pub(super) user: User,
    /// Makes unique names for program copies and process ids.
    count: Cell<u32>,
}

/// Returns a directory that is not temporary, if possible. Links in temporary directories are never
/// followed, so the history would not matter there, and the repository may be in one.
fn place_outside_of_temporary_directories() -> PathBuf {
    if is_root() && Path::new("/srv").is_dir() {
        return "/srv".into();
    }
    let target = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    match target.starts_with("/tmp") || target.starts_with("/var/tmp") {
        true => std::env::var_os("HOME").map_or(target, PathBuf::from),
        false => target,
    }
}

impl Home {
    pub(super) fn new(user: User) -> Self {
        let place = place_outside_of_temporary_directories();
        let directory = tempfile::tempdir_in(place).unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let home = Self { directory, user, count: Cell::new(0) };
        for name in ["home/.ssh", "home/proj/sub", "home/elsewhere", "data/code"] {
            fs::create_dir_all(home.path(name)).unwrap();
        }
        for name in ["state", "bin", "root", "tmp"] {
            fs::create_dir(home.path(name)).unwrap();
        }
        fs::set_permissions(home.path("tmp"), fs::Permissions::from_mode(0o1777)).unwrap();
        fs::write(home.path("home/.ssh/id"), "secret").unwrap();
        for name in ["home", "data", "state"] {
            user.own(&home.path(name));
        }
        home
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(super) fn server(&self) -> ServerBuilder {
        let builder = self.user.server(&self.program_directory());
        builder.variable(HISTORY_VARIABLE, self.history().to_str().unwrap())
    }

    pub(super) fn program_directory(&self) -> PathBuf {
        let directory = self.path("bin").join(self.fresh());
        fs::create_dir(&directory).unwrap();
        directory
    }

    /// Returns the directory of the write history.
    pub(super) fn history(&self) -> PathBuf {
        self.path("state/exec-server")
    }

    fn fresh(&self) -> String {
        self.count.set(self.count.get() + 1);
        self.count.get().to_string()
    }

    /// Runs a script in a sandbox that may write in its working directory, and expects success.
    #[track_caller]
    pub(super) fn run(&self, client: &mut Client, cwd: &str, script: &str) {
        let start = shell(&self.fresh(), script).with("cwd", uri(&self.path(cwd)));
        let end = client.run(&start.with("sandbox", ordinary_workspace()));
        assert_eq!(end.exit_code, Some(0), "{:?}: {}", self.user, end.text());
    }

    #[track_caller]
    fn assert_kept(&self) {
        let names: Vec<_> = fs::read_dir(self.path("home/.ssh")).unwrap().collect();
        assert_eq!(names.len(), 1, "{names:?}");
        assert_eq!(fs::read_to_string(self.path("home/.ssh/id")).unwrap(), "secret");
    }

    /// Whether only the history shows which directories a sandbox could write. This is certain only
    /// in `/srv`: links in temporary directories and workspaces are never followed.
    pub(super) fn needs_memory(&self) -> bool {
        self.directory.path().starts_with("/srv")
    }

    pub(super) fn users() -> Vec<User> {
        let users = [User::Myself, User::Nobody];
        users.into_iter().filter(|user| user.obstacle().is_none()).collect()
    }
}

fn minimal(entries: &[(Value, &str)], roots: &[&Path], cwd: &Path) -> Value {
    let minimal = (json!({"type": "special", "value": {"kind": "minimal"}}), "read");
    let entries: Vec<_> = std::iter::once(&minimal)
        .chain(entries)
        .map(|(path, access)| json!({"path": path, "access": access}))
        .collect();
    json!({
        "permissions": {
            "type": "managed",
            "file_system": {"type": "restricted", "entries": entries},
            "network": "restricted",
        },
        "cwd": uri(cwd),
        "workspaceRoots": roots.iter().map(|root| uri(root)).collect::<Vec<_>>(),
    })
}

fn project_roots(subpath: Option<&str>) -> Value {
    let mut value = json!({"kind": "project_roots"});
    if let Some(subpath) = subpath {
        value["subpath"] = subpath.into();
    }
    json!({"type": "special", "value": value})
}

/// Returns every way in which a request can name the link, as a working directory and a sandbox.
fn ways(home: &Home, link: &Path) -> Vec<(PathBuf, Value)> {
    let elsewhere = home.path("home/elsewhere");
    let project = link.parent().unwrap();
    let glob = json!({"type": "glob_pattern", "pattern": format!("{}/*", link.display())});
    let sandboxes = [
        json!({"type": "workspace-write", "cwd": uri(link)}),
        json!({"type": "workspace-write", "writable_roots": [uri(link)]}),
        json!({"type": "workspace-write", "writable_roots": [uri(&link.join("new"))]}),
        minimal(&[(entry_path(link), "write")], &[], &elsewhere),
        minimal(&[(entry_path(link), "read")], &[], &elsewhere),
        minimal(&[(entry_path(&link.join("id")), "read")], &[], &elsewhere),
        minimal(&[(project_roots(None), "write")], &[link], &elsewhere),
        minimal(&[(project_roots(None), "read")], &[link], link),
        minimal(&[(project_roots(Some("sub")), "read")], &[project], &elsewhere),
        minimal(&[(glob, "read")], &[], &elsewhere),
    ];
    let elsewhere = sandboxes.into_iter().map(|sandbox| (elsewhere.clone(), sandbox));
    std::iter::once((link.to_owned(), ordinary_workspace())).chain(elsewhere).collect()
}

/// Expects that no way to name the link gives access to its target.
pub(super) fn attack(home: &Home, client: &mut Client, link: &Path) {
    for (index, (cwd, sandbox)) in ways(home, link).into_iter().enumerate() {
        let script = format!("cat {0}/id; echo planted > {0}/id", link.display());
        let start = shell("attack", &script).with("cwd", uri(&cwd));
        let refusal =
            refused(client, "process/start", start.with("sandbox", sandbox.clone()).params());
        let context = format!("{:?} {index}: {refusal:?}", home.user);
        assert_eq!(refusal.kind.as_deref(), Some("badSandbox"), "{context}");
        assert!(refusal.message.contains(link.to_str().unwrap()), "{context}");
        assert!(refusal.message.contains(".ssh"), "{context}");
        if index == 0 {
            continue;
        }
        let file = uri(&link.join("id"));
        let write = json!({"path": file, "dataBase64": encoded("planted"), "sandbox": sandbox});
        let read = json!({"path": file, "sandbox": sandbox});
        for (method, params) in [("fs/writeFile", write), ("fs/readFile", read)] {
            let refusal = refused(client, method, params);
            assert_eq!(refusal.kind.as_deref(), Some("badSandbox"), "{context}: {refusal:?}");
        }
    }
    home.assert_kept();
}

#[test]
fn no_later_request_is_granted_the_target_of_a_planted_link() {
    if let Some(why) = no_sandbox() {
        return skipped(why);
    }
    for user in Home::users() {
        let home = Home::new(user);
        let link = home.path("home/proj/sub");
        let server = home.server().start();
        let mut client = server.client();
        home.run(&mut client, "home/proj", "rmdir sub && ln -s ../.ssh sub");
        attack(&home, &mut client, &link);
        drop((client, server));

        // A later server refuses the link as well, also in `TMPDIR`.
        let next = home.server().start();
        attack(&home, &mut next.client(), &link);
        let tmpdir = home.server().variable("TMPDIR", link.to_str().unwrap()).start();
        let start = shell("p", "true").with("cwd", uri(&home.path("home/elsewhere")));
        let start = start.with("sandbox", ordinary_workspace());
        let refusal = refused(&mut tmpdir.client(), "process/start", start.params());
        assert!(refusal.message.contains("proj/sub"), "{refusal:?}");
    }
}

#[test]
fn a_command_does_not_start_in_a_planted_link() {
    if let Some(why) = no_sandbox() {
        return skipped(why);
    }
    let home = Home::new(User::Myself);
    let run_in = |directory: &str, arguments: &[&str]| {
        let mut run = command(PROGRAM);
        run.arg("run").args(arguments).current_dir(home.path(directory));
        run.env("PWD", home.path(directory)).env(HISTORY_VARIABLE, home.history());
        run_command(run)
    };
    let run = |arguments: &[&str]| run_in("home/proj", arguments);
    let sandbox = ["--sandbox", "workspace-write"];
    let plant = ["--", "sh", "-c", "rmdir sub && ln -s ../.ssh sub"];
    assert_eq!(run(&[&sandbox[..], &plant[..]].concat()).code, Some(0));
    let attack = ["--", "sh", "-c", "echo planted > id"];
    for (directory, more) in [
        ("home/proj", &["--cwd", "sub"][..]),
        ("home/proj", &["--cwd", "sub", "--deny", "*.pem"]),
        ("home/proj/sub", &[]),
    ] {
        let outcome = run_in(directory, &[&sandbox[..], more, &attack[..]].concat());
        assert_ne!(outcome.code, Some(0), "{outcome:?}");
        assert!(outcome.stderr.contains("/proj/sub"), "{}", outcome.stderr);
        assert!(outcome.stderr.contains("sandbox.trusted_links"), "{}", outcome.stderr);
    }
    home.assert_kept();
}

#[test]
fn protected_names_do_not_become_implicit_roots() {
    if let Some(why) = no_sandbox() {
        return skipped(why);
    }
    for user in Home::users() {
        let home = Home::new(user);
        let hooks = home.path("home/proj/.git/hooks");
        fs::create_dir_all(&hooks).unwrap();
        user.own(&home.path("home/proj/.git"));
        let server = home.server().start();
        let mut client = server.client();
        home.run(&mut client, "home/proj", "ln -s .git/hooks planted");
        for cwd in [home.path("home/proj/planted"), hooks.clone(), hooks.parent().unwrap().into()] {
            let start = shell("attack", "echo x > pre-commit").with("cwd", uri(&cwd));
            let start = start.with("sandbox", ordinary_workspace());
            let refusal = refused(&mut client, "process/start", start.params());
            assert!(refusal.message.contains("proj/.git"), "{refusal:?}");
            let sandbox = json!({"type": "workspace-write", "cwd": uri(&cwd)});
            let file = uri(&cwd.join("pre-commit"));
            let write = json!({"path": file, "dataBase64": encoded("x"), "sandbox": sandbox});
            refused(&mut client, "fs/writeFile", write);
        }
        home.run(&mut client, "home/proj", "ln -s .git build");
        let sandbox = json!({"type": "workspace-write",
            "writable_roots": [uri(&home.path("home/proj/build"))]});
        let start = shell("link", "echo x > .git/hooks/pre-commit");
        let start = start.with("cwd", uri(&home.path("home/proj"))).with("sandbox", sandbox);
        refused(&mut client, "process/start", start.params());
        assert_eq!(fs::read_dir(&hooks).unwrap().count(), 0);
        // An explicit writable root grants the write.
        let start = shell("meant", "echo x > pre-commit").with("cwd", uri(&hooks));
        let sandbox = json!({"type": "workspace-write", "cwd": uri(&home.path("home/elsewhere")),
            "writable_roots": [uri(&hooks)]});
        assert_eq!(client.run(&start.with("sandbox", sandbox)).exit_code, Some(0));
    }
}

/// Whether a process can start and write in a directory. Checks that a refusal names a path in the
/// home.
pub(super) fn works_in(home: &Home, server: &Server, cwd: &Path) -> bool {
    let start = shell("p", ": > made").with("cwd", uri(cwd));
    let start = start.with("sandbox", ordinary_workspace());
    let mut client = server.client();
    match client.try_call("process/start", start.params()) {
        Err(failure) => {
            assert_eq!(failure.kind.as_deref(), Some("badSandbox"), "{failure:?}");
            assert!(failure.message.contains(home.directory.path().to_str().unwrap()));
            false
        }
        Ok(_) => client.finish_process("p").exit_code == Some(0),
    }
}

#[test]
fn a_link_of_the_user_is_followed_until_a_sandbox_could_have_created_it() {
    if let Some(why) = no_sandbox() {
        return skipped(why);
    }
    for user in Home::users() {
        let home = Home::new(user);
        if !home.needs_memory() {
            return skipped(NO_PLACE);
        }
        let code = home.path("home/code");
        symlink("../data/code", &code).unwrap();
        // The settings of a tool do not make the home directory a workspace.
        fs::create_dir(home.path("home/.codex")).unwrap();
        user.own(&home.path("home"));
        let home_variable = home.path("home").to_str().unwrap().to_owned();
        let start = || home.server().variable("HOME", &home_variable).start();
        let server = start();
        home.run(&mut server.client(), "home/proj", "true");
        assert!(works_in(&home, &server, &code), "{user:?}");
        assert!(home.path("data/code/made").exists());

        home.run(&mut server.client(), "home", "true");
        assert!(!works_in(&home, &server, &code), "{user:?}");
        assert!(!works_in(&home, &start(), &code), "{user:?}");
        let link = code.to_str().unwrap();
        let trusting = home.server().arguments(&["--sandbox-trusted-link", link]).start();
        assert!(works_in(&home, &trusting, &code), "{user:?}");
    }
}
