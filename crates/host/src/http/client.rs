//! [`HttpClient`] checks a request, sends it and follows redirects.

use std::ffi::OsString;
use std::fmt;
use std::sync::Arc;

use reqwest::Method;
use reqwest::header::CONTENT_LENGTH;
use tokio::sync::OnceCell;

use super::Variables;
use super::deadline::Deadline;
use super::diagnosis;
use super::error::HttpError;
use super::outgoing::Outgoing;
use super::pool::Pool;
use super::protected::ProtectedVariables;
use super::redirect::{self, MAX_REDIRECTS};
use super::request::{Redirects, Request};
use super::response::Response;

/// Makes HTTP requests. Clones share their connections. Costs nothing until the first request.
#[derive(Clone)]
pub struct HttpClient {
    variables: Arc<Variables>,
    protected: Arc<ProtectedVariables>,
    pool: Arc<OnceCell<Pool>>,
}

impl HttpClient {
    /// Creates a client that takes secrets, proxies and certificate authorities from the
    /// environment of this process.
    #[must_use]
    pub fn new() -> Self {
        Self::with_variables(|name| std::env::var_os(name))
    }

    #[must_use]
    pub fn with_variables(
        variables: impl Fn(&str) -> Option<OsString> + Send + Sync + 'static,
    ) -> Self {
        Self { variables: Arc::new(variables), protected: Arc::default(), pool: Arc::default() }
    }

    /// Sets the variables that callers may not use.
    #[must_use]
    pub fn protecting(self, protected: ProtectedVariables) -> Self {
        Self { protected: Arc::new(protected), ..self }
    }

    /// Sends the request and waits for the response headers. If redirects are followed, these are
    /// the headers of the last response.
    ///
    /// Dropping the future, or the response before the end of its body, ends the exchange: it
    /// closes the connection (HTTP/1) or resets the stream (HTTP/2).
    pub async fn send(&self, request: Request) -> Result<Response, HttpError> {
        let deadline = request.timeout.map(Deadline::after);
        let redirects = request.redirects;
        let outgoing = Outgoing::check(request, &*self.variables, &self.protected)?;
        let answer = Deadline::bound(deadline, self.exchange(outgoing, redirects)).await?;
        Ok(Response::new(answer, deadline))
    }

    async fn exchange(
        &self,
        mut outgoing: Outgoing,
        redirects: Redirects,
    ) -> Result<reqwest::Response, HttpError> {
        let pool = self.pool().await?;
        for _ in 0..=MAX_REDIRECTS {
            let answer = send(pool, &outgoing).await?;
            let next = match redirects {
                Redirects::Follow => redirect::next(&outgoing, answer.status(), answer.headers()),
                Redirects::Stop => None,
            };
            match next {
                Some(next) => outgoing = next,
                None => return Ok(answer),
            }
        }
        Err(HttpError::TooManyRedirects { max: MAX_REDIRECTS })
    }

    async fn pool(&self) -> Result<&Pool, HttpError> {
        let open = || async {
            let variables = Arc::clone(&self.variables);
            let opened = tokio::task::spawn_blocking(move || Pool::open(&*variables)).await;
            opened.unwrap_or_else(|error| {
                // The text of a panic may contain anything.
                let cause = match error.is_panic() {
                    true => "its task panicked",
                    false => "the server is shutting down",
                };
                Err(HttpError::Setup { cause: cause.to_owned() })
            })
        };
        self.pool.get_or_try_init(open).await
    }
}

impl Default for HttpClient {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpClient").field("opened", &self.pool.initialized()).finish()
    }
}

/// Sends a request, and retries it once over a new connection if that is safe.
///
/// A server may close an idle connection just as it is reused. If nothing was sent, the library
/// itself retries. Otherwise this client cannot know whether the server saw the request, or whether
/// the connection was reused. So only safe methods are retried.
async fn send(pool: &Pool, outgoing: &Outgoing) -> Result<reqwest::Response, HttpError> {
    match send_once(&pool.kept, outgoing).await {
        Err(HttpError::NoResponse) if outgoing.method.is_safe() => {
            send_once(&pool.fresh, outgoing).await
        }
        sent => sent,
    }
}

async fn send_once(
    client: &reqwest::Client,
    outgoing: &Outgoing,
) -> Result<reqwest::Response, HttpError> {
    let mut request = client
        .request(outgoing.method.clone(), outgoing.url.clone())
        .headers(outgoing.headers.clone())
        .body(outgoing.body.clone());
    // The library sends no Content-Length for an empty body, but many servers require the header
    // for these methods.
    if outgoing.body.is_empty()
        && [Method::POST, Method::PUT, Method::PATCH].contains(&outgoing.method)
    {
        request = request.header(CONTENT_LENGTH, 0);
    }
    request.send().await.map_err(|error| diagnosis::of_request(&error))
}
