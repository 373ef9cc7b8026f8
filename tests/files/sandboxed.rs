//! `environment/info` reports whether files can be streamed under a policy.

use serde_json::{Value, json};

use super::{INVALID_REQUEST, Scratch, uri};
use crate::support::{Client, ServerBuilder, decoded, encoded};

/// Everything is readable, and one directory is writable.
fn policy(scene: &Scratch) -> Value {
    let root = json!({"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"});
    let inside = uri(scene.path("inside"));
    let inside = json!({"path": {"type": "path", "path": inside}, "access": "write"});
    json!({"permissions": {
        "type": "managed",
        "file_system": {"type": "restricted", "entries": [root, inside]},
        "network": "restricted",
    }})
}

fn says_that_it_streams(client: &mut Client) -> bool {
    let info = client.call("environment/info", json!({}));
    info["capabilities"]["sandboxedFileStreaming"].as_bool().unwrap()
}

fn stream(client: &mut Client, scene: &Scratch, sandbox: &Value) {
    let source = json!({"path": scene.uri("source"), "handleId": "in", "sandbox": sandbox});
    client.call("fs/open", source);
    let block = client.call("fs/readBlock", json!({"handleId": "in", "offset": 1, "len": 100}));
    assert_eq!(decoded(&block["chunk"]), b"ontent");
    let copy = json!({"path": scene.uri("inside/copy"), "handleId": "out", "sandbox": sandbox});
    client.call("fs/create", copy);
    let chunk = encoded("ontent");
    client.call("fs/writeBlock", json!({"handleId": "out", "offset": 0, "chunk": chunk}));
    assert_eq!(client.call("fs/close", json!({"handleId": "out"}))["committed"], true);
    assert_eq!(std::fs::read(scene.path("inside/copy")).unwrap(), b"ontent");

    let outside = json!({"path": scene.uri("outside"), "handleId": "x", "sandbox": sandbox});
    let refused = client.refused("fs/create", outside);
    assert_eq!(refused.kind.as_deref(), Some("sandboxDenied"), "{refused:?}");
}

#[test]
fn a_server_reports_whether_it_streams_under_a_policy() {
    let scene = Scratch::new();
    std::fs::create_dir(scene.path("inside")).unwrap();
    std::fs::write(scene.path("source"), "content").unwrap();
    let sandbox = policy(&scene);
    for without in ["", "landlock"] {
        let variable = "EXEC_SERVER_SANDBOX_WITHOUT";
        let server = ServerBuilder::new().variable(variable, without).start();
        let mut client = server.client();
        if says_that_it_streams(&mut client) {
            assert_ne!(without, "landlock");
            stream(&mut client, &scene, &sandbox);
            continue;
        }
        for (method, name) in [("fs/open", "source"), ("fs/create", "inside/new")] {
            let params = json!({"path": scene.uri(name), "handleId": "h", "sandbox": sandbox});
            let refused = client.refused(method, params);
            assert_eq!(refused.kind.as_deref(), Some("sandboxUnavailable"), "{refused:?}");
            assert_eq!(refused.code, INVALID_REQUEST, "{refused:?}");
        }
    }
}
