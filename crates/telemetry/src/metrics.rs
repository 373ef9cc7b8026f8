//! Metrics in memory and in the Prometheus text format.
//!
//! Every label has a fixed set of values, registered when the service starts. So a scrape shows a
//! metric before its first change, and no client can create a new time series.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use prometheus::core::{Collector, Desc, Metric, MetricVec, MetricVecBuilder};
use prometheus::proto::MetricFamily;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder,
};

use crate::own_process::OwnProcess;

/// From 100 µs to 100 s, in seconds.
const DURATION_BUCKETS: [f64; 13] =
    [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0];

/// The metrics of one service. Names must be distinct.
#[derive(Clone)]
pub struct MetricsRegistry {
    registry: Registry,
    since: SystemTime,
    own_process: Option<OwnProcess>,
    exports: Option<ExportCounters>,
}

impl MetricsRegistry {
    /// Creates a registry with the metrics of every service: its version, the resource use of its
    /// process, and the state of exports.
    #[must_use]
    pub fn new(version: &str) -> Self {
        let (registry, since) = (Registry::new(), SystemTime::now());
        let mut metrics = Self { registry, since, own_process: None, exports: None };
        let help = "Always 1; its label is the running version";
        let info = IntGaugeVec::new(Opts::new("exec_server_build_info", help), &["version"]);
        metrics.register(info.expect("the name is valid")).with_label_values(&[version]).set(1);
        metrics.own_process = Some(OwnProcess::register(&metrics));
        metrics.exports = Some(ExportCounters::register(&metrics));
        metrics
    }

    #[must_use]
    pub fn counter(&self, name: &str, help: &str) -> IntCounter {
        self.register(IntCounter::new(name, help).expect("the name is valid"))
    }

    #[must_use]
    pub fn gauge(&self, name: &str, help: &str) -> IntGauge {
        self.register(IntGauge::new(name, help).expect("the name is valid"))
    }

