//! The spans of one request and of its parts. A request has spans only if the operator enabled
//! traces and the sampler keeps the request.

use exec_server_protocol::{Method, RpcError, TraceContext};
use exec_server_telemetry::otlp::{RemoteParent, Span, Tracer};

use super::metrics::{UNKNOWN, kind_of};
use super::request::known_word;

const LAUNCH: &str = "launch";
const FILE_WORK: &str = "file operation";

#[derive(Debug)]
pub(super) struct RequestSpans {
    request: Span,
    /// Present while a thread works on files for the request.
    file_work: Option<Span>,
}

impl RequestSpans {
    /// An invalid `trace` is ignored.
    pub(super) fn begin(
        tracer: &Tracer,
        method: Option<Method>,
        trace: Option<&TraceContext>,
    ) -> Option<Self> {
        let parent = trace.and_then(|trace| {
            RemoteParent::parse(trace.traceparent.as_deref()?, trace.tracestate.as_deref())
        });
        let name = method.map_or(UNKNOWN, Method::name);
        let mut request = tracer.server_span(name, parent.as_ref())?;
        request.set("rpc.system", "jsonrpc");
        request.set("rpc.method", name);
        Some(Self { request, file_work: None })
    }

    pub(super) fn begin_file_work(&mut self) {
        self.file_work = Some(self.request.child(FILE_WORK));
    }

    pub(super) fn end_file_work(&mut self, error: Option<&'static str>) {
        if let Some(file_work) = self.file_work.take() {
            file_work.end(error);
        }
    }

    pub(super) fn launch(&self) -> LaunchSpan {
        LaunchSpan(Some(self.request.child(LAUNCH)))
    }

    pub(super) fn end(mut self, error: Option<&'static str>) {
        self.end_file_work(error);
        self.request.end(error);
    }
}

/// The launch of a process. If it is dropped without an end, as for a refused start, it is not
/// exported.
#[derive(Debug, Default)]
pub(crate) struct LaunchSpan(Option<Span>);

impl LaunchSpan {
    pub(crate) fn end(self, error: Option<&RpcError>) {
        if let Some(span) = self.0 {
            span.end(error.map(|error| known_word(&kind_of(error))));
        }
    }
}
