//! The method names of protocol v0, which clients still use.

use serde_json::{Value, json};

use crate::support::{Client, Server, decoded, encoded};

const INVALID_REQUEST: i64 = -32600;

fn exec(id: &str, script: &str, tty: bool) -> Value {
    json!({
        "processId": id,
        "argv": ["/bin/sh", "-c", script],
        "cwd": "/tmp",
        "env": {"PATH": "/usr/bin:/bin"},
        "tty": tty,
        "arg0": null,
    })
}

/// Takes notifications up to the exit. Returns the output of each stream and the exit code.
fn finish(client: &mut Client, id: &str) -> (String, String, Value) {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    loop {
        let event = client.event_of(id);
        let params = &event["params"];
        match event["method"].as_str().unwrap() {
            "command/exec/outputDelta" => match params["stream"].as_str().unwrap() {
                "stdout" => stdout.extend(decoded(&params["chunk"])),
                "stderr" => stderr.extend(decoded(&params["chunk"])),
                other => panic!("unknown stream {other}"),
            },
            "command/exec/exited" => {
                let text = |bytes| String::from_utf8(bytes).unwrap();
                return (text(stdout), text(stderr), params["exitCode"].clone());
            }
            other => panic!("{other} is not a v0 name"),
        }
    }
}

#[test]
fn both_streams_and_the_exit_have_their_v0_names() {
    let server = Server::start();
    let mut client = server.client();
    let started = client.call("command/exec", exec("old", "echo out; echo err >&2; exit 5", false));
    assert_eq!(
        started,
        json!({"processId": "old", "running": true, "exitCode": null, "stdout": null, "stderr": null})
    );
    assert_eq!(finish(&mut client, "old"), ("out\n".into(), "err\n".into(), json!(5)));
    // The server sends no notification under the new names: the next one is about the next process.
    client.call("command/exec", exec("next", "true", false));
    assert_eq!(client.notification()["params"]["processId"], "next");
}

#[test]
fn a_terminal_reports_stdout_and_takes_input() {
    let server = Server::start();
    let mut client = server.client();
    client.call("command/exec", exec("tty", "stty -echo; echo ready; read x; echo got $x", true));
    while decoded(&client.event_of("tty")["params"]["chunk"]) != b"ready\r\n" {}
    let write = json!({"processId": "tty", "chunk": encoded("hello\n")});
    assert_eq!(client.call("command/exec/write", write), json!({"accepted": true}));
    assert_eq!(finish(&mut client, "tty"), ("got hello\r\n".into(), String::new(), json!(0)));
}

#[test]
fn a_write_that_is_impossible_is_refused() {
    let server = Server::start();
    let mut client = server.client();
    client.call("command/exec", exec("deaf", "exec sleep 1000", false));
    for id in ["deaf", "nobody"] {
        let write = json!({"processId": id, "chunk": encoded("x")});
        assert_eq!(client.refused("command/exec/write", write).code, INVALID_REQUEST);
    }
    let duplicate = client.refused("command/exec", exec("deaf", "true", false));
    assert_eq!(duplicate.code, INVALID_REQUEST);
    let terminate = |client: &mut Client, id: &str| {
        client.call("command/exec/terminate", json!({"processId": id}))["running"].clone()
    };
    assert_eq!(terminate(&mut client, "deaf"), true);
    assert_eq!(finish(&mut client, "deaf").2, 137);
    assert_eq!(terminate(&mut client, "deaf"), false);
    assert_eq!(terminate(&mut client, "nobody"), false);
}

#[test]
fn the_output_cap_limits_retained_output_but_not_sent_output() {
    const LEN: usize = 4_000_000;
    /// The cap and one chunk: the log keeps whole chunks. A snapshot also has the head of the
    /// stream.
    const KEPT: usize = 4096 + (256 << 10);
    let server = Server::start();
    let mut client = server.client();
    let mut params = exec("much", &format!("yes | head -c {LEN}"), false);
    params["outputBytesCap"] = 4096.into();
    client.call("command/exec", params);
    let (stdout, _, code) = finish(&mut client, "much");
    assert_eq!((stdout.len(), code), (LEN, json!(0)));
    // Unconfirmed output is always retained for a moment.
    while {
        let kept = client.call("process/snapshot", json!({"processId": "much"}));
        decoded(&kept["stdout"]).len() > KEPT || kept["truncated"] == false
    } {}
}
