//! Metrics and the audit log of a service: where they go, and in which form.
//!
//! The services decide what is counted and written. This crate knows none of them, and nothing of their
//! protocols.

mod audit;
mod metrics;
mod own_process;

pub use audit::{AuditError, AuditLog, AuditTarget, RefusalLine, RefusalLines, Timestamp, short};
pub use metrics::{Labelled, MetricsRegistry};
pub use prometheus::{Histogram, IntCounter, IntGauge};
