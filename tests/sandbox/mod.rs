//! Attacks on the sandbox: small programs that try to escape, as root and as an ordinary user. Each
//! also runs without a sandbox, where it must succeed, so that an attempt that can never succeed is
//! noticed. Other tests show that common tools still work inside.

#![expect(
    clippy::print_stdout,
    reason = "tests print blocked attempts and the reasons for skipped ones"
)]

mod arena;
mod attempts;
mod covered;
mod escapes;
mod fails_closed;
mod leading_astray;
mod minimal;
mod neighbours;
mod planted;
mod planted_links;
mod programs;
mod remembered;
mod scene;
mod tools;

use std::os::unix::fs::lchown;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::machine::is_root;
use crate::support::{Client, ServerBuilder};

const NOBODY: u32 = 65534;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum User {
    /// The user that runs the tests, usually root.
    Myself,
    Nobody,
}

impl User {
    /// Returns the reason if this user cannot be tested.
    fn obstacle(self) -> Option<&'static str> {
        (self == Self::Nobody && !is_root()).then_some("only root can become another user")
    }

    fn is_root(self) -> bool {
        self == Self::Myself && is_root()
    }

    /// Gives a tree to this user.
    fn own(self, path: &Path) {
        if self == Self::Myself {
            return;
        }
        lchown(path, Some(NOBODY), Some(NOBODY)).unwrap();
        if path.symlink_metadata().unwrap().is_dir() {
            for entry in path.read_dir().unwrap() {
                self.own(&entry.unwrap().path());
            }
        }
    }

    /// Returns a server of this user. For another user the program is copied into the directory.
    fn server(self, directory: &Path) -> ServerBuilder {
        self.server_through(directory, &[])
    }

    /// Returns a server of this user, started through a wrapper that executes it.
    fn server_through(self, directory: &Path, wrapper: &[&str]) -> ServerBuilder {
        let builder = ServerBuilder::new().variable("TMPDIR", "/tmp").through(wrapper);
        match self {
            Self::Myself => builder,
            Self::Nobody => builder.with_user(NOBODY, directory),
        }
    }
}

#[derive(Debug)]
struct Refusal {
    code: i64,
    kind: Option<String>,
    message: String,
}

fn refused(client: &mut Client, method: &str, params: Value) -> Refusal {
    let asked = params.to_string();
    match client.try_call(method, params) {
        Ok(result) => panic!("{method} {asked} was not refused: {result}"),
        Err(failure) => {
            Refusal { code: failure.code, kind: failure.kind, message: failure.message }
        }
    }
}

/// Creates a directory outside `/tmp`, which the ordinary policy makes writable.
fn directory_outside_of_tmp() -> tempfile::TempDir {
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let readable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(directory.path(), readable).unwrap();
    directory
}

/// The sandbox that most clients request.
fn ordinary_workspace() -> Value {
    json!({"type": "workspace-write", "writable_roots": [], "network_access": false})
}

/// Returns a sandbox in the profile form, with these entries and one that makes everything
/// readable.
fn profile(cwd: &Path, entries: &[(Value, &str)], network: &str) -> Value {
    let everything = json!({"type": "special", "value": {"kind": "root"}});
    let all: Vec<Value> = std::iter::once(&(everything, "read"))
        .chain(entries)
        .map(|(path, access)| json!({"path": path, "access": access}))
        .collect();
    json!({
        "permissions": {
            "type": "managed",
            "file_system": {"type": "restricted", "entries": all},
            "network": network,
        },
        "cwd": uri(cwd),
        "workspaceRoots": [uri(cwd)],
    })
}

fn entry_path(path: &Path) -> Value {
    json!({"type": "path", "path": uri(path)})
}

fn uri(path: &Path) -> String {
    format!("file://{}", path.to_str().expect("test paths are text"))
}
