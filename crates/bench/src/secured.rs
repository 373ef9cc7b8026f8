//! What TLS and authentication cost: the same work on a secured server and on a plain one.

use anyhow::ensure;

use super::Scale;
use super::client::Client;
use super::endpoint::Nagle;
use super::program::Program;
use super::report::{Limit, Row, Target, Unit};
use super::samples::Samples;
use super::server::BenchServer;
use super::writer::writer;

const WARM_UP: usize = 10;
const BLOCK: usize = 256 << 10;
const MAX_CONNECT_SECONDS: f64 = 0.0015;
const LIMIT_IS: &str = "the same without TLS and authentication";

pub(super) fn measure(scale: Scale) -> anyhow::Result<Vec<Row>> {
    let servers = Pair { secured: BenchServer::start_secured()?, plain: BenchServer::start()? };
    Ok(vec![
        measure_starts(&servers, scale)?,
        measure_output(&servers, scale)?,
        measure_connects(&servers, scale)?,
    ])
}

fn measure_starts(servers: &Pair<BenchServer>, scale: Scale) -> anyhow::Result<Row> {
    let program = Program::nothing();
    let medians = servers.connect()?.time(WARM_UP, scale.starts, |client| client.run(&program))?;
    let row = Row::new("start to close, p50, with TLS and a token", Unit::Seconds, medians.secured);
    let limit = Limit { value: medians.plain, is: LIMIT_IS };
    Ok(row.limit(limit).target(Target::RatioAtMost(1.1)))
}

fn measure_output(servers: &Pair<BenchServer>, scale: Scale) -> anyhow::Result<Row> {
    let bytes = scale.flood_bytes;
    let program = writer(BLOCK, bytes / BLOCK as u64)?;
    let medians = servers.connect()?.time(1, scale.rounds, |client| {
        let written = client.run(&program)?;
        ensure!(written == bytes, "{written} of {bytes} bytes arrived");
        Ok(())
    })?;
    let row = Row::new(
        &format!("{} MiB of output, 256 KiB writes, with TLS and a token", bytes >> 20),
        Unit::BytesPerSecond,
        bytes as f64 / medians.secured,
    );
    let limit = Limit { value: bytes as f64 / medians.plain, is: LIMIT_IS };
    Ok(row.limit(limit).target(Target::RatioAtLeast(0.5)))
}

fn measure_connects(servers: &Pair<BenchServer>, scale: Scale) -> anyhow::Result<Row> {
    let mut servers = Pair { secured: &servers.secured, plain: &servers.plain };
    let medians =
        servers.time(WARM_UP, scale.starts, |server| Client::connect(server, Nagle::Off))?;
    let row = Row::new(
        "connect to first answer, p50, with TLS and a token",
        Unit::Seconds,
        medians.secured,
    );
    let limit = Limit { value: medians.plain, is: LIMIT_IS };
    Ok(row.limit(limit).target(Target::AtMost(MAX_CONNECT_SECONDS)))
}

/// The two sides of the comparison: servers, clients or results.
struct Pair<T> {
    secured: T,
    plain: T,
}

impl Pair<BenchServer> {
    fn connect(&self) -> anyhow::Result<Pair<Client>> {
        Ok(Pair {
            secured: Client::connect(&self.secured, Nagle::Off)?,
            plain: Client::connect(&self.plain, Nagle::Off)?,
        })
    }
}

impl<T> Pair<T> {
    /// Does the work on both sides in turn, and returns the medians in seconds. The first
    /// `warm_up` rounds are not counted: they fill caches and grow buffers.
    fn time<R>(
        &mut self,
        warm_up: usize,
        rounds: usize,
        mut work: impl FnMut(&mut T) -> anyhow::Result<R>,
    ) -> anyhow::Result<Pair<f64>> {
        for _ in 0..warm_up {
            work(&mut self.secured)?;
            work(&mut self.plain)?;
        }
        let [mut secured, mut plain] = std::array::from_fn(|_| Samples::default());
        for _ in 0..rounds {
            secured.time(|| work(&mut self.secured))?;
            plain.time(|| work(&mut self.plain))?;
        }
        Ok(Pair { secured: secured.median(), plain: plain.median() })
    }
}
