//! The metrics of a rendezvous node. They name no environment and no credential.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use exec_server_telemetry::{AuditLog, IntCounter, IntGauge, MetricsRegistry, MetricsSnapshot};

use crate::router::Router;

#[derive(Debug)]
pub(crate) struct RendezvousMetrics {
    registry: MetricsRegistry,
    environments: IntGauge,
    harnesses: IntGauge,
    streams: IntGauge,
    directory_up: IntGauge,
    queued_bytes: IntGauge,
    frames: IntCounter,
    bytes: IntCounter,
    dropped: IntCounter,
    malformed: IntCounter,
    slow: IntCounter,
    refusals: IntCounter,
    /// Held while the metrics are updated: concurrent updates would count the same frames twice.
    updating: Mutex<()>,
}

impl RendezvousMetrics {
    pub(crate) fn new(audit_log: Option<Arc<AuditLog>>) -> Self {
        let registry = MetricsRegistry::new(env!("CARGO_PKG_VERSION"));
        registry.observed_counter(
            "exec_server_audit_failures_total",
            "Records that could not be written to the audit log",
            move || audit_log.as_ref().map_or(0, |log| log.failures()),
        );
        let gauge = |name: &str, help| registry.gauge(&format!("exec_server_relay_{name}"), help);
        let counter =
            |name: &str, help| registry.counter(&format!("exec_server_relay_{name}_total"), help);
        Self {
            environments: gauge("environments", "Environments with a socket at this node"),
            harnesses: gauge("harnesses", "Sockets of clients at this node"),
            streams: gauge("streams", "Streams that this node routes"),
            directory_up: gauge("directory_up", "1 if the store or NATS answers, 0 if not"),
            queued_bytes: gauge("queued_bytes", "Bytes of frames queued for sockets of this node"),
            frames: counter("frames", "Forwarded frames"),
            bytes: counter("bytes", "Bytes of forwarded frames"),
            dropped: counter("frames_dropped", "Frames without a destination, or without room"),
            malformed: counter("messages_malformed", "Messages that are not frames"),
            slow: counter("sockets_slow", "Sockets of clients closed because they did not read"),
            refusals: counter("refusals", "Requests and streams that were refused"),
            updating: Mutex::default(),
            registry,
        }
    }

    pub(crate) fn snapshot(&self, router: &Router, is_directory_up: bool) -> MetricsSnapshot {
        let _updating = self.updating.lock().expect("no code panics while it counts");
        let set = |gauge: &IntGauge, value: usize| {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        };
        let environments = router.status();
        set(&self.environments, environments.iter().filter(|(_, it)| it.is_online).count());
        set(&self.harnesses, environments.iter().map(|(_, it)| it.harnesses).sum());
        set(&self.streams, environments.iter().map(|(_, it)| it.streams).sum());
        set(&self.directory_up, usize::from(is_directory_up));
        set(&self.queued_bytes, router.queued_bytes());
        let advance = |counter: &IntCounter, value: &AtomicU64| {
            counter.inc_by(value.load(Ordering::Relaxed).saturating_sub(counter.get()));
        };
        let counters = &router.counters;
        advance(&self.frames, &counters.frames);
        advance(&self.bytes, &counters.bytes);
        advance(&self.dropped, &counters.dropped);
        advance(&self.malformed, &counters.malformed);
        advance(&self.slow, &counters.slow);
        advance(&self.refusals, &counters.refusals);
        self.registry.snapshot()
    }

    pub(crate) fn registry(&self) -> &MetricsRegistry {
        &self.registry
    }
}
