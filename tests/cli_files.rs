//! `ls`, `cat`, `mkdir`, `rm`, `watch` and `grep` on files of a server.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use exec_server_test_support::Scratch;
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::tmux::Tmux;
use crate::support::{Running, Server, random_file, run_program};

/// A server, and a directory with files in which the commands run.
struct Machine {
    server: Server,
    directory: TempDir,
}

struct Outcome {
    code: Option<i32>,
    stdout: Vec<u8>,
    stderr: String,
}

impl Machine {
    fn new() -> Self {
        Self { server: Server::start(), directory: tempfile::tempdir().unwrap() }
    }

    fn root(&self) -> &Path {
        self.directory.path()
    }

    fn write(&self, name: &str, content: &str) {
        let path = self.root().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn command(&self, arguments: &[&str]) -> std::process::Command {
        let mut command = self.server.command(arguments);
        command.current_dir(self.root());
        command
    }

    fn run(&self, arguments: &[&str]) -> Outcome {
        let output = self.command(arguments).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        Outcome { code: output.status.code(), stdout: output.stdout, stderr }
    }

    /// Runs a command that must succeed and returns its output.
    fn text(&self, arguments: &[&str]) -> String {
        let outcome = self.run(arguments);
        assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""), "{arguments:?}");
        String::from_utf8(outcome.stdout).unwrap()
    }

    /// Runs a command that must fail and returns its error message.
    fn refused(&self, arguments: &[&str]) -> String {
        let outcome = self.run(arguments);
        assert_eq!(outcome.code, Some(1), "{arguments:?}: {}", outcome.stderr);
        assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
        outcome.stderr
    }
}

#[test]
fn ls_lists_more_files_than_one_response_holds() {
    const FILES: usize = 25_003;
    let machine = Machine::new();
    let memory = Scratch::in_memory();
    for number in 0..FILES {
        memory.file(format!("{number:05}"), "");
    }
    let listed = machine.text(&["ls", memory.root().to_str().unwrap()]);
    let expected: String = (0..FILES).map(|number| format!("{number:05}\n")).collect();
    assert!(listed == expected, "{} lines", listed.lines().count());
}

#[test]
fn ls_lists_names_in_order() {
    let machine = Machine::new();
    machine.write("dir/b", "12345");
    machine.write("dir/.hidden", "");
    machine.write("dir/A", "");
    symlink("no/where", machine.root().join("dir/link")).unwrap();
    fs::set_permissions(machine.root().join("dir/b"), PermissionsExt::from_mode(0o640)).unwrap();

    assert_eq!(machine.text(&["ls", "dir"]), "A\nb\nlink\n");
    assert_eq!(machine.text(&["ls", "-a", "dir"]), ".hidden\nA\nb\nlink\n");
    assert_eq!(machine.text(&["ls", "dir/b"]), "dir/b\n");
    assert_eq!(machine.text(&["ls"]), "dir\n");
    let long = machine.text(&["ls", "-l", "dir"]);
    let rows: Vec<_> = long.lines().collect();
    assert!(rows[1].starts_with("-rw-r----- 5 20") && rows[1].ends_with("Z b"), "{long}");
    assert!(rows[2].starts_with("lrwxrwxrwx ") && rows[2].ends_with(" link -> no/where"), "{long}");

    let json: Value = serde_json::from_str(&machine.text(&["ls", "--json", "dir"])).unwrap();
    assert_eq!(json[1]["name"], "b");
    assert_eq!((&json[1]["type"], &json[1]["size"]), (&"file".into(), &5.into()));
    assert_eq!((&json[2]["type"], &json[2]["target"]), (&"symlink".into(), &"no/where".into()));
    symlink(OsStr::from_bytes(b"\xff/x"), machine.root().join("dir/odd")).unwrap();
    let json: Value = serde_json::from_str(&machine.text(&["ls", "--json", "dir"])).unwrap();
    assert_eq!((&json[3]["targetBase64"], json[3].get("target")), (&"/y94".into(), None));
    assert_eq!(
        machine.refused(&["ls", "nothing"]),
        "exec-server: nothing: No such file or directory\n"
    );
    let nothing = machine.run(&["ls", "--json", "nothing"]);
    assert_eq!((nothing.code, nothing.stdout.as_slice()), (Some(1), &b"[]\n"[..]));
}

