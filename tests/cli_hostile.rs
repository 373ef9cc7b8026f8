//! Every command against a server that puts terminal escapes wherever it can: none reaches the screen.

use std::fs::File;
use std::io::Read as _;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::process::Stdio;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{OptionalActions, OutputModes, tcgetattr, tcsetattr};
use serde_json::{Value, json};
use tungstenite::{Message, WebSocket};

use crate::support::{PROGRAM, command};

/// Clears the screen, sets the title, moves the cursor, begins a line, turns text around.
const HOSTILE: &str = "H\x1b[2J\x1b]0;title\x07\r\n\u{8}\u{7f}\u{9b}31m\u{85}\u{202e}\u{2066}T";

/// How the server answers what it is asked beside the handshake.
#[derive(Clone, Copy, PartialEq)]
enum Manner {
    /// With what was asked for.
    Answers,
    Refuses,
}

struct HostileServer {
    url: String,
}

impl HostileServer {
    fn start(manner: Manner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                std::thread::spawn(move || {
                    let Ok(socket) = tungstenite::accept(stream) else { return };
                    serve(socket, manner);
                });
            }
        });
        Self { url }
    }

    /// What a terminal gets to see of a command.
    fn screen(&self, arguments: &[&str]) -> String {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&terminal).unwrap();
        unlockpt(&terminal).unwrap();
        let name = ptsname(&terminal, Vec::new()).unwrap();
        let side = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        // Without this every newline would come with a return, as a hostile one would.
        let mut modes = tcgetattr(side.as_fd()).unwrap();
        modes.output_modes.remove(OutputModes::OPOST);
        tcsetattr(side.as_fd(), OptionalActions::Now, &modes).unwrap();
        let mut run = command(PROGRAM);
        // Right behind the command: what follows may be one that is to be run.
        let (name, rest) = arguments.split_first().unwrap();
        run.args([name, "--connect", &self.url]).args(rest).env("NO_COLOR", "1");
        run.stdin(Stdio::null())
            .stdout(side.try_clone().unwrap())
            .stderr(side.try_clone().unwrap());
        let mut child = run.spawn().unwrap();
        drop((run, side));
        let mut shown = Vec::new();
        // The end of a terminal that nobody has open any more is an error.
        let _ = File::from(terminal).read_to_end(&mut shown);
        child.wait().unwrap();
        String::from_utf8(shown).unwrap()
    }
}

fn serve(mut socket: WebSocket<TcpStream>, manner: Manner) {
    while let Ok(message) = socket.read() {
        let Message::Text(text) = message else { continue };
        let call: Value = serde_json::from_str(&text).unwrap();
        let Some(id) = call.get("id") else { continue };
        let (method, params) = (call["method"].as_str().unwrap(), &call["params"]);
        let is_known = manner == Manner::Answers || is_about_sessions(method);
        let answer = match answer(method, params).filter(|_| is_known) {
            Some(result) => json!({"id": id, "result": result}),
            None => {
                let kind = if method == "process/start" { "programNotFound" } else { HOSTILE };
                let kind = if manner == Manner::Refuses { HOSTILE } else { kind };
                let error = json!({"code": -32600, "message": HOSTILE, "data": {"kind": kind}});
                json!({"id": id, "error": error})
            }
        };
        let notes = if is_known { notes(method, params) } else { Vec::new() };
        // What was found comes before the end of a search, and changes after the beginning of a watch.
        let is_late = method != "fs/search";
        let (first, last) = if is_late { (vec![answer], notes) } else { (notes, vec![answer]) };
        for message in first.into_iter().chain(last) {
            if socket.send(Message::text(message.to_string())).is_err() {
                return;
            }
        }
    }
}

fn is_about_sessions(method: &str) -> bool {
    matches!(method, "initialize" | "session/list" | "process/list")
}

