//! The Rust client that `clients/bench/run` measures.

#![expect(clippy::print_stdout, reason = "the result of a measurement")]

use std::time::Instant;

use anyhow::Context as _;
use exec_server::protocol::{PathUri, StartParams};
use exec_server::{ExecProcessEvent, ExecServerClient};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, task, count] = &arguments[..] else {
        anyhow::bail!("usage: bench_client URL run|output COUNT");
    };
    let client = ExecServerClient::connect(url, "benchmark").await?;
    let count: u64 = count.parse()?;
    let seconds = match task.as_str() {
        "run" => {
            run(&client, &["/bin/sh", "-c", "true"]).await?;
            let start = Instant::now();
            for _ in 0..count {
                run(&client, &["/bin/sh", "-c", "true"]).await?;
            }
            start.elapsed().as_secs_f64()
        }
        "output" => {
            let start = Instant::now();
            let bytes = run(&client, &["head", "-c", &count.to_string(), "/dev/zero"]).await?;
            anyhow::ensure!(bytes == count, "{bytes} of {count} bytes arrived");
            start.elapsed().as_secs_f64()
        }
        other => anyhow::bail!("unknown task {other:?}; expected run or output"),
    };
    client.close().await?;
    println!("{seconds}");
    Ok(())
}

/// Runs a program to its end; returns the length of its output.
async fn run(client: &ExecServerClient, argv: &[&str]) -> anyhow::Result<u64> {
    let id = uuid::Uuid::new_v4().to_string();
    let cwd = PathUri::from_path("/").context("/ is not an absolute path")?;
    let start = StartParams {
        env: [("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into(),
        ..StartParams::new(id, argv.iter().copied(), cwd)
    };
    let mut events = client.start(start).await?.subscribe_events();
    let mut bytes = 0;
    while let Some(event) = events.next().await {
        match event {
            ExecProcessEvent::Output(output) => bytes += output.chunk.len() as u64,
            ExecProcessEvent::Failed(error) => return Err(error.into()),
            _ => {}
        }
    }
    Ok(bytes)
}
