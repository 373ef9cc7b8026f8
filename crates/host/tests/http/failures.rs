//! Failed requests. `failure` also checks that no error prints a secret.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use exec_server_host::http::{BadRequest, HttpError, Request};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use crate::server::{TestServer, read_head};
use crate::{client, failure, get, header};

#[tokio::test]
async fn a_refused_connection_is_reported() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/s3cret?s3cret", listener.local_addr().unwrap());
    drop(listener);
    let error = failure(&client(), get(url)).await;
    assert!(error.to_string().to_lowercase().contains("connection refused"), "{error}");
    let HttpError::Connect { source } = error else { panic!("{error}") };
    assert_eq!(source.kind(), std::io::ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn an_unknown_name_is_reported() {
    let error = failure(&client(), get("http://s3cret.invalid/")).await;
    assert!(matches!(error, HttpError::Resolve), "{error:?}");
}

#[tokio::test]
async fn a_silent_server_times_out() {
    let server = TestServer::raw(|mut stream| async move {
        read_head(&mut stream).await;
        std::future::pending::<()>().await;
    })
    .await;
    for timeout in [Duration::ZERO, Duration::from_millis(20)] {
        let request = Request { timeout: Some(timeout), ..get(server.url("/s3cret")) };
        let error = failure(&client(), request).await;
        let HttpError::TimedOut { after } = error else { panic!("{error:?}") };
        assert_eq!(after, timeout);
    }
}

#[tokio::test]
async fn a_timeout_beyond_the_clock_never_expires() {
    let server = TestServer::raw(|mut stream| async move {
        read_head(&mut stream).await;
        stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
    })
    .await;
    let request = Request { timeout: Some(Duration::MAX), ..get(server.url("/")) };
    assert_eq!(client().send(request).await.unwrap().status, 204);
}

#[tokio::test]
async fn a_connection_closed_before_the_response_is_reported() {
    for half in ["", "HTTP/1.1 200 OK\r\nx-s3cret: s3cret"] {
        let server = TestServer::raw(move |mut stream| async move {
            read_head(&mut stream).await;
            stream.write_all(half.as_bytes()).await.unwrap();
        })
        .await;
        let error = failure(&client(), get(server.url("/s3cret"))).await;
        assert!(matches!(error, HttpError::NoResponse), "{error:?}");
    }
}

#[tokio::test]
async fn a_response_that_is_not_http_is_reported() {
    let server = TestServer::raw(|mut stream| async move {
        read_head(&mut stream).await;
        stream.write_all(b"SSH-2.0-s3cret\r\n\r\n").await.unwrap();
    })
    .await;
    let error = failure(&client(), get(server.url("/s3cret"))).await;
    assert!(matches!(error, HttpError::Malformed), "{error:?}");
}

#[tokio::test]
async fn endless_headers_are_not_collected() {
    let server = TestServer::raw(|mut stream| async move {
        read_head(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\n").await.unwrap();
        while stream.write_all(b"x-s3cret: s3cret\r\n").await.is_ok() {}
    })
    .await;
    let error = failure(&client(), get(server.url("/s3cret"))).await;
    assert!(matches!(error, HttpError::Malformed), "{error:?}");
}

#[tokio::test]
async fn invalid_requests_are_not_sent() {
    let bad = |expected: BadRequest, request: Request| async move {
        let error = failure(&client(), request).await;
        let HttpError::BadRequest(problem) = error else { panic!("{error:?}") };
        assert_eq!(problem, expected);
    };
    bad(BadRequest::Url, get("s3cret")).await;
    bad(BadRequest::Url, get("http://s3cret:s3cret:s3cret/")).await;
    bad(BadRequest::Scheme, get("file:///s3cret")).await;
    bad(BadRequest::Method, Request { method: "s3cret /".into(), ..get("http://s3cret/") }).await;
    let with =
        |name, value| Request { headers: vec![header(name, value)], ..get("http://s3cret/") };
    bad(BadRequest::HeaderName { index: 0 }, with("no name", "s3cret")).await;
    bad(BadRequest::HeaderValue { name: "a".into() }, with("a", "s3cret\n")).await;
    bad(BadRequest::ContentLength, with("content-length", "7")).await;
}

/// Starts a server that responds to the first request of its first connection, keeps the
/// connection, and closes it when the next request arrives. On later connections it responds. Also
/// returns the number of requests received so far.
async fn server_that_hangs_up_on_a_kept_connection() -> (TestServer, Arc<AtomicUsize>) {
    let requests = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&requests);
    let server = TestServer::raw(move |mut stream| {
        let seen = Arc::clone(&seen);
        async move {
            let ok = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
            read_head(&mut stream).await;
            let is_first = seen.fetch_add(1, Ordering::Relaxed) == 0;
            stream.write_all(ok).await.unwrap();
            if is_first {
                read_head(&mut stream).await;
                seen.fetch_add(1, Ordering::Relaxed);
            }
        }
    })
    .await;
    (server, requests)
}

#[tokio::test]
async fn safe_methods_are_retried_when_a_kept_connection_closes() {
    for method in ["GET", "HEAD", "OPTIONS"] {
        let (server, requests) = server_that_hangs_up_on_a_kept_connection().await;
        let client = client();
        let first = client.send(get(server.url("/"))).await.unwrap();
        first.bytes(100).await.unwrap();
        let request = Request { method: method.into(), ..get(server.url("/")) };
        assert_eq!(client.send(request).await.unwrap().status, 200, "{method}");
        assert_eq!(requests.load(Ordering::Relaxed), 3);
    }
}

#[tokio::test]
async fn unsafe_methods_are_sent_once() {
    for method in ["POST", "PUT", "DELETE", "PATCH", "INVENTED"] {
        let (server, requests) = server_that_hangs_up_on_a_kept_connection().await;
        let client = client();
        let first = client.send(get(server.url("/"))).await.unwrap();
        first.bytes(100).await.unwrap();
        let request = Request { method: method.into(), ..get(server.url("/")) };
        let error = client.send(request).await.unwrap_err();
        assert!(matches!(error, HttpError::NoResponse), "{method}: {error:?}");
        assert_eq!(requests.load(Ordering::Relaxed), 2);
    }
}
