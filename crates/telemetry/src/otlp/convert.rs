//! Converts the metrics of the registry to those of OTLP. Names, labels and values stay the same.

use std::time::SystemTime;

use prometheus::proto::{LabelPair, Metric, MetricFamily, MetricType};

use super::messages::{
    self, CUMULATIVE, Gauge, Histogram, HistogramDataPoint, KeyValue, NumberDataPoint, Sum,
};
use super::span::unix_nanos;
use crate::metrics::MetricsSnapshot;

/// `now` is the time at which the values were read.
pub(super) fn convert(snapshot: &MetricsSnapshot, now: SystemTime) -> Vec<messages::Metric> {
    let times = Times { start: unix_nanos(snapshot.since), now: unix_nanos(now) };
    snapshot.families.iter().filter_map(|family| convert_family(family, times)).collect()
}

#[derive(Clone, Copy)]
struct Times {
    start: u64,
    now: u64,
}

/// Returns `None` for a type that the registry does not create.
fn convert_family(family: &MetricFamily, times: Times) -> Option<messages::Metric> {
    let mut metric = messages::Metric {
        name: family.name().to_owned(),
        description: family.help().to_owned(),
        unit: unit(family.name()).to_owned(),
        ..messages::Metric::default()
    };
    let numbers = |value: fn(&Metric) -> f64| {
        let points = family.get_metric().iter();
        points.map(|point| number(point, value(point), times)).collect()
    };
    match family.get_field_type() {
        MetricType::COUNTER => {
            metric.sum = Some(Sum {
                data_points: numbers(|point| point.get_counter().get_value()),
                aggregation_temporality: CUMULATIVE,
                is_monotonic: true,
            });
        }
        MetricType::GAUGE => {
            let data_points = numbers(|point| point.get_gauge().get_value());
            metric.gauge = Some(Gauge { data_points });
        }
        MetricType::HISTOGRAM => {
            let points = family.get_metric().iter();
            metric.histogram = Some(Histogram {
                data_points: points.map(|point| histogram(point, times)).collect(),
                aggregation_temporality: CUMULATIVE,
            });
        }
        _ => return None,
    }
    Some(metric)
}

fn number(point: &Metric, value: f64, times: Times) -> NumberDataPoint {
    NumberDataPoint {
        start_time_unix_nano: times.start,
        time_unix_nano: times.now,
        as_double: Some(value),
        attributes: attributes(point.get_label()),
    }
}

/// Prometheus buckets count all values up to a bound, OTLP buckets only those between two bounds.
fn histogram(point: &Metric, times: Times) -> HistogramDataPoint {
    let histogram = point.get_histogram();
    let finite = histogram.get_bucket().iter().filter(|bucket| bucket.upper_bound().is_finite());
    let (mut bounds, mut counts, mut below) = (Vec::new(), Vec::new(), 0);
    for bucket in finite {
        bounds.push(bucket.upper_bound());
        counts.push(bucket.cumulative_count().saturating_sub(below));
        below = bucket.cumulative_count();
    }
    counts.push(histogram.get_sample_count().saturating_sub(below));
    HistogramDataPoint {
        start_time_unix_nano: times.start,
        time_unix_nano: times.now,
        count: histogram.get_sample_count(),
        sum: Some(histogram.get_sample_sum()),
        bucket_counts: counts,
        explicit_bounds: bounds,
        attributes: attributes(point.get_label()),
    }
}

fn attributes(labels: &[LabelPair]) -> Vec<KeyValue> {
    labels.iter().map(|label| KeyValue::new(label.name(), label.value())).collect()
}

/// Derives the UCUM unit from the name.
fn unit(name: &str) -> &'static str {
    match name.strip_suffix("_total").unwrap_or(name).rsplit('_').next() {
        Some("seconds") => "s",
        Some("bytes") => "By",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MetricsRegistry;

    fn converted(metrics: &MetricsRegistry) -> Vec<messages::Metric> {
        convert(&metrics.snapshot(), SystemTime::now())
    }

    fn find<'a>(metrics: &'a [messages::Metric], name: &str) -> &'a messages::Metric {
        metrics.iter().find(|metric| metric.name == name).unwrap()
    }

    #[test]
    fn metrics_keep_their_name_labels_and_value() {
        let metrics = MetricsRegistry::new("1.2.3");
        let exits = metrics.counters("sent_bytes_total", "Bytes", "way", &["in", "out"]);
        metrics.gauge("idle", "Nothing").set(-3);
        exits.of("out").inc_by(7);
        let found = converted(&metrics);
        let idle = find(&found, "idle");
        assert_eq!(idle.description, "Nothing");
        assert_eq!(idle.gauge.as_ref().unwrap().data_points[0].as_double, Some(-3.0));
        assert!(idle.sum.is_none() && idle.histogram.is_none());
        let sent = find(&found, "sent_bytes_total");
        assert_eq!(sent.unit, "By");
        let sum = sent.sum.as_ref().unwrap();
        assert!(sum.is_monotonic && sum.aggregation_temporality == CUMULATIVE);
        let points: Vec<_> =
            sum.data_points.iter().map(|it| (it.attributes.clone(), it.as_double)).collect();
        let way = |value| vec![KeyValue::new("way", value)];
        assert_eq!(points, [(way("in"), Some(0.0)), (way("out"), Some(7.0))]);
        let times = |it: &NumberDataPoint| it.start_time_unix_nano <= it.time_unix_nano;
        assert!(sum.data_points.iter().all(times));
        let text = metrics.snapshot().text();
        assert_eq!(found.len(), text.lines().filter(|line| line.starts_with("# TYPE")).count());
    }

    #[test]
    fn histogram_buckets_are_not_cumulative() {
        let metrics = MetricsRegistry::new("1.2.3");
        let took = metrics.durations("took_seconds", "Time", "method", &["a"]);
        for seconds in [0.0001, 0.002, 0.0025, 1000.0] {
            took.at(0).observe(seconds);
        }
        let found = converted(&metrics);
        let took = find(&found, "took_seconds");
        let point = &took.histogram.as_ref().unwrap().data_points[0];
        assert_eq!((point.count, point.bucket_counts.len()), (4, point.explicit_bounds.len() + 1));
        assert_eq!(point.bucket_counts[..4], [1, 0, 0, 2]);
        assert_eq!(point.bucket_counts.last(), Some(&1));
        assert_eq!(point.bucket_counts.iter().sum::<u64>(), 4);
        assert_eq!(point.explicit_bounds[3], 0.003);
        assert_eq!((took.unit.as_str(), point.sum), ("s", Some(1000.0046)));
    }
}
