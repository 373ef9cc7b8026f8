//! Work that is let finish when the server is told to stop. What work that is, and for how long, others decide.

use tokio::sync::watch;

#[derive(Debug, Default)]
pub(crate) struct ActiveRequests {
    /// A receiver for each piece of work: the channel itself tells when there is none.
    work: watch::Sender<()>,
}

/// A piece of work, under way until this is dropped.
#[derive(Debug)]
pub(crate) struct ActiveRequest {
    _work: watch::Receiver<()>,
}

impl ActiveRequests {
    pub(crate) fn begin(&self) -> ActiveRequest {
        ActiveRequest { _work: self.work.subscribe() }
    }

    /// Waits until nothing is under way.
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
    async fn it_is_idle_when_the_last_piece_is_done() {
        let work = ActiveRequests::default();
        assert!(is_idle(&work).await);
        let (first, second) = (work.begin(), work.begin());
        drop(first);
        assert!(!is_idle(&work).await);
        drop(second);
        assert!(is_idle(&work).await);
        let _third = work.begin();
        assert!(!is_idle(&work).await, "what begins later counts again");
    }
}
