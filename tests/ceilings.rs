//! The ceiling of a token holds, whatever its client asks for.

use std::net::TcpListener;
use std::path::Path;

use exec_server_test_support::uri;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::tokens::{Issuer, write_secret};
use crate::support::{AckingInbox, Client, Inbox as _, PROGRAM, Server, encoded, shell};

/// A server with two clients of one subject: a developer without a ceiling, an agent with one.
struct Scene {
    issuer: Issuer,
    server: Server,
    /// Outside the workspace and outside the temporary directories that sandboxes may write.
    outside: TempDir,
    workspace: TempDir,
}

impl Scene {
    fn new() -> Self {
        let issuer = Issuer::new();
        let server = issuer.start();
        let [outside, workspace] = [(); 2].map(|()| tempfile::tempdir_in("/var/tmp").unwrap());
        Self { issuer, server, outside, workspace }
    }

    fn developer(&self) -> Client {
        self.server.client_of(&self.issuer.token(&json!({ "sub": "alice" })))
    }

    fn agent(&self) -> Client {
        self.server.client_of(&self.agent_token())
    }

    fn agent_token(&self) -> String {
        let sandbox =
            json!({ "mode": "workspace-write", "writable_roots": [self.workspace.path()] });
        self.issuer.token(&json!({ "sub": "alice", "sandbox": sandbox }))
    }

    fn outside(&self, name: &str) -> String {
        uri(self.outside.path().join(name))
    }
}

/// Returns sandbox objects that ask for full access.
fn greedy(outside: &Path) -> Vec<Value> {
    let everything = json!({ "type": "restricted", "entries": [
        { "path": { "type": "special", "value": { "kind": "root" } }, "access": "write" },
        { "path": { "type": "path", "path": uri(outside) }, "access": "write" },
    ] });
    vec![
        Value::Null,
        json!({ "type": "danger-full-access" }),
        json!({ "type": "external-sandbox", "network_access": "enabled" }),
        json!({ "type": "workspace-write", "writable_roots": ["/", outside], "network_access": true }),
        json!({ "permissions": { "type": "disabled" } }),
        json!({ "permissions": { "type": "external", "network": "enabled" } }),
        json!({ "permissions": {
            "type": "managed", "network": "enabled", "file_system": { "type": "unrestricted" },
        } }),
        json!({ "permissions": {
            "type": "managed", "network": "enabled", "file_system": everything,
        } }),
    ]
}

#[test]
fn processes_stay_below_the_ceiling_of_their_token() {
    let scene = Scene::new();
    let mut agent = scene.agent();
    let outside = scene.outside.path();
    let victim = outside.join("victim");
    let write = format!("echo taken > {}", victim.display());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let connect = format!("exec bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port}'");
    for (index, sandbox) in greedy(outside).into_iter().enumerate() {
        for (name, script) in [("write", &write), ("connect", &connect)] {
            let start = shell(&format!("{name}-{index}"), script).with("sandbox", sandbox.clone());
            let end = agent.run(&start);
            assert_ne!(end.exit_code, Some(0), "{name} under {sandbox}");
        }
    }
    let prepared = shell("prepared", &write).with("mode", "prepared");
    assert_ne!(agent.run(&prepared).exit_code, Some(0));
    let inside = shell("inside", &write).with("cwd", uri(outside));
    assert_ne!(agent.run(&inside).exit_code, Some(0));
    // The v0 name of `process/start` has the same ceiling.
    let v0 = json!({
        "processId": "v0", "argv": ["/bin/sh", "-c", write], "cwd": outside, "env": {}, "tty": false,
    });
    agent.call("command/exec", v0);
    let exited = loop {
        let event = agent.event_of("v0");
        if event["method"] == "command/exec/exited" {
            break event;
        }
    };
    assert_ne!(exited["params"]["exitCode"], 0);
    assert!(!victim.exists());
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "a process has connected");

    // The agent may write to its workspace, and the developer may do everything.
    let own = format!("echo mine > {}", scene.workspace.path().join("file").display());
    assert_eq!(agent.run(&shell("own", &own)).exit_code, Some(0));
    let mut developer = scene.developer();
    assert_eq!(developer.run(&shell("write", &write)).exit_code, Some(0));
    assert_eq!(developer.run(&shell("connect", &connect)).exit_code, Some(0));
}

