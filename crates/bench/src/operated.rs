//! Measures the cost of limits, metrics and the audit log: the same work on a server with all of
//! them and on a plain one.

use super::Scale;
use super::client::Client;
use super::endpoint::Nagle;
use super::pair::Pair;
use super::report::{Row, Target, Unit};
use super::server::BenchServer;

const LIMIT_IS: &str = "the same without limits, metrics and audit log";

pub(super) fn measure(scale: Scale) -> anyhow::Result<Vec<Row>> {
    let servers = Pair { ours: BenchServer::start_operated()?, limit: BenchServer::start()? };
    let connect = |server: &BenchServer| Client::connect(server, Nagle::Off);
    let mut clients = Pair { ours: connect(&servers.ours)?, limit: connect(&servers.limit)? };
    let starts = clients.measure_starts(scale)?;
    let output = clients.measure_output(scale)?;
    let output_name = format!(
        "{} MiB of output, 256 KiB writes, with limits, metrics and audit log",
        scale.flood_bytes >> 20
    );
    Ok(vec![
        starts
            .row("start to close, p50, with limits, metrics and audit log", Unit::Seconds, LIMIT_IS)
            .target(Target::RatioAtMost(1.05)),
        output.row(&output_name, Unit::BytesPerSecond, LIMIT_IS).target(Target::RatioAtLeast(0.95)),
    ])
}
