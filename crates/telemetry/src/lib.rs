//! Metrics, traces and the audit log of a service: where they go, and in which form.
//!
//! The services decide what is counted, traced and written. This crate knows none of them, and
//! nothing of their protocols.

mod audit;
mod metrics;
pub mod otlp;
mod own_process;

pub use audit::{AuditError, AuditLog, AuditTarget, RefusalLine, RefusalLines, Timestamp, short};
pub use metrics::{Labelled, MetricsRegistry, MetricsSnapshot};
pub use prometheus::{Histogram, IntCounter, IntGauge};
