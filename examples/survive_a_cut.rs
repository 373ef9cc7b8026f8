//! Follows a process while its connection is cut repeatedly, and gets every line once.
//!
//! ```sh
//! cargo run -- --listen ws://127.0.0.1:7777               # in another terminal
//! cargo run --example survive_a_cut -- 127.0.0.1:7777
//! ```

#![expect(clippy::print_stdout, reason = "examples print")]

use std::time::Duration;

use anyhow::Context as _;
use exec_server::protocol::{PathUri, StartParams};
use exec_server::{ExecProcessEvent, ExecServerClient, RemoteExecServerConnectArgs};
use exec_server_test_support::{Cut, FaultProxy};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let server = std::env::args().nth(1).context("missing argument: HOST:PORT of the server")?;
    // This proxy cuts the connections to the server on command.
    let network = FaultProxy::start(server.parse()?).await;
    let args = RemoteExecServerConnectArgs::new(network.url(), "survive_a_cut");
    let client = ExecServerClient::connect_websocket(args).await?;

    let script = "i=0; while [ $i -lt 50 ]; do i=$((i+1)); echo line $i; sleep 0.1; done";
    let start = StartParams {
        env: [("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into(),
        ..StartParams::new(
            "counter",
            ["/bin/sh", "-c", script],
            PathUri::from_path("/").context("/ is not an absolute path")?,
        )
    };
    let process = client.start(start).await?;
    let mut events = process.subscribe_events();
    let mut cuts = tokio::time::interval(Duration::from_millis(700));
    loop {
        tokio::select! {
            _ = cuts.tick() => network.cut(Cut::MidFrameRst).await,
            event = events.next() => match event {
                Some(ExecProcessEvent::Output(chunk)) => {
                    print!("{}", String::from_utf8_lossy(&chunk.chunk));
                }
                Some(ExecProcessEvent::Failed(error)) => return Err(error.into()),
                Some(_) => {}
                None => break,
            },
        }
    }
    println!("that took {} connections", network.connections());
    client.close().await?;
    Ok(())
}
