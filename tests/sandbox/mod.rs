//! The sandbox, attacked: small programs that try to get out, as root and as an ordinary user, and each of them once
//! without a sandbox, where it must succeed, so that a test that can only pass is noticed. And what must still work
//! inside: the tools that people use.

#![expect(clippy::print_stdout, reason = "what was blocked, and why something was not tried")]

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

/// Whose server it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum User {
    /// Who runs the tests: root in most places where they run.
    Myself,
    Nobody,
}

impl User {
    /// Why this user cannot be tried, if so.
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

    /// A server of this user; another user's is copied into the directory.
    fn server(self, directory: &Path) -> ServerBuilder {
        self.server_through(directory, &[])
    }

    /// The same, started by a program that becomes it.
    fn server_through(self, directory: &Path, wrapper: &[&str]) -> ServerBuilder {
        let builder = ServerBuilder::new().variable("TMPDIR", "/tmp").through(wrapper);
        match self {
            Self::Myself => builder,
            Self::Nobody => builder.with_user(NOBODY, directory),
        }
    }
}

/// What a server says that does not do something.
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

/// Not below `/tmp`, which the ordinary policy lets be written.
fn directory_outside_of_tmp() -> tempfile::TempDir {
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let readable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(directory.path(), readable).unwrap();
    directory
}

/// What most clients ask for.
fn ordinary_workspace() -> Value {
    json!({"type": "workspace-write", "writable_roots": [], "network_access": false})
}

/// The profile form, with these entries besides one that lets everything be read.
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
