//! Clients that share no code with the server: Python, with another WebSocket library.

use std::path::{Path, PathBuf};

use exec_server_test_support::{Cut, FaultProxy};

use crate::support::{PROGRAM, Running, Server, command, run_command};

const DOCS: &str = include_str!("../docs/protocol.md");

/// Returns the only Python program in docs/protocol.md.
fn client_in_forty_lines() -> &'static str {
    let (_, code) = DOCS.split_once("```python\n").expect("docs/protocol.md has a client");
    code.split_once("```").expect("the block has an end").0
}

#[test]
fn the_client_of_the_docs_reconnects_after_several_refusals() {
    let server = Server::start();
    let upstream = server.url().strip_prefix("ws://").unwrap().parse().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let proxy = runtime.block_on(FaultProxy::start(upstream));
    let directory = tempfile::tempdir().unwrap();
    let (script, go_on) = (directory.path().join("client.py"), directory.path().join("go on"));
    std::fs::write(&script, client_in_forty_lines()).unwrap();
    let mut client = command(python().to_str().unwrap());
    let argv =
        ["sh", "-c", "echo one; while [ ! -e \"$0\" ]; do sleep 0.05; done; echo two; exit 3"];
    client.arg("-u").arg(script).arg(proxy.url()).args(argv).arg(&go_on);
    let mut client = Running::start(client);
    assert_eq!(client.line(), "stdout b'one\\n'\n");
    proxy.refuse();
    runtime.block_on(proxy.cut(Cut::Rst));
    runtime.block_on(proxy.wait_for_refusals(3));
    std::fs::write(go_on, "").unwrap();
    proxy.resume();
    let (status, out, errors) = client.finish();
    assert_eq!(status.code(), Some(0), "{errors}");
    assert_eq!(out, "stdout b'two\\n'\nexit 3\n");
}

#[test]
fn the_client_of_the_docs_fails_without_a_server() {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("client.py");
    std::fs::write(&script, client_in_forty_lines()).unwrap();
    let mut client = command(python().to_str().unwrap());
    client.arg(script).args(["ws://127.0.0.1:1", "true"]);
    let outcome = run_command(client);
    assert_eq!(outcome.code, Some(1));
    assert!(outcome.stderr.contains("Connection refused"), "{}", outcome.stderr);
}

#[test]
fn a_client_in_another_language_resumes_without_loss() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/foreign/client.py");
    let server = Server::start();
    let mut client = command(python().to_str().unwrap());
    client.arg(script).arg(server.url());
    let outcome = run_command(client);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert_eq!(outcome.stdout, "ok\n");
}

/// Returns the Python of the virtual environment that `scripts/test` creates in the target
/// directory.
pub(crate) fn python() -> PathBuf {
    let python: PathBuf = match std::env::var_os("FOREIGN_CLIENT_PYTHON") {
        Some(path) => path.into(),
        None => {
            let target = Path::new(PROGRAM).ancestors().nth(2).expect("target/PROFILE/PROGRAM");
            target.join("venv/bin/python")
        }
    };
    assert!(
        python.exists(),
        "{} does not exist: run scripts/test once, or set FOREIGN_CLIENT_PYTHON to a Python that has websockets",
        python.display()
    );
    python
}
