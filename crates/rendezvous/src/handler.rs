//! Dispatches HTTP requests to calls of the registry, and to sockets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use bytes::Bytes;
use exec_server_telemetry::MetricsSnapshot;
use exec_server_telemetry::otlp::Span;
use exec_server_transport::{ClientAddress, HttpHandler, HttpReply};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::http::Extensions;
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode};
use percent_encoding::percent_decode_str;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::assertion::{TaskRequest, new_task};
use crate::audit::Audit;
use crate::authentication::{Authentication, AuthenticationError, Purpose};
use crate::credential::Credential;
use crate::directory::Directory;
use crate::environment_id::EnvironmentId;
use crate::error_response::{Refusal, json};
use crate::metrics::RendezvousMetrics;
use crate::quota::PerKey;
use crate::registry::Registry;
use crate::router::Router;
use crate::sockets::{Admission, Route};
use crate::status::StatusPage;
use crate::trace::{self, RequestTracer};
use crate::tunnel::Bus;

const MAX_BODY_BYTES: usize = 16 << 10;
/// A larger body is not read to its end.
const MAX_DISCARDED_BYTES: usize = 1 << 20;
/// Maximum length of a decoded id in a path.
const MAX_ID_BYTES: usize = 256;

#[derive(Debug)]
pub(crate) struct Handler {
    pub(crate) directory: Arc<dyn Directory>,
    pub(crate) authentication: Authentication,
    pub(crate) registry: Registry,
    pub(crate) router: Arc<Router>,
    pub(crate) status: StatusPage,
    pub(crate) metrics: RendezvousMetrics,
    pub(crate) serves_metrics: bool,
    pub(crate) audit: Option<Audit>,
    pub(crate) tracer: RequestTracer,
    /// Whether the node has stopped accepting environments.
    pub(crate) is_leaving: AtomicBool,
    /// The id of this node, new at each start.
    pub(crate) node: String,
    /// The bus to other nodes, if frames pass between them.
    pub(crate) bus: Option<Arc<Bus>>,
    /// The node that each environment last moved to, for tunnels of harnesses at this node.
    pub(crate) moves: PerKey<EnvironmentId, watch::Sender<String>>,
    /// Whether the service closes all sockets, and refuses `connect` and `validate`.
    pub(crate) draining: watch::Sender<bool>,
}

/// One handler, shared by the listener and the service.
pub(crate) struct SharedHandler(pub(crate) Arc<Handler>);

#[derive(Serialize)]
struct TaskResponse {
    task_id: String,
}

impl HttpHandler for SharedHandler {
    type Grant = Admission;

    async fn answer(&self, request: Request<Incoming>) -> HttpReply {
        let (span, address) = (self.0.span(&request), client_address(request.extensions()));
        let answered = self.0.answer(request).await;
        trace::end(span, &answered);
        answered.unwrap_or_else(|refusal| self.0.refuse(refusal, address))
    }

    async fn admit(&self, request: Request<Incoming>) -> Result<Admission, HttpReply> {
        let (span, address) = (self.0.span(&request), client_address(request.extensions()));
        let admitted = self.0.admit(&request).await;
        trace::end(span, &admitted);
        admitted.map_err(|refusal| self.0.refuse(refusal, address))
    }
}

impl Handler {
    pub(crate) fn metrics(&self) -> MetricsSnapshot {
        self.metrics.snapshot(&self.router, self.directory.is_reachable())
    }

