//! Every command against a server that puts terminal escapes into everything that it sends: no
//! escape reaches the screen.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{OptionalActions, OutputModes, tcgetattr, tcsetattr};
use serde_json::{Value, json};
use tungstenite::{Message, WebSocket};

use crate::support::{PROGRAM, command, encoded, run_program};

/// Clears the screen, sets the title, moves the cursor, begins a line, reverses the text direction.
const HOSTILE: &str = "H\x1b[2J\x1b]0;title\x07\r\n\u{8}\u{7f}\u{9b}31m\u{85}\u{202e}\u{2066}T";
/// Percent-encoded escapes, for file names.
const HOSTILE_NAME: &str = "%1B%5B2J%C2%9B%0D%0A";
/// The id of a session that `run --detach` opened, and the name of its process.
const DETACHED: &str = "D\x1b[2J\u{9b}";

/// How the server responds. `initialize`, `session/list` and `process/list` get valid results,
/// unless a variant says otherwise.
#[derive(Clone, Copy, PartialEq)]
enum Manner {
    /// With a valid result.
    Answers,
    /// With an error.
    Refuses,
    /// With a result of another type.
    Garbles,
    /// With an error, even to `initialize`.
    RefusesSessions,
    /// The server refuses the WebSocket handshake.
    RefusesConnections,
}

struct HostileServer {
    url: String,
    /// Requested methods for which this server has no valid result.
    unknown: Arc<Mutex<BTreeSet<String>>>,
}

impl HostileServer {
    fn start(manner: Manner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap());
        let unknown = Arc::<Mutex<BTreeSet<_>>>::default();
        let of_server = Arc::clone(&unknown);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, unknown) = (stream.unwrap(), Arc::clone(&of_server));
                std::thread::spawn(move || match manner {
                    Manner::RefusesConnections => refuse_connection(stream),
                    _ => {
                        let Ok(socket) = tungstenite::accept(stream) else { return };
                        serve(socket, manner, &unknown);
                    }
                });
            }
        });
        Self { url, unknown }
    }

    /// Runs a command in a terminal and returns everything that it printed there.
    fn screen(&self, arguments: &[&str]) -> String {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&terminal).unwrap();
        unlockpt(&terminal).unwrap();
        let name = ptsname(&terminal, Vec::new()).unwrap();
        let side = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        // Otherwise the terminal would add carriage returns, which the hostile text also contains.
        let mut modes = tcgetattr(side.as_fd()).unwrap();
        modes.output_modes.remove(OutputModes::OPOST);
        tcsetattr(side.as_fd(), OptionalActions::Now, &modes).unwrap();
        let mut run = command(PROGRAM);
        run.args(arguments).env("NO_COLOR", "1").env("EXEC_SERVER_URL", &self.url);
        run.stdin(Stdio::null())
            .stdout(side.try_clone().unwrap())
            .stderr(side.try_clone().unwrap());
        let mut child = run.spawn().unwrap();
        drop((run, side));
        let mut shown = Vec::new();
        // The read fails at the end, when the command has closed the terminal.
        let _ = File::from(terminal).read_to_end(&mut shown);
        child.wait().unwrap();
        String::from_utf8(shown).unwrap()
    }
}

fn refuse_connection(mut stream: TcpStream) {
    let mut request = [0; 4096];
    let _ = stream.read(&mut request);
    let reason = HOSTILE.replace(['\r', '\n'], "");
    let length = HOSTILE.len();
    let head = format!("HTTP/1.1 403 {reason}\r\nx-reason: {reason}\r\ncontent-length: {length}");
    let _ = write!(stream, "{head}\r\n\r\n{HOSTILE}");
}

