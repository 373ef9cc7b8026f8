//! Measures connecting to a host and receiving its first byte, through a gate, directly, and
//! through a plain copy.

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::process::Stdio;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, ensure};

use super::Workspace;
use super::peer::connector;
use super::plain_copy::PlainCopy;
use crate::Scale;
use crate::client::Client;
use crate::endpoint::Nagle;
use crate::pair::Pair;
use crate::report::{Row, Target, Unit};
use crate::samples::Samples;
use crate::server::BenchServer;

/// The number of connections of one program.
const SLICE: usize = 100;
/// A program that takes longer for its connections is considered hung.
const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) fn measure(scale: Scale) -> anyhow::Result<Vec<Row>> {
    let (host, served) = start_host()?;
    let server = BenchServer::start()?;
    let workspace = Workspace::reaching(host)?;
    let mut client = Client::connect(&server, Nagle::Off)?;
    let copy = PlainCopy::to(host)?;
    let [mut gated, mut direct, mut copied] = std::array::from_fn(|_| Samples::default());
    for _ in 0..scale.connects.div_ceil(SLICE) {
        let mut lines = Vec::new();
        client.start_in(&connector(host, SLICE)?, workspace.managed())?;
        // The server reports every connection to its client. A client that reads now would take a
        // core from the processes being measured, so this one waits.
        wait_for_connections(&served)?;
        client.until_closed(|bytes| lines.extend_from_slice(bytes))?;
        add_lines(&mut gated, &lines)?;

        for (address, samples) in [(host, &mut direct), (copy.address(), &mut copied)] {
            let mut command = connector(address, SLICE)?.command();
            let output = command.stdout(Stdio::piped()).output();
            let output = output.context("cannot start the connecting program")?;
            ensure!(
                output.status.success(),
                "the connecting program exited with {} in the baseline run, which bypasses the \
                 server",
                output.status
            );
            wait_for_connections(&served)?;
            add_lines(samples, &output.stdout)?;
        }
    }
    let row = |name, percent, limit: &Samples, is| {
        let times = Pair { ours: gated.percentile(percent), limit: limit.percentile(percent) };
        times.row(name, Unit::Seconds, is)
    };
    let (straight, through) = ("the same connection without a gate", "a plain copy in between");
    Ok(vec![
        row("connect and first byte, p50, through a managed network", 50, &direct, straight)
            .target(Target::RatioAtMost(2.0)),
        row("connect and first byte, p99, through a managed network", 99, &direct, straight),
        row("connect and first byte, p50, against a plain copy", 50, &copied, through),
    ])
}

/// Starts a host that sends one byte on every connection and closes it, until this process ends.
/// The receiver gets an item after every [`SLICE`] connections.
fn start_host() -> anyhow::Result<(SocketAddr, Receiver<()>)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let (report, served) = sync_channel(1);
    thread::spawn(move || -> anyhow::Result<()> {
        loop {
            for _ in 0..SLICE {
                let (mut stream, _) = listener.accept()?;
                stream.write_all(b"x")?;
            }
            report.send(())?;
        }
    });
    Ok((address, served))
}

fn wait_for_connections(served: &Receiver<()>) -> anyhow::Result<()> {
    served.recv_timeout(TIMEOUT).with_context(|| {
        format!("the program did not connect {SLICE} times within {}s", TIMEOUT.as_secs())
    })
}

fn add_lines(samples: &mut Samples, lines: &[u8]) -> anyhow::Result<()> {
    let lines: Vec<_> = std::str::from_utf8(lines)?.lines().collect();
    ensure!(lines.len() == SLICE, "the program reported {} of {SLICE} connections", lines.len());
    for line in lines {
        samples.add(Duration::from_nanos(line.parse()?));
    }
    Ok(())
}
