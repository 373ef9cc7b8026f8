//! `exec-server status`: the state of a running server, for its operator only.

use std::path::Path;

use serde_json::{Value, json};

use crate::monitoring::serve;
use crate::support::{Outcome, PROGRAM, Server, command, run_command};

fn status(url: &str, arguments: &[&str]) -> Outcome {
    let mut program = command(PROGRAM);
    program.args(["status", "--connect", url]).args(arguments);
    run_command(program)
}

fn as_json(outcome: &Outcome) -> Value {
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert_eq!(outcome.stdout.lines().count(), 1, "{}", outcome.stdout);
    serde_json::from_str(&outcome.stdout).unwrap()
}

#[test]
fn the_operator_sees_the_server_of_this_user() {
    let server = Server::start();
    let started = server.run(&["run", "-d", "--name", "there", "sleep", "1000"]);
    assert_eq!(started.code, Some(0), "{}", started.stderr);
    // The command finds the server by its runtime file, as every command does.
    let shown = as_json(&server.run(&["status", "--json"]));
    assert_eq!(shown["version"], env!("CARGO_PKG_VERSION"));
    assert!(shown["uptimeMs"].is_u64(), "{shown}");
    assert_eq!(shown["listeners"], json!([server.url()]));
    assert_eq!(
        shown["sessions"],
        json!({"attached": 1, "detached": 1}),
        "its own and that of the detached process"
    );
    assert_eq!(shown["processes"], json!({"running": 1, "finished": 0}));
    assert_eq!(shown["refusals"], json!([]));
    let tier = shown["limits"]["tier"].as_str().unwrap();
    let text = server.run(&["status"]).stdout;
    for line in [
        &format!("version    {}", env!("CARGO_PKG_VERSION")),
        &format!("listeners  {}", server.url()),
        "sessions   1 attached, 1 detached",
        "processes  1 running, 0 finished",
        "refusals   none",
    ] {
        assert!(text.lines().any(|found| found == line), "{line:?} is not in\n{text}");
    }
    assert!(text.contains(&format!("limits     tier {tier}")), "{text}");
}

#[test]
fn without_a_server_the_error_names_the_remedy() {
    let mut program = command(PROGRAM);
    program.arg("status");
    let outcome = run_command(program);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(1), ""));
    assert!(
        outcome.stderr.contains("found no server; start one with `exec-server`"),
        "{outcome:?}"
    );
}

/// Writes a token for `subject` to a file and returns its path.
fn token(directory: &Path, subject: &str, role: &str) -> String {
    let mut sign = command(PROGRAM);
    sign.args(["token", "sign", "--subject", subject, "--role", role, "--secret-file"]);
    sign.arg(directory.join("secret"));
    let signed = run_command(sign);
    assert_eq!(signed.code, Some(0), "{}", signed.stderr);
    write(directory, role, &signed.stdout)
}

fn write(directory: &Path, name: &str, text: &str) -> String {
    let file = directory.join(name);
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn only_an_admin_sees_refusals() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path();
    let secret = write(directory, "secret", &"x".repeat(40));
    let (_server, url) =
        serve(&["--ws-auth=signed-bearer-token", &format!("--ws-shared-secret-file={secret}")]);
    // The name reverses text on a terminal that prints it unescaped.
    let hostile = "eve\u{202e}nimda";
    let bad = write(directory, "bad", "not-a-token");
    let refused = status(&url, &["--token-file", &bad]);
    assert_ne!(refused.code, Some(0));
    for role in ["observer", "owner"] {
        let refused = status(&url, &["--token-file", &token(directory, hostile, role)]);
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(1), ""), "{role}");
        assert!(refused.stderr.contains("server/status is for the operator"), "{refused:?}");
    }
    let admin = token(directory, "root", "admin");
    let shown = as_json(&status(&url, &["--json", "--token-file", &admin]));
    let refusals = shown["refusals"].as_array().unwrap();
    assert_eq!(refusals.len(), 2, "{shown}");
    let [connection, request] = [&refusals[0], &refusals[1]];
    assert_eq!(
        (&connection["what"], &connection["reason"]),
        (&json!("connection"), &json!("credentials"))
    );
    assert!(connection["address"].as_str().unwrap().starts_with("127.0.0.1:"), "{shown}");
    assert_eq!((&request["what"], &request["reason"]), (&json!("request"), &json!("forbidden")));
    assert_eq!((&request["method"], &request["count"]), (&json!("server/status"), &json!(2)));
    assert_eq!(request["subject"], format!("sub:{hostile}"));

    let text = status(&url, &["--token-file", &admin]).stdout;
    let line = |what: &str| text.lines().find(|line| line.contains(what)).unwrap_or_default();
    assert!(line("connection").contains("credentials"), "{text}");
    assert!(line("server/status").contains("sub:eve\u{fffd}nimda"), "{text}");
    assert!(line("server/status").ends_with("(2 times)") && !text.contains('\u{202e}'), "{text}");
}

#[test]
fn the_holder_of_the_capability_token_is_the_operator() {
    let scratch = tempfile::tempdir().unwrap();
    let file = write(scratch.path(), "token", &"x".repeat(40));
    let (_server, url) = serve(&["--ws-auth=capability-token", &format!("--ws-token-file={file}")]);
    let shown = as_json(&status(&url, &["--json", "--token-file", &file]));
    assert_eq!(shown["sessions"]["attached"], 1);
}