#[test]
fn ls_shows_fifos_sockets_and_devices() {
    let machine = Machine::new();
    let (fifo, socket) = (machine.root().join("fifo"), machine.root().join("socket"));
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o640.into(), 0)
        .unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let long = machine.text(&["ls", "-l"]);
    let kinds: Vec<_> = long.lines().map(|line| &line[..1]).collect();
    assert_eq!(kinds, ["p", "s"], "{long}");
    assert!(machine.text(&["ls", "-l", "fifo"]).starts_with("prw-r-----"));
    assert!(machine.text(&["ls", "-l", "/dev/null"]).starts_with("crw"));
    let json: Value = serde_json::from_str(&machine.text(&["ls", "--json"])).unwrap();
    assert_eq!((&json[0]["type"], &json[1]["type"]), (&"fifo".into(), &"socket".into()));
}

#[test]
fn ls_distinguishes_a_symlink_from_its_target() {
    let machine = Machine::new();
    machine.write("dir/file", "12345");
    symlink("dir/file", machine.root().join("link")).unwrap();
    symlink("dir", machine.root().join("way")).unwrap();
    assert_eq!(machine.text(&["ls", "link"]), "link\n");
    let long = machine.text(&["ls", "-l", "link"]);
    assert!(long.starts_with('l') && long.ends_with(" link -> dir/file\n"), "{long}");
    let json: Value = serde_json::from_str(&machine.text(&["ls", "--json", "link"])).unwrap();
    assert_eq!((&json[0]["type"], &json[0]["target"]), (&"symlink".into(), &"dir/file".into()));
    assert_eq!((&json[0]["name"], json.as_array().unwrap().len()), (&"link".into(), 1));
    let through = machine.text(&["ls", "-l", "way"]);
    assert!(through.starts_with('-') && through.ends_with("Z file\n"), "{through}");
}

#[test]
fn ls_takes_several_paths() {
    let machine = Machine::new();
    machine.write("one/a", "");
    machine.write("two/b", "");
    machine.write("file", "");
    symlink("no/where", machine.root().join("dangling")).unwrap();
    assert_eq!(
        machine.text(&["ls", "one", "file", "two", "dangling"]),
        "dangling\nfile\n\none:\na\n\ntwo:\nb\n"
    );
    let long = machine.text(&["ls", "-l", "dangling"]);
    assert!(long.starts_with('l') && long.ends_with(" dangling -> no/where\n"), "{long}");
    let json: Value = serde_json::from_str(&machine.text(&["ls", "--json", "one", "two"])).unwrap();
    assert_eq!((&json[0]["name"], &json[1]["name"]), (&"a".into(), &"b".into()));
    let partly = machine.run(&["ls", "missing", "file"]);
    assert_eq!((partly.code, partly.stdout.as_slice()), (Some(1), &b"file\n"[..]));
}

#[test]
fn a_failed_write_to_stdout_is_an_error() {
    let machine = Machine::new();
    machine.write("file", "");
    for arguments in [&["ls", "-l"][..], &["ls", "--json"], &["cp", "--json", "file", ":copy"]] {
        let mut full = machine.command(arguments);
        full.stdout(fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
        let output = full.output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {error}");
        assert!(
            error.starts_with("exec-server: cannot write to standard output or standard error: "),
            "{error}"
        );
        let mut unread = machine.command(arguments);
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        unread.stdout(writer);
        let output = unread.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), said.as_str()), (Some(141), ""), "{arguments:?}");
    }
}

#[test]
fn names_are_raw_in_a_pipe_and_escaped_on_a_terminal() {
    let machine = Machine::new();
    let odd = OsStr::from_bytes(b"odd\xff\x1b[31m");
    fs::write(machine.root().join(odd), "content").unwrap();
    assert_eq!(machine.run(&["ls"]).stdout, [odd.as_bytes(), b"\n"].concat());
    let mut cat = machine.command(&["cat"]);
    assert_eq!(cat.arg(odd).output().unwrap().stdout, b"content");

    let tmux = Tmux::start(&machine.server);
    tmux.line(&format!("$X ls {}", machine.root().display()));
    tmux.wait_for("odd\\377\\033[31m");
}

