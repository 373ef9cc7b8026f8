//! A client that shares no code with us: Python, with a WebSocket library of its own.

use std::path::{Path, PathBuf};

use crate::support::{PROGRAM, Server, command, run_command};

#[test]
fn a_client_in_another_language_comes_back_and_has_lost_nothing() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/foreign/client.py");
    let python = python();
    assert!(
        python.exists(),
        "{} does not exist: run scripts/test once, or set FOREIGN_CLIENT_PYTHON to a Python that has websockets",
        python.display()
    );
    let server = Server::start();
    let mut client = command(python.to_str().unwrap());
    client.arg(script).arg(server.url());
    let outcome = run_command(client);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert_eq!(outcome.stdout, "ok\n");
}

/// The environment that `scripts/test` makes in the target directory.
fn python() -> PathBuf {
    match std::env::var_os("FOREIGN_CLIENT_PYTHON") {
        Some(path) => path.into(),
        None => {
            let target = Path::new(PROGRAM).ancestors().nth(2).expect("target/PROFILE/PROGRAM");
            target.join("venv/bin/python")
        }
    }
}
