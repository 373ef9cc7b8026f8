//! A collector in Python that decodes exports with the official protobuf messages of OpenTelemetry.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::foreign_client::python;
use crate::support::{Running, ServerBuilder, command};

pub(crate) struct Collector {
    running: Running,
    pub(crate) url: String,
    /// All received exports, as text.
    received: String,
}

impl Collector {
    pub(super) fn start() -> Self {
        Self::with(&[])
    }

    pub(super) fn with(arguments: &[&str]) -> Self {
        Self::through(command, arguments)
    }

    /// Starts the script. `command` returns the command that runs the given interpreter.
    pub(crate) fn through(command: impl FnOnce(&str) -> Command, arguments: &[&str]) -> Self {
        let script =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/foreign/otlp_collector.py");
        let mut program = command(python().to_str().unwrap());
        program.arg("-u").arg(script).args(arguments);
        let mut running = Running::start(program);
        let url = running.line().trim_end().to_owned();
        assert!(url.contains("://127.0.0.1:"), "{url:?}: {}", running.finish().2);
        Self { running, url, received: String::new() }
    }

    /// Returns a server that exports to this collector: spans at once, metrics at the end.
    pub(super) fn server(&self) -> ServerBuilder {
        exporting_to(&self.url)
            .variable("OTEL_BSP_SCHEDULE_DELAY", "10")
            // The collector prints an export before it responds, and may block until the test reads
            // it.
            .variable("OTEL_EXPORTER_OTLP_TIMEOUT", "600000")
            .variable("OTEL_BSP_EXPORT_TIMEOUT", "600000")
            .variable("OTEL_METRIC_EXPORT_TIMEOUT", "600000")
    }

    pub(crate) fn export(&mut self) -> Value {
        let line = self.running.line();
        assert!(!line.is_empty(), "the collector has ended");
        self.received.push_str(&line);
        serde_json::from_str(&line).unwrap()
    }

    /// Waits until this many spans have arrived, and returns them.
    pub(super) fn spans(&mut self, count: usize) -> Vec<Value> {
        let mut spans = Vec::new();
        while spans.len() < count {
            if let Some(more) = self.export()["spans"].as_array() {
                spans.extend(more.iter().cloned());
            }
        }
        spans
    }

    pub(super) fn received(&self) -> &str {
        &self.received
    }
}

pub(super) fn exporting_to(url: &str) -> ServerBuilder {
    ServerBuilder::new()
        .variable("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        // A proxy of the machine could not reach this collector.
        .variable("NO_PROXY", "127.0.0.1")
}

/// Returns the series of an export, named as in Prometheus.
pub(super) fn series(export: &Value) -> BTreeMap<String, f64> {
    let mut series = BTreeMap::new();
    for metric in export["metrics"].as_array().unwrap() {
        let name = metric["name"].as_str().unwrap();
        for point in metric["points"].as_array().unwrap() {
            let labels: Vec<_> = point["attributes"].as_object().unwrap().iter().collect();
            let labels: Vec<_> =
                labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
            if metric["kind"] != "histogram" {
                series.insert(labelled(name, &labels), point["value"].as_f64().unwrap());
                continue;
            }
            let numbers = |key: &str| -> Vec<f64> {
                let numbers = point[key].as_array().unwrap().iter();
                numbers.map(|number| number.as_f64().unwrap()).collect()
            };
            let mut below = 0.0;
            for (bound, count) in numbers("bounds").iter().zip(numbers("counts")) {
                below += count;
                let labels = [&labels[..], &[format!("le=\"{bound}\"")]].concat();
                series.insert(labelled(&format!("{name}_bucket"), &labels), below);
            }
            for part in ["count", "sum"] {
                let name = labelled(&format!("{name}_{part}"), &labels);
                series.insert(name, point[part].as_f64().unwrap());
            }
        }
    }
    series
}

fn labelled(name: &str, labels: &[String]) -> String {
    match labels {
        [] => name.to_owned(),
        _ => format!("{name}{{{}}}", labels.join(",")),
    }
}