    fn span(&self, request: &Request<Incoming>) -> Option<Span> {
        self.tracer.begin(request.method(), request.uri().path(), request.headers())
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<HttpReply, Refusal> {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path();
        let segments: Vec<&str> = path.split('/').skip(1).take(6).collect();
        match segments[..] {
            [""] => {
                needs(&parts, &[&Method::GET, &Method::HEAD])?;
                let Self { status, authentication, router, directory, .. } = self;
                status.answer(&parts.headers, authentication, router, &**directory).await
            }
            ["metrics"] => {
                needs(&parts, &[&Method::GET, &Method::HEAD])?;
                if !self.serves_metrics {
                    return Err(Refusal::not_found());
                }
                let Self { status, authentication, .. } = self;
                match status.check_operator(&parts.headers, authentication).await? {
                    Some(refusal) => Ok(refusal),
                    None => Ok(HttpReply::Answer(plain(self.metrics().text()))),
                }
            }
            ["cloud", "environment", id, call @ ("register" | "connect" | "validate")] => {
                needs(&parts, &[&Method::POST])?;
                self.call(id, call, &parts, body).await
            }
            ["v1", "agent", id, "task", "register"] => {
                needs(&parts, &[&Method::POST])?;
                self.register_task(&decoded(id)?, &parts, body).await
            }
            _ => Err(Refusal::not_found()),
        }
    }

    async fn call(
        &self,
        id: &str,
        call: &str,
        parts: &Parts,
        body: Incoming,
    ) -> Result<HttpReply, Refusal> {
        let body = read(body).await;
        let is_refused = match call {
            "register" => self.is_leaving(),
            _ => *self.draining.borrow(),
        };
        if is_refused {
            return Err(Refusal::draining());
        }
        let now = SystemTime::now();
        let purpose = match call {
            "validate" => Purpose::Validation,
            _ => Purpose::Call,
        };
        let caller = self.authentication.authenticate(&parts.headers, purpose, now).await?;
        let environment = decoded(id)?.parse::<EnvironmentId>();
        let environment = environment.map_err(|error| Refusal::invalid(error.to_string()))?;
        let answered = match body {
            Ok(body) => self.run(call, &caller, &environment, &body, now).await,
            Err(refusal) => Err(refusal),
        };
        self.record_call(call, &caller, Some(&environment), parts, answered)
    }

    /// Records a call in the audit log. Marks its refusal as recorded, so that the log does not get
    /// it twice.
    fn record_call(
        &self,
        call: &str,
        caller: &Credential,
        environment: Option<&EnvironmentId>,
        parts: &Parts,
        answered: Result<HttpReply, Refusal>,
    ) -> Result<HttpReply, Refusal> {
        let Some(audit) = &self.audit else { return answered };
        audit.call(call, &caller.id, environment, client_address(&parts.extensions), &answered);
        answered.map_err(Refusal::recorded)
    }

    async fn run(
        &self,
        call: &str,
        caller: &Credential,
        environment: &EnvironmentId,
        body: &[u8],
        now: SystemTime,
    ) -> Result<HttpReply, Refusal> {
        Ok(match call {
            "register" => ok(&self.registry.register(caller, environment, parse(body)?).await?),
            "connect" => ok(&self.registry.connect(caller, environment, parse(body)?, now).await?),
            _ => ok(&self.registry.validate(caller, environment, &parse(body)?, now).await?),
        })
    }

    async fn register_task(
        &self,
        agent: &str,
        parts: &Parts,
        body: Incoming,
    ) -> Result<HttpReply, Refusal> {
        let request: TaskRequest = parse(&read(body).await?)?;
        let now = SystemTime::now();
        let (credential, public_key) = self.authentication.agent(agent, now).await?;
        let verified = request.verify(agent, &public_key, now);
        verified.map_err(AuthenticationError::from)?;
        let answered = self.new_task(&credential).await;
        self.record_call("registerTask", &credential, None, parts, answered)
    }

    async fn new_task(&self, agent: &Credential) -> Result<HttpReply, Refusal> {
        self.authentication.count_call(agent, Purpose::Call)?;
        let secret = self.directory.signing_secret().await?;
        Ok(ok(&TaskResponse { task_id: new_task(agent.id.as_str(), &secret) }))
    }

    async fn admit(&self, request: &Request<Incoming>) -> Result<Admission, Refusal> {
        let value = |name| value_of(request.uri().query(), name).ok_or_else(Refusal::bad_ticket);
        let now = SystemTime::now();
        match (request.method(), request.uri().path()) {
            (&Method::GET, "/relay/environment") => {
                if self.is_leaving() {
                    return Err(Refusal::draining());
                }
                let environment = value("id")?.parse().map_err(|_| Refusal::bad_ticket())?;
                let ticket = value("ticket")?;
                let grant = self.registry.admit_environment(environment, ticket, now).await?;
                Ok(Admission { grant, route: Route::Here })
            }
            (&Method::GET, "/relay/harness") => {
                self.registry.admit_harness(value("ticket")?, now).await
            }
            _ => Err(Refusal::not_found()),
        }
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::Relaxed)
    }

