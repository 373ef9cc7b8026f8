//! The status page for the operator. It needs no JavaScript, and contains no secret.
//!
//! It lists the ids of environments. A service on loopback without a public URL shows all of them
//! to everyone who can reach it. Otherwise a viewer needs a token, as `Bearer` or as the password
//! of HTTP Basic, and sees the environments of that token, or all of them with the role operator.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use exec_server_transport::HttpReply;
use http_body_util::Full;
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderMap, HeaderValue, REFERRER_POLICY,
    WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Response, StatusCode};

use crate::authentication::{Authentication, AuthenticationError};
use crate::config::Routing;
use crate::credential::Role;
use crate::directory::Directory;
use crate::environment_id::EnvironmentId;
use crate::error_response::Refusal;
use crate::node_status::NodeStatus;
use crate::router::{Counters, EnvironmentStatus, Router};

const STYLE: &str = "body{font:16px system-ui,sans-serif;margin:2em auto;max-width:60em;\
    padding:0 1em}table{border-collapse:collapse;width:100%}\
    th,td{text-align:left;padding:.3em .8em;border-bottom:1px solid #8884}\
    td+td,th+th{text-align:right}";

#[derive(Debug)]
pub(crate) struct StatusPage {
    started: SystemTime,
    is_open: bool,
    routing: &'static str,
}

impl StatusPage {
    /// `is_open`: the page is shown to everyone who can reach it.
    pub(crate) fn new(is_open: bool, routing: &Routing) -> Self {
        let routing = match routing {
            Routing::Direct { .. } => "direct",
            Routing::Bus(_) => "over NATS",
        };
        Self { started: SystemTime::now(), is_open, routing }
    }

    pub(crate) fn started(&self) -> SystemTime {
        self.started
    }

    pub(crate) fn routing(&self) -> &'static str {
        self.routing
    }

    pub(crate) async fn answer(
        &self,
        headers: &HeaderMap,
        authentication: &Authentication,
        router: &Router,
        directory: &dyn Directory,
    ) -> Result<HttpReply, Refusal> {
        let mut environments = router.status();
        let mut counters = Some(&router.counters);
        if !self.is_open {
            match authentication.authenticate_viewer(headers, SystemTime::now()).await {
                Ok(viewer) if viewer.role == Role::Operator => {}
                Ok(viewer) => {
                    environments.retain(|(id, _)| viewer.environments.contains(id));
                    counters = None;
                }
                Err(error @ (AuthenticationError::TooMany | AuthenticationError::Directory(_))) => {
                    return Err(error.into());
                }
                Err(_) => return Ok(unauthorized("a valid token is required\n")),
            }
        }
        // Like the counters, the node list covers all environments, so it is shown only with them.
        let nodes = match counters {
            // Errors are ignored: the page is most needed while the directory is unreachable.
            Some(_) => directory.nodes().await.unwrap_or_default(),
            None => Vec::new(),
        };
        Ok(HttpReply::Answer(html(StatusCode::OK, self.page(&environments, counters, &nodes))))
    }

    /// Checks access to information about all environments. Returns the refusal of a viewer who is
    /// not an operator.
    pub(crate) async fn check_operator(
        &self,
        headers: &HeaderMap,
        authentication: &Authentication,
    ) -> Result<Option<HttpReply>, Refusal> {
        if self.is_open {
            return Ok(None);
        }
        match authentication.authenticate_viewer(headers, SystemTime::now()).await {
            Ok(viewer) if viewer.role == Role::Operator => Ok(None),
            Err(error @ (AuthenticationError::TooMany | AuthenticationError::Directory(_))) => {
                Err(error.into())
            }
            Ok(_) | Err(_) => {
                Ok(Some(unauthorized("a valid token with the role operator is required\n")))
            }
        }
    }

    /// `counters`: those of the whole service, so they also cover other environments.
    fn page(
        &self,
        environments: &[(EnvironmentId, EnvironmentStatus)],
        counters: Option<&Counters>,
        nodes: &[NodeStatus],
    ) -> String {
        let online = environments.iter().filter(|(_, status)| status.is_online).count();
        let streams: usize = environments.iter().map(|(_, status)| status.streams).sum();
        let mut rows = String::new();
        let mut row = |name: &str, value: &str| {
            let _ = write!(rows, "<tr><td>{name}</td><td>{value}</td></tr>");
        };
        row("Uptime", &uptime(self.started.elapsed().unwrap_or_default()));
        row("Environments online", &online.to_string());
        row("Streams", &streams.to_string());
        row("Frames between nodes", self.routing);
        if let Some(counters) = counters {
            for (name, counter) in [
                ("Frames routed", &counters.frames),
                ("Frames dropped", &counters.dropped),
                ("Malformed messages", &counters.malformed),
                ("Harnesses closed as too slow", &counters.slow),
                ("Requests and streams refused", &counters.refusals),
            ] {
                row(name, &counter.load(Ordering::Relaxed).to_string());
            }
            row("Bytes routed", &bytes(counters.bytes.load(Ordering::Relaxed)));
        }
        let mut list = String::new();
        for (id, status) in environments {
            let state = if status.is_online { "online" } else { "offline" };
            let _ = write!(
                list,
                "<tr><td>{}</td><td>{state}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
                escape(id.as_str()),
                status.harnesses,
                status.streams,
                status.frames,
                bytes(status.bytes),
            );
        }
        format!(
            "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
             <title>Rendezvous</title><style>{STYLE}</style></head><body><h1>Rendezvous</h1>\
             <table>{rows}</table>{}<h2>Environments</h2><table><tr><th>Environment</th>\
             <th>State</th><th>Harnesses</th><th>Streams</th><th>Frames</th><th>Bytes</th></tr>\
             {list}</table></body></html>\n",
            node_table(nodes)
        )
    }
}