#[test]
fn file_and_http_requests_stay_below_the_ceiling_of_their_token() {
    let scene = Scene::new();
    let mut agent = scene.agent();
    std::fs::write(scene.outside.path().join("old"), "precious").unwrap();
    let (old, new) = (scene.outside("old"), scene.outside("new"));
    let own = uri(scene.workspace.path().join("own"));
    agent.call("fs/writeFile", json!({ "path": own, "dataBase64": encoded("mine") }));
    for sandbox in greedy(scene.outside.path()) {
        for (method, params) in [
            ("fs/writeFile", json!({ "path": old, "dataBase64": encoded("taken") })),
            ("fs/writeFile", json!({ "path": new, "dataBase64": "", "atomic": true })),
            ("fs/createDirectory", json!({ "path": new })),
            ("fs/copy", json!({ "sourcePath": own, "destinationPath": new, "recursive": false })),
            ("fs/rename", json!({ "sourcePath": old, "destinationPath": new })),
            ("fs/symlink", json!({ "path": new, "target": "x" })),
            ("fs/setPermissions", json!({ "path": old, "mode": 0o777 })),
            ("fs/remove", json!({ "path": old, "force": true })),
            ("fs/create", json!({ "path": new, "handleId": "h" })),
        ] {
            let mut params = params;
            params["sandbox"] = sandbox.clone();
            let refused = agent.refused(method, params);
            assert!(
                refused.message.contains("ermission denied"),
                "{method} {sandbox}: {refused:?}"
            );
        }
    }
    assert_eq!(std::fs::read(scene.outside.path().join("old")).unwrap(), b"precious");
    assert_eq!(std::fs::read_dir(scene.outside.path()).unwrap().count(), 1);

    let request = json!({ "requestId": "r", "method": "GET", "url": "http://127.0.0.1:1/" });
    let refused = agent.refused("http/request", request);
    assert_eq!(refused.kind.as_deref(), Some("sandboxDenied"));
    assert!(refused.message.contains("token"), "{refused:?}");
}

#[test]
fn clients_with_a_ceiling_cannot_read_the_signing_secret() {
    let scene = Scene::new();
    let secret = scene.issuer.secret_file();
    let read = json!({ "path": uri(&secret) });
    let cat = shell("cat", &format!("exec cat {}", secret.display()));
    let observer = scene.issuer.token(&json!({ "sub": "alice", "role": "observer" }));
    let mut observer = scene.server.client_of(&observer);
    let mut agent = scene.agent();
    for client in [&mut agent, &mut observer] {
        let refused = client.refused("fs/readFile", read.clone());
        assert!(refused.message.contains("ermission denied"), "{refused:?}");
        let refused = client.refused("fs/open", json!({ "path": uri(&secret), "handleId": "h" }));
        assert!(refused.message.contains("ermission denied"), "{refused:?}");
    }
    // Other methods cannot reach the secret either.
    let copy = uri(scene.workspace.path().join("copy"));
    for (method, params) in [
        (
            "fs/copy",
            json!({ "sourcePath": uri(&secret), "destinationPath": copy, "recursive": false }),
        ),
        ("fs/rename", json!({ "sourcePath": uri(&secret), "destinationPath": copy })),
        ("fs/writeFile", json!({ "path": uri(&secret), "dataBase64": "" })),
        ("fs/watch", json!({ "path": uri(&secret), "watchId": "w" })),
        ("fs/search", json!({ "path": uri(&secret), "searchId": "s", "pattern": "." })),
    ] {
        let refused = agent.refused(method, params);
        assert!(refused.message.contains("ermission denied"), "{method}: {refused:?}");
    }
    let end = agent.run(&cat);
    assert_ne!(end.exit_code, Some(0));
    assert!(end.stdout.is_empty(), "{end:?}");
    let path = scene.outside.path().join("readable");
    std::fs::write(&path, "hello").unwrap();
    observer.call("fs/readFile", json!({ "path": uri(&path) }));
    // A client without a ceiling may do whatever the server may do.
    assert_eq!(scene.developer().run(&cat).exit_code, Some(0));
}

