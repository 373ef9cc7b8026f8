//! Full, restricted or failing storage: the error reaches the caller, and existing files stay
//! intact.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use exec_server_test_support::TemporaryMode;
use exec_server_test_support::skipped;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::{INTERNAL_ERROR, INVALID_REQUEST, Scratch, read, uri, write};
use crate::support::machine::is_root;
use crate::support::{Client, Server, ServerBuilder, command, encoded, run_command, shell};

const SMALL: usize = 256 << 10;
const TOO_MUCH: usize = 1 << 20;

/// Runs a server that sees a file system of 256 KiB in a directory, in a private mount namespace.
/// `None` if it cannot be mounted.
fn server_with_small_storage(directory: &Path) -> Option<Server> {
    server_with(&format!("mount -t tmpfs -o size={SMALL} tmpfs {}", directory.display()))
}

/// Runs a server that sees a file system of 1 MiB in a directory. The file system cannot reserve
/// space. `None` if it cannot be created or mounted.
fn server_without_reservation(image: &Path, directory: &Path) -> Option<Server> {
    let (image, directory) = (image.display(), directory.display());
    let make = format!("mkfs.ext2 -q -F -b 1024 {image} 1024");
    server_with(&format!("{make} && mount -t ext2 -o loop {image} {directory}"))
}

fn server_with(mount: &str) -> Option<Server> {
    let namespace = if is_root() { "-m" } else { "-Urm" };
    let mut attempt = command("unshare");
    attempt.args([namespace, "sh", "-c", mount]);
    let outcome = run_command(attempt);
    if outcome.code != Some(0) {
        skipped(format_args!("cannot create or mount the storage: {}", outcome.stderr.trim()));
        return None;
    }
    let script = format!("{mount} && exec \"$@\"");
    Some(ServerBuilder::new().through(&["unshare", namespace, "sh", "-c", &script, "sh"]).start())
}

fn listed(client: &mut Client, directory: &str) -> Vec<String> {
    let listing = client.call("fs/readDirectory", json!({"path": directory, "details": true}));
    let entries = listing["entries"].as_array().unwrap().iter();
    entries.map(|entry| entry["fileName"].as_str().unwrap().to_owned()).collect()
}

fn expect_full(client: &mut Client, method: &str, params: Value) {
    let refused = client.refused(method, params);
    assert_eq!(refused.kind.as_deref(), Some("storageFull"), "{method}: {refused:?}");
    assert_eq!(refused.code, INTERNAL_ERROR, "{refused:?}");
    assert!(refused.message.contains("os error 28"), "{refused:?}");
}

#[test]
fn a_full_disk_leaves_no_partial_or_temporary_files() {
    let scene = Scratch::new();
    let Some(server) = server_with_small_storage(scene.root()) else { return };
    let mut client = server.client();
    let (root, old, new) = (uri(scene.root()), scene.uri("old"), scene.uri("new"));
    write(&mut client, &old, "old content");
    assert_eq!(scene.names(), [] as [&str; 0], "only the server sees its storage");
    let much = encoded(vec![b'x'; TOO_MUCH]);

    let atomic = json!({"path": old, "dataBase64": much, "atomic": true});
    expect_full(&mut client, "fs/writeFile", atomic);
    assert_eq!(read(&mut client, &old), b"old content");
    assert_eq!(listed(&mut client, &root), ["old"]);

    for atomic in [false, true] {
        let params = json!({"path": new, "dataBase64": much, "atomic": atomic});
        expect_full(&mut client, "fs/writeFile", params);
        assert_eq!(listed(&mut client, &root), ["old"], "atomic: {atomic}");
    }

    client.call("fs/create", json!({"path": old, "handleId": "up"}));
    expect_full(
        &mut client,
        "fs/writeBlock",
        json!({"handleId": "up", "offset": 0, "chunk": much}),
    );
    // A file with a hole must not appear under its path.
    let close = client.refused("fs/close", json!({"handleId": "up"}));
    assert_eq!(close.kind.as_deref(), Some("storageFull"), "{close:?}");
    assert_eq!(read(&mut client, &old), b"old content");
    assert_eq!(listed(&mut client, &root), ["old"]);

    // None of these attempts still occupies space.
    let most = vec![b'y'; SMALL * 5 / 8];
    write(&mut client, &new, &most);
    let copy = json!({"sourcePath": new, "destinationPath": scene.uri("copy")});
    expect_full(&mut client, "fs/copy", copy);
    assert_eq!(listed(&mut client, &root), ["new", "old"]);
    assert!(read(&mut client, &new) == most);

    client.call("fs/remove", json!({"path": new}));
    write(&mut client, &old, "again");
    assert_eq!(read(&mut client, &old), b"again");
}

