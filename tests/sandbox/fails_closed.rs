//! Nothing runs under a policy that is invalid or cannot be enforced.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use exec_server_test_support::skipped;
use serde_json::{Value, json};

use super::arena::{Arena, Verdict};
use super::attempts::{self, Goal};
use super::scene::Scene;
use super::{Refusal, User, directory_outside_of_tmp, ordinary_workspace, refused, uri};
use crate::support::{Client, Server, ServerBuilder, Start, program, shell};

const INVALID_REQUEST: i64 = -32600;
const INVALID_PARAMS: i64 = -32602;

/// A server with a scene, and checks of whether anything ran.
struct Stage {
    _directory: tempfile::TempDir,
    server: Server,
    client: Client,
    scene: Scene,
}

impl Stage {
    fn new() -> Self {
        Self::of(ServerBuilder::new())
    }

    fn without(mechanisms: &str) -> Self {
        Self::of(ServerBuilder::new().variable("EXEC_SERVER_SANDBOX_WITHOUT", mechanisms))
    }

    fn of(server: ServerBuilder) -> Self {
        let directory = directory_outside_of_tmp();
        let scene = Scene::build(directory.path().join("scene"), User::Myself);
        let server = server.start();
        let client = server.client();
        Self { _directory: directory, server, client, scene }
    }

    fn workspace(&self) -> PathBuf {
        self.scene.path("workspace")
    }

    fn shell(&self, id: &str, script: &str) -> Start {
        shell(id, script)
            .with("cwd", uri(&self.workspace()))
            .variable("OUTSIDE", self.scene.path("outside").to_str().unwrap())
    }

    /// Expects that a start under this sandbox is refused and nothing has run.
    fn expect_refusal(&mut self, sandbox: &Value) -> Refusal {
        let ran = self.workspace().join("ran");
        let start = self.shell("refused", ": > ran").with("sandbox", sandbox.clone());
        let refusal = refused(&mut self.client, "process/start", start.params());
        assert!(!ran.exists(), "{sandbox}");
        refusal
    }

    fn expect_unavailable(&mut self, sandbox: &Value, missing: &[&str]) {
        let failure = self.expect_refusal(sandbox);
        assert_eq!(failure.code, INVALID_REQUEST, "{failure:?}");
        assert_eq!(failure.kind.as_deref(), Some("sandboxUnavailable"), "{failure:?}");
        let message = failure.message.to_lowercase();
        for word in missing {
            assert!(message.contains(word), "{word} is not named: {failure:?}");
        }
    }

    fn expect_code(&mut self, id: &str, script: &str, sandbox: &Value, code: i64) {
        let start = self.shell(id, script).with("sandbox", sandbox.clone());
        let end = self.client.run(&start);
        assert_eq!(end.exit_code, Some(code), "{script}: {}", end.text());
    }
}

fn with_entries(entries: &Value) -> Value {
    json!({"permissions": {
        "type": "managed",
        "file_system": {"type": "restricted", "entries": entries},
        "network": "restricted",
    }})
}

