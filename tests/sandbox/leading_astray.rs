//! Commands read the location of the user's server from a discovery file. No sandbox of any server
//! may write it, whether or not that server is discoverable: a process could redirect the user's
//! next commands to itself.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use exec_server::protocol::{PathUri, SandboxMode, SandboxRequest, StartParams};
use exec_server::{Environment, ExecBackend as _, ExecServerRuntimePaths};
use exec_server_test_support::skipped;
use serde_json::json;
use tempfile::TempDir;

use super::{directory_outside_of_tmp, ordinary_workspace, uri};
use crate::cli_sandbox::no_sandbox;
use crate::support::{
    Client, PROGRAM, Running, ServerBuilder, command, eventually, run_command, shell,
};

/// Writes next to the directory of the discovery file, which the sandbox allows, and then to the
/// file.
const ATTEMPT: &str =
    "cd \"$RUNTIME\" && : > free && mkdir -p exec-server && : > exec-server/server.json";

/// A runtime directory in `/tmp`, which every sandbox with a writable workspace may write.
struct Place {
    runtime: TempDir,
    workspace: TempDir,
}

impl Place {
    fn new() -> Self {
        let workspace = directory_outside_of_tmp();
        Self { runtime: tempfile::tempdir_in("/tmp").unwrap(), workspace }
    }

    fn runtime(&self) -> &str {
        self.runtime.path().to_str().unwrap()
    }

    fn server(&self, arguments: &[&str]) -> ServerBuilder {
        ServerBuilder::new().arguments(arguments).variable("XDG_RUNTIME_DIR", self.runtime())
    }

    #[track_caller]
    fn expect_kept(&self, exit_code: Option<i64>) {
        let directory = self.runtime.path().join("exec-server");
        assert!(self.runtime.path().join("free").exists(), "the attempt did not run");
        assert_ne!(exit_code, Some(0));
        assert!(!directory.join("server.json").exists());
        assert_eq!(fs::metadata(directory).unwrap().permissions().mode() & 0o7777, 0o700);
    }

    #[track_caller]
    fn attack(&self, client: &mut Client) {
        client.initialize(&json!({})).unwrap();
        let start = shell("attacker", ATTEMPT).variable("RUNTIME", self.runtime());
        let start = start.with("cwd", uri(self.workspace.path()));
        let end = client.run(&start.with("sandbox", ordinary_workspace()));
        self.expect_kept(end.exit_code);
    }

    /// Returns a command that runs an ignored test of this program with this runtime directory.
    fn itself(&self, test: &str) -> Command {
        let mut command = command(std::env::current_exe().unwrap().to_str().unwrap());
        let name = format!("{}::{test}", module_path!().split_once("::").unwrap().1);
        command.args(["--exact", &name, "--ignored", "--nocapture", "--test-threads=1"]);
        command.env("XDG_RUNTIME_DIR", self.runtime()).current_dir(self.workspace.path());
        command
    }
}

#[test]
fn a_sandbox_of_a_command_with_its_own_server_cannot_write_the_discovery_file() {
    if let Some(why) = no_sandbox() {
        return skipped(why);
    }
    let place = Place::new();
    let mut run = command(PROGRAM);
    run.args(["run", "--sandbox", "workspace-write", "--", "sh", "-c", ATTEMPT]);
    run.current_dir(place.workspace.path());
    run.env("XDG_RUNTIME_DIR", place.runtime()).env("RUNTIME", place.runtime());
    place.expect_kept(run_command(run).code.map(i64::from));
}

#[test]
fn a_sandbox_of_a_stdio_server_cannot_write_the_discovery_file() {
    if let Some(why) = no_sandbox() {
        return skipped(why);
    }
    let place = Place::new();
    let (_server, mut client) = place.server(&[]).start_stdio();
    place.attack(&mut client);
}

#[test]
fn a_sandbox_of_an_undiscoverable_server_cannot_write_the_discovery_file() {
    if let Some(why) = no_sandbox() {
        return skipped(why);
    }
    let place = Place::new();
    let server = place.server(&["--discoverable", "false"]).start();
    place.attack(&mut server.connect());
}

#[test]
fn a_sandbox_of_a_second_server_cannot_write_the_discovery_file() {
    if let Some(why) = no_sandbox() {
        return skipped(why);
    }
    let place = Place::new();
    let first = place.server(&[]).start();
    let (_second, mut client) = place.server(&[]).start_stdio();
    client.initialize(&json!({})).unwrap();
    let script = "echo '{}' > \"$RUNTIME/exec-server/server.json\"";
    let start = shell("attacker", script).variable("RUNTIME", place.runtime());
    let end = client.run(&start.with("sandbox", ordinary_workspace()));
    assert_ne!(end.exit_code, Some(0));
    let file = fs::read_to_string(place.runtime.path().join("exec-server/server.json")).unwrap();
    assert!(file.contains(first.url()), "{file}");
}