#[test]
fn a_write_without_space_leaves_the_old_content() {
    let scene = Scratch::new();
    let Some(server) = server_with_small_storage(scene.root()) else { return };
    let mut client = server.client();
    let (root, old, much) = (uri(scene.root()), scene.uri("old"), encoded(vec![b'x'; TOO_MUCH]));
    let content = vec![b'o'; SMALL / 2];
    write(&mut client, &old, &content);
    client.call("fs/setPermissions", json!({"path": old, "mode": 0o600}));
    for condition in [json!({}), json!({"ifSize": content.len()}), json!({"mode": 0o644})] {
        let mut params = condition.clone();
        params["path"] = old.clone().into();
        params["dataBase64"] = much.clone().into();
        expect_full(&mut client, "fs/writeFile", params);
        assert!(read(&mut client, &old) == content, "{condition}");
        let metadata = client.call("fs/getMetadata", json!({"path": old}));
        assert_eq!(metadata["mode"], 0o600, "{condition}");
        assert_eq!(listed(&mut client, &root), ["old"], "{condition}");
    }
    // The reserved space is free again.
    let rest = vec![b'r'; SMALL / 4];
    write(&mut client, &scene.uri("rest"), &rest);
    // Content of the same size fits over the existing content.
    let same = vec![b's'; content.len()];
    write(&mut client, &old, &same);
    assert!(read(&mut client, &old) == same);
}

#[test]
fn a_copy_without_space_leaves_the_old_content() {
    let (scene, elsewhere) = (Scratch::new(), Scratch::new());
    let Some(server) = server_with_small_storage(scene.root()) else { return };
    let mut client = server.client();
    let (root, old) = (uri(scene.root()), scene.uri("old"));
    let content = vec![b'o'; SMALL / 2];
    write(&mut client, &old, &content);
    client.call("fs/setPermissions", json!({"path": old, "mode": 0o600}));
    std::fs::create_dir(elsewhere.path("tree")).unwrap();
    std::fs::write(elsewhere.path("tree/old"), vec![b'x'; TOO_MUCH]).unwrap();
    for (source, destination) in [("tree/old", &old), ("tree", &root)] {
        let params = json!({"sourcePath": elsewhere.uri(source), "destinationPath": destination,
            "recursive": true});
        expect_full(&mut client, "fs/copy", params);
        assert!(read(&mut client, &old) == content, "{source}");
        let metadata = client.call("fs/getMetadata", json!({"path": old}));
        assert_eq!(metadata["mode"], 0o600, "{source}");
        assert_eq!(listed(&mut client, &root), ["old"], "{source}");
    }
    // The reserved space is free again, and a copy fits over the existing content.
    write(&mut client, &scene.uri("rest"), vec![b'r'; SMALL / 4]);
    let same = vec![b's'; content.len()];
    std::fs::write(elsewhere.path("same"), &same).unwrap();
    let params = json!({"sourcePath": elsewhere.uri("same"), "destinationPath": old});
    client.call("fs/copy", params);
    assert!(read(&mut client, &old) == same);
}

/// A hole takes no space until it is written.
#[test]
fn a_write_into_holes_without_space_leaves_them() {
    const LEN: usize = 2 * SMALL;
    let scene = Scratch::new();
    let Some(server) = server_with_small_storage(scene.root()) else { return };
    let mut client = server.client();
    let sparse = scene.uri("sparse");
    client.call("fs/create", json!({"path": sparse, "handleId": "up"}));
    let end = json!({"handleId": "up", "offset": LEN - 1, "chunk": encoded("e")});
    client.call("fs/writeBlock", end);
    client.call("fs/close", json!({"handleId": "up"}));
    let before = read(&mut client, &sparse);
    for len in [LEN, LEN - 8192] {
        let content = encoded(vec![b'x'; len]);
        expect_full(&mut client, "fs/writeFile", json!({"path": sparse, "dataBase64": content}));
        assert!(read(&mut client, &sparse) == before, "{len}");
    }
}

