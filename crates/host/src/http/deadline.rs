//! The deadline of a request.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::error::HttpError;

#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    after: Duration,
    /// `None` if the deadline exceeds the range of the clock.
    at: Option<Instant>,
}

impl Deadline {
    pub(super) fn after(after: Duration) -> Self {
        Self { after, at: Instant::now().checked_add(after) }
    }

    pub(super) async fn bound<T>(
        deadline: Option<Self>,
        work: impl Future<Output = Result<T, HttpError>>,
    ) -> Result<T, HttpError> {
        let Some(Self { after, at: Some(at) }) = deadline else {
            return work.await;
        };
        timeout_at(at, work).await.unwrap_or(Err(HttpError::TimedOut { after }))
    }
}
