//! The error codes that some deployed clients map to kinds of errors: -32600 for a bad value,
//! -32004 for a missing file, -32602 for params that do not decode.

use std::fs;

use exec_server_test_support::skipped;
use serde_json::{Value, json};

use super::{INVALID_PARAMS, INVALID_REQUEST, Scratch, calls_on, uri};
use crate::support::{Server, ServerBuilder, encoded};

const NOT_FOUND: i64 = -32004;

fn refused_with(cases: Vec<(&str, Value)>, code: i64) {
    let server = Server::start();
    for (method, params) in cases {
        // A new client for each case: a wrongly accepted request must not take an id from the next.
        let refused = server.client().refused(method, params.clone());
        assert_eq!(refused.code, code, "{method} {params}: {refused:?}");
    }
}

#[test]
fn a_bad_value_is_an_invalid_request() {
    let scene = Scratch::new();
    fs::write(scene.path("file"), "x").unwrap();
    // Values are checked before the path, which does not exist.
    let (path, file) = (scene.uri("missing/below"), scene.uri("file"));
    let (long, no_mode) = ("x".repeat(4096), 0o10_000);
    let walk = |options: Value| json!({"path": path, "options": options});
    let search = |more: Value| {
        let mut params = json!({"path": path, "searchId": "s", "pattern": "x"});
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        params
    };
    refused_with(
        vec![
            ("fs/writeFile", json!({"path": path, "dataBase64": "", "mode": no_mode})),
            ("fs/setPermissions", json!({"path": path, "mode": no_mode})),
            ("fs/readDirectory", json!({"path": path, "limit": 0})),
            ("fs/readDirectory", json!({"path": path, "limit": 50_001})),
            ("fs/readDirectory", json!({"path": path, "after": "/"})),
            ("fs/walk", walk(json!({"maxDirectories": 0}))),
            ("fs/walk", walk(json!({"maxEntries": 0}))),
            ("fs/walk", walk(json!({"maxDepth": 65}))),
            ("fs/walk", walk(json!({"maxDirectories": 10_001}))),
            ("fs/walk", walk(json!({"maxEntries": 50_001}))),
            ("fs/glob", json!({"path": path, "patterns": ["x"], "maxEntries": 0})),
            ("fs/glob", json!({"path": path, "patterns": ["x"], "maxEntries": 50_001})),
            ("fs/glob", json!({"path": uri(scene.root()), "patterns": ["[z-a]"]})),
            ("fs/search", search(json!({"pattern": "("}))),
            ("fs/search", search(json!({"maxMatches": 100_001}))),
            ("fs/search", search(json!({"before": 101}))),
            ("fs/search", search(json!({"searchId": ""}))),
            ("fs/search", search(json!({"searchId": long}))),
            ("fs/watch", json!({"path": path, "watchId": ""})),
            ("fs/watch", json!({"path": path, "watchId": long})),
            ("fs/symlink", json!({"path": path})),
            ("fs/symlink", json!({"path": path, "target": ""})),
            ("fs/symlink", json!({"path": path, "target": "a\u{0}"})),
            ("fs/open", json!({"path": path, "handleId": ""})),
            ("fs/open", json!({"path": path, "handleId": "x".repeat(33)})),
            ("fs/open", json!({"path": path, "handleId": long})),
            ("fs/create", json!({"path": path, "handleId": long})),
            ("fs/create", json!({"path": path, "handleId": "h", "mode": no_mode})),
            ("fs/create", json!({"path": path, "handleId": "h", "resumeKey": "a/b"})),
            ("fs/readBlock", json!({"handleId": "x".repeat(33), "offset": 0, "len": 1})),
            ("fs/writeBlock", json!({"handleId": long, "offset": 0, "chunk": ""})),
            // The method cannot be applied to this kind of file.
            ("fs/readDirectory", json!({"path": file})),
            ("fs/readFile", json!({"path": uri(scene.root())})),
            ("fs/readLink", json!({"path": file})),
            ("fs/createDirectory", json!({"path": file, "recursive": false})),
            ("fs/copy", json!({"sourcePath": uri(scene.root()), "destinationPath": path})),
            ("fs/remove", json!({"path": "/"})),
            ("fs/rename", json!({"sourcePath": "/", "destinationPath": path})),
        ],
        INVALID_REQUEST,
    );
    assert_eq!(scene.names(), ["file"]);
}