#[test]
fn a_temporary_file_tests_for_space_that_cannot_be_reserved() {
    let (scene, elsewhere) = (Scratch::new(), Scratch::new());
    let image = elsewhere.path("image");
    let Some(server) = server_without_reservation(&image, scene.root()) else { return };
    let mut client = server.client();
    let (root, old) = (uri(scene.root()), scene.uri("old"));
    let content = vec![b'o'; SMALL];
    write(&mut client, &old, &content);
    let names = listed(&mut client, &root);
    let much = encoded(vec![b'x'; TOO_MUCH]);
    for condition in [json!({}), json!({"ifSize": content.len()})] {
        let mut params = condition.clone();
        params["path"] = old.clone().into();
        params["dataBase64"] = much.clone().into();
        expect_full(&mut client, "fs/writeFile", params);
        assert!(read(&mut client, &old) == content, "{condition}");
        assert_eq!(listed(&mut client, &root), names, "{condition}");
    }
    std::fs::write(elsewhere.path("much"), vec![b'x'; TOO_MUCH]).unwrap();
    let copy = |name: &str| json!({"sourcePath": elsewhere.uri(name), "destinationPath": old});
    expect_full(&mut client, "fs/copy", copy("much"));
    assert!(read(&mut client, &old) == content);
    assert_eq!(listed(&mut client, &root), names);
    let new = vec![b'n'; SMALL + SMALL / 2];
    write(&mut client, &old, &new);
    assert!(read(&mut client, &old) == new);
    let newer = vec![b'm'; SMALL + SMALL / 4];
    std::fs::write(elsewhere.path("newer"), &newer).unwrap();
    client.call("fs/copy", copy("newer"));
    assert!(read(&mut client, &old) == newer);
    assert_eq!(listed(&mut client, &root), names);
}

#[test]
fn the_file_size_limit_is_an_error_and_does_not_kill_the_server() {
    let (scene, elsewhere) = (Scratch::new(), Scratch::new());
    std::fs::write(elsewhere.path("much"), vec![0; TOO_MUCH]).unwrap();
    let script = "ulimit -f 128 && exec \"$@\"";
    let server = ServerBuilder::new().through(&["sh", "-c", script, "sh"]).start();
    let mut client = server.client();
    let (path, much) = (scene.uri("f"), encoded(vec![0; TOO_MUCH]));
    std::fs::write(scene.path("old"), "old content").unwrap();
    client.call("fs/create", json!({"path": path, "handleId": "up"}));
    for (method, params) in [
        ("fs/writeFile", json!({"path": path, "dataBase64": much})),
        ("fs/writeFile", json!({"path": scene.uri("old"), "dataBase64": much})),
        (
            "fs/copy",
            json!({"sourcePath": elsewhere.uri("much"), "destinationPath": scene.uri("old")}),
        ),
        ("fs/writeFile", json!({"path": path, "dataBase64": much, "atomic": true})),
        ("fs/writeBlock", json!({"handleId": "up", "offset": 0, "chunk": much})),
        ("fs/close", json!({"handleId": "up"})),
    ] {
        let refused = client.refused(method, params);
        assert_eq!(refused.kind.as_deref(), Some("fileSizeLimit"), "{method}: {refused:?}");
        assert_eq!(refused.code, INVALID_REQUEST, "{method}: {refused:?}");
    }
    assert_eq!(scene.names(), ["old"]);
    assert_eq!(std::fs::read(scene.path("old")).unwrap(), b"old content");
    write(&mut client, &path, "fits");
    // The server ignores SIGXFSZ. Children get the default action.
    let file = scene.path("child");
    let script = format!("exec head -c {TOO_MUCH} /dev/zero > {}", file.display());
    let transcript = client.run(&shell("large", &script));
    assert_eq!(transcript.exit_code, Some(128 + i64::from(Signal::XFSZ.as_raw())));
}

