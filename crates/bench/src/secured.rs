//! Measures the cost of TLS and authentication: the same work on a secured server and on a plain
//! one.

use super::Scale;
use super::client::Client;
use super::endpoint::Nagle;
use super::pair::Pair;
use super::report::{Row, Target, Unit};
use super::server::BenchServer;

const MAX_CONNECT_SECONDS: f64 = 0.0015;
const LIMIT_IS: &str = "the same without TLS and authentication";

pub(super) fn measure(scale: Scale) -> anyhow::Result<Vec<Row>> {
    let mut servers = Pair { ours: BenchServer::start_secured()?, limit: BenchServer::start()? };
    let connect = |server: &BenchServer| Client::connect(server, Nagle::Off);
    let mut clients = Pair { ours: connect(&servers.ours)?, limit: connect(&servers.limit)? };
    let starts = clients.measure_starts(scale)?;
    let output = clients.measure_output(scale)?;
    let connects = servers.time_starts(scale, |server| connect(server))?;
    let output_name =
        format!("{} MiB of output, 256 KiB writes, with TLS and a token", scale.flood_bytes >> 20);
    Ok(vec![
        starts
            .row("start to close, p50, with TLS and a token", Unit::Seconds, LIMIT_IS)
            .target(Target::RatioAtMost(1.1)),
        output.row(&output_name, Unit::BytesPerSecond, LIMIT_IS).target(Target::RatioAtLeast(0.5)),
        connects
            .row("connect to first answer, p50, with TLS and a token", Unit::Seconds, LIMIT_IS)
            .target(Target::AtMost(MAX_CONNECT_SECONDS)),
    ])
}