/// Returns an empty text for a single node: the page already describes it.
fn node_table(nodes: &[NodeStatus]) -> String {
    if nodes.len() < 2 {
        return String::new();
    }
    let now = SystemTime::now();
    let mut rows = String::new();
    for node in nodes {
        let state = if node.is_leaving { "leaving" } else { "up" };
        let _ = write!(
            rows,
            "<tr><td>{}</td><td>{state}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escape(&node.url),
            uptime(node.uptime(now)),
            node.environments,
            node.streams,
            bytes(node.bytes),
        );
    }
    format!(
        "<h2>Nodes</h2><table><tr><th>Node</th><th>State</th><th>Uptime</th><th>Environments</th>\
         <th>Streams</th><th>Bytes</th></tr>{rows}</table>"
    )
}

fn unauthorized(message: &str) -> HttpReply {
    let mut response = html(StatusCode::UNAUTHORIZED, message.to_owned());
    let scheme = HeaderValue::from_static("Basic realm=\"rendezvous\", charset=\"UTF-8\"");
    response.headers_mut().insert(WWW_AUTHENTICATE, scheme);
    HttpReply::Unauthorized(response)
}

fn html(status: StatusCode, page: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(page));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    for (name, value) in [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CACHE_CONTROL, "no-store"),
        (CONTENT_SECURITY_POLICY, "default-src 'none'; style-src 'unsafe-inline'"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Escapes HTML. Ids have no special characters, but the page does not rely on that.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

fn uptime(uptime: Duration) -> String {
    humantime::format_duration(Duration::from_secs(uptime.as_secs())).to_string()
}

fn bytes(count: u64) -> String {
    match count {
        0..1024 => format!("{count} B"),
        1024..1_048_576 => format!("{:.1} KiB", count as f64 / 1024.0),
        _ => format!("{:.1} MiB", count as f64 / 1_048_576.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_become_markup() {
        assert_eq!(escape(r#"<a b="c" d='e'>&"#), "&lt;a b=&quot;c&quot; d=&#39;e&#39;&gt;&amp;");
    }

    #[test]
    fn sizes_are_readable() {
        assert_eq!([bytes(5), bytes(1536), bytes(3 << 20)], ["5 B", "1.5 KiB", "3.0 MiB"]);
    }
}
