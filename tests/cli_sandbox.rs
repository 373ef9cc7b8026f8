//! Sandboxes on the command line: flags, defaults of environments, the ceiling of a server, and
//! `doctor`.

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;

use exec_server::protocol::{PathUri, SandboxMode, SandboxRequest, StartParams};
use exec_server::{EnvironmentManager, ExecBackend as _, ExecServerRuntimePaths};
use exec_server_test_support::skipped;
use serde_json::Value;

use crate::support::{PROGRAM, Running, Server, command, run_command};

/// A workspace, and another directory that is not for temporary files.
struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        // A workspace-write sandbox may write to /tmp, and the repository may be below that.
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        for name in ["workspace", "other"] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        fs::write(directory.path().join("workspace/secret.pem"), "secret").unwrap();
        Self { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn exists(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    /// Returns `exec-server run` in the workspace.
    fn run(&self, options: &[&str], script: &str) -> Command {
        let mut run = command(PROGRAM);
        run.arg("run").args(options).args(["--", "sh", "-c", script]);
        run.current_dir(self.path("workspace"));
        run
    }

    #[track_caller]
    fn code(&self, options: &[&str], script: &str) -> Option<i32> {
        let outcome = run_command(self.run(options, script));
        assert_ne!(outcome.code, Some(125), "{}", outcome.stderr);
        outcome.code
    }
}

pub(crate) fn doctor(without: &str) -> (Option<i32>, Value) {
    let mut doctor = command(PROGRAM);
    doctor.args(["doctor", "--json"]).env("EXEC_SERVER_SANDBOX_WITHOUT", without);
    let outcome = run_command(doctor);
    (outcome.code, serde_json::from_str(&outcome.stdout).unwrap())
}

/// Returns the reason if this machine cannot enforce every sandbox; `tests/sandbox` checks the
/// refusals.
pub(crate) fn no_sandbox() -> Option<String> {
    no_sandbox_without("")
}

/// Like `no_sandbox`, as if the machine lacked these mechanisms.
fn no_sandbox_without(mechanisms: &str) -> Option<String> {
    let (_, report) = doctor(mechanisms);
    let tier = report["sandbox"]["tier"].as_str().unwrap();
    let works = ["full", "old-landlock", "bubblewrap"].contains(&tier);
    (!works).then(|| report["sandbox"]["summary"].to_string())
}

#[test]
fn a_read_only_sandbox_denies_writes() {
    if let Some(why) = no_sandbox() {
        return skipped(why);
    }
    let place = Place::new();
    let script = "cat secret.pem && echo a > made";
    let outcome = run_command(place.run(&["--sandbox", "read-only"], script));
    assert_eq!(outcome.stdout, "secret");
    assert_ne!(outcome.code, Some(0));
    assert!(!place.exists("workspace/made"));
    assert_eq!(place.code(&[], script), Some(0));
}

#[test]
fn a_workspace_write_sandbox_allows_writes_in_the_workspace_only() {
    if let Some(why) = no_sandbox() {
        return skipped(why);
    }
    let place = Place::new();
    let workspace_write = ["--sandbox", "workspace-write"];
    assert_eq!(place.code(&workspace_write, "echo a > made"), Some(0));
    assert_ne!(place.code(&workspace_write, "echo a > ../other/made"), Some(0));
    assert_ne!(place.code(&workspace_write, "mkdir .git && echo a > .git/config"), Some(0));
    assert!(place.exists("workspace/made") && !place.exists("other/made"));
    assert!(!place.exists("workspace/.git"), "the placeholder is removed");
    // The working directory is the workspace, however its path is written.
    let other = ["--sandbox", "workspace-write", "--cwd", "../other"];
    assert_eq!(place.code(&other, "echo a > made"), Some(0));
    assert_ne!(place.code(&other, "echo a > ../workspace/more"), Some(0));
    assert!(place.exists("other/made") && !place.exists("workspace/more"));
}

#[test]
fn writable_and_deny_extend_and_restrict_a_sandbox() {
    if let Some(why) = no_sandbox() {
        return skipped(why);
    }
    let place = Place::new();
    let also = ["--sandbox", "workspace-write", "--writable", "../other"];
    assert_eq!(place.code(&also, "echo a > ../other/made"), Some(0));

    let write = place.path("other/made");
    for denied in ["**/*.pem", "secret.pem", place.path("workspace/secret.pem").to_str().unwrap()] {
        for mode in ["read-only", "workspace-write"] {
            let outcome =
                run_command(place.run(&["--sandbox", mode, "--deny", denied], "cat secret.pem"));
            assert_ne!(outcome.code, Some(0), "{mode} {denied}");
            assert_ne!(outcome.code, Some(125), "{mode} {denied}: {}", outcome.stderr);
            assert_eq!(outcome.stdout, "", "{mode} {denied}");
        }
    }
    let both = ["--sandbox", "workspace-write", "--writable", "../other", "--deny", "*.pem"];
    let script = format!("echo a > more && echo a > {}", write.display());
    assert_eq!(place.code(&both, &script), Some(0), "the rest stays allowed");
}

/// A build may create its own directory.
#[test]
fn a_writable_directory_may_be_missing_in_the_workspace() {
    if let Some(why) = no_sandbox() {
        return skipped(why);
    }
    let place = Place::new();
    for (without, name) in [("", "build"), ("namespaces", "build/deep"), ("", "out")] {
        if let Some(why) = no_sandbox_without(without) {
            skipped(format_args!(
                "a missing writable directory, without mechanisms {without:?}: {why}"
            ));
            continue;
        }
        let script = format!("mkdir -p {name} && echo a > {name}/made");
        let flags = ["--sandbox", "workspace-write", "--writable", name];
        let mut run = place.run(&flags, &script);
        run.env("EXEC_SERVER_SANDBOX_WITHOUT", without);
        assert_eq!(run_command(run).code, Some(0), "{without} {name}");
        assert!(place.exists(&format!("workspace/{name}/made")), "{without} {name}");
        assert_ne!(place.code(&flags, &format!("mkdir {name}/.git/hooks")), Some(0), "{name}");
    }
    let missing = place.path("missing");
    for name in ["../missing", missing.to_str().unwrap(), "/missing/x"] {
        let flags = ["--sandbox", "workspace-write", "--writable", name];
        let outcome = run_command(place.run(&flags, "true"));
        assert_eq!(outcome.code, Some(125), "{name}");
        assert!(outcome.stderr.contains("missing"), "{name}: {}", outcome.stderr);
    }
}

/// A workspace-write sandbox may write to the directory for temporary files. Here it is below
/// `/tmp`, which is writable too.
#[test]
fn the_directory_for_temporary_files_may_be_missing() {
    if let Some(why) = no_sandbox() {
        return skipped(why);
    }
    let place = Place::new();
    let inside_tmp = tempfile::tempdir_in("/tmp").unwrap();
    let missing = inside_tmp.path().join("tmp");
    let mut run =
        place.run(&["--sandbox", "workspace-write"], "mkdir -p $TMPDIR && echo a > $TMPDIR/made");
    run.env("TMPDIR", &missing);
    assert_eq!(run_command(run).code, Some(0));
    assert!(missing.join("made").exists());
}

#[test]
fn the_network_is_denied_without_the_flag() {
    if let Some(why) = no_sandbox() {
        return skipped(why);
    }
    let place = Place::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let connect = format!("exec bash -c 'exec 3<> /dev/tcp/127.0.0.1/{port}'");
    for mode in ["read-only", "workspace-write"] {
        assert_ne!(place.code(&["--sandbox", mode], &connect), Some(0), "{mode}");
        assert_eq!(place.code(&["--sandbox", mode, "--network"], &connect), Some(0), "{mode}");
    }
}

#[test]
fn verbose_reports_the_denied_path() {
    if let Some(why) = no_sandbox() {
        return skipped(why);
    }
    let place = Place::new();
    let target = place.path("other/made");
    let script = format!("touch {}", target.display());
    let remark = format!(
        "exec-server: the sandbox seems to have denied {}; to allow writing, use --sandbox \
         workspace-write --writable DIR\n",
        target.display()
    );
    let quiet = run_command(place.run(&["--sandbox", "workspace-write"], &script));
    assert!(!quiet.stderr.contains("exec-server:"), "{}", quiet.stderr);
    let told = run_command(place.run(&["-v", "--sandbox", "workspace-write"], &script));
    assert!(told.stderr.ends_with(&remark), "{}", told.stderr);
    assert_eq!(quiet.code, told.code);
}

#[test]
fn verbose_reports_a_denied_socket_as_the_network() {
    if let Some(why) = no_sandbox() {
        return skipped(why);
    }
    let place = Place::new();
    let connect = "exec bash -c 'exec 3<> /dev/tcp/127.0.0.1/9'";
    let python = "exec python3 -c 'import socket; socket.socket()'";
    for script in [connect, python] {
        let told = run_command(place.run(&["-v", "--sandbox", "workspace-write"], script));
        assert!(told.stderr.contains("the network (system call socket)"), "{}", told.stderr);
        assert!(told.stderr.contains("use --sandbox MODE --network"), "{}", told.stderr);
    }
}

#[test]
fn a_detached_process_stays_in_its_sandbox() {
    if let Some(why) = no_sandbox() {
        return skipped(why);
    }
    let place = Place::new();
    let server = Server::start();
    let start = |name: &str, options: &[&str]| {
        let mut run = server.command(&["run", "--detach", "--name", name]);
        let script = "echo a > made; echo a > ../other/made";
        run.args(options).args(["sh", "-c", script]).current_dir(place.path("workspace"));
        let outcome = run_command(run);
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
        server.run(&["wait", name]).code
    };
    assert_ne!(start("confined", &["--sandbox", "workspace-write"]), Some(0));
    assert!(place.exists("workspace/made") && !place.exists("other/made"));
    assert_eq!(start("free", &[]), Some(0));
    assert!(place.exists("other/made"));
}

#[test]
fn an_environment_has_a_default_sandbox() {
    if let Some(why) = no_sandbox() {
        return skipped(why);
    }
    let place = Place::new();
    let environments = place.path("environments.toml");
    let text = format!(
        "[[environments]]\nid = \"box\"\nprogram = {PROGRAM:?}\nargs = [\"--listen\", \"stdio\", \"--log\", \"warn\"]\n\
         [environments.sandbox]\nmode = \"workspace-write\"\nwritable = [{:?}]\ndeny = [\"*.pem\"]\n",
        place.path("other")
    );
    fs::write(&environments, text).unwrap();
    let code = |options: &[&str], script: &str| {
        let cwd = place.path("workspace");
        let mut run = command(PROGRAM);
        run.args(["run", "--on", "box", "--cwd"]).arg(cwd).args(options);
        run.args(["--", "sh", "-c", script]).env("EXEC_SERVER_ENVIRONMENTS", &environments);
        let outcome = run_command(run);
        assert_ne!(outcome.code, Some(125), "{}", outcome.stderr);
        outcome.code
    };
    assert_eq!(code(&[], "echo a > made && echo a > ../other/made"), Some(0));
    assert_ne!(code(&[], "echo a > ../made"), Some(0));
    assert_ne!(code(&[], "cat secret.pem"), Some(0));
    // Flags replace the default as a whole.
    assert_eq!(code(&["--sandbox", "read-only"], "cat secret.pem"), Some(0));
    assert_ne!(code(&["--sandbox", "read-only"], "echo a > more"), Some(0));
    assert_eq!(code(&["--sandbox", "none"], "echo a > ../made"), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_library_uses_the_sandbox_of_an_environment_too() {
    if let Some(why) = no_sandbox() {
        return skipped(why);
    }
    let place = Place::new();
    let server = Server::start();
    let environments = place.path("environments.toml");
    let text = format!(
        "[[environments]]\nid = \"box\"\nurl = {:?}\nsandbox = {{ mode = \"read-only\" }}\n",
        server.url()
    );
    fs::write(&environments, text).unwrap();
    let paths = ExecServerRuntimePaths::without_helpers();
    let environments = EnvironmentManager::from_file(&environments, paths).unwrap();
    let environment = environments.get("box").unwrap();
    let cwd = PathUri::from_path(place.path("workspace")).unwrap();
    let start = |id: &str, sandbox| {
        let params = StartParams::new(id, ["/bin/sh", "-c", "echo a > made"], cwd.clone());
        environment.start(StartParams { sandbox, ..params })
    };
    let confined = start("confined", None).await.unwrap().output().await.unwrap();
    assert_ne!(confined.exit.exit_code, 0);
    assert!(!place.exists("workspace/made"));
    let nothing = SandboxRequest::mode(&SandboxMode::DangerFullAccess {});
    let free = start("free", Some(nothing)).await.unwrap().output().await.unwrap();
    assert_eq!(free.exit.exit_code, 0);
}

#[test]
fn no_command_exceeds_the_ceiling() {
    if let Some(why) = no_sandbox() {
        return skipped(why);
    }
    let place = Place::new();
    let root = place.path("workspace");
    let server = Server::with(&[
        "--sandbox-require",
        "workspace-write",
        "--sandbox-writable-root",
        root.to_str().unwrap(),
    ]);
    let code = |options: &[&str], script: &str| {
        let mut run = server.command(&["run"]);
        run.args(options).args(["--", "sh", "-c", script]).current_dir(&root);
        run_command(run).code
    };
    let other = place.path("other");
    let greedy = ["--sandbox", "workspace-write", "--writable", other.to_str().unwrap()];
    for options in [&[][..], &["--sandbox", "none"], &greedy] {
        assert_eq!(code(options, "echo a > made"), Some(0), "{options:?}");
        assert_ne!(code(options, "echo a > ../other/made"), Some(0), "{options:?}");
        assert_ne!(code(options, "mkdir .git"), Some(0), "{options:?}");
        assert!(!place.exists("other/made"));
    }
    assert_ne!(
        code(&["--sandbox", "read-only"], "echo a > made"),
        Some(0),
        "a stricter sandbox is possible"
    );
}

#[test]
fn a_server_that_cannot_enforce_its_ceiling_refuses_to_start() {
    let place = Place::new();
    let serve = |require: &str, without: &str| {
        let mut serve = command(PROGRAM);
        serve.args(["--listen", "ws://127.0.0.1:0", "--sandbox-require", require]);
        serve.env("EXEC_SERVER_SANDBOX_WITHOUT", without).current_dir(place.path("workspace"));
        run_command(serve)
    };
    for (require, without, named) in [
        ("read-only", "landlock", "Landlock"),
        ("workspace-write", "namespaces,bubblewrap", "bubblewrap"),
        ("workspace-write", "seccomp", "seccomp"),
    ] {
        let outcome = serve(require, without);
        assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(1), ""), "{}", outcome.stderr);
        let start = "exec-server: cannot enforce the sandbox that `sandbox.require` demands: ";
        assert!(outcome.stderr.starts_with(start), "{}", outcome.stderr);
        assert!(outcome.stderr.contains(named), "{without}: {}", outcome.stderr);
    }
    let confused = serve("read-only", "landlok");
    assert_eq!(confused.code, Some(1));
    assert!(confused.stderr.contains("landlok"), "{}", confused.stderr);
}

#[test]
fn invalid_ceiling_settings_are_refused_at_startup() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("config.toml");
    for (text, expected) in [
        (
            "[sandbox]\nrequire = \"workspace-write\"\nwritable_roots = [\"work\"]",
            ":3: sandbox.writable_roots: \"work\"",
        ),
        ("[sandbox]\nnetwork = false", ":2: sandbox.network has no effect without sandbox.require"),
        ("\nsandbox.require = \"full\"", ":2: sandbox.require: expected \"read-only\""),
    ] {
        fs::write(&config, text).unwrap();
        let mut serve = command(PROGRAM);
        serve.arg("--config").arg(&config);
        let outcome = run_command(serve);
        assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
        let start = format!("exec-server: {}{expected}", config.display());
        assert!(outcome.stderr.starts_with(&start), "{}", outcome.stderr);
    }
}