/// The start of a process's memory is unmapped: reads and writes there fail with EIO, as on a
/// broken disk.
#[test]
fn an_error_of_the_device_reaches_the_caller() {
    if !is_root() {
        return skipped("only root may open the memory of another process");
    }
    let server = Server::start();
    let mut client = server.client();
    let path = format!("/proc/{}/mem", std::process::id());
    client.call("fs/open", json!({"path": path, "handleId": "h"}));
    for (method, params) in [
        ("fs/readFile", json!({"path": path})),
        ("fs/readBlock", json!({"handleId": "h", "offset": 0, "len": 1})),
        ("fs/writeFile", json!({"path": path, "dataBase64": encoded("x")})),
    ] {
        let refused = client.refused(method, params);
        assert_eq!(refused.code, INTERNAL_ERROR, "{method}: {refused:?}");
        assert!(refused.message.contains("os error 5"), "{method}: {refused:?}");
    }
    client.call("environment/status", json!({}));
}

#[test]
fn the_server_does_not_reveal_its_own_memory() {
    let server = Server::start();
    let mut client = server.client();
    for path in ["/proc/self/environ", "/proc/self/mem", "/proc/thread-self/environ"] {
        let refused = client.refused("fs/readFile", json!({"path": path}));
        assert_eq!(refused.kind.as_deref(), Some("permissionDenied"), "{refused:?}");
    }
    client.refused("fs/readFile", json!({"path": "/proc/self/fd/0"}));
    client.call("fs/readFile", json!({"path": "/proc/meminfo"}));
}

/// Starts a server as an ordinary user. If root runs the tests, that user owns only `own`.
fn server_of_an_ordinary_user(scene: &Scratch) -> (Server, [TemporaryMode; 2]) {
    let mode = |name: &str, mode| {
        std::fs::set_permissions(scene.path(name), Permissions::from_mode(mode)).unwrap();
    };
    for directory in ["program", "sealed", "unreadable", "own"] {
        std::fs::create_dir(scene.path(directory)).unwrap();
    }
    std::fs::write(scene.path("secret"), "hush").unwrap();
    std::fs::write(scene.path("sealed/open"), "old").unwrap();
    std::fs::write(scene.path("unreadable/file"), "x").unwrap();
    std::fs::write(scene.path("own/file"), "x").unwrap();
    mode("secret", 0o000);
    mode("sealed/open", 0o666);
    mode("", 0o755);
    let closed = [("sealed", 0o555), ("unreadable", 0o000)]
        .map(|(name, mode)| TemporaryMode::set(scene.path(name), mode));
    let builder = ServerBuilder::new();
    if !is_root() {
        return (builder.start(), closed);
    }
    let user = Some(65534);
    for own in ["own", "own/file"] {
        std::os::unix::fs::chown(scene.path(own), user, user).unwrap();
    }
    (builder.with_user(65534, &scene.path("program")).start(), closed)
}

