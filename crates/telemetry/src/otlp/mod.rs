//! OpenTelemetry: exports metrics and spans to a collector, as OTLP with protobuf over HTTP.
//!
//! Metrics are read from the registry of the service, their only source. Spans contain only strings
//! from the code, and the ids and state of the caller's trace.

mod collector;
mod convert;
mod exporter;
mod messages;
mod sampler;
mod settings;
mod span;
mod trace_context;

pub use exporter::Exporter;
pub use settings::{
    Destination, MetricSettings, OtlpError, OtlpSettings, Service, TlsFiles, TraceSettings,
};
pub use span::{Span, Tracer};
pub use trace_context::RemoteParent;
