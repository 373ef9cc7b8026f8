//! Under the minimal policy, programs start and see no processes outside their sandbox.

use exec_server_test_support::skipped;
use serde_json::{Value, json};

use super::arena::Tier;
use super::{User, directory_outside_of_tmp, uri};
use crate::support::{Client, Server, shell};

/// Prints the processes visible in `/proc`, one pid per line.
const WHO_IS_THERE: &str = "cd /proc && for pid in [0-9]*; do echo $pid; done";

/// Grants enough to run a shell, and the directory in which it starts.
fn minimal(cwd: &Value) -> Value {
    let minimal = json!({"type": "special", "value": {"kind": "minimal"}});
    let workspace = json!({"type": "path", "path": cwd});
    json!({"permissions": {
        "type": "managed",
        "file_system": {"type": "restricted", "entries": [
            {"path": minimal, "access": "read"},
            {"path": workspace, "access": "read"},
        ]},
        "network": "restricted",
    }})
}

fn neighbours(server: &Server, client: &mut Client, sandbox: Option<&Value>, cwd: &Value) -> bool {
    let id = if sandbox.is_some() { "confined" } else { "plain" };
    let mut start = shell(id, WHO_IS_THERE).with("cwd", cwd.clone());
    if let Some(sandbox) = sandbox {
        start = start.with("sandbox", sandbox.clone());
    }
    let end = client.run(&start);
    assert_eq!(end.exit_code, Some(0), "{}", end.text());
    let seen = end.text();
    assert!(seen.lines().count() > 0);
    // A private PID namespace has few processes, and the server's pid does not exist in it.
    let server = server.pid().to_string();
    seen.lines().count() > 3 || seen.lines().any(|pid| pid == server)
}

#[test]
fn proc_shows_only_the_processes_of_the_sandbox() {
    for user in [User::Myself, User::Nobody] {
        for tier in [Tier::Namespaces, Tier::Bubblewrap] {
            if let Some(why) = user.obstacle().or_else(|| tier.obstacle()) {
                skipped(format_args!("{tier:?} as {user:?}: {why}"));
                continue;
            }
            let directory = directory_outside_of_tmp();
            let without = if tier == Tier::Bubblewrap { "namespaces" } else { "" };
            let builder = user.server(directory.path());
            let server = builder.variable("EXEC_SERVER_SANDBOX_WITHOUT", without).start();
            let mut client = server.client();
            let cwd = Value::from(uri(directory.path()));
            assert!(neighbours(&server, &mut client, None, &cwd), "{tier:?} {user:?}");
            let sandbox = minimal(&cwd);
            assert!(!neighbours(&server, &mut client, Some(&sandbox), &cwd), "{tier:?} {user:?}");
        }
    }
}
