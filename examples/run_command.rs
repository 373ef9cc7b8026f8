//! Runs a command and prints its output: on the server with the given URL, or on this machine.
//!
//! ```sh
//! cargo run --example run_command
//! cargo run --example run_command -- ws://127.0.0.1:7777
//! ```

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "examples print")]

use exec_server::environment::RemoteServer;
use exec_server::protocol::StartParams;
use exec_server::{Environment, ExecBackend as _, ExecServerRuntimePaths};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let environment = match std::env::args().nth(1) {
        Some(url) => Environment::remote("server", RemoteServer::at(url)?),
        None => Environment::local(ExecServerRuntimePaths::without_helpers()),
    };
    let cwd = environment.info().await?.cwd;
    let argv = ["/bin/sh", "-c", "uname -a; tr a-z A-Z; echo careful >&2; exit 3"];
    let start = StartParams { pipe_stdin: true, ..StartParams::new("example", argv, cwd) };
    let process = environment.start(start).await?;
    let output = process.communicate("typed in\n").await?;
    print!("{}", output.stdout.to_text());
    eprint!("{}", output.stderr.to_text());
    println!("exit code {}", output.exit.exit_code);
    Ok(())
}