fn serve(mut socket: WebSocket<TcpStream>, manner: Manner, unknown: &Mutex<BTreeSet<String>>) {
    while let Ok(message) = socket.read() {
        let Message::Text(text) = message else { continue };
        let call: Value = serde_json::from_str(&text).unwrap();
        let Some(id) = call.get("id") else { continue };
        let (method, params) = (call["method"].as_str().unwrap(), &call["params"]);
        let finds = matches!(method, "initialize" | "session/list" | "process/list");
        let is_answered = manner == Manner::Answers
            || finds && !(manner == Manner::RefusesSessions && method == "initialize");
        let valid = result(method, params);
        if valid.is_none() {
            unknown.lock().unwrap().insert(method.to_owned());
        }
        let answer = match valid {
            Some(result) if is_answered => json!({"id": id, "result": result}),
            _ if manner == Manner::Garbles => json!({"id": id, "result": HOSTILE}),
            _ => {
                let error = json!({"code": -32600, "message": HOSTILE, "data": {"kind": HOSTILE}});
                json!({"id": id, "error": error})
            }
        };
        let notes = if is_answered { notes(method, params) } else { Vec::new() };
        // The results of a search precede its response; all other notifications follow a response.
        let is_late = method != "fs/search";
        let (first, last) = if is_late { (vec![answer], notes) } else { (notes, vec![answer]) };
        for message in first.into_iter().chain(last) {
            if socket.send(Message::text(message.to_string())).is_err() {
                return;
            }
        }
    }
}

fn result(method: &str, params: &Value) -> Option<Value> {
    Some(match method {
        "initialize" => {
            let session = params["resumeSessionId"].as_str().unwrap_or(HOSTILE);
            json!({"sessionId": session, "protocolVersion": HOSTILE, "acks": true})
        }
        "session/list" | "process/list" | "environment/info" => {
            return Some(overview(method, params));
        }
        "server/status" => json!({"version": HOSTILE, "uptimeMs": u64::MAX, "listeners": [HOSTILE],
            "sessions": {"attached": 1, "detached": 0}, "processes": {"running": 1, "finished": 0},
            "limits": {"tier": "rlimit", "obstacle": HOSTILE}, "refusals": [
                {"atMs": u64::MAX, "count": 2, "what": "request", "reason": HOSTILE,
                    "address": HOSTILE, "subject": HOSTILE, "method": HOSTILE}]}),
        "process/start" => {
            let late = (params["argv"][0] == "late").then_some(1);
            json!({"processId": params["processId"], "sandboxType": "none", "timeoutMs": late})
        }
        "process/read" => {
            let is_lost = params["processId"] == "lost";
            json!({"chunks": [], "nextSeq": if is_lost { 1 } else { 3 }, "exited": !is_lost,
                "exitCode": (!is_lost).then_some(3), "closed": !is_lost,
                "failure": is_lost.then_some(HOSTILE), "sandboxDenied": !is_lost,
                "denied": {"path": HOSTILE}})
        }
        "process/write" | "process/closeStdin" => json!({"status": "accepted"}),
        "process/terminate" => json!({"running": true}),
        "fs/getMetadata" => metadata(params["path"].as_str()?),
        "fs/canonicalize" | "fs/watch" => json!({"path": params["path"]}),
        "fs/readDirectory" => json!({"entries": entries(params["path"].as_str()?)}),
        "fs/readLink" => json!({"target": HOSTILE.replace('\0', "")}),
        "fs/readFile" => json!({"dataBase64": encoded("plain\n")}),
        "fs/open" => {
            json!({"handleId": params["handleId"], "metadata": metadata(params["path"].as_str()?)})
        }
        "fs/readBlock" => {
            let is_first = params["offset"] == 0;
            json!({"chunk": encoded(if is_first { "plain\n" } else { "" }), "eof": true})
        }
        "fs/create" => json!({"handleId": params["handleId"], "size": 0}),
        "fs/search" => json!({"matches": 1, "filesSearched": 1, "unreadable": 1,
            "truncated": false, "cancelled": false}),
        "http/request" => json!({"status": 200, "bodyBase64": "",
            "headers": [{"name": HOSTILE, "value": HOSTILE}]}),
        "session/close" | "process/observe" | "process/signal" | "process/resize"
        | "fs/writeFile" | "fs/createDirectory" | "fs/remove" | "fs/copy" | "fs/rename"
        | "fs/symlink" | "fs/setPermissions" | "fs/writeBlock" | "fs/close" | "fs/unwatch"
        | "fs/cancelSearch" | "http/cancel" => json!({}),
        _ => return None,
    })
}