#[test]
fn cat_prints_files_of_any_size() {
    let machine = Machine::new();
    let large = fs::read(random_file(machine.root(), 5_000_001)).unwrap();
    assert!(machine.run(&["cat", "random"]).stdout == large);
    machine.write("small", "small\n");
    machine.write("empty", "");
    assert_eq!(machine.text(&["cat", "small", "empty", "small"]), "small\nsmall\n");
    let status = machine.text(&["cat", "/proc/self/status"]);
    assert!(status.contains("Name:\texec-server"), "{status}");

    let partly = machine.run(&["cat", "missing", "small"]);
    assert_eq!((partly.code, partly.stdout.as_slice()), (Some(1), &b"small\n"[..]));
    assert_eq!(partly.stderr, "exec-server: missing: No such file or directory\n");
    let directory = machine.refused(&["cat", "/"]);
    assert!(directory.starts_with("exec-server: /: is a directory"), "{directory}");
}

#[test]
fn cat_exits_silently_on_a_broken_pipe() {
    let machine = Machine::new();
    random_file(machine.root(), 5_000_000);
    let mut cat = Running::start(machine.command(&["cat", "random"]));
    cat.close_output();
    let (status, _, errors) = cat.finish();
    assert_eq!((status.code(), errors.as_str()), (Some(141), ""));
}

#[test]
fn directories_are_created_and_removed() {
    let machine = Machine::new();
    let root = machine.root();
    machine.text(&["mkdir", "a", "b"]);
    assert_eq!(machine.refused(&["mkdir", "a"]), "exec-server: a: already exists\n");
    assert!(machine.refused(&["mkdir", "c/d"]).contains("No such file"));
    machine.text(&["mkdir", "-p", "a", "c/d"]);
    assert!(root.join("c/d").is_dir());

    machine.write("a/file", "");
    symlink(root.join("a"), root.join("link")).unwrap();
    assert_eq!(
        machine.refused(&["rm", "b"]),
        "exec-server: b: is a directory; use -r to remove it and its contents\n"
    );
    machine.text(&["rm", "link"]);
    assert!(root.join("a/file").exists(), "a symlink is removed, not its target");
    machine.text(&["rm", "-r", "a", "b"]);
    assert!(!root.join("a").exists() && !root.join("b").exists());
    assert!(machine.refused(&["rm", "a"]).contains("No such file"));
    machine.text(&["rm", "-f", "a"]);
}

#[test]
fn rm_refuses_paths_without_a_file_name() {
    let machine = Machine::new();
    machine.write("a/file", "");
    for path in [":", ".", "..", "a/.", "a/..", "./"] {
        let outcome = machine.run(&["rm", "-rf", "a/file", path]);
        assert_eq!(outcome.code, Some(2), "{path}: {}", outcome.stderr);
        assert!(outcome.stderr.contains("invalid value for '<PATH>'"), "{}", outcome.stderr);
        assert!(machine.root().join("a/file").exists(), "{path}");
    }
}

#[test]
fn rm_continues_after_a_failure() {
    let machine = Machine::new();
    machine.write("x", "");
    let outcome = machine.run(&["rm", "one", "x", "two"]);
    assert_eq!((outcome.code, outcome.stderr.lines().count()), (Some(1), 2));
    assert!(!machine.root().join("x").exists());
}