    /// Resolves when the service shuts down.
    pub(crate) async fn drained(&self) {
        // The sender lives as long as this call.
        let _ = self.draining.subscribe().wait_for(|is_draining| *is_draining).await;
    }

    fn refuse(&self, refusal: Refusal, address: Option<SocketAddr>) -> HttpReply {
        self.router.counters.refusals.fetch_add(1, Ordering::Relaxed);
        if let Some(audit) = self.audit.as_ref().filter(|_| !refusal.is_recorded) {
            audit.refused(&refusal, address);
        }
        tracing::debug!(
            address = address.map(tracing::field::display),
            status = refusal.status.as_u16(),
            code = refusal.code,
            "refused a request"
        );
        refusal.into_reply()
    }
}

fn client_address(extensions: &Extensions) -> Option<SocketAddr> {
    extensions.get::<ClientAddress>().map(|ClientAddress(address)| *address)
}

/// Returns the URL of a listener without a public URL.
pub(crate) fn local_url(address: SocketAddr, is_tls: bool) -> String {
    format!("{}://{address}", if is_tls { "https" } else { "http" })
}

fn needs(parts: &Parts, methods: &[&Method]) -> Result<(), Refusal> {
    match methods.contains(&&parts.method) {
        true => Ok(()),
        false => Err(Refusal::method_not_allowed(methods)),
    }
}

fn plain(text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(text));
    let content_type = HeaderValue::from_static("text/plain; version=0.0.4");
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

fn ok(body: &impl Serialize) -> HttpReply {
    HttpReply::Answer(json(StatusCode::OK, body))
}

fn decoded(segment: &str) -> Result<String, Refusal> {
    let text = percent_decode_str(segment).decode_utf8();
    let text = text.ok().filter(|text| text.len() <= MAX_ID_BYTES);
    text.map(String::from).ok_or_else(|| {
        Refusal::invalid(format!(
            "the id in the path must be UTF-8 of at most {MAX_ID_BYTES} bytes"
        ))
    })
}

/// Returns a query value. The values in URLs of the registry need no percent-decoding.
fn value_of<'a>(query: Option<&'a str>, name: &str) -> Option<&'a str> {
    query?.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

/// Reads the whole body, up to [`MAX_DISCARDED_BYTES`], before any response, even a refusal: a
/// socket closed with unread bytes is reset, and the reset overtakes the response. The part beyond
/// [`MAX_BODY_BYTES`] is discarded.
async fn read(mut body: Incoming) -> Result<Bytes, Refusal> {
    let (mut kept, mut len) = (Vec::new(), 0);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Refusal::invalid("the body ended early or is malformed"))?;
        let Some(data) = frame.data_ref() else { continue };
        len += data.len();
        if len <= MAX_BODY_BYTES {
            kept.extend_from_slice(data);
        } else if len > MAX_DISCARDED_BYTES {
            break;
        }
    }
    match len <= MAX_BODY_BYTES {
        true => Ok(kept.into()),
        false => Err(Refusal::too_large(MAX_BODY_BYTES)),
    }
}

/// Parses a body. The error quotes nothing from the body, which may contain an authorization.
fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        Refusal::invalid(format!("the body is invalid at line {line} column {column}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_found_in_a_query() {
        let ticket_of = |query| value_of(query, "ticket");
        assert_eq!(ticket_of(Some("ticket=abc")), Some("abc"));
        assert_eq!(ticket_of(Some("id=a:b@c&ticket=abc&c=d")), Some("abc"));
        assert_eq!(ticket_of(Some("tickets=abc")), None);
        assert_eq!(ticket_of(None), None);
    }

    #[test]
    fn an_error_about_a_body_quotes_no_values() {
        let refusal = parse::<TaskRequest>(br#"{"timestamp":"SECRET""#).unwrap_err();
        assert!(!format!("{refusal:?}").contains("SECRET"));
    }
}
