//! The tasks that send telemetry. Only the shutdown waits for them, and not for long: a slow or
//! unreachable collector costs telemetry, which is counted, and affects nothing else.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use prometheus::IntCounter;
use prost::Message as _;
use rustls::ClientConfig;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval_at, sleep, timeout};

use super::collector::{Collector, ExportError, stopped};
use super::convert::convert;
use super::messages::{
    MetricsRequest, Resource, ResourceMetrics, ResourceSpans, Scope, ScopeMetrics, ScopeSpans,
    TraceRequest,
};
use super::settings::{MetricSettings, OtlpError, OtlpSettings, Service, TraceSettings};
use super::span::{FinishedSpan, Tracer};
use crate::metrics::{ExportCounters, MetricsRegistry, MetricsSnapshot};

/// Time limit for sending the last spans and metrics at shutdown.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub struct Exporter {
    origin: Origin,
    counters: ExportCounters,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl Exporter {
    /// Creates an exporter that counts failures in `registry`.
    #[must_use]
    pub fn new(settings: &OtlpSettings, registry: &MetricsRegistry) -> Self {
        let (resource, service) = (settings.resource.clone(), settings.service);
        Self {
            origin: Origin { resource, service },
            counters: registry.export_counters().clone(),
            stop: watch::Sender::new(false),
            tasks: JoinSet::new(),
        }
    }

    /// Sends the spans of the returned tracer. Must be called within a runtime. An encrypted
    /// destination needs `tls`.
    pub fn export_traces(
        &mut self,
        settings: &TraceSettings,
        tls: Option<Arc<ClientConfig>>,
    ) -> Result<Tracer, OtlpError> {
        let collector = Collector::new(settings.destination.clone(), self.origin.service, tls)?;
        let (sender, queue) = mpsc::channel(settings.max_queue);
        let dropped = self.counters.dropped_spans.clone();
        let tracer = Tracer::new(sender, settings.sampler, dropped.clone());
        let delivery = self.delivery("traces", collector);
        let traces = TraceExport {
            queue,
            dropped,
            delivery,
            max_batch: settings.max_batch,
            delay: settings.delay,
        };
        self.tasks.spawn(traces.run());
        Ok(tracer)
    }

    /// Sends the result of `read` at an interval. Must be called within a runtime. An encrypted
    /// destination needs `tls`.
    pub fn export_metrics(
        &mut self,
        settings: &MetricSettings,
        tls: Option<Arc<ClientConfig>>,
        read: impl Fn() -> Option<MetricsSnapshot> + Send + 'static,
    ) -> Result<(), OtlpError> {
        let collector = Collector::new(settings.destination.clone(), self.origin.service, tls)?;
        let delivery = self.delivery("metrics", collector);
        self.tasks.spawn(export_metrics(settings.interval, delivery, read));
        Ok(())
    }

    /// Sends the remaining telemetry, for at most three seconds.
    pub async fn shutdown(mut self) {
        self.stop.send_replace(true);
        let sent = async { while self.tasks.join_next().await.is_some() {} };
        if timeout(FLUSH_TIMEOUT, sent).await.is_err() {
            let seconds = FLUSH_TIMEOUT.as_secs();
            tracing::warn!("the collector did not accept the last telemetry within {seconds} s");
        }
    }

    fn delivery(&self, signal: &'static str, collector: Collector) -> Delivery {
        Delivery {
            signal,
            collector,
            origin: self.origin.clone(),
            failures: self.counters.failures.of(signal).clone(),
            is_failing: false,
            stop: self.stop.subscribe(),
        }
    }
}

#[derive(Debug, Clone)]
struct Origin {
    resource: Resource,
    service: Service,
}

impl Origin {
    fn scope(&self) -> Scope {
        Scope { name: "exec-server".to_owned(), version: self.service.version.to_owned() }
    }
}

/// The exports of one signal and their state.
struct Delivery {
    signal: &'static str,
    collector: Collector,
    origin: Origin,
    failures: IntCounter,
    is_failing: bool,
    stop: watch::Receiver<bool>,
}

