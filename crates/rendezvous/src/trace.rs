//! Spans of the registry's calls and of opened sockets. They are named by route, never by path,
//! because a path may contain the id of an environment.

use std::sync::OnceLock;

use exec_server_telemetry::otlp::{RemoteParent, Span, Tracer};
use hyper::{HeaderMap, Method};

use crate::error_response::Refusal;

/// Traces nothing until it has a tracer.
#[derive(Debug, Default)]
pub(crate) struct RequestTracer(OnceLock<Tracer>);

impl RequestTracer {
    /// Later calls have no effect.
    pub(crate) fn set(&self, tracer: Tracer) {
        let _ = self.0.set(tracer);
    }

    /// Returns `None` for a request that is neither a call nor opens a socket, such as a page for
    /// operators.
    pub(crate) fn begin(&self, method: &Method, path: &str, headers: &HeaderMap) -> Option<Span> {
        let tracer = self.0.get()?;
        let Route { name, method, path } = Route::find(method, path)?;
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let parent =
            text("traceparent").and_then(|parent| RemoteParent::parse(parent, text("tracestate")));
        let mut span = tracer.server_span(name, parent.as_ref())?;
        span.set("http.request.method", method);
        span.set("http.route", path);
        Some(span)
    }
}

pub(crate) fn end<T>(span: Option<Span>, answered: &Result<T, Refusal>) {
    if let Some(span) = span {
        span.end(answered.as_ref().err().map(|refusal| refusal.code));
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Route {
    name: &'static str,
    method: &'static str,
    path: &'static str,
}

impl Route {
    fn find(method: &Method, path: &str) -> Option<Self> {
        let segments: Vec<&str> = path.split('/').skip(1).take(6).collect();
        let name = match (method, &segments[..]) {
            (&Method::POST, ["cloud", "environment", _, "register"]) => {
                "POST /cloud/environment/{id}/register"
            }
            (&Method::POST, ["cloud", "environment", _, "connect"]) => {
                "POST /cloud/environment/{id}/connect"
            }
            (&Method::POST, ["cloud", "environment", _, "validate"]) => {
                "POST /cloud/environment/{id}/validate"
            }
            (&Method::POST, ["v1", "agent", _, "task", "register"]) => {
                "POST /v1/agent/{id}/task/register"
            }
            (&Method::GET, ["relay", "environment"]) => "GET /relay/environment",
            (&Method::GET, ["relay", "harness"]) => "GET /relay/harness",
            _ => return None,
        };
        let (method, path) = name.split_once(' ').expect("a route has a method and a path");
        Some(Self { name, method, path })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_has_no_id() {
        for (method, path, name) in [
            (
                Method::POST,
                "/cloud/environment/box/connect",
                "POST /cloud/environment/{id}/connect",
            ),
            (Method::POST, "/v1/agent/a%0Ab/task/register", "POST /v1/agent/{id}/task/register"),
            (Method::GET, "/relay/harness", "GET /relay/harness"),
        ] {
            let route = Route::find(&method, path).unwrap();
            assert_eq!(
                (route.name, format!("{} {}", route.method, route.path)),
                (name, name.into())
            );
        }
        for (method, path) in [
            (Method::GET, "/cloud/environment/box/connect"),
            (Method::POST, "/cloud/environment/box/connect/more"),
            (Method::GET, "/metrics"),
            (Method::GET, "/"),
            (Method::GET, "//relay/harness"),
            (Method::GET, "*"),
        ] {
            assert_eq!(Route::find(&method, path), None, "{path}");
        }
    }
}