#[test]
fn invalid_sandboxes_are_refused() {
    let mut stage = Stage::new();
    let everything =
        json!({"path": {"type": "special", "value": {"kind": "root"}}, "access": "write"});
    let with = |path: Value, access: &str| {
        with_entries(&json!([everything, {"path": path, "access": access}]))
    };
    for sandbox in [
        json!([]),
        json!(42),
        json!(true),
        json!("read-only"),
        json!({}),
        json!({"type": null}),
        json!({"type": "read-write"}),
        json!({"type": "READ-ONLY"}),
        json!({"type": ["read-only"]}),
        json!({"type": "read-only", "surprise": 1}),
        json!({"type": "danger-full-access", "deny": ["/etc"]}),
        json!({"type": "workspace-write", "writable_roots": "/"}),
        json!({"type": "workspace-write", "writable_roots": ["relative"]}),
        json!({"type": "workspace-write", "writable_roots": ["file://elsewhere/tmp"]}),
        json!({"type": "workspace-write", "network_access": "no"}),
        json!({"type": "read-only", "permissions": {"type": "disabled"}}),
        json!({"permissions": null}),
        json!({"permissions": {"type": "unmanaged"}}),
        json!({"permissions": {"type": "managed"}}),
        json!({"permissions": {"type": "managed", "file_system": {"type": "unrestricted"}}}),
        json!({"permissions": {"type": "managed", "network": "restricted"}}),
        json!({"permissions": {"type": "managed", "network": "enabled", "file_system": {"type": "open"}}}),
        json!({"permissions": {"type": "disabled", "network": "restricted"}}),
        with_entries(&json!({})),
        with_entries(&json!([{}])),
        with_entries(&json!(["/"])),
        with(json!({"type": "path", "path": "file:///etc"}), "execute"),
        with(json!({"type": "path", "path": "relative"}), "deny"),
        with(json!({"type": "path"}), "deny"),
        with(json!({"type": "pattern", "pattern": "*"}), "deny"),
        with(json!({"type": "special", "value": {"kind": "home"}}), "deny"),
        with(json!({"type": "special", "value": {"kind": "home"}}), "none"),
        with(json!({"type": "special", "value": {}}), "deny"),
        with(
            json!({"type": "special", "value": {"kind": "project_roots", "subpath": "../.."}}),
            "deny",
        ),
        with(json!({"type": "glob_pattern", "pattern": "["}), "deny"),
        with(json!({"type": "glob_pattern", "pattern": "{a"}), "deny"),
        with(json!({"type": "glob_pattern", "pattern": ""}), "deny"),
        with(json!({"type": "glob_pattern", "pattern": "../*.pem"}), "deny"),
    ] {
        let failure = stage.expect_refusal(&sandbox);
        assert!(matches!(failure.code, INVALID_REQUEST | INVALID_PARAMS), "{sandbox}: {failure:?}");
        assert!(!failure.message.contains('\n'), "{failure:?}");
    }
    stage.expect_code("after", "exit 5", &ordinary_workspace(), 5);
}

#[test]
fn nothing_runs_under_a_policy_that_grants_nothing() {
    let mut stage = Stage::new();
    let unknown_grant =
        json!([{"path": {"type": "special", "value": {"kind": "home"}}, "access": "write"}]);
    for entries in [json!([]), unknown_grant] {
        stage.expect_refusal(&with_entries(&entries));
    }
}

#[test]
fn read_only_applies_everywhere() {
    let mut stage = Stage::new();
    let script = "for place in \"$OUTSIDE\" . .git /tmp /var/tmp /dev/shm; do
        echo 2> /dev/null > \"$place/exec-server-read-only\" && exit 1
    done; cat file > /dev/null && exit 7";
    stage.expect_code("everywhere", script, &json!({"type": "read-only"}), 7);
    assert_eq!(stage.client.run(&stage.shell("control", script)).exit_code, Some(1));
}

#[test]
fn an_external_sandbox_restricts_the_network_but_not_files() {
    let mut stage = Stage::new();
    let sandbox = json!({"permissions": {"type": "external", "network": "restricted"}});
    stage.expect_code("files", ": > \"$OUTSIDE/new\" && exit 7", &sandbox, 7);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let connect = format!("exec 3<> /dev/tcp/127.0.0.1/{}", listener.local_addr().unwrap().port());
    let start = program("network", &["/bin/bash", "-c", &connect]);
    assert_eq!(stage.client.run(&start).exit_code, Some(0), "without a sandbox");
    let start = program("confined", &["/bin/bash", "-c", &connect]).with("sandbox", sandbox);
    assert_eq!(stage.client.run(&start).exit_code, Some(1));
}

#[test]
fn carve_outs_are_refused_without_isolation() {
    for user in [User::Myself, User::Nobody] {
        if let Some(why) = user.obstacle() {
            skipped(format_args!("{user:?}: {why}"));
            continue;
        }
        let mut arena = Arena::without(user, "namespaces,bubblewrap");
        let in_need = attempts::all().filter(|attempt| attempt.goal != Goal::Outside);
        for attempt in in_need {
            let failure = arena.refused(attempt);
            assert_eq!(failure.kind.as_deref(), Some("sandboxUnavailable"), "{failure:?}");
            let message = failure.message.to_lowercase();
            assert!(message.contains("namespace") && message.contains("bubblewrap"), "{message}");
        }
        // A policy that needs neither is still enforced.
        let attempt = attempts::all().next().unwrap();
        let ending = arena.confined(attempt);
        assert_eq!(ending.verdict, Verdict::Blocked, "{ending:?}");
    }
}

