//! The example sessions from the documents that this protocol is based on. Requests are verbatim; a
//! comment explains each difference between a response and the text.

use serde_json::{Value, json};

use crate::support::{Client, Server, decoded};

const INITIALIZE: &str =
    r#"{"id":1,"method":"initialize","params":{"clientName":"example-client"}}"#;
const INITIALIZED: &str = r#"{"method":"initialized","params":{}}"#;

#[test]
fn the_session_of_process_start_runs_over_stdio() {
    let (_server, mut client) = Server::stdio();
    process_session(&mut client);
}

#[test]
fn the_session_of_process_start_runs_over_a_websocket() {
    let server = Server::start();
    process_session(&mut server.connect());
}

#[test]
fn the_session_of_command_exec_runs_over_stdio() {
    let (_server, mut client) = Server::stdio();
    command_session(&mut client);
}

#[test]
fn the_session_of_command_exec_runs_over_a_websocket() {
    let server = Server::start();
    command_session(&mut server.connect());
}

fn process_session(client: &mut Client) {
    const START: &str = r#"{"id":2,"method":"process/start","params":{"processId":"proc-1","argv":["bash","-lc","printf 'ready\\n'; while IFS= read -r line; do printf 'echo:%s\\n' \"$line\"; done"],"cwd":"file:///tmp","env":{"PATH":"/usr/bin:/bin"},"tty":true,"pipeStdin":false,"arg0":null}}"#;
    const WRITE: &str =
        r#"{"id":3,"method":"process/write","params":{"processId":"proc-1","chunk":"aGVsbG8K"}}"#;
    const TERMINATE: &str =
        r#"{"id":4,"method":"process/terminate","params":{"processId":"proc-1"}}"#;

    greet(client);
    // The text has no `sandboxType`; some deployed clients expect it.
    let started = answer(client, START, 2);
    assert_eq!(started, json!({"processId": "proc-1", "sandboxType": "none"}));
    // The text names the stream `stdout` and ends the line with LF. The process has a terminal, so
    // its one stream is `pty`, and LF becomes CRLF.
    let mut screen = Screen::new("process/output", "pty");
    screen.show(client, "ready\r\n");
    assert_eq!(answer(client, WRITE, 3), json!({"status": "accepted"}));
    // The terminal echoes the input, which the text leaves out.
    screen.show(client, "hello\r\necho:hello\r\n");
    assert_eq!(answer(client, TERMINATE, 4), json!({"running": true}));
    let exited = client.notification();
    assert_eq!(exited["method"], "process/exited");
    assert_eq!(exited["params"]["processId"], "proc-1");
    assert_eq!(exited["params"]["seq"], screen.events + 1);
    // The text has exit code 0; a killed process did not succeed, and 128 + 9 names the signal.
    assert_eq!(exited["params"]["exitCode"], 137);
    // The text has no `seq` here; one sequence covers all events of a process.
    let closed = client.notification();
    assert_eq!(
        closed,
        json!({"method": "process/closed", "params": {"processId": "proc-1", "seq": screen.events + 2}})
    );
}

fn command_session(client: &mut Client) {
    const START: &str = r#"{"id":2,"method":"command/exec","params":{"processId":"proc-1","argv":["bash","-lc","printf 'ready\\n'; while IFS= read -r line; do printf 'echo:%s\\n' \"$line\"; done"],"cwd":"/tmp","env":{"PATH":"/usr/bin:/bin"},"tty":true,"outputBytesCap":4096,"arg0":null}}"#;
    const WRITE: &str = r#"{"id":3,"method":"command/exec/write","params":{"processId":"proc-1","chunk":"aGVsbG8K"}}"#;
    const TERMINATE: &str =
        r#"{"id":4,"method":"command/exec/terminate","params":{"processId":"proc-1"}}"#;

    greet(client);
    let started = answer(client, START, 2);
    assert_eq!(
        started,
        json!({"processId": "proc-1", "running": true, "exitCode": null, "stdout": null, "stderr": null})
    );
    // As in the text, the v0 methods call the stream of a terminal `stdout`. The terminal adds CRLF
    // and the echo.
    let mut screen = Screen::new("command/exec/outputDelta", "stdout");
    screen.show(client, "ready\r\n");
    assert_eq!(answer(client, WRITE, 3), json!({"accepted": true}));
    screen.show(client, "hello\r\necho:hello\r\n");
    assert_eq!(answer(client, TERMINATE, 4), json!({"running": true}));
    // Exit code 137 instead of the 0 in the text, as above.
    assert_eq!(
        client.notification(),
        json!({"method": "command/exec/exited", "params": {"processId": "proc-1", "exitCode": 137}})
    );
}

fn greet(client: &mut Client) {
    // The text has `{}` or the version alone; a client needs the session id to resume.
    let greeting = answer(client, INITIALIZE, 1);
    assert_eq!(greeting["protocolVersion"], "exec-server.v0");
    assert!(greeting["sessionId"].is_string());
    assert_eq!(greeting.as_object().unwrap().len(), 2);
    client.send_text(INITIALIZED);
}

fn answer(client: &mut Client, request: &str, id: u64) -> Value {
    client.send_text(request);
    let answer = client.answer_with(&json!(id));
    assert_eq!(answer.get("jsonrpc"), None);
    answer["result"].clone()
}

struct Screen {
    method: &'static str,
    stream: &'static str,
    /// Output that `show` has not matched yet.
    text: String,
    events: u64,
    shown: usize,
}

impl Screen {
    fn new(method: &'static str, stream: &'static str) -> Self {
        Self { method, stream, text: String::new(), events: 0, shown: 0 }
    }

    /// Reads output, which may arrive in pieces, until it ends with `expected`.
    fn show(&mut self, client: &mut Client, expected: &str) {
        while !self.text.ends_with(expected) {
            let event = client.notification();
            let params = &event["params"];
            assert_eq!(event["method"], self.method);
            assert_eq!(params["stream"], self.stream);
            self.events += 1;
            self.text += std::str::from_utf8(&decoded(&params["chunk"])).unwrap();
        }
        // A login shell may print a greeting first; all later output comes from the script.
        assert!(self.text == expected || self.shown == 0, "{:?}", self.text);
        self.shown += 1;
        self.text.clear();
    }
}
