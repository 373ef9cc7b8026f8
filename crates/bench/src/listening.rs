//! Measures the time from the spawn of a server to the URL on its stdout.

use super::Scale;
use super::bare;
use super::program::Program;
use super::report::{Limit, Row, Target, Unit};
use super::samples::Samples;
use super::server::BenchServer;

const TARGET_SECONDS: f64 = 0.006;

pub(super) fn measure(scale: Scale) -> anyhow::Result<Vec<Row>> {
    let program = Program::nothing();
    let [mut ours, mut bare] = std::array::from_fn(|_| Samples::default());
    for _ in 0..scale.listenings {
        ours.time(BenchServer::start)?;
        bare.time(|| bare::run(&program))?;
    }
    let limit = Limit { value: bare.median(), is: "bare spawn + wait of /bin/true" };
    let row = Row::new("time to listening", Unit::Seconds, ours.median());
    Ok(vec![row.limit(limit).target(Target::AtMost(TARGET_SECONDS))])
}