#[test]
fn watch_prints_changes_as_they_happen() {
    let machine = Machine::new();
    let root = machine.root().canonicalize().unwrap();
    let shown = |name: &str| format!("./{name}");
    let mut watch = Running::start(machine.command(&["watch", "-r", "."]));
    // The watch has begun once it prints its first change.
    machine.write("probe-0", "");
    let mut probes = 0;
    let first = loop {
        if let Some(line) = watch.line_if_any() {
            break line;
        }
        probes += 1;
        machine.write(&format!("probe-{probes}"), "");
    };
    assert!(first.starts_with(&format!("created {}", shown("probe-"))), "{first}");
    machine.write("new", "x");
    until(&mut watch, &format!("created {}", shown("new")));
    fs::rename(root.join("new"), root.join("newer")).unwrap();
    until(&mut watch, &format!("renamed {} -> {}", shown("new"), shown("newer")));
    fs::write(root.join("newer"), "y").unwrap();
    until(&mut watch, &format!("modified {}", shown("newer")));
    fs::remove_file(root.join("newer")).unwrap();
    until(&mut watch, &format!("removed {}", shown("newer")));
    watch.signal(Signal::INT);
    assert_eq!(watch.finish().0.code(), Some(130));
}

#[test]
fn a_watch_ends_when_its_directory_is_removed() {
    let machine = Machine::new();
    let directory = machine.root().canonicalize().unwrap().join("directory");
    fs::create_dir(&directory).unwrap();
    let mut watch = Running::start(machine.command(&["watch", "directory"]));
    let mut probes = 0;
    while watch.line_if_any().is_none() {
        probes += 1;
        machine.write(&format!("directory/probe-{probes}"), "");
    }
    fs::remove_dir_all(&directory).unwrap();
    let (status, _, error) = watch.finish();
    let expected = "exec-server: directory was removed\n";
    assert_eq!((status.code(), error.as_str()), (Some(1), expected));
}

fn until(watch: &mut Running, wanted: &str) {
    while watch.line().trim_end() != wanted {}
}

fn with_text(machine: &Machine) {
    machine.write("src/one.rs", "alpha\nbeta\ngamma\nbeta beta\n");
    machine.write("src/deep/two.txt", "no\nBETA\n");
    machine.write("src/.hidden", "beta\n");
    machine.write("src/ignored.log", "beta\n");
    machine.write("src/.ignore", "*.log\n");
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn grep_prints_matches_like_grep() {
    let machine = Machine::new();
    with_text(&machine);
    let found = machine.text(&["grep", "beta", "src"]);
    assert_eq!(found, "src/one.rs:2:beta\nsrc/one.rs:4:beta beta\n");
    let anywhere = machine.text(&["grep", "-i", "^beta$"]);
    assert_eq!(sorted(&anywhere), ["src/deep/two.txt:2:BETA", "src/one.rs:2:beta"]);
    assert_eq!(machine.text(&["grep", "b.t", "src/one.rs"]), "2:beta\n4:beta beta\n");
    assert_eq!(machine.text(&["grep", "-l", "beta", "src/one.rs"]), "src/one.rs\n");
    assert_eq!(machine.text(&["grep", "-c", "beta", "src"]), "src/one.rs:2\n");
    let context = machine.text(&["grep", "-C1", "gamma", "src/one.rs"]);
    assert_eq!(context, "2-beta\n3:gamma\n4-beta beta\n");
    let hidden = machine.text(&["grep", "--hidden", "--no-ignore", "-l", "beta", "src"]);
    assert_eq!(sorted(&hidden), ["src/.hidden", "src/ignored.log", "src/one.rs"]);
    let globbed = machine.text(&["grep", "-i", "-g", "*.txt", "beta", "src"]);
    assert_eq!(globbed, "src/deep/two.txt:2:BETA\n");
    let json = machine.text(&["grep", "--json", "gamma", "src"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["lineNumber"], &json["text"]), (&3.into(), &"gamma".into()));
}

#[test]
fn a_truncated_line_is_marked() {
    const SHOWN: usize = 4096;
    let machine = Machine::new();
    let cut = format!("{}needle and more", "x".repeat(SHOWN - 3));
    let whole = format!("{}needle", "x".repeat(SHOWN - 6));
    machine.write("long", &format!("{cut}\n{whole}\n"));
    let shown = format!("1:{} [... rest of the line left out]\n2:{whole}\n", &cut[..SHOWN]);
    assert_eq!(machine.text(&["grep", "needle", "long"]), shown);
    let json = machine.text(&["grep", "--json", "needle", "long"]);
    let json: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&json[0]["lineTruncated"], json[1].get("lineTruncated")), (&true.into(), None));
    assert_eq!(json[0]["submatches"][0], json!({"start": SHOWN - 3, "end": SHOWN}));
    assert_eq!(json[1]["submatches"][0], json!({"start": SHOWN - 6, "end": SHOWN}));
}

