//! Compares a cluster of three nodes on one NATS server with a single node that has its own store:
//! registering, connecting, memory, and transfers through streams of many environments.

mod side;

use std::io::{self, Write as _};

use super::router::allow_descriptors;
use super::stream::runtime;
use crate::Scale;
use crate::pair::Pair;
use crate::report::{Row, Target, Unit};
use crate::samples::Samples;
use side::{Nats, Side};

const KIB: f64 = 1024.0;
const WARM_UP: usize = 1;
const ROUNDS: usize = 5;
const LIMIT_IS: &str = "a single node with its own store";

pub(crate) fn measure(scale: Scale) -> anyhow::Result<Vec<Row>> {
    let Some(nats) = Nats::start()? else {
        let _ = writeln!(
            io::stderr(),
            "skipped: nats-server is not in PATH and NATS_SERVER is not set"
        );
        return Ok(Vec::new());
    };
    // Each side of the comparison opens a socket for each environment and each stream.
    allow_descriptors(2 * (scale.environments + scale.active_streams) + 512)?;
    let runtime = runtime()?;
    let mut sides = Pair {
        ours: Side::cluster(nats, scale.environments)?,
        limit: Side::single(scale.environments)?,
    };
    let registered = Pair {
        ours: runtime.block_on(sides.ours.register_all())?,
        limit: runtime.block_on(sides.limit.register_all())?,
    };
    let memory =
        Pair { ours: sides.ours.idle_environment()?, limit: sides.limit.idle_environment()? };
    let connects = runtime.block_on(time_connects(&sides, scale.connects))?;
    runtime.block_on(sides.ours.open_streams(scale.active_streams))?;
    runtime.block_on(sides.limit.open_streams(scale.active_streams))?;
    let routed =
        sides.time(WARM_UP, ROUNDS, |side| runtime.block_on(side.route(scale.stream_bytes)))?;
    let rate = |seconds: f64| scale.stream_bytes as f64 / seconds;
    let routed = Pair { ours: rate(routed.ours), limit: rate(routed.limit) };
    let percentile = |percent| {
        let Pair { ours, limit } = &connects;
        Pair { ours: ours.percentile(percent), limit: limit.percentile(percent) }
    };
    let (p50, p99) = (percentile(50), percentile(99));
    let more = Row::new("connect in a cluster, p50, more than a single node", Unit::Seconds, {
        p50.ours - p50.limit
    });
    let streams = format!("{} streams through a cluster", scale.active_streams);
    let environment = format!("one of {} idle environments in a cluster", scale.environments);
    Ok(vec![
        registered.row("registrations in a cluster", Unit::PerSecond, LIMIT_IS),
        memory.row(&environment, Unit::Bytes, LIMIT_IS).target(Target::AtMost(24.0 * KIB)),
        p50.row("connect in a cluster, p50", Unit::Seconds, LIMIT_IS),
        p99.row("connect in a cluster, p99", Unit::Seconds, LIMIT_IS),
        more.target(Target::AtMost(0.002)),
        routed.row(&streams, Unit::BytesPerSecond, LIMIT_IS).target(Target::RatioAtLeast(0.9)),
    ])
}

/// Times the `connect` calls of clients, alternating between both sides and rotating over nodes and
/// environments.
async fn time_connects(sides: &Pair<Side>, count: usize) -> anyhow::Result<Pair<Samples>> {
    let mut samples = Pair { ours: Samples::default(), limit: Samples::default() };
    for number in 0..count {
        samples.ours.add(sides.ours.time_connect(number).await?);
        samples.limit.add(sides.limit.time_connect(number).await?);
    }
    Ok(samples)
}
