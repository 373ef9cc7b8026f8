//! Runs a shell in a terminal: types commands, resizes the terminal, interrupts a command.
//!
//! ```sh
//! cargo run --example interactive_pty
//! ```

#![expect(clippy::print_stdout, reason = "examples print")]

use exec_server::process::{WindowOptions, WindowedOutput};
use exec_server::protocol::{StartParams, TerminalSize};
use exec_server::{Environment, ExecBackend as _, ExecServerRuntimePaths};
use std::time::Duration;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let environment = Environment::local(ExecServerRuntimePaths::without_helpers());
    let cwd = environment.info().await?.cwd;
    let shell = environment
        .start(StartParams {
            tty: true,
            size: Some(TerminalSize { rows: 24, cols: 80 }),
            env: [("PATH", "/usr/bin:/bin"), ("PS1", "$ ")]
                .map(|(k, v)| (k.into(), v.into()))
                .into(),
            ..StartParams::new("shell", ["/bin/sh"], cwd)
        })
        .await?;
    let mut windows = WindowedOutput::new(&*shell);
    let quiet = WindowOptions {
        deadline: Duration::from_secs(5),
        quiet: Some(Duration::from_millis(200)),
        max_output: 64 << 10,
    };

    shell.write("stty size\n".into()).await?;
    print!("{}", windows.collect(quiet).await.output.to_text());
    shell.resize(TerminalSize { rows: 50, cols: 132 }).await?;
    shell.write("stty size\n".into()).await?;
    print!("{}", windows.collect(quiet).await.output.to_text());
    // Ctrl-C, as a terminal sends it.
    shell.write("sleep 1000\n".into()).await?;
    print!("{}", windows.collect(quiet).await.output.to_text());
    shell.write("\x03".into()).await?;
    shell.write("exit 7\n".into()).await?;
    let last = windows.collect(WindowOptions { quiet: None, ..quiet }).await;
    println!("{}", last.output.to_text());
    println!("exit code {:?}", last.exit.map(|exit| exit.exit_code));
    Ok(())
}