#[test]
fn an_unavailable_sandbox_is_an_error() {
    let place = Place::new();
    let mut run = place.run(&["--sandbox", "workspace-write"], "echo a > made");
    run.env("EXEC_SERVER_SANDBOX_WITHOUT", "namespaces,bubblewrap");
    let outcome = run_command(run);
    assert_eq!(outcome.code, Some(125));
    assert!(outcome.stderr.starts_with("exec-server: cannot start sh: "), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("bubblewrap"), "{}", outcome.stderr);
    assert!(!outcome.stderr.contains("process \""), "the id is generated: {}", outcome.stderr);
    assert!(!place.exists("workspace/made"));
}

#[test]
fn a_deny_pattern_that_matches_nothing_is_refused() {
    let place = Place::new();
    let environments = place.path("environments.toml");
    for (denied, because) in [("~/.ssh", "~ is not expanded here"), ("**.pem", "**/*.pem")] {
        let text = format!(
            "[[environments]]\nid = \"box\"\nurl = \"ws://127.0.0.1:1\"\n\
             sandbox = {{ mode = \"workspace-write\", deny = [{denied:?}] }}\n"
        );
        fs::write(&environments, text).unwrap();
        let of_file = place.run(&["--on", "box"], "echo a > made");
        let of_flag = place.run(&["--sandbox", "read-only", "--deny", denied], "echo a > made");
        for mut run in [of_file, of_flag] {
            run.env("EXEC_SERVER_ENVIRONMENTS", &environments);
            let outcome = run_command(run);
            assert_eq!(outcome.code, Some(125), "{}", outcome.stderr);
            assert!(outcome.stderr.contains(because), "{}", outcome.stderr);
        }
    }
    assert!(!place.exists("workspace/made"));
}