fn overview(method: &str, params: &Value) -> Value {
    let process = |id: &str, running: bool| {
        json!({"processId": id, "argv": [HOSTILE], "tty": false, "running": running,
               "exitCode": (!running).then_some(3), "startedAtMs": 0, "nextSeq": 5,
               "descendants": 0})
    };
    let session = |id: &str, client: &str, processes: &[&str]| json!({"sessionId": id, "clientName": client, "attached": false, "processes": processes});
    match (method, params["sessionId"].as_str()) {
        ("environment/info", _) => json!({
            "shell": {"name": HOSTILE, "path": HOSTILE}, "cwd": format!("file:///{HOSTILE_NAME}"),
            "temporaryDirectories": [], "tempDir": "file:///tmp",
            "capabilities": {"networkProxyLaunch": false, "capabilityDiscoverySandbox": false,
                "environmentConfigRead": false, "httpHeaderEnvVars": false,
                "sandboxedFileStreaming": false, "shellSnapshotV2": false}}),
        ("session/list", _) => json!({"sessions": [
            session(HOSTILE, HOSTILE, &["both", "shared"]), session("other", HOSTILE, &["both"]),
            session(DETACHED, "exec-server run --detach", &[DETACHED]),
        ]}),
        (_, Some(HOSTILE)) => json!({"processes": [
            process("both", true), process("shared", false), process(HOSTILE, false)
        ]}),
        (_, Some(DETACHED)) => json!({"processes": [process(DETACHED, false)]}),
        _ => json!({"processes": [
            process("both", true), process("lost", true), process("late", true)
        ]}),
    }
}

fn metadata(path: &str) -> Value {
    let is_file = path.contains("-file");
    // A `large-file` is too large to be read in one piece.
    json!({"isDirectory": !is_file, "isFile": is_file, "isSymlink": false,
        "size": if path.contains("large-file") { 300_000 } else { 6 }})
}

fn entries(directory: &str) -> Vec<Value> {
    let entry = |name: &str, kind: &str| {
        json!({"fileName": HOSTILE, "path": format!("{directory}/{name}{HOSTILE_NAME}"),
            "isDirectory": kind == "directory", "isFile": kind == "file",
            "isSymlink": kind == "symlink", "mode": 0o755, "size": 6, "modifiedAtMs": 0})
    };
    // Ends the recursion of the commands.
    if directory.contains("below") {
        return vec![entry("small-file", "file")];
    }
    let elsewhere = json!({"fileName": HOSTILE, "path": format!("file:///{HOSTILE_NAME}"),
        "isDirectory": false, "isFile": true});
    let mut large = entry("large-file", "file");
    large["size"] = 300_000.into();
    vec![
        entry("below", "directory"),
        entry("link", "symlink"),
        entry("small-file", "file"),
        entry("socket", "special"),
        large,
        elsewhere,
    ]
}

fn notes(method: &str, params: &Value) -> Vec<Value> {
    let path = format!("file:///d/{HOSTILE_NAME}");
    let line = |number: u64| json!({"lineNumber": number, "text": HOSTILE});
    match method {
        "process/start" => events(params, params["argv"][0].as_str().unwrap()),
        "process/observe" => events(params, params["processId"].as_str().unwrap()),
        "fs/search" => vec![json!({"method": "fs/searchResults", "params": {
            "searchId": params["searchId"], "results": [{"path": path, "lineNumber": 2,
            "text": HOSTILE, "submatches": [], "before": [line(1)], "after": [line(3)]}]}})],
        "fs/watch" => vec![json!({"method": "fs/changed", "params": {
            "watchId": params["watchId"], "changedPaths": [path, params["path"]],
            "changes": [{"path": path, "kind": "renamed", "from": path},
                        {"path": params["path"], "kind": "removed"}]}})],
        "http/request" => {
            let is_broken = params["url"].as_str().unwrap().contains("broken");
            vec![json!({"method": "http/request/bodyDelta", "params": {
                "requestId": params["requestId"], "seq": 1, "deltaBase64": "", "done": true,
                "error": is_broken.then_some(HOSTILE)}})]
        }
        _ => Vec::new(),
    }
}

