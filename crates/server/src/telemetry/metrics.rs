//! The metrics of a server. `docs/operating.md` lists them.

use std::sync::Mutex;

use exec_server_host::process::LogTotals;
use exec_server_protocol::{ErrorKind, LimitName, Method};
use exec_server_telemetry::{
    AuditLog, Histogram, IntCounter, IntGauge, Labelled, MetricsRegistry, MetricsSnapshot,
};
use exec_server_transport::RefusalReason;

use super::ServerGauges;
use super::request::is_refusal;

/// Label of requests with an unknown method.
pub(super) const UNKNOWN: &str = "unknown";
/// Label of errors without a kind.
const ERROR: &str = "error";

/// Kinds of errors that report a reached limit.
const LIMITS: &[ErrorKind] = &[
    ErrorKind::Overloaded,
    ErrorKind::StdinFull,
    ErrorKind::TooManyObserved,
    ErrorKind::TooManyOpen,
    ErrorKind::TooManyProcesses,
    ErrorKind::TooManyRequests,
    ErrorKind::TooManySessions,
];

/// Process limits that an exit can report.
const PROCESS_LIMITS: [&str; 5] = ["memory", "pids", "cpuTime", "wallTime", "fileSize"];

#[derive(Debug)]
pub(crate) struct ServerMetrics {
    registry: MetricsRegistry,
    pub(super) connections: IntGauge,
    pub(super) connections_total: IntCounter,
    pub(super) refused_connections: Labelled<IntCounter>,
    sessions: Labelled<IntGauge>,
    pub(super) session_events: Labelled<IntCounter>,
    processes: Labelled<IntGauge>,
    pub(super) exits: Labelled<IntCounter>,
    output_bytes: IntCounter,
    discarded_bytes: IntCounter,
    retained_bytes: IntGauge,
    spilled_bytes: IntGauge,
    buffered_bytes: IntGauge,
    requests: Requests,
    limits: Labelled<IntCounter>,
    pub(super) network_decisions: Labelled<IntCounter>,
    audit_failures: IntCounter,
    queues: Labelled<IntGauge>,
    /// Held while gauges and counters are updated.
    updating: Mutex<()>,
}

#[derive(Debug)]
struct Requests {
    /// By method.
    durations: Labelled<Histogram>,
    /// One group per outcome, by method.
    succeeded: Labelled<IntCounter>,
    refused: Labelled<IntCounter>,
    failed: Labelled<IntCounter>,
    /// By kind of error.
    errors: Labelled<IntCounter>,
}

impl ServerMetrics {
    pub(super) fn new() -> Self {
        let metrics = MetricsRegistry::new(env!("CARGO_PKG_VERSION"));
        let methods: Vec<_> = Method::ALL.iter().map(|method| method.name()).collect();
        let with_unknown: Vec<_> = methods.iter().copied().chain([UNKNOWN]).collect();
        let kinds: Vec<&'static str> =
            ErrorKind::ALL.iter().map(ErrorKind::as_str).chain([ERROR]).collect();
        let limits: Vec<&'static str> =
            LIMITS.iter().map(ErrorKind::as_str).chain(PROCESS_LIMITS).collect();
        let refusals: Vec<_> = RefusalReason::ALL.iter().map(|reason| reason.label()).collect();
        let outcomes = metrics.counter_groups(
            "exec_server_requests_total",
            "Completed requests, by method and outcome",
            ("outcome", &["ok", "refused", "failed"]),
            ("method", &with_unknown),
        );
        let [succeeded, refused, failed] = outcomes;
        Self {
            connections: metrics.gauge("exec_server_connections", "Connections being served"),
            connections_total: metrics
                .counter("exec_server_connections_total", "Accepted connections"),
            refused_connections: metrics.counters(
                "exec_server_connections_refused_total",
                "Clients that were refused, by reason",
                "reason",
                &refusals,
            ),
            sessions: metrics.gauges(
                "exec_server_sessions",
                "Sessions, with or without a connection",
                "state",
                &["attached", "detached"],
            ),
            session_events: metrics.counters(
                "exec_server_session_events_total",
                "Session events; resumed counts recoveries after a lost connection",
                "event",
                &["opened", "resumed", "detached", "ended"],
            ),
            processes: metrics.gauges(
                "exec_server_processes",
                "Running processes, and finished ones that can still be read",
                "state",
                &["running", "finished"],
            ),
            exits: metrics.counters(
                "exec_server_process_exits_total",
                "Process exits, by cause",
                "cause",
                &["success", "failure", "signal", "deadline", "shutdown", "lost"],
            ),
            output_bytes: metrics
                .counter("exec_server_output_bytes_total", "Output written by processes"),
            discarded_bytes: metrics.counter(
                "exec_server_output_discarded_bytes_total",
                "Output discarded before a client received it (gaps)",
            ),
            retained_bytes: metrics
                .gauge("exec_server_retained_bytes", "Output of all processes kept in memory"),
            spilled_bytes: metrics
                .gauge("exec_server_spilled_bytes", "Output of all processes kept in files"),
            buffered_bytes: metrics.gauge(
                "exec_server_buffered_bytes",
                "Messages and responses of all connections in memory",
            ),
            requests: Requests {
                durations: metrics.durations(
                    "exec_server_request_duration_seconds",
                    "Time from a request to its response, by method",
                    "method",
                    &with_unknown,
                ),
                succeeded,
                refused,
                failed,
                errors: metrics.counters(
                    "exec_server_request_errors_total",
                    "Requests that were refused or failed, by kind of error",
                    "kind",
                    &kinds,
                ),
            },
            limits: metrics.counters(
                "exec_server_limits_hit_total",
                "Requests refused because of a limit, by kind of error, and limits that processes reached",
                "limit",
                &limits,
            ),
            network_decisions: metrics.counters(
                "exec_server_network_decisions_total",
                "Decisions about hosts that processes with a managed network tried to reach",
                "decision",
                &["allow", "deny", "ask"],
            ),
            audit_failures: metrics.counter(
                "exec_server_audit_failures_total",
                "Records that could not be written to the audit log",
            ),
            queues: metrics.gauges(
                "exec_server_queue_depth",
                "Unanswered requests, unfinished file jobs and unwritten audit records",
                "queue",
                &["requests", "files", "audit"],
            ),
            updating: Mutex::default(),
            registry: metrics,
        }
    }