/// The server accepts no requests, so the test can only check the directory.
#[test]
fn a_server_without_a_listener_protects_the_discovery_directory() {
    let place = Place::new();
    let _server = place.server(&["--listen", "off"]).start_silent();
    let directory = place.runtime.path().join("exec-server");
    eventually("the directory is created", || directory.is_dir());
    assert_eq!(fs::metadata(directory).unwrap().permissions().mode() & 0o7777, 0o700);
}

#[test]
fn a_sandbox_of_an_embedded_server_cannot_write_the_discovery_file() {
    if let Some(why) = no_sandbox() {
        return skipped(why);
    }
    let place = Place::new();
    let mut embedder = Running::start(place.itself("embedder"));
    let url = loop {
        let line = embedder.line();
        assert_ne!(line, "", "the embedder has exited");
        // The test harness may have written the beginning of the line.
        if let Some(start) = line.find("ws://") {
            break line[start..].trim().to_owned();
        }
    };
    let mut client = Client::over(crate::support::wire::Wire::connect(&url).unwrap());
    place.attack(&mut client);
}

#[test]
fn a_sandbox_of_a_library_environment_cannot_write_the_discovery_file() {
    if let Some(why) = no_sandbox() {
        return skipped(why);
    }
    let place = Place::new();
    let (status, out, error) = Running::start(place.itself("library")).finish();
    assert!(status.success(), "{out}{error}");
    place.expect_kept(Some(1));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by a_sandbox_of_an_embedded_server_cannot_write_the_discovery_file"]
async fn embedder() {
    let paths = ExecServerRuntimePaths::with_spawner(PROGRAM);
    exec_server::run_main("ws://127.0.0.1:0", paths).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by a_sandbox_of_a_library_environment_cannot_write_the_discovery_file"]
async fn library() {
    let environment = Environment::local(ExecServerRuntimePaths::with_spawner(PROGRAM));
    let cwd = PathUri::from_path(std::env::current_dir().unwrap()).unwrap();
    let runtime = std::env::var("XDG_RUNTIME_DIR").unwrap();
    let mut params = StartParams::new("attacker", ["/bin/sh", "-c", ATTEMPT], cwd);
    params.env.insert("RUNTIME".to_owned(), runtime);
    let mode = SandboxMode::WorkspaceWrite {
        writable_roots: Vec::new(),
        network_access: false,
        exclude_tmpdir_env_var: false,
        exclude_slash_tmp: false,
        cwd: None,
    };
    params.sandbox = Some(SandboxRequest::mode(&mode));
    let end = environment.start(params).await.unwrap().output().await.unwrap();
    assert_ne!(end.exit.exit_code, 0);
}

/// Commands ignore the discovery file of a killed server, even if a sandbox that can read it holds
/// a lock on it.
#[test]
fn a_lock_on_a_stale_discovery_file_has_no_effect() {
    if let Some(why) = no_sandbox() {
        return skipped(why);
    }
    for lock in ["fcntl.flock(f, fcntl.LOCK_EX)", "fcntl.lockf(f, fcntl.LOCK_SH)"] {
        let place = Place::new();
        let mut killed = place.server(&[]).start();
        killed.signal(rustix::process::Signal::KILL);
        killed.wait();
        let file = place.runtime.path().join("exec-server/server.json");
        assert!(file.exists());
        let mut attacker = Running::start(holding(&place, &file, lock));
        assert_eq!(attacker.line(), "held\n", "{lock}");
        let ask = || {
            let mut run = command(PROGRAM);
            run.args(["run", "--", "echo", "the user"]);
            run_command({
                run.env("XDG_RUNTIME_DIR", place.runtime());
                run
            })
        };
        let alone = ask();
        assert_eq!(
            (alone.code, alone.stdout.as_str()),
            (Some(0), "the user\n"),
            "{}",
            alone.stderr
        );
        let next = place.server(&[]).start();
        let published = fs::read_to_string(&file).unwrap();
        assert!(published.contains(next.url()), "{lock}: {published}");
        assert_eq!(servers_found(&place), 1, "{lock}");
        drop(next);
        attacker.say("\n");
    }
}

/// Counts the servers found: `exec-server ps` works only with a discovered server.
fn servers_found(place: &Place) -> usize {
    let mut ps = command(PROGRAM);
    ps.args(["ps", "--json"]).env("XDG_RUNTIME_DIR", place.runtime());
    usize::from(run_command(ps).code == Some(0))
}

fn holding(place: &Place, file: &Path, lock: &str) -> Command {
    let script = format!(
        "import fcntl,sys\nf = open(sys.argv[1])\n{lock}\nprint('held', flush=True)\nsys.stdin.readline()"
    );
    let mut run = command(PROGRAM);
    run.args(["run", "--sandbox", "read-only", "--", "python3", "-c", &script]).arg(file);
    // This command uses its own server, which does not touch the file.
    run.current_dir(place.workspace.path()).env("XDG_RUNTIME_DIR", place.workspace.path());
    run
}
