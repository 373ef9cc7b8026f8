//! File operations under a sandbox: every method, by every way that a request can name a file.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use exec_server_server::{SandboxCeiling, SandboxLevel, Server, ServerConfig};
use exec_server_test_support::{RpcClient, Scratch, TestServer, decoded, uri};
use serde_json::{Value, json};

/// A workspace and its surroundings: `work` is writable, `.git` in it read-only, `outside` denied.
struct Scene(Scratch);

impl Scene {
    fn new() -> Self {
        let scratch = Scratch::new();
        for directory in ["work/plain", "work/.git", "outside"] {
            scratch.directory(format!("{directory}/sub"));
            scratch.file(format!("{directory}/file"), directory);
            scratch.symlink("file", format!("{directory}/link"));
        }
        scratch.file("work/movable", "movable");
        scratch.file("work/key.pem", "secret");
        Self(scratch)
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.path(path)
    }

    fn uri(&self, path: &str) -> String {
        self.0.uri(path)
    }

    fn sandbox(&self) -> Value {
        let entry = |path, access| json!({"path": path, "access": access});
        json!({
            "permissions": {
                "type": "managed",
                "file_system": {"type": "restricted", "entries": [
                    entry(json!({"type": "path", "path": self.uri("work")}), "write"),
                    entry(json!({"type": "glob_pattern", "pattern": "**/*.pem"}), "deny"),
                ]},
                "network": "restricted",
            },
            "cwd": self.uri("work"),
        })
    }
}

fn kind(error: &Value) -> &str {
    error["data"]["kind"].as_str().unwrap_or("")
}

async fn open_client(server: &Server) -> RpcClient {
    RpcClient::open(server, json!({"clientName": "files"})).await.0
}

/// Returns every method that names files, with params about entries of `directory`, and whether it
/// changes anything there.
fn requests(scene: &Scene, directory: &str, sandbox: &Value) -> Vec<(&'static str, Value, bool)> {
    let at = |name: &str| format!("{}/{name}", scene.uri(directory));
    let (file, new) = (at("file"), at("new"));
    let work = |name: &str| scene.uri(&format!("work/{name}"));
    let requests = vec![
        ("fs/readFile", json!({"path": file}), false),
        ("fs/getMetadata", json!({"path": file}), false),
        ("fs/getMetadata", json!({"path": file, "followSymlinks": false}), false),
        ("fs/canonicalize", json!({"path": at("link")}), false),
        ("fs/readDirectory", json!({"path": scene.uri(directory)}), false),
        ("fs/readDirectory", json!({"path": scene.uri(directory), "details": true}), false),
        ("fs/walk", json!({"path": scene.uri(directory), "options": {}}), false),
        ("fs/glob", json!({"path": scene.uri(directory), "patterns": ["**"]}), false),
        ("fs/readLink", json!({"path": at("link")}), false),
        ("fs/open", json!({"path": file, "handleId": format!("open {directory}")}), false),
        ("fs/watch", json!({"path": file, "watchId": format!("watch {directory}")}), false),
        (
            "fs/search",
            json!({"path": scene.uri(directory), "pattern": ".", "searchId": "s"}),
            false,
        ),
        (
            "fs/copy",
            json!({"sourcePath": file, "destinationPath": work("copy"), "recursive": false}),
            false,
        ),
        ("fs/writeFile", json!({"path": file, "dataBase64": "aGk="}), true),
        ("fs/writeFile", json!({"path": new, "dataBase64": "aGk=", "atomic": true}), true),
        ("fs/createDirectory", json!({"path": at("directory")}), true),
        ("fs/symlink", json!({"path": at("symlink"), "target": "x"}), true),
        ("fs/setPermissions", json!({"path": file, "mode": 0o600}), true),
        ("fs/create", json!({"path": at("up"), "handleId": format!("up {directory}")}), true),
        (
            "fs/copy",
            json!({"sourcePath": work("movable"), "destinationPath": at("c"), "recursive": false}),
            true,
        ),
        ("fs/rename", json!({"sourcePath": file, "destinationPath": at("renamed")}), true),
        ("fs/remove", json!({"path": at("sub")}), true),
    ];
    let with_sandbox = |(method, mut params, changes): (_, Value, _)| {
        params["sandbox"] = sandbox.clone();
        (method, params, changes)
    };
    requests.into_iter().map(with_sandbox).collect()
}

