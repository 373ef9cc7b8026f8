//! The same work on two sides, alternating within the same rounds. The sides differ in one thing,
//! and the result is the cost of that thing.

use anyhow::ensure;

use super::Scale;
use super::client::Client;
use super::program::Program;
use super::report::{Limit, Row, Unit};
use super::samples::Samples;
use super::writer::writer;

const WARM_UP: usize = 10;
const BLOCK: usize = 256 << 10;

/// Two servers, clients or results.
#[derive(Debug)]
pub(super) struct Pair<T> {
    pub(super) ours: T,
    pub(super) limit: T,
}

impl<T> Pair<T> {
    /// Does the work on both sides in turn. Returns the medians in seconds. The first `warm_up`
    /// rounds are not counted: they fill caches and grow buffers.
    pub(super) fn time<R>(
        &mut self,
        warm_up: usize,
        rounds: usize,
        mut work: impl FnMut(&mut T) -> anyhow::Result<R>,
    ) -> anyhow::Result<Pair<f64>> {
        for _ in 0..warm_up {
            work(&mut self.ours)?;
            work(&mut self.limit)?;
        }
        let [mut ours, mut limit] = std::array::from_fn(|_| Samples::default());
        for _ in 0..rounds {
            ours.time(|| work(&mut self.ours))?;
            limit.time(|| work(&mut self.limit))?;
        }
        Ok(Pair { ours: ours.median(), limit: limit.median() })
    }

    /// Like [`Self::time`], for short work: measures `scale.starts` rounds.
    pub(super) fn time_starts<R>(
        &mut self,
        scale: Scale,
        work: impl FnMut(&mut T) -> anyhow::Result<R>,
    ) -> anyhow::Result<Pair<f64>> {
        self.time(WARM_UP, scale.starts, work)
    }
}

impl Pair<Client> {
    /// Measures the seconds from the start of a process to its close.
    pub(super) fn measure_starts(&mut self, scale: Scale) -> anyhow::Result<Pair<f64>> {
        let program = Program::nothing();
        self.time_starts(scale, |client| client.run(&program))
    }

    /// Measures the bytes per second of a process that writes as fast as it can.
    pub(super) fn measure_output(&mut self, scale: Scale) -> anyhow::Result<Pair<f64>> {
        let bytes = scale.flood_bytes;
        let program = writer(BLOCK, bytes / BLOCK as u64)?;
        let medians = self.time(1, scale.rounds, |client| {
            let written = client.run(&program)?;
            ensure!(written == bytes, "received {written} of {bytes} bytes from the writer");
            Ok(())
        })?;
        let rate = |seconds| bytes as f64 / seconds;
        Ok(Pair { ours: rate(medians.ours), limit: rate(medians.limit) })
    }
}

impl Pair<f64> {
    /// Returns the row of a comparison. `is` describes the side `limit`.
    pub(super) fn row(&self, name: &str, unit: Unit, is: &'static str) -> Row {
        Row::new(name, unit, self.ours).limit(Limit { value: self.limit, is })
    }
}