/// A server on stdio with the minimum of the protocol and without sandboxes. It records calls of
/// `process/terminate`.
const PLAIN_SERVER: &str = r#"
import json, sys
def say(message):
    print(json.dumps(message), flush=True)
for line in sys.stdin:
    call = json.loads(line)
    method, params, end = call["method"], call.get("params", {}), None
    if method == "initialize":
        result = {"sessionId": "s", "protocolVersion": "exec-server.v0"}
    elif method == "environment/info":
        result = {"shell": {"name": "sh", "path": "/bin/sh"}, "cwd": "file:///", "temporaryDirectories": [],
            "tempDir": "file:///tmp", "capabilities": dict.fromkeys(["networkProxyLaunch", "capabilityDiscoverySandbox",
            "environmentConfigRead", "httpHeaderEnvVars", "sandboxedFileStreaming", "shellSnapshotV2"], False)}
    elif method == "process/start":
        result, end = {"processId": params["processId"], "sandboxType": "none"}, params
    elif method == "process/terminate":
        open(sys.argv[1], "a").write("terminated\n")
        result = {"running": True}
    elif method == "process/read":
        result = {"chunks": [], "nextSeq": 3, "exited": True, "exitCode": 7, "closed": True, "failure": None, "sandboxDenied": False}
    elif "id" in call:
        say({"id": call["id"], "error": {"code": -32601, "message": "unknown"}})
        continue
    else:
        continue
    say({"id": call["id"], "result": result})
    if end and "sandbox" not in end:
        say({"method": "process/exited", "params": {"processId": end["processId"], "seq": 1, "exitCode": 7, "sandboxDenied": False}})
        say({"method": "process/closed", "params": {"processId": end["processId"], "seq": 2}})