#[test]
fn a_replaced_secret_stays_hidden_from_running_processes() {
    let scene = Scene::new();
    let secret = scene.issuer.secret_file();
    let mut agent = scene.agent();
    let script = format!("read go; exec cat {}", secret.display());
    agent.start(&shell("early", &script).with_stdin());
    // Starting in the directory of the secret does not reveal it.
    let inside = shell("inside", &script).with("cwd", uri(secret.parent().unwrap()));
    agent.refused("process/start", inside.params());
    let renewed = secret.with_file_name("renewed");
    write_secret(&renewed, &exec_server_transport::new_token());
    std::fs::rename(&renewed, &secret).unwrap();
    agent.write("early", "go\n");
    let end = agent.finish_process("early");
    assert_ne!(end.exit_code, Some(0));
    assert!(end.stdout.is_empty(), "{end:?}");
}

#[test]
fn a_token_with_a_ceiling_cannot_use_sessions_without_one() {
    let scene = Scene::new();
    let mut developer = scene.developer();
    developer.start(&shell("shell", "exec sh").with_stdin());
    let session = developer.session();
    let mut agent = scene.agent();
    let named = json!({ "sessionId": session, "processId": "shell" });
    for method in ["process/observe", "process/terminate", "session/close", "process/list"] {
        let refused = agent.refused(method, named.clone());
        assert_eq!(refused.kind.as_deref(), Some("unknownSession"), "{method}");
    }
    let listed = agent.call("session/list", json!({}))["sessions"].clone();
    assert_eq!(listed.as_array().unwrap().len(), 1);
    developer.cut(crate::support::Cut::Fin);
    let mut thief = scene.server.connect_with(&scene.agent_token()).unwrap();
    let refused = thief.initialize(&json!({ "resumeSessionId": session })).unwrap_err();
    assert_eq!(refused.kind.as_deref(), Some("unknownSession"));
}

#[test]
fn a_token_with_network_access_cannot_reach_its_own_server() {
    let scene = Scene::new();
    let sandbox = json!({
        "mode": "workspace-write", "writable_roots": [scene.workspace.path()], "network": true,
    });
    let token = scene.issuer.token(&json!({ "sub": "alice", "sandbox": sandbox }));
    let mut agent = scene.server.client_of(&token);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let connect = format!("exec bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port}'");
    assert_eq!(agent.run(&shell("connect", &connect)).exit_code, Some(0));
    // A token of the developer, found by the agent, does not help.
    let developer = scene.issuer.token_file("developer", &json!({ "sub": "alice" }));
    let copy = scene.workspace.path().join("found");
    std::fs::copy(developer, &copy).unwrap();
    let url = scene.server.url();
    let own_server = format!("exec {PROGRAM} ps --connect {url} --token-file {}", copy.display());
    let end = agent.run(&shell("own-server", &own_server).variable("HOME", "/nonexistent"));
    assert_ne!(end.exit_code, Some(0), "{end:?}");
}

/// The developer may resume a session of the agent. Processes started there keep the agent's
/// ceiling.
#[test]
fn a_resumed_session_keeps_its_ceiling() {
    let scene = Scene::new();
    let agent = scene.agent();
    let session = agent.session();
    agent.cut(crate::support::Cut::Fin);
    let token = scene.issuer.token(&json!({ "sub": "alice" }));
    let mut developer = loop {
        let mut developer = scene.server.connect_with(&token).unwrap();
        if developer.initialize(&json!({ "resumeSessionId": session })).is_ok() {
            break developer;
        }
    };
    let victim = scene.outside.path().join("victim");
    let write = format!("echo taken > {}", victim.display());
    assert_ne!(developer.run(&shell("write", &write)).exit_code, Some(0));
    let mut inbox = AckingInbox::new("own");
    let own = format!("echo mine > {}/file; echo done", scene.workspace.path().display());
    developer.start(&shell("own", &own));
    developer.wait_for_output(&mut inbox, "done");
    assert!(!victim.exists() && inbox.transcript().text().contains("done"));
}
