//! The syntax of paths, and symlinks in them.

use std::os::unix::fs::symlink;

use serde_json::{Value, json};

use super::{INVALID_PARAMS, INVALID_REQUEST, Scratch, calls_on, read, without_symlinks};
use crate::support::Server;

#[test]
fn every_method_refuses_disguised_and_foreign_paths() {
    let server = Server::start();
    let mut client = server.client();
    for path in [
        "file:///tmp/%2e%2e/etc/passwd",
        "file:///tmp/%2E./etc/passwd",
        "file:///tmp/%2e/x",
        "file:///tmp%2Fx",
        "file:///tmp%2fx",
        "file:///tmp/x%00",
        "file:///tmp/x%00.txt",
        "/tmp/x\0",
        "file://example.org/tmp/x",
        "file://localhost/tmp/x",
        "file:tmp/x",
        "file:///tmp/%zz",
        "file:///tmp/%4",
        "file:///tmp/x?query",
        "file:///tmp/x#fragment",
        "http:///tmp/x",
        "https://example.org/tmp/x",
        "tmp/x",
        "./x",
        "../x",
        "~/x",
        "",
    ] {
        for (method, params) in calls_on(path) {
            let refused = client.refused(method, params);
            assert_eq!(refused.code, INVALID_PARAMS, "{method} {path:?}: {refused:?}");
            assert!(!refused.message.contains('\n'), "{refused:?}");
        }
    }
    client.call("environment/status", json!({}));
}

#[test]
fn a_path_that_is_not_a_string_is_refused() {
    let server = Server::start();
    let mut client = server.client();
    for path in [json!(1), json!(null), json!(["/tmp"]), json!({"path": "/tmp"})] {
        let refused = client.refused("fs/readFile", json!({"path": path}));
        assert_eq!(refused.code, INVALID_PARAMS, "{path}: {refused:?}");
    }
}

/// Creates `a/b/file`, and for each of its components a path in which that component is a symlink.
fn scene_with_links() -> (Scratch, [String; 3]) {
    let scene = Scratch::new();
    std::fs::create_dir_all(scene.path("a/b")).unwrap();
    std::fs::create_dir(scene.path("other")).unwrap();
    std::fs::write(scene.path("a/b/file"), "content").unwrap();
    symlink("a", scene.path("first")).unwrap();
    symlink("../a/b", scene.path("other/second")).unwrap();
    symlink(scene.path("a/b/file"), scene.path("a/b/third")).unwrap();
    let paths = ["first/b/file", "other/second/file", "a/b/third"].map(|path| scene.uri(path));
    (scene, paths)
}

#[test]
fn a_symlink_anywhere_in_a_path_is_followed_unless_forbidden() {
    let (scene, paths) = scene_with_links();
    let server = Server::start();
    let mut client = server.client();
    for path in &paths {
        assert_eq!(read(&mut client, path), b"content", "{path}");
        let refused = client.refused("fs/readFile", json!({"path": path, "followSymlinks": false}));
        assert_eq!(refused.kind.as_deref(), Some("symlink"), "{path}: {refused:?}");
        let found = client.call("fs/canonicalize", json!({"path": path}));
        assert_eq!(found["path"], scene.uri("a/b/file"));
    }
    let plain = json!({"path": scene.uri("a/b/file"), "followSymlinks": false});
    client.call("fs/readFile", plain);
    let null = json!({"path": paths[0], "followSymlinks": null});
    client.call("fs/readFile", null);
}

/// Without the refusal, each method would change or return a file behind the link.
#[test]
fn every_method_refuses_symlinks_above_the_name_on_request() {
    let (scene, _) = scene_with_links();
    let server = Server::start();
    let mut client = server.client();
    let path = scene.uri("first/b/file");
    for (method, params) in calls_on(&path) {
        // These have no `followSymlinks`: they return where a path leads, or work on a tree.
        if ["canonicalize", "readDirectory", "walk", "glob", "search", "watch", "copy"]
            .contains(&method.trim_start_matches("fs/"))
        {
            continue;
        }
        let mut params = without_symlinks(params);
        for (member, missing) in
            [("sourcePath", "/nonexistent/source"), ("destinationPath", "/nonexistent/new")]
        {
            // Replaces the other path of a rename with a valid one.
            if params[member] == missing {
                params[member] = scene.uri("a/b/file").into();
            }
        }
        let refused = client.refused(method, params);
        assert_eq!(refused.code, INVALID_REQUEST, "{method}: {refused:?}");
        assert_eq!(refused.kind.as_deref(), Some("symlink"), "{method}: {refused:?}");
    }
    assert_eq!(std::fs::read(scene.path("a/b/file")).unwrap(), b"content");
    assert_eq!(scene.names_in("a/b"), ["file", "third"]);
}