impl Delivery {
    /// Sends an export. Returns the number of rejected items, or `None` if the export failed. The
    /// counter counts every failure; the log shows the first of each outage.
    async fn send(&mut self, body: Vec<u8>) -> Option<u64> {
        let sent = self.collector.export(body, &mut self.stop).await;
        let was_failing = std::mem::replace(&mut self.is_failing, sent.is_err());
        let (signal, collector) = (self.signal, &self.collector.destination);
        match &sent {
            Err(error) => self.failed(error, was_failing),
            Ok(_) if was_failing => {
                tracing::info!(signal, %collector, "telemetry exports succeed again");
            }
            Ok(rejected @ 1..) => {
                tracing::debug!(
                    signal,
                    %collector,
                    rejected,
                    "the collector rejected a part of an export"
                );
            }
            Ok(0) => {}
        }
        sent.ok()
    }

    fn failed(&self, error: &ExportError, was_failing: bool) {
        self.failures.inc();
        if !was_failing {
            let (signal, collector) = (self.signal, &self.collector.destination);
            tracing::warn!(signal, %collector, error = error.explain(), "telemetry is lost");
        }
    }
}

struct TraceExport {
    queue: mpsc::Receiver<FinishedSpan>,
    dropped: IntCounter,
    delivery: Delivery,
    max_batch: usize,
    delay: Duration,
}

impl TraceExport {
    async fn run(mut self) {
        let mut stop = self.delivery.stop.clone();
        let mut batch = Vec::new();
        loop {
            let is_last = tokio::select! {
                () = self.fill(&mut batch) => false,
                () = stopped(&mut stop) => true,
            };
            if is_last {
                break;
            }
            self.send(&mut batch).await;
        }
        // Spans that end from now on are counted as dropped.
        self.queue.close();
        loop {
            while batch.len() < self.max_batch
                && let Ok(span) = self.queue.try_recv()
            {
                batch.push(span);
            }
            if batch.is_empty() {
                return;
            }
            self.send(&mut batch).await;
        }
    }

    /// Returns when the batch is full or the delay after its first span has passed. Cancel-safe:
    /// the batch keeps its spans.
    async fn fill(&mut self, batch: &mut Vec<FinishedSpan>) {
        self.receive(batch).await;
        let waited = sleep(self.delay);
        tokio::pin!(waited);
        while batch.len() < self.max_batch {
            tokio::select! {
                () = self.receive(batch) => {}
                () = &mut waited => return,
            }
        }
    }

    async fn receive(&mut self, batch: &mut Vec<FinishedSpan>) {
        let room = self.max_batch - batch.len();
        if self.queue.recv_many(batch, room).await == 0 {
            // All tracers are gone: only the shutdown can follow.
            std::future::pending::<()>().await;
        }
    }

    async fn send(&mut self, batch: &mut Vec<FinishedSpan>) {
        let spans: Vec<_> = batch.drain(..).map(|span| span.to_message()).collect();
        let count = u64::try_from(spans.len()).unwrap_or(u64::MAX);
        let origin = &self.delivery.origin;
        let scope_spans = vec![ScopeSpans { scope: Some(origin.scope()), spans }];
        let resource = Some(origin.resource.clone());
        let request =
            TraceRequest { resource_spans: vec![ResourceSpans { resource, scope_spans }] };
        let rejected = self.delivery.send(request.encode_to_vec()).await;
        self.dropped.inc_by(rejected.unwrap_or(count).min(count));
    }
}

async fn export_metrics(
    period: Duration,
    mut delivery: Delivery,
    read: impl Fn() -> Option<MetricsSnapshot>,
) {
    let mut stop = delivery.stop.clone();
    let mut ticks = interval_at(tokio::time::Instant::now() + period, period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let is_last = tokio::select! {
            _ = ticks.tick() => false,
            () = stopped(&mut stop) => true,
        };
        if let Some(snapshot) = read() {
            let metrics = convert(&snapshot, SystemTime::now());
            let scope = Some(delivery.origin.scope());
            let scope_metrics = vec![ScopeMetrics { scope, metrics }];
            let resource = Some(delivery.origin.resource.clone());
            let resource_metrics = vec![ResourceMetrics { resource, scope_metrics }];
            delivery.send(MetricsRequest { resource_metrics }.encode_to_vec()).await;
        }
        if is_last {
            return;
        }
    }
}