#[test]
fn grep_has_the_exit_codes_of_grep() {
    let machine = Machine::new();
    with_text(&machine);
    let code = |arguments: &[&str]| {
        let outcome = machine.run(arguments);
        (outcome.code, outcome.stderr.lines().count())
    };
    assert_eq!(code(&["grep", "beta", "src"]), (Some(0), 0));
    assert_eq!(code(&["grep", "-F", "b.t", "src"]), (Some(1), 0));
    assert_eq!(code(&["grep", "(", "src"]), (Some(2), 1));
    assert_eq!(code(&["grep", "beta", "nowhere"]), (Some(2), 1));
    let truncated = machine.run(&["grep", "-m1", "beta", "src"]);
    assert_eq!(
        (truncated.code, truncated.stdout.as_slice()),
        (Some(0), &b"src/one.rs:2:beta\n"[..])
    );
    assert!(truncated.stderr.contains("--max-matches"), "{}", truncated.stderr);
}

#[test]
fn matches_are_coloured_on_a_terminal() {
    let machine = Machine::new();
    with_text(&machine);
    let tmux = Tmux::start(&machine.server);
    tmux.line(&format!("cd {}; $X grep gamma src", machine.root().display()));
    tmux.wait_for("src/one.rs:3:gamma");
    let screen = tmux.coloured_screen();
    let red = screen.split_once("\x1b[31m").map(|(_, red)| red);
    assert!(red.is_some_and(|red| red.contains("gamma")), "{screen}");
}

#[test]
fn file_commands_need_no_running_server() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("x"), "content").unwrap();
    let path = |prefix: &str| format!("{prefix}{}", directory.path().join("x").display());
    for prefix in ["", ":", "local:"] {
        let outcome = run_program(&["cat", &path(prefix)]);
        assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(0), "content"), "{prefix}");
    }
    let unknown = run_program(&["cat", "box:/x"]);
    assert_eq!(unknown.code, Some(2));
    let expected = "exec-server: unknown environment \"box\"; known environments: \"local\"; define others in environments.toml\n";
    assert_eq!(unknown.stderr, expected, "the message names no path");
}

#[test]
fn a_usage_error_is_reported_once_before_any_change() {
    let machine = Machine::new();
    machine.write("x", "");
    let late = machine.run(&["rm", "x", "box:y"]);
    assert_eq!((late.code, late.stderr.lines().count()), (Some(2), 1), "{}", late.stderr);
    assert!(machine.root().join("x").exists());
    let pattern = machine.run(&["grep", "(", "x", "."]);
    assert_eq!(pattern.code, Some(2), "{}", pattern.stderr);
    let (expected, lines) =
        ("exec-server: invalid pattern \"(\": ", pattern.stderr.lines().count());
    assert!(pattern.stderr.starts_with(expected) && lines == 1, "{}", pattern.stderr);
    let unreachable = run_program(&["cat", "--connect", "ws://127.0.0.1:1", "x", "y"]);
    assert_eq!((unreachable.code, unreachable.stderr.lines().count()), (Some(1), 1));
    assert!(unreachable.stderr.starts_with("exec-server: --connect: "), "{}", unreachable.stderr);
}

#[test]
fn the_prefix_before_the_colon_names_the_environment() {
    let machine = Machine::new();
    machine.write("x", "content");
    let environments = machine.root().join("environments.toml");
    let text = format!("[[environments]]\nid = \"box\"\nurl = {:?}\n", machine.server.url());
    fs::write(&environments, text).unwrap();
    let mut cat = crate::support::command(crate::support::PROGRAM);
    cat.arg("cat").arg(format!("box:{}", machine.root().join("x").display()));
    cat.env("EXEC_SERVER_ENVIRONMENTS", &environments);
    assert_eq!(crate::support::run_command(cat).stdout, "content");
}
