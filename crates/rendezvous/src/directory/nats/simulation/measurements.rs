//! Figures of one run.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Duration;

const WINDOW: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(crate) struct Measurements {
    calls: Rate,
    registrations: Rate,
    registrations_of_nodes: BTreeMap<usize, Rate>,
    failed_calls: usize,
    outages: Vec<Duration>,
    away: usize,
    most_away: usize,
    last_back: Duration,
}

/// Counts events, and the maximum within one second.
#[derive(Default)]
struct Rate {
    recent: VecDeque<Duration>,
    count: usize,
    peak: usize,
}

/// The results of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Report {
    /// Attempts to register.
    pub(crate) calls: usize,
    pub(crate) peak_of_calls: usize,
    /// Attempts that were refused or timed out.
    pub(crate) failed_calls: usize,
    pub(crate) registrations: usize,
    /// Registrations in the busiest second.
    pub(crate) peak: usize,
    pub(crate) peak_of_a_node: usize,
    /// The end of the last outage, counted from the first failure.
    pub(crate) all_back: Duration,
    /// Maximum number of environments disconnected at the same time.
    pub(crate) most_away: usize,
    pub(crate) outages: usize,
    pub(crate) median_outage: Duration,
    /// The 99th percentile of the outages.
    pub(crate) long_outage: Duration,
    pub(crate) longest_outage: Duration,
    /// Environments at the fullest running node at the end.
    pub(crate) fullest_node: usize,
    /// Environments at the emptiest running node at the end.
    pub(crate) emptiest_node: usize,
}

impl Measurements {
    pub(crate) fn count_call(&mut self, now: Duration) {
        self.calls.count(now);
    }

    pub(crate) fn count_failed_call(&mut self) {
        self.failed_calls += 1;
    }

    pub(crate) fn count_registration(&mut self, node: usize, now: Duration) {
        self.registrations.count(now);
        self.registrations_of_nodes.entry(node).or_default().count(now);
    }

    pub(crate) fn count_loss(&mut self) {
        self.away += 1;
        self.most_away = self.most_away.max(self.away);
    }

    pub(crate) fn count_return(&mut self, lost_at: Duration, now: Duration) {
        self.away -= 1;
        self.last_back = now;
        self.outages.push(now - lost_at);
    }

    pub(crate) fn is_any_away(&self) -> bool {
        self.away > 0
    }

    pub(crate) fn report(mut self, began: Duration, nodes: impl Iterator<Item = usize>) -> Report {
        self.outages.sort_unstable();
        let (emptiest, fullest) =
            nodes.fold((usize::MAX, 0), |(least, most), it| (least.min(it), most.max(it)));
        Report {
            calls: self.calls.count,
            peak_of_calls: self.calls.peak,
            failed_calls: self.failed_calls,
            registrations: self.registrations.count,
            peak: self.registrations.peak,
            peak_of_a_node: self
                .registrations_of_nodes
                .values()
                .map(|rate| rate.peak)
                .max()
                .unwrap_or(0),
            all_back: self.last_back.saturating_sub(began),
            most_away: self.most_away,
            outages: self.outages.len(),
            median_outage: self.percentile(50),
            long_outage: self.percentile(99),
            longest_outage: self.percentile(100),
            fullest_node: fullest,
            emptiest_node: emptiest,
        }
    }

    /// Returns a percentile of the sorted outages.
    fn percentile(&self, percent: usize) -> Duration {
        let index = (self.outages.len() * percent).div_ceil(100).saturating_sub(1);
        self.outages.get(index).copied().unwrap_or_default()
    }
}

impl Rate {
    fn count(&mut self, now: Duration) {
        while self.recent.pop_front_if(|then| *then + WINDOW <= now).is_some() {}
        self.recent.push_back(now);
        self.count += 1;
        self.peak = self.peak.max(self.recent.len());
    }
}

impl Report {
    pub(crate) const HEADINGS: &str = "| failure | calls (failed) | peak calls/s | \
        registrations | peak/s | peak/s of a node | all back | \
        outages (at once) | p50 | p99 | longest | nodes end with |\n\
        |---|---|---|---|---|---|---|---|---|---|---|---|";
}

/// A row of the table, without its first cell.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "| {} ({}) | {} ", self.calls, self.failed_calls, self.peak_of_calls)?;
        write!(f, "| {} | {} | {} ", self.registrations, self.peak, self.peak_of_a_node)?;
        write!(f, "| {:.1} s ", self.all_back.as_secs_f64())?;
        write!(f, "| {} ({}) ", self.outages, self.most_away)?;
        for outage in [self.median_outage, self.long_outage, self.longest_outage] {
            write!(f, "| {:.2} s ", outage.as_secs_f64())?;
        }
        write!(f, "| {} to {} |", self.emptiest_node, self.fullest_node)
    }
}
