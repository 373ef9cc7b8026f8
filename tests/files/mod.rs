//! `fs/*` of the real binary, with clients that know only the text of the protocol.

#![expect(clippy::print_stdout, reason = "prints measurements, and why a test was skipped")]

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

use exec_server_test_support::{Scratch, uri};
use serde_json::{Value, json};

use crate::support::{Client, decoded, encoded};

const INVALID_REQUEST: i64 = -32600;
const INVALID_PARAMS: i64 = -32602;
const INTERNAL_ERROR: i64 = -32603;

fn read(client: &mut Client, path: &str) -> Vec<u8> {
    decoded(&client.call("fs/readFile", json!({"path": path}))["dataBase64"])
}

fn write(client: &mut Client, path: &str, content: impl AsRef<[u8]>) {
    client.call("fs/writeFile", json!({"path": path, "dataBase64": encoded(content)}));
}

/// Returns calls of every method that takes a path. The other path of a copy or rename does not
/// exist.
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

fn without_symlinks(mut params: Value) -> Value {
    params["followSymlinks"] = false.into();
    params
}
