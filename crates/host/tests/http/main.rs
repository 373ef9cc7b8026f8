//! Requests against real servers on loopback. The clients here do not read the environment of the
//! test, so its proxies do not interfere.
#![expect(clippy::unwrap_used, reason = "a failed step fails its test")]

mod bodies;
mod exchanges;
mod failures;
mod proxy;
mod redirects;
mod server;
mod tls;

use std::error::Error;
use std::ffi::OsString;

use bytes::Bytes;
use exec_server_host::http::{Header, HttpClient, HttpError, Redirects, Request, Response};

/// Part of every URL, header, body and variable that must not be printed.
const SECRET: &str = "s3cret";

fn client() -> HttpClient {
    client_with(&[])
}

fn client_with(variables: &[(&str, &str)]) -> HttpClient {
    let variables: Vec<(String, OsString)> =
        variables.iter().map(|(name, value)| ((*name).into(), value.into())).collect();
    HttpClient::with_variables(move |name| {
        variables.iter().find(|(set, _)| set == name).map(|(_, value)| value.clone())
    })
}

fn get(url: impl Into<String>) -> Request {
    Request {
        method: "GET".into(),
        url: url.into(),
        headers: Vec::new(),
        body: Bytes::new(),
        timeout: None,
        redirects: Redirects::Follow,
    }
}

fn header(name: &str, value: &str) -> Header {
    Header { name: name.into(), value: value.into(), value_env_var: None }
}

fn header_of(response: &Response, name: &str) -> Option<String> {
    let mut headers = response.headers.iter();
    headers.find(|(found, _)| found == name).map(|(_, value)| value.clone())
}

async fn text(response: Response) -> String {
    let body = response.bytes(1 << 20).await.unwrap();
    String::from_utf8(body.to_vec()).unwrap()
}

/// Sends the request with one more secret header, checks that request, client and error print no
/// secret, and returns the error.
async fn failure(client: &HttpClient, mut request: Request) -> HttpError {
    request.headers.push(header("x-key", SECRET));
    assert!(!format!("{request:?} {client:?}").contains(SECRET));
    revealing_nothing(client.send(request).await.unwrap_err())
}

fn revealing_nothing(error: HttpError) -> HttpError {
    let mut printed = format!("{error} {error:?}");
    let mut cause = error.source();
    while let Some(source) = cause {
        printed += &format!(" {source} {source:?}");
        cause = source.source();
    }
    for secret in [SECRET, "127.0.0.1", "localhost"] {
        assert!(!printed.contains(secret), "{printed}");
    }
    // The only URLs are those that a message gives as examples.
    let mut urls = printed.split("://").skip(1);
    assert!(urls.all(|rest| rest.starts_with("HOST") || rest.starts_with('…')), "{printed}");
    error
}
