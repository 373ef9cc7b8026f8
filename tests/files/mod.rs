//! `fs/*` of the real binary, asked by clients that know nothing but the text of the protocol.

#![expect(clippy::print_stdout, reason = "what was measured, and why something was not tried")]

mod codes;
mod concurrency;
mod conflicts;
mod content;
mod limits;
mod names;
mod paths;
mod races;
mod sandboxed;
mod special;
mod storage;
mod uploads;
mod watches;

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Client, decoded, encoded};

const INVALID_REQUEST: i64 = -32600;
const INVALID_PARAMS: i64 = -32602;
const INTERNAL_ERROR: i64 = -32603;

/// A directory for one test, by a path without symlinks.
struct Scene {
    _directory: TempDir,
    root: PathBuf,
}

impl Scene {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        Self { _directory: directory, root }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn uri(&self, name: &str) -> String {
        uri(self.path(name))
    }

    /// What is in the directory, in order.
    fn names(&self) -> Vec<String> {
        names_in(&self.root)
    }
}

fn names_in(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
    let mut names: Vec<_> = entries.map(|entry| name(entry).into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

fn uri(path: impl AsRef<Path>) -> String {
    let mut uri = "file://".to_owned();
    for byte in path.as_ref().as_os_str().as_bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' => uri.push(char::from(*byte)),
            byte if byte.is_ascii_alphanumeric() => uri.push(char::from(*byte)),
            byte => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    uri
}

fn read(client: &mut Client, path: &str) -> Vec<u8> {
    decoded(&client.call("fs/readFile", json!({"path": path}))["dataBase64"])
}

fn write(client: &mut Client, path: &str, content: impl AsRef<[u8]>) {
    client.call("fs/writeFile", json!({"path": path, "dataBase64": encoded(content)}));
}

/// The methods whose last component is looked at, with params that would make them succeed on a file or a directory.
fn calls_on(path: &str) -> Vec<(&'static str, Value)> {
    let content = encoded("new");
    vec![
        ("fs/readFile", json!({"path": path})),
        ("fs/writeFile", json!({"path": path, "dataBase64": content})),
        ("fs/writeFile", json!({"path": path, "dataBase64": content, "atomic": true})),
        ("fs/open", json!({"path": path, "handleId": "in"})),
        ("fs/create", json!({"path": path, "handleId": "out"})),
        ("fs/createDirectory", json!({"path": path})),
        ("fs/getMetadata", json!({"path": path})),
        ("fs/setPermissions", json!({"path": path, "mode": 0o700})),
        ("fs/canonicalize", json!({"path": path})),
        ("fs/readDirectory", json!({"path": path})),
        ("fs/walk", json!({"path": path})),
        ("fs/glob", json!({"path": path, "patterns": ["*"]})),
        ("fs/search", json!({"path": path, "searchId": "s", "pattern": "x"})),
        ("fs/watch", json!({"path": path, "watchId": "w"})),
        ("fs/readLink", json!({"path": path})),
        ("fs/symlink", json!({"path": path, "target": "elsewhere"})),
        ("fs/copy", json!({"sourcePath": path, "destinationPath": "/nonexistent/copy"})),
        ("fs/copy", json!({"sourcePath": "/nonexistent/source", "destinationPath": path})),
        ("fs/rename", json!({"sourcePath": path, "destinationPath": "/nonexistent/new"})),
        ("fs/rename", json!({"sourcePath": "/nonexistent/source", "destinationPath": path})),
        ("fs/remove", json!({"path": path})),
    ]
}

/// The same request, but no symlink is to be followed.
fn without_symlinks(mut params: Value) -> Value {
    params["followSymlinks"] = false.into();
    params
}
