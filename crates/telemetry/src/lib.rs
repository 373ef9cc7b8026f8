//! Metrics, traces and the audit log of a service: their destinations and formats.
//!
//! The services decide what is counted, traced and logged. This crate knows none of them, nor their
//! protocols.

mod audit;
mod metrics;
pub mod otlp;
mod own_process;

pub use audit::{AuditError, AuditLog, AuditTarget, RefusalLine, RefusalLines, Timestamp, short};
pub use metrics::{Labelled, MetricsRegistry, MetricsSnapshot};
pub use prometheus::{Histogram, IntCounter, IntGauge};
