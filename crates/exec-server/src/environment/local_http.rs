//! HTTP from this machine: straight into the server, without a connection and without JSON.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use async_trait::async_trait;
use bytes::Bytes;
use exec_server_client::ExecServerError;
use exec_server_protocol::{HttpRequestParams, HttpResponse, RpcError};
use exec_server_server::{LocalBody, LocalHttp};
use futures_core::Stream;

use super::http::{HttpBody, HttpClient};

/// Requests of this machine, under the same rules as those of a server.
#[derive(Debug, Clone)]
pub struct LocalHttpClient {
    http: LocalHttp,
    /// Errors name a request by its id.
    next_id: Arc<AtomicU64>,
}

impl LocalHttpClient {
    /// Of a session of this program.
    #[must_use]
    pub fn new(http: LocalHttp) -> Self {
        Self { http, next_id: Arc::new(AtomicU64::new(1)) }
    }

    fn name(&self, mut params: HttpRequestParams) -> HttpRequestParams {
        params.request_id = self.next_id.fetch_add(1, Ordering::Relaxed).to_string();
        params
    }
}

#[async_trait]
impl HttpClient for LocalHttpClient {
    async fn request(&self, params: HttpRequestParams) -> Result<HttpResponse, ExecServerError> {
        self.http.request(self.name(params)).await.map_err(ExecServerError::Server)
    }

    async fn request_streamed(
        &self,
        params: HttpRequestParams,
    ) -> Result<(HttpResponse, HttpBody), ExecServerError> {
        let answered = self.http.request_streamed(self.name(params)).await;
        let (head, body) = answered.map_err(ExecServerError::Server)?;
        Ok((head, HttpBody::new(Pieces::Reading(Box::pin(read(body))))))
    }
}

/// A body as a stream.
enum Pieces {
    Reading(Pin<Box<dyn Future<Output = Option<Piece>> + Send>>),
    Over,
}

/// Bytes and what is left, or the error that is the end.
type Piece = Result<(Bytes, LocalBody), RpcError>;

async fn read(mut body: LocalBody) -> Option<Piece> {
    let piece = body.next().await?;
    Some(piece.map(|bytes| (bytes, body)))
}

impl Stream for Pieces {
    type Item = Result<Bytes, ExecServerError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self::Reading(reading) = &mut *self else { return Poll::Ready(None) };
        let piece = ready!(reading.as_mut().poll(context));
        Poll::Ready(match piece {
            Some(Ok((bytes, body))) => {
                *self = Self::Reading(Box::pin(read(body)));
                Some(Ok(bytes))
            }
            Some(Err(error)) => {
                *self = Self::Over;
                Some(Err(ExecServerError::Server(error)))
            }
            None => {
                *self = Self::Over;
                None
            }
        })
    }
}

impl fmt::Debug for Pieces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pieces").finish_non_exhaustive()
    }
}
