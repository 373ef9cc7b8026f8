//! A request with a sandbox must not read the files in `/proc` of other processes, not even if the
//! server runs as root.

use std::process::{Child, Command, Stdio};

use exec_server_server::{SandboxCeiling, SandboxLevel, ServerConfig};
use exec_server_test_support::{RpcClient, TestServer, decoded};
use serde_json::{Value, json};

const SECRET: &str = "SECRET_OF_ANOTHER=abc123";

/// A process with a secret in its environment.
struct Victim(Child);

impl Victim {
    fn start() -> Self {
        let (name, value) = SECRET.split_once('=').unwrap();
        #[expect(clippy::disallowed_methods, reason = "a process that the server does not know")]
        let mut command = Command::new("cat");
        let victim = command.env(name, value).stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        Self(victim.unwrap())
    }

    fn file(&self, name: &str) -> String {
        format!("file:///proc/{}/{name}", self.0.id())
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Checks that the files are readable without a sandbox. Otherwise the checks with a sandbox would
/// prove nothing.
async fn expect_readable(victim: &Victim) {
    let server = TestServer::new(ServerConfig::default());
    let mut client = open(&server).await;
    for name in ["environ", "maps", "auxv"] {
        let read = client.call("fs/readFile", json!({"path": victim.file(name)})).await.unwrap();
        let content = decoded(&read["dataBase64"]);
        assert!(!content.is_empty(), "{name}");
        if name == "environ" {
            assert!(String::from_utf8_lossy(&content).contains(SECRET));
        }
    }
}

async fn expect_closed(victim: &Victim, ceiling: SandboxCeiling, sandbox: &Value) {
    let server = TestServer::new(ServerConfig { sandbox: ceiling, ..ServerConfig::default() });
    let mut client = open(&server).await;
    for name in ["environ", "maps", "smaps", "auxv"] {
        let path = victim.file(name);
        let read = json!({"path": path, "sandbox": sandbox});
        let answer = client.call("fs/readFile", read).await;
        assert!(answer.is_err(), "{name} {sandbox}: {answer:?}");
        let open = json!({"path": path, "handleId": name, "sandbox": sandbox});
        if client.call("fs/open", open).await.is_ok() {
            let block = json!({"handleId": name, "offset": 0, "len": 4096});
            let answer = client.call("fs/readBlock", block).await;
            assert!(answer.is_err(), "{name} {sandbox}: {answer:?}");
        }
    }
    // Only opened: reading `kmsg` would take its messages from their actual reader.
    let open = json!({"path": "file:///proc/kmsg", "handleId": "kmsg", "sandbox": sandbox});
    let answer = client.call("fs/open", open).await;
    assert!(answer.is_err(), "{sandbox}: {answer:?}");
}

async fn open(server: &exec_server_server::Server) -> RpcClient {
    RpcClient::open(server, json!({"clientName": "reader"})).await.0
}

#[tokio::test]
async fn no_policy_makes_other_processes_readable() {
    let victim = Victim::start();
    expect_readable(&victim).await;
    let workspace = tempfile::tempdir().unwrap();
    let workspace = format!("file://{}", workspace.path().display());
    let minimal =
        json!({"path": {"type": "special", "value": {"kind": "minimal"}}, "access": "read"});
    let read_only =
        SandboxCeiling { require: Some(SandboxLevel::ReadOnly), ..SandboxCeiling::default() };
    let free = SandboxCeiling::default;
    let profile = json!({"permissions": {
        "type": "managed",
        "file_system": {"type": "restricted", "entries": [minimal]},
        "network": "restricted",
    }});
    for sandbox in [
        json!({"type": "read-only"}),
        json!({"type": "workspace-write", "cwd": workspace}),
        profile,
    ] {
        expect_closed(&victim, free(), &sandbox).await;
    }
    expect_closed(&victim, read_only, &Value::Null).await;
}