"#;

#[test]
fn a_server_that_does_not_enforce_a_sandbox_is_detected() {
    let place = Place::new();
    let (server, log) = (place.path("server.py"), place.path("log"));
    fs::write(&server, PLAIN_SERVER).unwrap();
    let environments = place.path("environments.toml");
    let environment = |id: &str| {
        format!(
            "[[environments]]\nid = {id:?}\nprogram = \"python3\"\nargs = [{server:?}, {log:?}]\n"
        )
    };
    let text =
        environment("plain") + &environment("boxed") + "sandbox = { mode = \"read-only\" }\n";
    fs::write(&environments, text).unwrap();
    let run = |on: &str, options: &[&str]| {
        let mut run = command(PROGRAM);
        run.args(["run", "--on", on, "--cwd", "/"]).args(options).args(["--", "true"]);
        run_command({
            run.env("EXEC_SERVER_ENVIRONMENTS", &environments);
            run
        })
    };
    let unconfined = run("plain", &[]);
    assert_eq!(unconfined.code, Some(7), "{}", unconfined.stderr);
    assert!(!log.exists());
    for (times, on, options) in [(1, "plain", &["--sandbox", "read-only"][..]), (2, "boxed", &[])] {
        let outcome = run(on, options);
        assert_eq!(outcome.code, Some(125), "{}", outcome.stderr);
        assert!(outcome.stderr.contains("does not enforce sandboxes"), "{}", outcome.stderr);
        assert_eq!(fs::read_to_string(&log).unwrap(), "terminated\n".repeat(times));
    }
    assert_eq!(run("boxed", &["--sandbox", "none"]).code, Some(7));
}

