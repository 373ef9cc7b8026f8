//! The resource use of the service's own process, as reported by the kernel, under the metric names
//! that Prometheus recommends.

use std::fs;

use prometheus::IntGauge;

use crate::MetricsRegistry;

#[derive(Clone)]
pub(crate) struct OwnProcess {
    resident_bytes: IntGauge,
    open_fds: IntGauge,
    threads: IntGauge,
}

impl OwnProcess {
    pub(crate) fn register(metrics: &MetricsRegistry) -> Self {
        Self {
            resident_bytes: metrics
                .gauge("process_resident_memory_bytes", "Resident memory of the server itself"),
            open_fds: metrics.gauge("process_open_fds", "Descriptors that the server has open"),
            threads: metrics.gauge("process_threads", "Threads of the server"),
        }
    }

    /// A value that cannot be read stays unchanged.
    pub(crate) fn update(&self) {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let number = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<i64>().ok()
        };
        if let Some(kib) = number("VmRSS:") {
            self.resident_bytes.set(kib * 1024);
        }
        if let Some(count) = number("Threads:") {
            self.threads.set(count);
        }
        if let Ok(entries) = fs::read_dir("/proc/self/fd") {
            // Excluding the descriptor that reads the directory.
            self.open_fds.set(i64::try_from(entries.count()).unwrap_or(i64::MAX) - 1);
        }
    }
}
