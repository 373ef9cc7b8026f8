//! Successful requests and responses.

use bytes::Bytes;
use exec_server_host::http::{BadRequest, Header, HttpError, Request, VariableProblem};
use http_body_util::BodyExt;
use tokio::io::AsyncWriteExt;

use crate::server::{TestServer, answer, read_head};
use crate::{SECRET, client, client_with, failure, get, header, header_of, text};

#[tokio::test]
async fn a_body_is_sent_and_received_unchanged() {
    let server = TestServer::start(|request| async move {
        let method = request.method().to_string();
        let length = request.headers()["content-length"].to_str().unwrap().to_owned();
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let body = String::from_utf8(body.to_vec()).unwrap();
        answer(201, &[("x-method", &method), ("x-length", &length)], &body)
    })
    .await;
    let request = Request {
        method: "POST".into(),
        body: Bytes::from_static(b"hello"),
        headers: vec![header("Content-Length", "5"), header("Connection", "close")],
        ..get(server.url("/"))
    };
    let response = client().send(request).await.unwrap();
    assert_eq!(response.status, 201);
    assert_eq!(header_of(&response, "x-method").unwrap(), "POST");
    assert_eq!(header_of(&response, "x-length").unwrap(), "5");
    assert_eq!(text(response).await, "hello");
}

/// Many servers return 411 for a POST without a length.
#[tokio::test]
async fn an_empty_post_declares_its_length() {
    let server = TestServer::raw(|mut stream| async move {
        let head = read_head(&mut stream).await;
        let body = format!("{}{head}", "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n");
        stream.write_all(body.as_bytes()).await.unwrap();
    })
    .await;
    let post = Request { method: "POST".into(), ..get(server.url("/")) };
    let head = text(client().send(post).await.unwrap()).await;
    assert_eq!(head.matches("content-length: 0\r\n").count(), 1, "{head}");
    let head = text(client().send(get(server.url("/"))).await.unwrap()).await;
    assert!(!head.contains("content-length"), "{head}");
}

#[tokio::test]
async fn headers_are_sent_and_received_and_a_fragment_is_not_sent() {
    let server = TestServer::raw(|mut stream| async move {
        let head = read_head(&mut stream).await;
        let reply = b"HTTP/1.1 200 OK\r\nX-One: 1\r\nset-cookie: a\r\nset-cookie: b\r\n\
                     content-encoding: gzip\r\nx-latin: \xeb\r\nconnection: close\r\n\r\n";
        stream.write_all(reply).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
    })
    .await;
    let request = Request {
        headers: vec![header("Host", "other.example"), header("X-A", "1"), header("x-a", "2")],
        ..get(server.url("/path?query#fragment"))
    };
    let response = client().send(request).await.unwrap();
    let cookies = response.headers.iter().filter(|(name, _)| name == "set-cookie");
    assert_eq!(cookies.map(|(_, value)| value.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(header_of(&response, "x-one").unwrap(), "1");
    assert_eq!(header_of(&response, "x-latin").unwrap(), "ë");
    // A body with a content-encoding passes unchanged.
    assert_eq!(header_of(&response, "content-encoding").unwrap(), "gzip");
    let head = text(response).await;
    assert!(head.starts_with("GET /path?query HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("x-a: 1\r\nx-a: 2\r\n"), "{head}");
    assert_eq!(head.matches("host: other.example\r\n").count(), 1, "{head}");
    assert!(!head.to_lowercase().contains("accept-encoding"), "{head}");
}

#[tokio::test]
async fn a_user_in_the_url_is_sent_as_a_header() {
    let server = TestServer::start(|request| async move {
        answer(200, &[], request.headers()["authorization"].to_str().unwrap())
    })
    .await;
    let url = server.url("/").replace("//", "//user:pass@");
    assert_eq!(text(client().send(get(url)).await.unwrap()).await, "Basic dXNlcjpwYXNz");
}

#[tokio::test]
async fn a_variable_of_the_machine_completes_a_header() {
    let server = TestServer::start(|request| async move {
        answer(200, &[], request.headers()["authorization"].to_str().unwrap())
    })
    .await;
    let client = client_with(&[("SERVICE_TOKEN", SECRET), ("AWS_SECRET_ACCESS_KEY", SECRET)]);
    let with = |variable: &str| Request {
        headers: vec![Header {
            value_env_var: Some(variable.into()),
            ..header("authorization", "Bearer ")
        }],
        ..get(server.url("/"))
    };
    let response = client.send(with("SERVICE_TOKEN")).await.unwrap();
    assert!(!format!("{response:?}").contains(SECRET));
    assert_eq!(text(response).await, format!("Bearer {SECRET}"));
    let error = failure(&client, with("AWS_SECRET_ACCESS_KEY")).await;
    let expected = BadRequest::Variable {
        header: "authorization".into(),
        variable: "AWS_SECRET_ACCESS_KEY".into(),
        problem: VariableProblem::Protected,
    };
    assert!(matches!(error, HttpError::BadRequest(problem) if problem == expected));
}

#[tokio::test]
async fn requests_share_connections() {
    let server = TestServer::raw(|mut stream| async move {
        for number in ["1", "2"] {
            read_head(&mut stream).await;
            let reply = format!("HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n{number}");
            stream.write_all(reply.as_bytes()).await.unwrap();
        }
    })
    .await;
    let client = client();
    for expected in ["1", "2"] {
        let response = client.clone().send(get(server.url("/"))).await.unwrap();
        assert_eq!(text(response).await, expected);
    }
}