/// Returns the events of a process that ends at once, in the way that its name selects.
fn events(params: &Value, name: &str) -> Vec<Value> {
    let first = params["afterSeq"].as_u64().unwrap_or(0) + 1;
    let event = |method: &str, seq: u64, mut more: Value| {
        more["processId"] = params["processId"].clone();
        more["sessionId"] = params["sessionId"].clone();
        more["seq"] = seq.into();
        json!({"method": method, "params": more})
    };
    let stream = if name == "lost" { HOSTILE } else { "stdout" };
    let denied = match name {
        "denied-call" => json!({"call": HOSTILE}),
        _ => json!({"path": HOSTILE}),
    };
    let is_late = name == "late";
    let exit = json!({"exitCode": 3, "sandboxDenied": true, "denied": denied, "durationMs": 0,
        "cpuMs": 0, "maxRssBytes": 0, "timedOut": is_late, "serverStopped": is_late});
    vec![
        event("process/output", first, json!({"stream": stream, "chunk": encoded("plain\n")})),
        event("process/exited", first + 1, exit),
        event("process/closed", first + 2, json!({})),
    ]
}

/// Command lines, and a text that each prints when the server answers. `NAME` stands for a hostile
/// name, and `HERE` for a directory.
const COMMANDS: &[(&str, &str)] = &[
    ("run true", "the sandbox seems to have denied H"),
    ("run denied-call", "denied the system call H"),
    (
        "run lost",
        "lost contact with lost; it ends when the server ends its session: the server broke the protocol",
    ),
    ("run --timeout 1 late", "the server stopped"),
    ("run --sandbox read-only true", "does not enforce sandboxes"),
    ("run NAME", "the sandbox seems to have denied H"),
    ("run -w rel true", "plain"),
    ("run -d true", ""),
    ("run -d --json true", "sessionId"),
    ("shell", "the sandbox seems to have denied H"),
    ("ps -a", "both"),
    ("ps -a --json", "both"),
    ("status", "(2 times)"),
    ("status --json", "refusals"),
    ("logs shared", "plain"),
    ("logs --json shared", "exitCode"),
    ("logs -f lost", "cannot read the output of \"lost\""),
    ("logs -n 1 NAME", "plain"),
    ("attach both", "several processes are called"),
    ("attach other/both", "the sandbox seems to have denied H"),
    ("attach lost", "lost contact with lost"),
    ("attach NAME", "the sandbox seems to have denied H"),
    ("kill both", "several processes are called"),
    ("kill -s HUP other/both", ""),
    ("kill other/both", ""),
    ("kill NAME", "is not running"),
    ("wait both", "several processes are called"),
    ("wait other/both", "3"),
    ("wait lost", "cannot follow \"lost\""),
    ("wait late", "late timed out"),
    ("wait --json NAME", "exitCode"),
    ("forget shared", "shares its session H"),
    ("forget -f NAME", "shares its session H"),
    ("forget --all", "D"),
    ("ls -l /d", "small-file"),
    ("ls --json /d", "small-file"),
    ("ls rel", "small-file"),
    ("ls NAME", "small-file"),
    ("cat /d/a-file", "plain"),
    ("mkdir /d", ""),
    ("rm -r /d", ""),
    ("rm /d/a-file", ""),
    ("watch -r /d", "renamed"),
    ("watch -r --json /d", "renamed"),
    ("grep -C1 x /d", "H"),
    ("grep --json x /d", "H"),
    ("grep -l x /d", "033"),
    ("grep -c x /d", "033"),
    // Quiet, since the progress bar moves the cursor.
    ("cp -qrv :/d HERE", "below\\033"),
    ("cp -qrv :/d /dev/null/x", "Not a directory"),
    ("cp -qrv :/d :/e", ":/d"),
    ("cp -qv :/d/a-file :/e/a-file", ":/d/a-file"),
    ("cp -qrv HERE :/e", "small-file\\033"),
    ("http -i http://h/", "H"),
    ("http http://broken/", "the response from broken was cut short"),
    // These use no server.
    ("config", "url"),
    ("doctor", "sandbox"),
    ("bench --quick --only NAME", ""),
    ("token new", ""),
    ("rendezvous --listen x --data HERE", "http://IP:PORT"),
    ("forward --connect ws://127.0.0.1:1 --remote x --environment-id x", "URL of a registry"),
    ("login --remote x", "URL of a registry"),
    ("logout --remote x", "URL of a registry"),
    ("completions bash", "exec-server"),
    ("man", "exec-server"),
    ("schema", "openrpc"),
    ("help", "Run things:"),
];