#[test]
fn creating_removing_and_moving_act_on_the_link_itself() {
    let (scene, [_, _, link]) = scene_with_links();
    let server = Server::start();
    let mut client = server.client();
    let moved = scene.uri("moved");
    client.call("fs/rename", json!({"sourcePath": link, "destinationPath": moved}));
    let target = client.call("fs/readLink", json!({"path": moved}));
    assert_eq!(target["target"], scene.path("a/b/file").to_str().unwrap());
    let taken = client.refused("fs/createDirectory", json!({"path": moved, "recursive": false}));
    assert_eq!(taken.kind.as_deref(), Some("conflict"), "{taken:?}");
    let refused = client.refused("fs/remove", json!({"path": moved, "followSymlinks": false}));
    assert_eq!(refused.kind.as_deref(), Some("symlink"), "{refused:?}");
    assert!(scene.path("moved").is_symlink());
    client.call("fs/remove", json!({"path": moved}));
    assert!(scene.path("moved").symlink_metadata().is_err());
    assert_eq!(std::fs::read(scene.path("a/b/file")).unwrap(), b"content");
}

#[test]
fn a_symlink_loop_is_an_error_in_every_method() {
    let scene = Scratch::new();
    symlink("two", scene.path("one")).unwrap();
    symlink("one", scene.path("two")).unwrap();
    let server = Server::start();
    let mut client = server.client();
    for path in [scene.uri("one"), scene.uri("one/below")] {
        for (method, params) in calls_on(&path) {
            let works_on_the_name = ["readLink", "symlink", "rename", "remove"];
            if works_on_the_name.contains(&method.trim_start_matches("fs/")) {
                continue;
            }
            let refused = client.refused(method, params);
            // If the other path of a copy is missing, that may be reported first.
            assert!(
                refused.message.contains("too many symlinks") || method == "fs/copy",
                "{method} {path}: {refused:?}"
            );
        }
    }
    assert_eq!(scene.names(), ["one", "two"]);
    // A link of the loop can be removed like any other name.
    client.call("fs/remove", json!({"path": scene.uri("one")}));
    assert_eq!(scene.names(), ["two"]);
}

/// As in the kernel: `..` goes up from the target of the link, not from the place of the link.
#[test]
fn dots_after_a_symlink_go_up_from_its_target() {
    let scene = Scratch::new();
    std::fs::create_dir_all(scene.path("deep/inner")).unwrap();
    std::fs::write(scene.path("deep/mark"), "deep").unwrap();
    std::fs::write(scene.path("mark"), "shallow").unwrap();
    symlink("deep/inner", scene.path("link")).unwrap();
    let server = Server::start();
    let mut client = server.client();
    let path = scene.uri("link/../mark");
    assert_eq!(read(&mut client, &path), b"deep");
    assert_eq!(
        client.call("fs/canonicalize", json!({"path": path}))["path"],
        scene.uri("deep/mark")
    );
    super::write(&mut client, &path, "written");
    assert_eq!(std::fs::read(scene.path("deep/mark")).unwrap(), b"written");
    assert_eq!(std::fs::read(scene.path("mark")).unwrap(), b"shallow");
    let refused = client.refused("fs/readFile", without_symlinks(json!({"path": path})));
    assert_eq!(refused.kind.as_deref(), Some("symlink"), "{refused:?}");
}

#[test]
fn the_error_names_a_missing_path() {
    let scene = Scratch::new();
    let server = Server::start();
    let mut client = server.client();
    for method in ["readFile", "getMetadata", "canonicalize", "readDirectory", "readLink", "walk"] {
        let params: Value = json!({"path": scene.uri("missing")});
        let refused = client.refused(&format!("fs/{method}"), params);
        assert_eq!(refused.code, -32004, "{method}: {refused:?}");
        assert_eq!(refused.kind.as_deref(), Some("notFound"), "{method}: {refused:?}");
        assert!(refused.message.contains(scene.path("missing").to_str().unwrap()), "{refused:?}");
    }
    client.call("fs/remove", json!({"path": scene.uri("missing")}));
    let strict = json!({"path": scene.uri("missing"), "force": false});
    assert_eq!(client.refused("fs/remove", strict).code, -32004);
}
