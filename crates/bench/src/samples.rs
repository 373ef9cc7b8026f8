//! Durations of repeated work.

use std::time::{Duration, Instant};

#[derive(Debug, Default)]
pub(super) struct Samples(Vec<Duration>);

impl Samples {
    pub(super) fn time<T>(
        &mut self,
        work: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let begin = Instant::now();
        let outcome = work()?;
        self.0.push(begin.elapsed());
        Ok(outcome)
    }

    pub(super) fn add(&mut self, duration: Duration) {
        self.0.push(duration);
    }

    /// Returns the median in seconds.
    pub(super) fn median(&self) -> f64 {
        self.percentile(50)
    }

    /// Returns the smallest sample, in seconds, that at least `percent` percent of the samples do
    /// not exceed.
    ///
    /// # Panics
    /// Panics without samples.
    pub(super) fn percentile(&self, percent: usize) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let rank = (sorted.len() * percent).div_ceil(100).max(1);
        sorted[rank - 1].as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples() {
        let samples = Samples((1..=200).rev().map(Duration::from_secs).collect());
        assert_eq!(
            [1, 50, 99, 100].map(|percent| samples.percentile(percent)),
            [2.0, 100.0, 198.0, 200.0]
        );
        assert_eq!(Samples(vec![Duration::from_secs(7)]).median(), 7.0);
    }
}