#[test]
fn a_shell_can_be_sandboxed() {
    if let Some(why) = no_sandbox() {
        return skipped(why);
    }
    let place = Place::new();
    let mut shell = command(PROGRAM);
    shell.args(["shell", "--sandbox", "read-only", "--", "sh", "-c", "echo a > made"]);
    shell.current_dir(place.path("workspace"));
    let (status, _, _) = Running::start(shell).finish();
    assert!(!status.success());
    assert!(!place.exists("workspace/made"));
}

#[test]
fn doctor_reports_what_works_and_its_exit_code_is_the_verdict() {
    let (code, report) = doctor("");
    let sandbox = &report["sandbox"];
    let strongest = sandbox["tier"] == "full";
    let checks = report["checks"].as_array().unwrap();
    assert!(checks.iter().all(|check| check["works"] == true), "{report:#}");
    assert_eq!(report["healthy"], strongest);
    assert_eq!(code, Some(if strongest { 0 } else { 1 }), "{report:#}");
    let names = |list: &Value| -> Vec<String> {
        list.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().into()).collect()
    };
    let mechanisms = [
        "landlock",
        "seccomp",
        "user-namespace",
        "network-namespace",
        "managed-network",
        "fresh-proc",
        "bubblewrap",
    ];
    assert_eq!(names(&sandbox["mechanisms"]), mechanisms);
    assert_eq!(names(&sandbox["sandboxes"]), ["read-only", "workspace-write"]);
    let managed = sandbox["mechanisms"].as_array().unwrap();
    let managed = managed.iter().find(|one| one["name"] == "managed-network").unwrap();
    if managed["verdict"] == "works" {
        assert_eq!(sandbox["network"]["tier"], "transparent", "{report:#}");
    }
}