fn answer(method: &str, params: &Value) -> Option<Value> {
    let process = |id: &str, running: bool| {
        json!({"processId": id, "argv": [HOSTILE], "tty": false, "running": running,
               "exitCode": 3, "startedAtMs": 0, "nextSeq": 5, "descendants": 0})
    };
    let session = |id: &str, processes: &[&str]| json!({"sessionId": id, "clientName": HOSTILE, "attached": false, "processes": processes});
    Some(match method {
        "initialize" => json!({"sessionId": HOSTILE, "protocolVersion": HOSTILE, "acks": true}),
        "session/list" => json!({"sessions": [
            session(HOSTILE, &["both", "shared"]), session("other", &["both"])
        ]}),
        "process/list" if params["sessionId"] == HOSTILE => json!({"processes": [
            process("both", true), process("shared", false), process(HOSTILE, false)
        ]}),
        "process/list" => json!({"processes": [process("both", true)]}),
        "environment/info" => json!({
            "shell": {"name": HOSTILE, "path": HOSTILE}, "cwd": "file:///d%1B%5B2J",
            "temporaryDirectories": [], "tempDir": "file:///tmp",
            "capabilities": {"networkProxyLaunch": false, "capabilityDiscoverySandbox": false,
                "environmentConfigRead": false, "httpHeaderEnvVars": false,
                "sandboxedFileStreaming": false, "shellSnapshotV2": false}}),
        "fs/getMetadata" => {
            json!({"isDirectory": true, "isFile": false, "isSymlink": false, "size": 0})
        }
        "fs/readDirectory" => json!({"entries": [
            {"fileName": HOSTILE, "path": "file:///d/%1B%5B2J%C2%9B", "isDirectory": false,
             "isFile": false, "isSymlink": true, "mode": 511, "size": 1, "modifiedAtMs": 0}]}),
        "fs/readLink" => json!({"target": HOSTILE}),
        "fs/search" => json!({"matches": 1, "filesSearched": 1, "unreadable": 0,
            "truncated": false, "cancelled": false}),
        "fs/watch" => json!({"path": params["path"]}),
        "http/request" => json!({"status": 200, "bodyBase64": "",
            "headers": [{"name": HOSTILE, "value": HOSTILE}]}),
        _ => return None,
    })
}

fn notes(method: &str, params: &Value) -> Vec<Value> {
    let path = "file:///d/%1B%5B2J%C2%9B";
    let line = |number: u64| json!({"lineNumber": number, "text": HOSTILE});
    match method {
        "fs/search" => vec![json!({"method": "fs/searchResults", "params": {
            "searchId": params["searchId"], "results": [{"path": path, "lineNumber": 2,
            "text": HOSTILE, "submatches": [], "before": [line(1)], "after": [line(3)]}]}})],
        "fs/watch" => vec![json!({"method": "fs/changed", "params": {
            "watchId": params["watchId"], "changedPaths": [path, params["path"]],
            "changes": [{"path": path, "kind": "renamed", "from": path},
                        {"path": params["path"], "kind": "removed"}]}})],
        "http/request" => vec![json!({"method": "http/request/bodyDelta", "params": {
            "requestId": params["requestId"], "seq": 1, "deltaBase64": "", "done": true}})],
        _ => Vec::new(),
    }
}

/// Every command that talks to a server.
const COMMANDS: &[&str] = &[
    "run true",
    "run -d true",
    "shell",
    "ps -a",
    "ps -a --json",
    "logs shared",
    "logs --json shared",
    "attach both",
    "attach shared",
    "kill both",
    "kill -s HUP other/both",
    "kill other/both",
    "wait both",
    "wait other/both",
    "forget shared",
    "forget --all",
    "ls -l /d",
    "ls --json /d",
    "ls rel",
    "cat /d",
    "mkdir /d",
    "rm -r /d",
    "rm /d/x",
    "watch -r /d",
    "watch -r --json /d",
    "grep -C1 x /d",
    "grep --json x /d",
    "grep -l x /d",
    "grep -c x /d",
    "cp -rv :/d /dev/null/x",
    "cp -r :/d :/e",
    "http -i http://h/",
];

fn is_harmless(letter: char) -> bool {
    let turns = matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    letter == '\n' || letter == '\t' || !(letter.is_control() || turns)
}

#[test]
fn nothing_that_a_server_says_moves_the_cursor() {
    for manner in [Manner::Answers, Manner::Refuses] {
        let server = HostileServer::start(manner);
        for line in COMMANDS {
            let shown = server.screen(&line.split(' ').collect::<Vec<_>>());
            assert!(shown.chars().all(is_harmless), "{line}: {shown:?}");
            // A test that is told nothing shows nothing.
            let says_something = *line != "forget --all";
            assert!(!says_something || !shown.is_empty(), "{line} printed nothing");
        }
    }
}