#[test]
fn without_landlock_or_seccomp_no_policy_is_partly_enforced() {
    for mechanism in ["landlock", "seccomp"] {
        let mut stage = Stage::without(mechanism);
        for sandbox in [ordinary_workspace(), json!({"type": "read-only"})] {
            stage.expect_unavailable(&sandbox, &[mechanism]);
        }
        assert_eq!(stage.client.run(&shell("plain", "exit 3")).exit_code, Some(3));
    }
}

#[test]
fn file_operations_are_refused_without_landlock() {
    let mut stage = Stage::without("landlock");
    let file = uri(&stage.workspace().join("file"));
    for (method, params) in [
        ("fs/readFile", json!({"path": file})),
        ("fs/writeFile", json!({"path": file, "dataBase64": ""})),
        ("fs/getMetadata", json!({"path": file})),
        ("fs/open", json!({"path": file, "handleId": "h"})),
    ] {
        let mut params = params;
        params["sandbox"] = json!({"type": "read-only"});
        let failure = refused(&mut stage.client, method, params);
        assert_eq!(failure.kind.as_deref(), Some("sandboxUnavailable"), "{method}: {failure:?}");
    }
    assert_eq!(fs::read(stage.workspace().join("file")).unwrap(), b"the inside\n");
}

#[test]
fn a_program_called_bubblewrap_on_the_path_is_not_run() {
    let directory = directory_outside_of_tmp();
    let trap = directory.path().join("sprung");
    for name in ["bwrap", "bubblewrap"] {
        let fake = directory.path().join(name);
        fs::write(&fake, format!("#!/bin/sh\n: > {}\nexit 0\n", trap.display())).unwrap();
        fs::set_permissions(&fake, Permissions::from_mode(0o755)).unwrap();
    }
    let hostile = format!("{}:/usr/bin:/bin", directory.path().display());
    for without in ["namespaces", "bubblewrap", ""] {
        let builder = ServerBuilder::new()
            .variable("PATH", &hostile)
            .variable("EXEC_SERVER_SANDBOX_WITHOUT", without);
        let mut stage = Stage::of(builder);
        let start = stage
            .shell("hostile", ": > .git/hooks/pre-commit")
            .variable("PATH", &hostile)
            .with("sandbox", ordinary_workspace());
        match stage.client.try_call("process/start", start.params()) {
            Ok(_) => assert_ne!(stage.client.finish_process("hostile").exit_code, Some(0)),
            Err(failure) => assert_eq!(failure.kind.as_deref(), Some("sandboxUnavailable")),
        }
        assert!(!stage.workspace().join(".git/hooks/pre-commit").exists());
        assert!(!trap.exists(), "without {without:?}");
    }
}

#[test]
fn killing_all_processes_reaches_only_its_own_sandbox() {
    let mut stage = Stage::new();
    for (n, sandbox) in [ordinary_workspace(), json!({"type": "read-only"})].into_iter().enumerate()
    {
        let bystanders = [format!("plain-{n}"), format!("confined-{n}")];
        let wait = "echo up; read line; exit 9";
        stage.client.start(&stage.shell(&bystanders[0], wait).with_stdin());
        let confined = stage.shell(&bystanders[1], wait).with_stdin();
        stage.client.start(&confined.with("sandbox", sandbox.clone()));
        // The sleeping child proves that the signal was really sent.
        let script = "sleep 1000 & trap '' TERM; kill -TERM -1; wait $!; test $? = 143 && exit 7";
        stage.expect_code(&format!("killer-{n}"), script, &sandbox, 7);
        for bystander in &bystanders {
            assert_eq!(stage.client.write(bystander, "\n"), "accepted", "{bystander}");
            assert_eq!(stage.client.finish_process(bystander).exit_code, Some(9), "{bystander}");
        }
    }
    assert!(crate::support::machine::state(stage.server.pid()).is_some());
}

#[test]
fn a_sandboxed_process_has_three_descriptors() {
    let mut stage = Stage::new();
    for (n, sandbox) in [ordinary_workspace(), json!({"type": "read-only"})].into_iter().enumerate()
    {
        // The fourth descriptor is the listed directory.
        let start = program(&format!("list-{n}"), &["/bin/ls", "/proc/self/fd"]);
        let end = stage.client.run(&start.with("sandbox", sandbox));
        assert_eq!(end.text(), "0\n1\n2\n3\n");
    }
}
