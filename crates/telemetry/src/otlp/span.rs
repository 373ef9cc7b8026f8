//! Spans, from their start until the exporter takes them.
//!
//! Their types ensure that names and attributes are strings from the code: no client-chosen text
//! gets into a span, except the ids and the validated state of the client's own trace.

use std::sync::Arc;
use std::time::SystemTime;

use prometheus::IntCounter;
use tokio::sync::mpsc;

use super::messages::{self, KeyValue, STATUS_ERROR};
use super::sampler::Sampler;
use super::trace_context::RemoteParent;

/// Bits of `Span.flags`.
const SAMPLED: u32 = 1;
const KNOWS_IF_PARENT_IS_REMOTE: u32 = 1 << 8;
const PARENT_IS_REMOTE: u32 = 1 << 9;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Work inside this program.
    Internal = 1,
    /// A request from another program.
    Server = 2,
}

/// Creates spans and passes them to the exporter. Clones share one queue.
#[derive(Debug, Clone)]
pub struct Tracer {
    queue: mpsc::Sender<FinishedSpan>,
    sampler: Sampler,
    dropped: IntCounter,
}

impl Tracer {
    pub(super) fn new(
        queue: mpsc::Sender<FinishedSpan>,
        sampler: Sampler,
        dropped: IntCounter,
    ) -> Self {
        Self { queue, sampler, dropped }
    }

    /// Starts the span of a received request. Returns `None` if its trace is not sampled.
    #[must_use]
    pub fn server_span(&self, name: &'static str, parent: Option<&RemoteParent>) -> Option<Span> {
        let trace_id = parent.map_or_else(random_id, |parent| parent.trace_id);
        if !self.sampler.is_sampled(trace_id, parent) {
            return None;
        }
        Some(Span {
            tracer: self.clone(),
            span: FinishedSpan {
                trace_id,
                span_id: random_id(),
                state: parent.and_then(|parent| parent.state.clone()),
                parent_id: parent.map(|parent| parent.span_id),
                is_parent_remote: parent.is_some(),
                name,
                kind: Kind::Server,
                start: SystemTime::now(),
                end: SystemTime::UNIX_EPOCH,
                attributes: Vec::new(),
                is_error: false,
            },
        })
    }
}

/// A started span. It is discarded if dropped without [`end`](Self::end).
#[derive(Debug)]
pub struct Span {
    tracer: Tracer,
    span: FinishedSpan,
}

impl Span {
    #[must_use]
    pub fn child(&self, name: &'static str) -> Self {
        let parent = &self.span;
        let span = FinishedSpan {
            trace_id: parent.trace_id,
            span_id: random_id(),
            state: parent.state.clone(),
            parent_id: Some(parent.span_id),
            is_parent_remote: false,
            name,
            kind: Kind::Internal,
            start: SystemTime::now(),
            end: SystemTime::UNIX_EPOCH,
            attributes: Vec::new(),
            is_error: false,
        };
        Self { tracer: self.tracer.clone(), span }
    }

    pub fn set(&mut self, key: &'static str, value: &'static str) {
        self.span.attributes.push((key, value));
    }

    /// Ends the span. `error` is the kind of the error, if the work failed. Never waits: if the
    /// queue is full, or the exporter has stopped, the span is dropped and counted.
    pub fn end(mut self, error: Option<&'static str>) {
        if let Some(kind) = error {
            self.set("error.type", kind);
            self.span.is_error = true;
        }
        let mut span = self.span;
        // The clock may have been set back in the meantime.
        span.end = SystemTime::now().max(span.start);
        if self.tracer.queue.try_send(span).is_err() {
            self.tracer.dropped.inc();
        }
    }
}

/// A span as passed to the exporter.
#[derive(Debug, Clone)]
pub(super) struct FinishedSpan {
    trace_id: [u8; 16],
    span_id: [u8; 8],
    state: Option<Arc<str>>,
    parent_id: Option<[u8; 8]>,
    is_parent_remote: bool,
    name: &'static str,
    kind: Kind,
    start: SystemTime,
    end: SystemTime,
    attributes: Vec<(&'static str, &'static str)>,
    is_error: bool,
}