    #[must_use]
    pub fn counters(
        &self,
        name: &str,
        help: &str,
        label: &str,
        values: &[&'static str],
    ) -> Labelled<IntCounter> {
        let all = IntCounterVec::new(Opts::new(name, help), &[label]);
        self.labelled(all.expect("the name is valid"), values)
    }

    /// Registers one counter for each pair of label values, grouped by the values of the first
    /// label.
    #[must_use]
    pub fn counter_groups<const N: usize>(
        &self,
        name: &str,
        help: &str,
        (group, groups): (&str, &[&'static str; N]),
        (label, values): (&str, &[&'static str]),
    ) -> [Labelled<IntCounter>; N] {
        let all = IntCounterVec::new(Opts::new(name, help), &[group, label]);
        let all = self.register(all.expect("the name is valid"));
        groups.map(|group| {
            let of = |value: &&'static str| (*value, all.with_label_values(&[group, *value]));
            Labelled { by_value: values.iter().map(of).collect() }
        })
    }

    /// Registers a counter whose value is read at each snapshot.
    pub fn observed_counter(
        &self,
        name: &str,
        help: &str,
        read: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        let counter = IntCounter::new(name, help).expect("the name is valid");
        let observed = ObservedCounter { counter, read, collecting: Mutex::default() };
        let registered = self.registry.register(Box::new(observed));
        registered.expect("metric names are distinct");
    }

    #[must_use]
    pub fn gauges(
        &self,
        name: &str,
        help: &str,
        label: &str,
        values: &[&'static str],
    ) -> Labelled<IntGauge> {
        let all = IntGaugeVec::new(Opts::new(name, help), &[label]);
        self.labelled(all.expect("the name is valid"), values)
    }

    #[must_use]
    pub fn durations(
        &self,
        name: &str,
        help: &str,
        label: &str,
        values: &[&'static str],
    ) -> Labelled<Histogram> {
        let options = HistogramOpts::new(name, help).buckets(DURATION_BUCKETS.to_vec());
        self.labelled(HistogramVec::new(options, &[label]).expect("the name is valid"), values)
    }

    #[must_use]
    pub fn snapshot(&self) -> MetricsSnapshot {
        if let Some(own_process) = &self.own_process {
            own_process.update();
        }
        MetricsSnapshot { families: self.registry.gather(), since: self.since }
    }

    pub(crate) fn export_counters(&self) -> &ExportCounters {
        self.exports.as_ref().expect("`new` registers them")
    }

    fn register<C: Collector + Clone + 'static>(&self, collector: C) -> C {
        let registered = self.registry.register(Box::new(collector.clone()));
        registered.expect("metric names are distinct");
        collector
    }

    fn labelled<T, P>(&self, all: MetricVec<T>, values: &[&'static str]) -> Labelled<P>
    where
        T: MetricVecBuilder<M = P> + 'static,
        P: Metric + Clone,
        MetricVec<T>: Collector,
    {
        let all = self.register(all);
        let of = |value: &&'static str| (*value, all.with_label_values(&[*value]));
        Labelled { by_value: values.iter().map(of).collect() }
    }
}

impl fmt::Debug for MetricsRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricsRegistry").finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub struct MetricsSnapshot {
    pub(crate) families: Vec<MetricFamily>,
    /// When the counters started at 0.
    pub(crate) since: SystemTime,
}

impl MetricsSnapshot {
    /// Returns the body of `GET /metrics`.
    #[must_use]
    pub fn text(&self) -> String {
        let text = TextEncoder::new().encode_to_string(&self.families);
        text.expect("a String accepts every write")
    }
}

struct ObservedCounter<F> {
    counter: IntCounter,
    read: F,
    /// Held while collecting: two concurrent scrapes must not add the same difference twice.
    collecting: Mutex<()>,
}

impl<F: Fn() -> u64 + Send + Sync> Collector for ObservedCounter<F> {
    fn desc(&self) -> Vec<&Desc> {
        self.counter.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let _collecting = self.collecting.lock().unwrap_or_else(PoisonError::into_inner);
        self.counter.inc_by((self.read)().saturating_sub(self.counter.get()));
        self.counter.collect()
    }
}

#[derive(Debug, Clone)]
pub(crate) struct ExportCounters {
    pub(crate) dropped_spans: IntCounter,
    /// By signal.
    pub(crate) failures: Arc<Labelled<IntCounter>>,
}

impl ExportCounters {
    fn register(metrics: &MetricsRegistry) -> Self {
        Self {
            dropped_spans: metrics.counter(
                "exec_server_trace_spans_dropped_total",
                "Spans that the OpenTelemetry collector did not receive or did not accept",
            ),
            failures: Arc::new(metrics.counters(
                "exec_server_telemetry_export_failures_total",
                "Exports that the OpenTelemetry collector did not accept",
                "signal",
                &["traces", "metrics"],
            )),
        }
    }
}

/// The metrics of one family, by their label value.
#[derive(Debug)]
pub struct Labelled<M> {
    by_value: Vec<(&'static str, M)>,
}

impl<M> Labelled<M> {
    /// Returns the metric of a label value, which must be one that was registered.
    #[must_use]
    pub fn of(&self, value: &str) -> &M {
        let found = self.by_value.iter().find(|(known, _)| *known == value);
        &found.expect("the values of a label are fixed").1
    }

    /// Returns the metric by the index of its value in the list given for the family.
    #[must_use]
    pub fn at(&self, index: usize) -> &M {
        &self.by_value[index].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scrape_shows_all_values_of_a_label_before_they_change() {
        let metrics = MetricsRegistry::new("1.2.3");
        let exits = metrics.counters("exits_total", "Ends", "cause", &["exit", "signal"]);
        let _idle = metrics.gauge("idle", "Nothing");
        let durations = metrics.durations("took_seconds", "Time", "method", &["a"]);
        exits.of("signal").inc_by(2);
        durations.at(0).observe(0.002);
        let text = metrics.snapshot().text();
        for line in [
            "exec_server_build_info{version=\"1.2.3\"} 1",
            "# TYPE exits_total counter",
            "exits_total{cause=\"exit\"} 0",
            "exits_total{cause=\"signal\"} 2",
            "idle 0",
            "took_seconds_bucket{method=\"a\",le=\"0.003\"} 1",
            "took_seconds_bucket{method=\"a\",le=\"0.001\"} 0",
            "took_seconds_count{method=\"a\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert!(text.contains("process_open_fds "), "{text}");
    }

    #[test]
    fn hostile_values_stay_in_their_line() {
        let metrics = MetricsRegistry::new("1\"\n# TYPE x counter\nx 1");
        let text = metrics.snapshot().text();
        assert!(!text.lines().any(|line| line.starts_with("x ")), "{text}");
    }
}