    pub(super) fn answered(&self, method: Option<Method>, error: Option<&ErrorKind>, seconds: f64) {
        // The last index is for unknown methods.
        let index = method.map_or(Method::ALL.len(), |method| method as usize);
        self.requests.durations.at(index).observe(seconds);
        let outcomes = match error {
            None => &self.requests.succeeded,
            Some(kind) if is_refusal(kind) => &self.requests.refused,
            Some(_) => &self.requests.failed,
        };
        outcomes.at(index).inc();
        match error {
            None => {}
            Some(kind) if ErrorKind::ALL.contains(kind) => {
                self.requests.errors.of(kind.as_str()).inc();
            }
            Some(_) => self.requests.errors.of(ERROR).inc(),
        }
        if let Some(kind) = error.filter(|kind| LIMITS.contains(kind)) {
            self.limits.of(kind.as_str()).inc();
        }
    }

    pub(super) fn process_limit_hit(&self, limit: LimitName) {
        let [memory, pids, cpu_time, wall_time, file_size] = PROCESS_LIMITS;
        let name = match limit {
            LimitName::Memory => memory,
            LimitName::Pids => pids,
            LimitName::CpuTime => cpu_time,
            LimitName::WallTime => wall_time,
            LimitName::FileSize => file_size,
            // The kernel slows the process down or fails its calls, and reports nothing.
            LimitName::Cpus | LimitName::OpenFiles | LimitName::CoreSize | LimitName::Unknown => {
                return;
            }
        };
        self.limits.of(name).inc();
    }

    pub(super) fn requests_in_flight(&self) -> &IntGauge {
        self.queues.of("requests")
    }

    pub(super) fn registry(&self) -> &MetricsRegistry {
        &self.registry
    }

    pub(super) fn update(&self, logs: &LogTotals, now: &ServerGauges, audit: Option<&AuditLog>) {
        let _updating = self.updating.lock().expect("no code panics while it counts");
        let set =
            |gauge: &IntGauge, value: usize| gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        let set_bytes = |gauge: &IntGauge, value: u64| gauge.set(value.cast_signed());
        let advance = |counter: &IntCounter, value: u64| {
            counter.inc_by(value.saturating_sub(counter.get()));
        };
        set(self.sessions.of("attached"), now.attached_sessions);
        set(self.sessions.of("detached"), now.detached_sessions);
        set(self.processes.of("running"), now.running_processes);
        set(self.processes.of("finished"), now.finished_processes);
        set(&self.buffered_bytes, now.buffered_bytes);
        set(self.queues.of("files"), now.file_jobs);
        set(self.queues.of("audit"), audit.map_or(0, AuditLog::waiting));
        advance(&self.audit_failures, audit.map_or(0, AuditLog::failures));
        set_bytes(&self.retained_bytes, logs.memory_bytes());
        set_bytes(&self.spilled_bytes, logs.spilled_bytes());
        advance(&self.output_bytes, logs.output_bytes());
        advance(&self.discarded_bytes, logs.discarded_bytes());
    }

    pub(super) fn snapshot(&self) -> MetricsSnapshot {
        self.registry.snapshot()
    }
}

pub(super) fn kind_of(error: &exec_server_protocol::RpcError) -> ErrorKind {
    error.kind().cloned().unwrap_or_else(|| ErrorKind::Other(ERROR.into()))
}