#[test]
fn an_ordinary_user_gets_permission_denied() {
    let scene = Scratch::new();
    let (server, _closed) = server_of_an_ordinary_user(&scene);
    let mut client = server.client();
    let (secret, sealed) = (scene.uri("secret"), scene.uri("sealed/open"));
    let (new, below) = (scene.uri("sealed/new"), scene.uri("unreadable/file"));
    let content = encoded("new");
    let own = scene.uri("own/file");
    for (method, params) in [
        ("fs/readFile", json!({"path": secret})),
        ("fs/open", json!({"path": secret, "handleId": "a"})),
        ("fs/writeFile", json!({"path": secret, "dataBase64": content})),
        ("fs/writeFile", json!({"path": secret, "dataBase64": content, "atomic": true})),
        ("fs/writeFile", json!({"path": sealed, "dataBase64": content, "atomic": true})),
        ("fs/writeFile", json!({"path": new, "dataBase64": content})),
        ("fs/create", json!({"path": sealed, "handleId": "b"})),
        ("fs/createDirectory", json!({"path": new})),
        ("fs/remove", json!({"path": sealed})),
        ("fs/symlink", json!({"path": new, "target": "x"})),
        ("fs/rename", json!({"sourcePath": sealed, "destinationPath": new})),
        ("fs/rename", json!({"sourcePath": own, "destinationPath": new})),
        ("fs/copy", json!({"sourcePath": secret, "destinationPath": scene.uri("own/copy")})),
        ("fs/copy", json!({"sourcePath": own, "destinationPath": new})),
        ("fs/readDirectory", json!({"path": scene.uri("unreadable")})),
        ("fs/getMetadata", json!({"path": below})),
        ("fs/canonicalize", json!({"path": below})),
        ("fs/readFile", json!({"path": below})),
        // Files of the server itself, which it must not reveal.
        ("fs/readFile", json!({"path": "/proc/self/environ"})),
        ("fs/open", json!({"path": "/proc/self/mem", "handleId": "c"})),
    ] {
        let refused = client.refused(method, params.clone());
        assert_eq!(refused.kind.as_deref(), Some("permissionDenied"), "{method}: {refused:?}");
        assert_eq!(refused.code, INVALID_REQUEST, "{method} {params}: {refused:?}");
    }
    if is_root() {
        // The file belongs to another user.
        let params = json!({"path": scene.uri("sealed/open"), "mode": 0o777});
        let refused = client.refused("fs/setPermissions", params);
        assert_eq!(refused.kind.as_deref(), Some("permissionDenied"), "{refused:?}");
    }
    // The file permits the write; its directory cannot prevent it.
    write(&mut client, &sealed, "new");
    assert_eq!(std::fs::read(scene.path("sealed/open")).unwrap(), b"new");
    assert_eq!(scene.names_in("own"), ["file"]);

    let walked = client.call("fs/walk", json!({"path": uri(scene.root())}));
    let found = walked["entries"].as_array().unwrap();
    assert!(found.iter().any(|entry| entry["path"] == own), "the walk continues: {walked}");
    let errors = walked["errors"].as_array().unwrap();
    assert_eq!(errors.len(), 1, "{walked}");
    assert_eq!(errors[0]["path"], scene.uri("unreadable"));
}

/// In each round the server is killed after a larger part of the new content has been written.
#[test]
fn a_server_killed_in_an_atomic_write_leaves_a_complete_file() {
    const LEN: usize = 4 << 20;
    let scene = Scratch::new();
    let (file, path) = (scene.path("file"), scene.uri("file"));
    let mut left_old = 0;
    for round in 0..8 {
        std::fs::write(&file, vec![b'o'; LEN]).unwrap();
        let old = std::fs::metadata(&file).unwrap().ino();
        let server = Server::start();
        let mut client = server.client();
        let new = encoded(vec![b'n'; LEN]);
        client.request("fs/writeFile", json!({"path": path, "dataBase64": new, "atomic": true}));
        let enough = (LEN / 8 * round) as u64;
        while temporary_bytes(&scene).is_none_or(|written| written < enough)
            && std::fs::metadata(&file).unwrap().ino() == old
        {
            std::thread::yield_now();
        }
        server.signal(Signal::KILL);
        drop(server);
        let content = std::fs::read(&file).unwrap();
        assert_eq!(content.len(), LEN, "round {round}");
        assert!(content.iter().all(|byte| *byte == content[0]), "a mix of both, round {round}");
        left_old += usize::from(content[0] == b'o');
        for name in scene.names().iter().filter(|name| *name != "file") {
            assert!(name.starts_with(".file.") && name.ends_with(".tmp"), "{name}");
        }
        let server = Server::start();
        let again = json!({"path": path, "dataBase64": encoded("again"), "atomic": true});
        server.client().call("fs/writeFile", again);
        assert_eq!(scene.names(), ["file"], "the next write replaces the abandoned file");
    }
    println!("{left_old} of 8 were killed before the new file was there");
}

fn temporary_bytes(scene: &Scratch) -> Option<u64> {
    let names = scene.names();
    let temporary = names.iter().find(|name| *name != "file")?;
    std::fs::metadata(scene.path(temporary)).ok().map(|metadata| metadata.len())
}
