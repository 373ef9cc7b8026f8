//! Searches at the server, whose results come as they are found.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use exec_server_protocol::{FsSearchParams, FsSearchResponse, SearchMatch, rpc};
use futures_core::Stream;

use crate::call::PendingReply;
use crate::leases::{LeaseHandle, Matches, Target};
use crate::{ExecServerClient, ExecServerError};

/// The results of one search. Dropping it cancels the search. It ends with its connection.
#[derive(Debug)]
pub struct SearchResults {
    handle: LeaseHandle<Matches>,
    outcome: Outcome,
}

#[derive(Debug)]
enum Outcome {
    Awaited(PendingReply<rpc::FsSearch>),
    /// Results may still wait to be taken.
    Known(FsSearchResponse),
    Over(FsSearchResponse),
    Failed,
}

impl ExecServerClient {
    /// Looks for lines in files. Returns with the first results or at the end; what is wrong with the pattern or the path
    /// is an error. The `search_id` is chosen here. Dropping the future cancels the search.
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
    /// Several results together; `None` at the end, and after an error. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<Vec<SearchMatch>, ExecServerError>> {
        std::future::poll_fn(|context| self.poll_results(context)).await
    }

    /// How the search went, once [`Self::next`] has come to the end.
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

    /// The answer is there when the results are over.
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