#[tokio::test]
async fn every_method_obeys_the_sandbox_of_its_request() {
    let server = TestServer::new(ServerConfig::default());
    let mut client = open_client(&server).await;
    let scene = Scene::new();
    let sandbox = scene.sandbox();
    for (method, params, _) in requests(&scene, "work/plain", &sandbox) {
        let answer = client.call(method, params.clone()).await;
        assert!(answer.is_ok(), "{method} {params}: {answer:?}");
    }
    for (method, params, changes) in requests(&scene, "work/.git", &sandbox) {
        let answer = client.call(method, params.clone()).await;
        assert_eq!(answer.is_err(), changes, "{method} {params}: {answer:?}");
        if let Err(error) = answer {
            assert_eq!((kind(&error), &error["code"]), ("sandboxDenied", &json!(-32600)));
        }
    }
    let there = requests(&scene, "outside", &sandbox);
    for (existing, missing) in there.into_iter().zip(requests(&scene, "absent", &sandbox)) {
        let (method, there, _) = existing;
        let error = client.call(method, there).await.unwrap_err();
        assert_eq!((kind(&error), &error["code"]), ("sandboxDenied", &json!(-32600)), "{method}");
        let nowhere = client.call(method, missing.1).await.unwrap_err();
        // Identical byte for byte, except for the path that was sent.
        let here = error.to_string().replace(scene.at("outside").to_str().unwrap(), "PATH");
        let there = nowhere.to_string().replace(scene.at("absent").to_str().unwrap(), "PATH");
        assert!(here.contains("PATH"), "{method}: {error}");
        assert_eq!(here, there, "{method}");
    }
    assert_eq!(std::fs::read(scene.at("outside/file")).unwrap(), b"outside");
    for (method, mut params, _) in requests(&scene, "outside", &sandbox) {
        params.as_object_mut().unwrap().remove("sandbox");
        let answer = client.call(method, params.clone()).await;
        assert!(answer.is_ok(), "{method} {params}: {answer:?}");
    }
}

#[tokio::test]
async fn an_upload_stays_under_its_sandbox_to_its_end() {
    let server = TestServer::new(ServerConfig::default());
    let mut client = open_client(&server).await;
    let scene = Scene::new();
    let create = |name: &str| {
        let path = scene.uri(&format!("work/plain/{name}"));
        json!({"path": path, "handleId": name, "sandbox": scene.sandbox()})
    };
    for name in ["good", "bad", "dropped"] {
        client.call("fs/create", create(name)).await.unwrap();
        let block = json!({"handleId": name, "offset": 0, "chunk": "aGk="});
        client.call("fs/writeBlock", block).await.unwrap();
    }
    client.call("fs/close", json!({"handleId": "good"})).await.unwrap();
    assert_eq!(std::fs::read(scene.at("work/plain/good")).unwrap(), b"hi");
    std::fs::rename(scene.at("work/plain"), scene.at("outside/plain")).unwrap();
    let error = client.call("fs/close", json!({"handleId": "bad"})).await.unwrap_err();
    assert_eq!(kind(&error), "sandboxDenied");
    assert!(!scene.at("outside/plain/bad").exists());
    client.cut().await;
    server.shutdown().await;
}

#[tokio::test]
async fn an_open_file_stays_readable() {
    let server = TestServer::new(ServerConfig::default());
    let mut client = open_client(&server).await;
    let scene = Scene::new();
    let large = vec![b'x'; 300_000];
    std::fs::write(scene.at("work/large"), &large).unwrap();
    let open = json!({
        "path": scene.uri("work/large"), "handleId": "h", "sandbox": scene.sandbox(),
    });
    client.call("fs/open", open).await.unwrap();
    std::fs::remove_file(scene.at("work/large")).unwrap();
    let read = json!({"handleId": "h", "offset": 100_000, "len": 1 << 20});
    let block = client.call("fs/readBlock", read).await.unwrap();
    assert_eq!(decoded(&block["chunk"]).len(), 200_000);
    client.call("fs/close", json!({"handleId": "h"})).await.unwrap();
    std::fs::write(scene.at("work/large"), &large).unwrap();
    let read = json!({"path": scene.uri("work/large"), "sandbox": scene.sandbox()});
    let content = client.call("fs/readFile", read).await.unwrap();
    assert_eq!(decoded(&content["dataBase64"]), large);
}

