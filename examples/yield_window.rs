//! Tools of a language model: each call returns within a time limit, and the process keeps running.
//!
//! ```sh
//! cargo run --example yield_window
//! ```

#![expect(clippy::print_stdout, reason = "examples print")]

use std::sync::Arc;
use std::time::Duration;

use exec_server::unified_exec::{ExecCommand, UnifiedExec, UnifiedExecLimits};
use exec_server::{Environment, ExecServerRuntimePaths};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let environment = Environment::local(ExecServerRuntimePaths::without_helpers());
    let exec = UnifiedExec::new(Arc::new(environment), UnifiedExecLimits::default());

    let command = ExecCommand {
        tty: true,
        yield_time: Duration::from_millis(500),
        ..ExecCommand::shell("echo what is your name?; read name; echo hello $name")
    };
    let first = exec.exec_command(command).await?;
    println!("after {:?}: {:?}, running as {:?}", first.wall_time, first.output, first.running_id);

    if let Some(id) = first.running_id {
        let second = exec.write_stdin(id, "Ada\n", Duration::from_secs(5), 4096).await?;
        println!("then: {:?}, exit code {:?}", second.output, second.exit_code);
    }
    Ok(())
}
