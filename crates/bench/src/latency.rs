//! Measures the time from the request to start `/bin/true` to the notification that it has closed.

use super::Scale;
use super::bare;
use super::client::Client;
use super::endpoint::Nagle;
use super::program::Program;
use super::report::{Limit, Row, Target, Unit};
use super::samples::Samples;
use super::server::BenchServer;

/// Unmeasured starts that fill caches and grow pools.
const WARM_UP: usize = 10;

pub(super) fn measure(scale: Scale) -> anyhow::Result<Vec<Row>> {
    let server = BenchServer::start()?;
    let mut client = Client::connect(&server, Nagle::Off)?;
    let mut ordinary_client = Client::connect(&server, Nagle::On)?;
    let program = Program::nothing();
    for _ in 0..WARM_UP {
        client.run(&program)?;
        ordinary_client.run(&program)?;
        bare::run_with_pipes(&program)?;
    }
    let [mut ours, mut ordinary, mut bare, mut piped] = std::array::from_fn(|_| Samples::default());
    for _ in 0..scale.starts {
        ours.time(|| client.run(&program))?;
        bare.time(|| bare::run(&program))?;
        ordinary.time(|| ordinary_client.run(&program))?;
        piped.time(|| bare::run_with_pipes(&program))?;
    }

    let row = |name, ours, limit| Row::new(name, Unit::Seconds, ours).limit(limit);
    let spawn = |value| Limit { value, is: "bare spawn + wait, no pipes" };
    let spawn_and_read =
        Limit { value: piped.median(), is: "bare spawn, two pipes read to their ends" };
    Ok(vec![
        row("start to close, p50", ours.median(), spawn(bare.median()))
            .target(Target::RatioAtMost(1.8)),
        row("start to close, p99", ours.percentile(99), spawn(bare.percentile(99))),
        row("start to close, p50, client with Nagle", ordinary.median(), spawn(bare.median()))
            .target(Target::RatioAtMost(1.8)),
        row("start to close, p50, against pipes", ours.median(), spawn_and_read),
    ])
}
