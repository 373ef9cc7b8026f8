//! Searches on the server. Results arrive as they are found.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use exec_server_protocol::{FsSearchParams, FsSearchResponse, SearchMatch, rpc};
use futures_core::Stream;

use crate::call::PendingReply;
use crate::leases::{LeaseHandle, Matches, Target};
use crate::{ExecServerClient, ExecServerError};

/// The results of one search. Dropping them cancels the search. A lost connection ends it.
#[derive(Debug)]
pub struct SearchResults {
    handle: LeaseHandle<Matches>,
    outcome: Outcome,
}

#[derive(Debug)]
enum Outcome {
    Awaited(PendingReply<rpc::FsSearch>),
    /// The response has arrived; results may still be queued.
    Known(FsSearchResponse),
    Over(FsSearchResponse),
    Failed,
}

impl ExecServerClient {
    /// Searches for lines in files. Returns with the first results or at the end. Fails if the
    /// pattern or the path is invalid. Chooses the `search_id`. Dropping the future cancels the
    /// search.
    pub async fn search(
        &self,
        mut params: FsSearchParams,
    ) -> Result<SearchResults, ExecServerError> {
        let (handle, lease) = LeaseHandle::new(self, Matches::default(), Target::Search);
        params.search_id = handle.id().to_owned();
        let waiting = self.lease::<rpc::FsSearch>(params, lease).await?;
        let mut search = SearchResults { handle, outcome: Outcome::Awaited(waiting) };
        search.handle.ready().await;
        if let Outcome::Awaited(waiting) = &mut search.outcome
            && let Some(answer) = waiting.answer_if_there()
        {
            search.outcome = Outcome::Known(answer?);
        }
        Ok(search)
    }
}

impl SearchResults {
    /// Returns the next batch of results, or `None` at the end and after an error. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<Vec<SearchMatch>, ExecServerError>> {
        std::future::poll_fn(|context| self.poll_results(context)).await
    }

    /// The summary of the search, once [`Self::next`] has returned `None`.
    #[must_use]
    pub fn summary(&self) -> Option<FsSearchResponse> {
        match self.outcome {
            Outcome::Over(summary) => Some(summary),
            Outcome::Awaited(_) | Outcome::Known(_) | Outcome::Failed => None,
        }
    }

    fn poll_results(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Vec<SearchMatch>, ExecServerError>>> {
        match ready!(self.handle.poll_next(context)) {
            Some(Ok(results)) => Poll::Ready(Some(Ok(results))),
            Some(Err(error)) => {
                self.outcome = Outcome::Failed;
                Poll::Ready(Some(Err(error)))
            }
            None => Poll::Ready(self.conclude().err().map(Err)),
        }
    }

    /// Takes the response, which arrives before the end of the results.
    fn conclude(&mut self) -> Result<(), ExecServerError> {
        let answer = match &mut self.outcome {
            Outcome::Awaited(waiting) => {
                waiting.answer_if_there().unwrap_or(Err(ExecServerError::Closed))
            }
            Outcome::Known(summary) => Ok(*summary),
            Outcome::Over(_) | Outcome::Failed => return Ok(()),
        };
        self.outcome = answer.as_ref().map_or(Outcome::Failed, |summary| Outcome::Over(*summary));
        answer.map(drop)
    }
}

impl Stream for SearchResults {
    type Item = Result<Vec<SearchMatch>, ExecServerError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_results(context)
    }
}
