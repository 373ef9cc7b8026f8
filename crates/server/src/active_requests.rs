//! Counts the work that a server lets finish before it stops. Callers decide which work counts, and
//! how long to wait for it.

use tokio::sync::watch;

#[derive(Debug, Default)]
pub(crate) struct ActiveRequests {
    /// One receiver per piece of work: the channel is closed while no work is in progress.
    work: watch::Sender<()>,
}

/// A piece of work, in progress until this is dropped.
#[derive(Debug)]
pub(crate) struct ActiveRequest {
    _work: watch::Receiver<()>,
}

impl ActiveRequests {
    pub(crate) fn begin(&self) -> ActiveRequest {
        ActiveRequest { _work: self.work.subscribe() }
    }

    pub(crate) async fn idle(&self) {
        self.work.closed().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn is_idle(work: &ActiveRequests) -> bool {
        tokio::select! {
            biased;
            () = work.idle() => true,
            () = std::future::ready(()) => false,
        }
    }

    #[tokio::test]
    async fn a_server_is_idle_once_all_work_is_done() {
        let work = ActiveRequests::default();
        assert!(is_idle(&work).await);
        let (first, second) = (work.begin(), work.begin());
        drop(first);
        assert!(!is_idle(&work).await);
        drop(second);
        assert!(is_idle(&work).await);
        let _third = work.begin();
        assert!(!is_idle(&work).await, "work that begins later counts again");
    }
}
