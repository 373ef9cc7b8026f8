//! The program under test, run as a user would.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_exec-server");
/// Names the directory in which a server records which paths sandboxes could write.
pub(crate) const HISTORY_VARIABLE: &str = "EXEC_SERVER_SANDBOX_HISTORY";

#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

pub(crate) fn run_program(arguments: &[&str]) -> Outcome {
    let mut program = command(PROGRAM);
    program.args(arguments);
    run_command(program)
}

pub(crate) fn run_command(mut command: Command) -> Outcome {
    let output = command.stdin(Stdio::null()).output().unwrap();
    Outcome {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Runs a program to its end with this input, of which it may read only a part.
pub(crate) fn run_with_input(mut command: Command, input: &[u8]) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || drop(stdin.write_all(input)));
        child.wait_with_output().unwrap()
    })
}

#[expect(clippy::disallowed_methods, reason = "the tests are the user who starts the program")]
pub(crate) fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    // The user's own settings must not affect the tests.
    for (name, _) in std::env::vars_os() {
        let name_text = name.to_string_lossy();
        if name_text.starts_with("EXEC_SERVER_") || name_text.starts_with("OTEL_") {
            command.env_remove(name);
        }
    }
    command
        .env_remove("RUST_LOG")
        // A program would create a missing directory; in /proc, not even root can.
        .env("XDG_CONFIG_HOME", "/proc/nonexistent")
        // Not the home directory of the user, in which shells write their history.
        .env("HOME", env!("CARGO_TARGET_TMPDIR"))
        // Not the sandbox history of the user.
        .env(HISTORY_VARIABLE, concat!(env!("CARGO_TARGET_TMPDIR"), "/sandbox-history"))
        // Hides a running server of the user.
        .env("XDG_RUNTIME_DIR", env!("CARGO_TARGET_TMPDIR"));
    command
}
