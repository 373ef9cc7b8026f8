//! Redirects, over the wire.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use exec_server_host::http::{Header, HttpError, MAX_REDIRECTS, Redirects, Request};
use http_body_util::{BodyExt, Full};
use hyper::Response;
use hyper::body::Incoming;

use crate::server::{TestServer, answer};
use crate::{SECRET, client, client_with, failure, get, header, header_of, text};

/// Responds with 307 to `/to?URL`, and to everything else with a description of the request.
async fn redirecting(request: hyper::Request<Incoming>) -> Response<Full<Bytes>> {
    let uri = request.uri().clone();
    if uri.path() == "/to" {
        return answer(307, &[("location", uri.query().unwrap())], "moved");
    }
    let seen: Vec<String> = ["authorization", "x-key", "referer"]
        .into_iter()
        .filter_map(|name| request.headers().get(name).map(|value| (name, value)))
        .map(|(name, value)| format!("{name}={}", value.to_str().unwrap()))
        .collect();
    let method = request.method().clone();
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let body = String::from_utf8(body.to_vec()).unwrap();
    answer(200, &[], &format!("{method} {} {} [{body}]", uri.path(), seen.join(" ")))
}

#[tokio::test]
async fn a_redirect_is_followed_with_method_and_body() {
    let server = TestServer::start(redirecting).await;
    let request = Request {
        method: "POST".into(),
        body: Bytes::from_static(b"body"),
        headers: vec![header("authorization", "A"), header("x-key", "K")],
        ..get(server.url("/to?/to?/there"))
    };
    let response = client().send(request).await.unwrap();
    assert_eq!(response.status, 200);
    assert_eq!(text(response).await, "POST /there authorization=A x-key=K [body]");
}

#[tokio::test]
async fn a_redirect_can_be_the_response() {
    let server = TestServer::start(redirecting).await;
    let request = Request { redirects: Redirects::Stop, ..get(server.url("/to?/there")) };
    let response = client().send(request).await.unwrap();
    assert_eq!(response.status, 307);
    assert_eq!(header_of(&response, "location").unwrap(), "/there");
    assert_eq!(text(response).await, "moved");
}

#[tokio::test]
async fn a_redirect_loop_ends_with_an_error() {
    let requests = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&requests);
    let server = TestServer::start(move |_| {
        counter.fetch_add(1, Ordering::Relaxed);
        async { answer(302, &[("location", "/s3cret")], "") }
    })
    .await;
    let error = failure(&client(), get(server.url("/s3cret"))).await;
    assert!(matches!(error, HttpError::TooManyRedirects { max: MAX_REDIRECTS }), "{error}");
    assert_eq!(requests.load(Ordering::Relaxed), MAX_REDIRECTS + 1);
}

#[tokio::test]
async fn credentials_are_not_sent_to_another_origin() {
    let (here, elsewhere) =
        (TestServer::start(redirecting).await, TestServer::start(redirecting).await);
    let request = Request {
        headers: vec![header("authorization", "A"), header("x-key", "K")],
        ..get(here.url(&format!("/to?{}", elsewhere.url("/there"))))
    };
    let response = client().send(request).await.unwrap();
    assert_eq!(text(response).await, "GET /there x-key=K []");
}

#[tokio::test]
async fn a_request_with_a_secret_of_the_machine_is_not_sent_to_another_origin() {
    let connections = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&connections);
    let elsewhere = TestServer::raw(move |_| {
        counter.fetch_add(1, Ordering::Relaxed);
        async {}
    })
    .await;
    let here = TestServer::start(redirecting).await;
    let client = client_with(&[("SERVICE_TOKEN", SECRET)]);
    let to = |location: &str| Request {
        headers: vec![Header {
            value_env_var: Some("SERVICE_TOKEN".into()),
            ..header("x-key", "")
        }],
        ..get(here.url(&format!("/to?{location}")))
    };
    let response = client.send(to(&elsewhere.url("/"))).await.unwrap();
    assert_eq!(response.status, 307);
    assert_eq!(header_of(&response, "location").unwrap(), elsewhere.url("/"));
    assert_eq!(connections.load(Ordering::Relaxed), 0);

    let response = client.send(to("/there")).await.unwrap();
    assert_eq!(text(response).await, format!("GET /there x-key={SECRET} []"));
}