#[tokio::test]
async fn searches_and_watches_reveal_no_denied_files() {
    let server = TestServer::new(ServerConfig::default());
    let mut client = open_client(&server).await;
    let scene = Scene::new();
    let search = json!({
        "path": scene.uri("work"), "pattern": "secret|movable", "searchId": "s",
        "sandbox": scene.sandbox(),
    });
    let summary = client.call("fs/search", search).await.unwrap();
    assert_eq!((&summary["matches"], &summary["unreadable"]), (&json!(1), &json!(0)));
    let found = client.notification().await;
    assert_eq!(found["params"]["results"][0]["path"], scene.uri("work/movable"));
    let watch = json!({
        "path": scene.uri("work"), "watchId": "w", "recursive": true, "sandbox": scene.sandbox(),
    });
    client.call("fs/watch", watch).await.unwrap();
    std::fs::write(scene.at("work/key.pem"), "changed").unwrap();
    std::fs::write(scene.at("work/other.pem"), "new").unwrap();
    std::fs::create_dir_all(scene.at("work/new/directory.pem")).unwrap();
    std::fs::write(scene.at("work/new/last"), "").unwrap();
    let mut told = Vec::new();
    while !told.contains(&json!(scene.uri("work/new/last"))) {
        let changed = client.notification().await;
        told.extend(changed["params"]["changedPaths"].as_array().unwrap().clone());
    }
    let denied = |path: &Value| path.as_str().unwrap().ends_with(".pem");
    assert!(!told.iter().any(denied), "{told:?}");
    // Directories that a confined thread could not open are not watched at all.
    assert!(is_watched(&scene.at("work/new")) && !is_watched(&scene.at("work/new/directory.pem")));
    client.call("fs/unwatch", json!({"watchId": "w"})).await.unwrap();
}

fn is_watched(path: &Path) -> bool {
    let inode = format!(" ino:{:x} ", std::fs::metadata(path).unwrap().ino());
    let queues = std::fs::read_dir("/proc/self/fdinfo").unwrap();
    queues.into_iter().filter_map(|queue| std::fs::read_to_string(queue.ok()?.path()).ok()).any(
        |queue| queue.lines().any(|line| line.starts_with("inotify wd:") && line.contains(&inode)),
    )
}

/// The kernel confines a thread to the files that existed when the thread began. Clients must not
/// notice that.
#[tokio::test]
async fn a_replaced_root_is_usable_at_once() {
    let server = TestServer::new(ServerConfig::default());
    let mut client = open_client(&server).await;
    let scene = Scene::new();
    let write = json!({
        "path": scene.uri("work/new"), "dataBase64": "aGk=", "sandbox": scene.sandbox(),
    });
    for round in 0..20 {
        client.call("fs/writeFile", write.clone()).await.unwrap();
        assert_eq!(std::fs::read(scene.at("work/new")).unwrap(), b"hi", "round {round}");
        std::fs::rename(scene.at("work"), scene.at(&format!("old{round}"))).unwrap();
        std::fs::create_dir(scene.at("work")).unwrap();
    }
}

#[tokio::test]
async fn the_operators_sandbox_applies_to_requests_without_one() {
    let scene = Scene::new();
    let ceiling =
        SandboxCeiling { require: Some(SandboxLevel::ReadOnly), ..SandboxCeiling::default() };
    let server = TestServer::new(ServerConfig { sandbox: ceiling, ..ServerConfig::default() });
    let mut client = open_client(&server).await;
    let all = json!({"type": "danger-full-access"});
    for sandbox in [Value::Null, all, scene.sandbox()] {
        for (method, params, changes) in requests(&scene, "work/plain", &sandbox) {
            // The copy is created in the workspace.
            let changes = changes || method == "fs/copy";
            let answer = client.call(method, params.clone()).await;
            if method == "fs/open" || method == "fs/watch" {
                continue;
            }
            assert_eq!(answer.is_err(), changes, "{method} {params}: {answer:?}");
            if let Err(error) = answer {
                assert_eq!(kind(&error), "sandboxDenied", "{method}: {error}");
            }
        }
    }
}

