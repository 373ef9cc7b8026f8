//! Measures bulk transfers through a gate, up and down, against a plain copy between two
//! connections of the same kind.

use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use super::Workspace;
use super::peer::{self, receiver, sender};
use super::plain_copy::PlainCopy;
use crate::Scale;
use crate::client::Client;
use crate::endpoint::Nagle;
use crate::pair::Pair;
use crate::program::{KilledOnDrop, Program};
use crate::report::{Row, Target, Unit};
use crate::samples::Samples;
use crate::server::BenchServer;

const LIMIT_IS: &str = "a plain copy with 256 KiB buffers";
const MIN_RATIO: f64 = 0.8;

#[derive(Debug, Clone, Copy)]
enum Direction {
    /// From the program to the host.
    Up,
    Down,
}

pub(crate) fn measure(scale: Scale) -> anyhow::Result<Vec<Row>> {
    let mut fixture = Fixture::new(scale.stream_bytes)?;
    let mut row = |direction, name: &str| -> anyhow::Result<Row> {
        let mut samples = Pair { ours: Samples::default(), limit: Samples::default() };
        // The first round is not counted: it fills caches.
        fixture.through_gate(direction)?;
        fixture.through_copy(direction)?;
        for _ in 0..scale.rounds {
            samples.ours.add(fixture.through_gate(direction)?);
            samples.limit.add(fixture.through_copy(direction)?);
        }
        let bytes = scale.stream_bytes;
        let rate = |samples: &Samples| bytes as f64 / samples.median();
        let rates = Pair { ours: rate(&samples.ours), limit: rate(&samples.limit) };
        let name = format!("{} MiB {name} through a managed network", bytes >> 20);
        let row = rates.row(&name, Unit::BytesPerSecond, LIMIT_IS);
        Ok(row.target(Target::RatioAtLeast(MIN_RATIO)))
    };
    Ok(vec![row(Direction::Up, "sent")?, row(Direction::Down, "received")?])
}

struct Fixture {
    bytes: u64,
    host: TcpListener,
    address: SocketAddr,
    workspace: Workspace,
    client: Client,
    copy: PlainCopy,
    _server: BenchServer,
}

impl Fixture {
    fn new(bytes: u64) -> anyhow::Result<Self> {
        let host = TcpListener::bind("127.0.0.1:0")?;
        let address = host.local_addr()?;
        let server = BenchServer::start()?;
        Ok(Self {
            bytes,
            host,
            address,
            workspace: Workspace::reaching(address)?,
            client: Client::connect(&server, Nagle::Off)?,
            copy: PlainCopy::to(address)?,
            _server: server,
        })
    }

    fn through_gate(&mut self, direction: Direction) -> anyhow::Result<Duration> {
        let program = self.program(direction, self.address)?;
        self.client.start_in(&program, self.workspace.managed())?;
        let duration = self.serve(direction)?;
        self.client.until_closed(|_| ())?;
        Ok(duration)
    }

    fn through_copy(&self, direction: Direction) -> anyhow::Result<Duration> {
        let mut command = self.program(direction, self.copy.address())?.command();
        let mut program =
            KilledOnDrop(command.spawn().context("cannot start the transfer program")?);
        let duration = self.serve(direction)?;
        let status = program.0.wait()?;
        ensure!(
            status.success(),
            "the transfer program exited with {status} in the baseline run, which bypasses the \
             server"
        );
        Ok(duration)
    }

    fn program(&self, direction: Direction, host: SocketAddr) -> anyhow::Result<Program> {
        match direction {
            Direction::Up => sender(host, self.bytes),
            Direction::Down => receiver(host),
        }
    }

    /// Acts as the host of one connection. Returns the time that all bytes took, from the start of
    /// the connection to its end.
    fn serve(&self, direction: Direction) -> anyhow::Result<Duration> {
        let (stream, _) = self.host.accept()?;
        let begin = Instant::now();
        match direction {
            Direction::Up => {
                let received = peer::receive(&stream)?;
                let sent = self.bytes;
                ensure!(received == sent, "the host received {received} of {sent} bytes");
            }
            Direction::Down => peer::send(&stream, self.bytes)?,
        }
        Ok(begin.elapsed())
    }
}
