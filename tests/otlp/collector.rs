//! A collector in Python, which decodes with the official messages of OpenTelemetry.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::foreign_client::python;
use crate::support::{Running, ServerBuilder, command};

pub(crate) struct Collector {
    running: Running,
    pub(crate) url: String,
    /// Everything that was received, as text.
    received: String,
}

impl Collector {
    pub(super) fn start() -> Self {
        Self::with(&[])
    }

    /// With arguments of the script.
    pub(super) fn with(arguments: &[&str]) -> Self {
        Self::through(command, arguments)
    }

    /// The same, as a program that `command` makes.
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

    /// A server that exports here: spans at once, metrics at the end.
    pub(super) fn server(&self) -> ServerBuilder {
        exporting_to(&self.url)
            .variable("OTEL_BSP_SCHEDULE_DELAY", "10")
            // The collector waits for a test that does not read.
            .variable("OTEL_EXPORTER_OTLP_TIMEOUT", "600000")
            .variable("OTEL_BSP_EXPORT_TIMEOUT", "600000")
            .variable("OTEL_METRIC_EXPORT_TIMEOUT", "600000")
    }

    /// The next export.
    pub(crate) fn export(&mut self) -> Value {
        let line = self.running.line();
        assert!(!line.is_empty(), "the collector has ended");
        self.received.push_str(&line);
        serde_json::from_str(&line).unwrap()
    }

    /// Spans until there are so many.
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
        // A proxy of the machine does not know this collector.
        .variable("NO_PROXY", "127.0.0.1")
}

/// The series of an export as Prometheus names them.
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