/// The operator's workspace is below a world-writable directory: a user who replaced the workspace
/// would bring their own `.git`.
#[tokio::test]
async fn no_request_moves_the_operators_workspace() {
    let scene = Scene::new();
    let (workspace, planted) = (scene.at("above/workspace"), scene.at("planted"));
    std::fs::create_dir_all(&workspace).unwrap();
    std::fs::create_dir_all(planted.join(".git/hooks")).unwrap();
    std::os::unix::fs::symlink(&planted, scene.at("link")).unwrap();
    let ceiling = SandboxCeiling {
        require: Some(SandboxLevel::WorkspaceWrite),
        writable_roots: vec![scene.0.root().to_owned(), workspace],
        ..SandboxCeiling::default()
    };
    let server = TestServer::new(ServerConfig { sandbox: ceiling, ..ServerConfig::default() });
    let mut client = open_client(&server).await;
    let (link, planted) = (scene.uri("link"), scene.uri("planted"));
    for name in ["above/workspace", "above"] {
        let path = scene.uri(name);
        let copy = json!({"sourcePath": link, "destinationPath": path, "recursive": false});
        let taking = [
            ("fs/remove", json!({"path": path})),
            ("fs/rename", json!({"sourcePath": path, "destinationPath": scene.uri("away")})),
        ];
        let making = [
            ("fs/symlink", json!({"path": path, "target": planted})),
            ("fs/copy", copy),
            ("fs/rename", json!({"sourcePath": link, "destinationPath": path})),
            ("fs/writeFile", json!({"path": path, "dataBase64": ""})),
            ("fs/create", json!({"path": path, "handleId": "h"})),
        ];
        for (method, params) in taking {
            let error = client.call(method, params).await.unwrap_err();
            assert_eq!(kind(&error), "sandboxDenied", "{method} {name}: {error}");
        }
        // Remove the directory, as another user could.
        std::fs::remove_dir_all(scene.at(name)).unwrap();
        for (method, params) in making {
            let error = client.call(method, params).await.unwrap_err();
            assert_eq!(kind(&error), "sandboxDenied", "{method} {name}: {error}");
        }
        client.call("fs/createDirectory", json!({"path": path})).await.unwrap();
        std::fs::create_dir_all(scene.at("above/workspace")).unwrap();
    }
}

#[tokio::test]
async fn an_invalid_sandbox_is_refused() {
    let server = TestServer::new(ServerConfig::default());
    let mut client = open_client(&server).await;
    let scene = Scene::new();
    for sandbox in [json!({}), json!({"type": "strange"}), json!({"permissions": {}})] {
        for (method, params, _) in requests(&scene, "work/plain", &sandbox) {
            let error = client.call(method, params).await.unwrap_err();
            assert_eq!(kind(&error), "badSandbox", "{method}: {error}");
        }
    }
    let mut write = json!({"path": scene.uri("work/new"), "dataBase64": "aGk="});
    write["sandbox"] = json!({"type": "read-only"});
    let error = client.call("fs/writeFile", write.clone()).await.unwrap_err();
    assert_eq!(kind(&error), "sandboxDenied");
    write["sandbox"] = json!({"type": "danger-full-access"});
    client.call("fs/writeFile", write).await.unwrap();
}

fn confined_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")));
    names.filter(|name| matches!(name, Ok(name) if name.starts_with("files-confined"))).count()
}

#[tokio::test]
async fn many_policies_do_not_need_many_threads() {
    const POLICIES: usize = 100;
    const REQUESTS: usize = 10_000;
    const AT_ONCE: usize = 50;
    let server = TestServer::new(ServerConfig::default());
    let mut client = open_client(&server).await;
    let directory = Scratch::new();
    let reads: Vec<Value> = (0..POLICIES)
        .map(|number| {
            let work = directory.directory(number.to_string());
            std::fs::write(work.join("file"), number.to_string()).unwrap();
            let entries =
                json!([{"path": {"type": "path", "path": uri(&work)}, "access": "write"}]);
            let files = json!({"type": "restricted", "entries": entries});
            json!({
                "path": uri(work.join("file")),
                "sandbox": {"permissions": {
                    "type": "managed", "file_system": files, "network": "restricted",
                }},
            })
        })
        .collect();
    let mut most = 0;
    for batch in 0..REQUESTS / AT_ONCE {
        let numbers: Vec<_> = (0..AT_ONCE).map(|n| (batch * AT_ONCE + n) % POLICIES).collect();
        let mut asked = Vec::new();
        for number in &numbers {
            asked.push(client.request("fs/readFile", reads[*number].clone()).await);
        }
        for (id, number) in asked.into_iter().zip(numbers) {
            let content = client.response(id).await.unwrap();
            assert_eq!(decoded(&content["dataBase64"]), number.to_string().as_bytes());
        }
        most = most.max(confined_threads());
    }
    // Under `cargo test`, other tests in this process have a few such threads, too.
    assert!((2..=64 + 16).contains(&most), "{most} threads");
}