#[test]
fn doctor_names_remedies_for_missing_mechanisms() {
    for (without, tier, verdicts) in [
        ("landlock", "none", &[("landlock", "needed")][..]),
        ("seccomp", "none", &[("seccomp", "needed")]),
        (
            "namespaces,bubblewrap",
            "read-only",
            &[("user-namespace", "needed"), ("bubblewrap", "missing"), ("fresh-proc", "missing")],
        ),
    ] {
        let (code, report) = doctor(without);
        assert_eq!(code, Some(1));
        let found = report["sandbox"]["tier"].as_str().unwrap();
        assert!(found == tier || found == "none", "{without}: {report:#}");
        for (name, verdict) in verdicts {
            let mechanisms = report["sandbox"]["mechanisms"].as_array().unwrap();
            let mechanism = mechanisms.iter().find(|one| one["name"] == *name).unwrap();
            assert_eq!(mechanism["verdict"], *verdict, "{without}: {mechanism}");
            assert!(mechanism["remedy"].is_string(), "{without}: {mechanism}");
        }
    }
    let (code, report) = doctor("landlok");
    assert_eq!((code, &report["sandbox"]["tier"]), (Some(1), &"none".into()));
    assert!(report.to_string().contains("landlok"), "{report:#}");
}

#[test]
fn doctor_output_fits_80_columns() {
    for without in ["", "namespaces,bubblewrap,landlock"] {
        let mut doctor = command(PROGRAM);
        doctor.arg("doctor").env("EXEC_SERVER_SANDBOX_WITHOUT", without);
        let text = run_command(doctor).stdout;
        assert!(text.contains("Landlock") && text.contains("tree teardown"), "{text}");
        assert!(!text.contains('\x1b'), "{text}");
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(80), "{text}");
    }
}

#[test]
fn config_shows_the_ceiling() {
    let mut config = command(PROGRAM);
    config.args(["config", "--sandbox-require", "workspace-write"]);
    config.args(["--sandbox-writable-root", "/srv"]);
    let outcome = run_command(config);
    assert!(outcome.stdout.contains("\n[network]\n# allow = []"), "{}", outcome.stdout);
    let (_, table) = outcome.stdout.split_once("\n[sandbox]\n").unwrap();
    let value = |line: &str| line.split("  #").next().unwrap().trim().to_owned();
    let values: Vec<_> = table.lines().map(value).collect();
    assert_eq!(
        values,
        [
            "require = \"workspace-write\"",
            "writable_roots = [\"/srv\"]",
            "network = false",
            "trusted_links = []"
        ]
    );
}