#[test]
fn a_block_that_is_too_long_is_an_invalid_request() {
    let scene = Scratch::new();
    fs::write(scene.path("file"), "x").unwrap();
    let server = Server::start();
    let mut client = server.client();
    client.call("fs/open", json!({"path": scene.uri("file"), "handleId": "in"}));
    client.call("fs/create", json!({"path": scene.uri("file"), "handleId": "out"}));
    let chunk = encoded(vec![0; (1 << 20) + 1]);
    for (method, params) in [
        ("fs/readBlock", json!({"handleId": "in", "offset": 0, "len": (1 << 20) + 1})),
        ("fs/writeBlock", json!({"handleId": "out", "offset": 0, "chunk": chunk})),
        // Handles used in the wrong direction.
        ("fs/readBlock", json!({"handleId": "out", "offset": 0, "len": 1})),
        ("fs/writeBlock", json!({"handleId": "in", "offset": 0, "chunk": ""})),
    ] {
        let refused = client.refused(method, params);
        assert_eq!(refused.code, INVALID_REQUEST, "{method}: {refused:?}");
    }
}

#[test]
fn a_missing_path_is_not_found() {
    let scene = Scratch::new();
    let missing = calls_on(&scene.uri("missing/below")).into_iter().filter(|(method, _)| {
        // These create the missing path, accept that it is missing, or watch for it.
        !["fs/createDirectory", "fs/remove", "fs/watch"].contains(method)
    });
    let mut cases: Vec<_> = missing.collect();
    cases.extend([
        ("fs/remove", json!({"path": scene.uri("missing"), "force": false})),
        ("fs/createDirectory", json!({"path": scene.uri("missing/below"), "recursive": false})),
        ("fs/readBlock", json!({"handleId": "unknown", "offset": 0, "len": 1})),
        ("fs/writeBlock", json!({"handleId": "unknown", "offset": 0, "chunk": ""})),
    ]);
    refused_with(cases, NOT_FOUND);
}

#[test]
fn only_params_that_do_not_decode_are_invalid_params() {
    let scene = Scratch::new();
    let path = scene.uri("file");
    let mut cases = Vec::new();
    for (method, params) in calls_on(&path) {
        for member in ["path", "sourcePath"] {
            if params.get(member).is_some() {
                for wrong in [json!("relative"), json!("http://a/b"), json!(7)] {
                    let mut params = params.clone();
                    params[member] = wrong;
                    cases.push((method, params));
                }
            }
        }
    }
    cases.extend([
        ("fs/writeFile", json!({"path": path, "dataBase64": "?"})),
        ("fs/setPermissions", json!({"path": path, "mode": -1})),
        ("fs/walk", json!({"path": path, "options": {"maxDepth": -1}})),
        ("fs/readBlock", json!({"handleId": 7, "offset": 0, "len": 1})),
    ]);
    refused_with(cases, INVALID_PARAMS);
}

/// Some deployed clients look for the words "Permission denied".
#[test]
fn a_sandbox_refusal_contains_permission_denied() {
    let scene = Scratch::new();
    fs::create_dir(scene.path("granted")).unwrap();
    fs::create_dir(scene.path("outside")).unwrap();
    fs::write(scene.path("outside/file"), "x").unwrap();
    let entry = json!({
        "path": {"type": "path", "path": scene.uri("granted")}, "access": "write"});
    let sandbox = json!({"permissions": {
        "type": "managed",
        "file_system": {"type": "restricted", "entries": [entry]},
        "network": "restricted",
    }});
    let server = ServerBuilder::new().start();
    let mut client = server.client();
    let info = client.call("environment/info", json!({}));
    let code = match info["capabilities"]["sandboxedFileStreaming"].as_bool().unwrap() {
        true => "sandboxDenied",
        false => {
            return skipped("file operations cannot be confined to a sandbox here");
        }
    };
    for path in ["outside/file", "outside/missing"] {
        for (method, mut params) in calls_on(&scene.uri(path)) {
            // Replaces the other path with a permitted one, so only `path` can be refused.
            for (member, name) in
                [("sourcePath", "granted/source"), ("destinationPath", "granted/new")]
            {
                if params.get(member).is_some_and(|other| *other != scene.uri(path)) {
                    params[member] = scene.uri(name).into();
                    fs::write(scene.path("granted/source"), "x").unwrap();
                }
            }
            params["sandbox"] = sandbox.clone();
            let refused = client.refused(method, params.clone());
            assert_eq!(refused.kind.as_deref(), Some(code), "{method} {params}: {refused:?}");
            assert_eq!(refused.code, INVALID_REQUEST, "{method}: {refused:?}");
            assert!(refused.message.contains("Permission denied"), "{method}: {refused:?}");
            let named = scene.path("outside");
            assert!(refused.message.contains(named.to_str().unwrap()), "{method}: {refused:?}");
        }
    }
    assert_eq!(fs::read(scene.path("outside/file")).unwrap(), b"x");
}