impl FinishedSpan {
    pub(super) fn to_message(&self) -> messages::Span {
        let attributes = self.attributes.iter().map(|(key, value)| KeyValue::new(key, value));
        let remote = if self.is_parent_remote { PARENT_IS_REMOTE } else { 0 };
        messages::Span {
            trace_id: self.trace_id.to_vec(),
            span_id: self.span_id.to_vec(),
            trace_state: self.state.as_deref().unwrap_or_default().to_owned(),
            parent_span_id: self.parent_id.map(Vec::from).unwrap_or_default(),
            name: self.name.to_owned(),
            kind: self.kind as i32,
            start_time_unix_nano: unix_nanos(self.start),
            end_time_unix_nano: unix_nanos(self.end),
            attributes: attributes.collect(),
            status: self.is_error.then_some(messages::Status { code: STATUS_ERROR }),
            flags: SAMPLED | KNOWS_IF_PARENT_IS_REMOTE | remote,
        }
    }
}

pub(super) fn unix_nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// All zeros is not a valid id.
fn random_id<const N: usize>() -> [u8; N] {
    loop {
        let id = std::array::from_fn(|_| rand::random());
        if id != [0; N] {
            return id;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::otlp::sampler::DEFAULT_SAMPLER;

    fn tracer(capacity: usize) -> (Tracer, mpsc::Receiver<FinishedSpan>, IntCounter) {
        let (sender, receiver) = mpsc::channel(capacity);
        let dropped = IntCounter::new("dropped", "dropped").unwrap();
        (Tracer::new(sender, DEFAULT_SAMPLER, dropped.clone()), receiver, dropped)
    }

    fn parent(flags: &str) -> RemoteParent {
        let traceparent = format!("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-{flags}");
        RemoteParent::parse(&traceparent, Some("a=1")).unwrap()
    }

    #[test]
    fn spans_keep_their_parent_and_its_state() {
        let (tracer, mut queue, _) = tracer(8);
        let mut request = tracer.server_span("fs/readFile", Some(&parent("01"))).unwrap();
        request.set("rpc.system", "jsonrpc");
        request.child("file operation").end(None);
        request.end(Some("notFound"));
        let child = queue.try_recv().unwrap().to_message();
        let request = queue.try_recv().unwrap().to_message();
        assert_eq!(request.trace_id, parent("01").trace_id);
        assert_eq!(request.parent_span_id, parent("01").span_id);
        assert_eq!((request.kind, request.flags), (2, 0x301));
        assert_eq!(request.status.unwrap().code, STATUS_ERROR);
        let attributes =
            [KeyValue::new("rpc.system", "jsonrpc"), KeyValue::new("error.type", "notFound")];
        assert_eq!(request.attributes, attributes);
        assert_eq!(child.trace_id, request.trace_id);
        assert_eq!(child.parent_span_id, request.span_id);
        assert_eq!((child.kind, child.flags, child.status), (1, 0x101, None));
        assert_eq!((&*child.trace_state, &*request.trace_state), ("a=1", "a=1"));
        assert!(child.start_time_unix_nano <= child.end_time_unix_nano);
    }

    #[test]
    fn a_span_without_parent_is_a_root() {
        let (tracer, mut queue, _) = tracer(8);
        tracer.server_span("process/start", None).unwrap().end(None);
        let root = queue.try_recv().unwrap().to_message();
        assert!(root.parent_span_id.is_empty() && root.flags == 0x101);
        assert_eq!((root.trace_id.len(), root.span_id.len()), (16, 8));
    }

    #[test]
    fn traces_that_are_not_sampled_cost_nothing() {
        let (tracer, mut queue, dropped) = tracer(8);
        assert!(tracer.server_span("process/start", Some(&parent("00"))).is_none());
        assert!(queue.try_recv().is_err() && dropped.get() == 0);
    }

    #[test]
    fn a_span_that_finds_the_queue_full_is_counted() {
        let (tracer, mut queue, dropped) = tracer(1);
        for _ in 0..3 {
            tracer.server_span("process/start", None).unwrap().end(None);
        }
        assert_eq!(dropped.get(), 2);
        assert!(queue.try_recv().is_ok() && queue.try_recv().is_err());
    }

    #[test]
    fn a_dropped_span_is_not_exported() {
        let (tracer, mut queue, _) = tracer(8);
        drop(tracer.server_span("process/start", None));
        assert!(queue.try_recv().is_err());
    }
}