fn is_harmless(letter: char) -> bool {
    let turns = matches!(
        letter,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    letter == '\n' || letter == '\t' || !(letter.is_control() || turns)
}

fn expect_harmless(line: &str, shown: &str) {
    assert!(shown.chars().all(is_harmless), "{line}: {shown:?}");
    // In the hostile text, a newline is followed by a character that would be shown as U+FFFD.
    assert!(!shown.contains("\n\u{fffd}"), "{line}: {shown:?}");
}

/// Runs every command. `check` gets its line, the expected text and the output.
fn drive(manner: Manner, mut check: impl FnMut(&str, &str, &str)) -> HostileServer {
    let server = HostileServer::start(manner);
    let here = tempfile::tempdir().unwrap();
    let here = here.path().to_str().unwrap();
    for (line, expected) in COMMANDS {
        let word = |word| match word {
            "NAME" => HOSTILE,
            "HERE" => here,
            word => word,
        };
        let shown = server.screen(&line.split(' ').map(word).collect::<Vec<_>>());
        expect_harmless(line, &shown);
        check(line, expected, &shown);
    }
    server
}

#[test]
fn no_valid_response_moves_the_cursor() {
    let mut unexpected = Vec::new();
    let server = drive(Manner::Answers, |line, expected, shown| {
        if !shown.contains(expected) {
            unexpected.push(format!("{line}: {shown:?}"));
        }
    });
    assert!(unexpected.is_empty(), "{unexpected:#?}");
    let unknown = server.unknown.lock().unwrap();
    assert!(unknown.is_empty(), "the server has no valid result for {unknown:?}");
}

#[test]
fn no_error_response_moves_the_cursor() {
    drive(Manner::Refuses, |line, _, shown| assert!(!shown.is_empty(), "{line} printed nothing"));
}

#[test]
fn no_result_of_the_wrong_type_moves_the_cursor() {
    drive(Manner::Garbles, |line, _, shown| assert!(!shown.is_empty(), "{line} printed nothing"));
}

#[test]
fn a_refused_connection_does_not_move_the_cursor() {
    for manner in [Manner::RefusesSessions, Manner::RefusesConnections] {
        let server = HostileServer::start(manner);
        for command in [&["run", "true"][..], &["ps"], &["attach", "a"], &["ls", "/d"]] {
            let shown = server.screen(command);
            assert!(shown.contains("exec-server: "), "{command:?}: {shown:?}");
            expect_harmless(command[0], &shown);
        }
    }
}

#[test]
fn every_command_is_tested() {
    let help = run_program(&["--help"]).stdout;
    let commands = help.split_once("Run things:\n").unwrap().1.split_once("\nOptions:").unwrap().0;
    let commands = commands.lines().filter_map(|line| line.strip_prefix("  "));
    let known: BTreeSet<_> = commands.map(|line| line.split_whitespace().next().unwrap()).collect();
    let driven: BTreeSet<_> =
        COMMANDS.iter().filter_map(|(line, _)| line.split(' ').next()).collect();
    let missing: Vec<_> = known.difference(&driven).collect();
    assert!(missing.is_empty(), "add {missing:?} to COMMANDS");
}
