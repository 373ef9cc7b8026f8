//! Proxies from the environment.

use exec_server_host::http::{HttpError, Request};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::server::{TestServer, answer, read_head};
use crate::tls::{Identity, url};
use crate::{SECRET, client_with, failure, get, header, text};

/// Starts a proxy that responds to everything itself, with the requested URL and the credentials.
async fn proxy() -> TestServer {
    TestServer::start(|request| async move {
        let authorization = request.headers().get("proxy-authorization");
        let authorization = authorization.map_or("-", |value| value.to_str().unwrap());
        answer(200, &[], &format!("{} {authorization}", request.uri()))
    })
    .await
}

#[tokio::test]
async fn http_goes_through_the_proxy_with_its_password() {
    let proxy = proxy().await;
    let address = format!("http://user:pass@{}", proxy.address);
    for variable in ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"] {
        let client = client_with(&[(variable, &address)]);
        let response = client.send(get("http://nowhere.invalid/path#fragment")).await.unwrap();
        let seen = text(response).await;
        assert_eq!(seen, "http://nowhere.invalid/path Basic dXNlcjpwYXNz", "{variable}");
    }
}

#[tokio::test]
async fn hosts_in_no_proxy_are_reached_directly() {
    let (proxy, server) =
        (proxy().await, TestServer::start(|_| async { answer(200, &[], "direct") }).await);
    let address = proxy.address.to_string();
    let client = client_with(&[("HTTP_PROXY", &address), ("no_proxy", "example.com,127.0.0.1")]);
    assert_eq!(text(client.send(get(server.url("/"))).await.unwrap()).await, "direct");
    let client = client_with(&[("HTTP_PROXY", &address), ("NO_PROXY", "example.com")]);
    assert_ne!(text(client.send(get(server.url("/"))).await.unwrap()).await, "direct");
}

/// The proxy learns the target and its own password. The server learns the rest, and no password.
#[tokio::test]
async fn https_goes_through_a_tunnel() {
    let identity = Identity::new("localhost", &[]);
    let server = identity.serve().await;
    let address = server.address;
    let (heads, mut head) = mpsc::channel(1);
    let proxy = TestServer::raw(move |mut client| {
        let heads = heads.clone();
        async move {
            heads.send(read_head(&mut client).await).await.unwrap();
            let mut server = TcpStream::connect(address).await.unwrap();
            client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
            copy_bidirectional(&mut client, &mut server).await.ok();
        }
    })
    .await;
    let address = format!("http://user:pass@{}", proxy.address);
    let client = client_with(&[identity.trust(), ("HTTPS_PROXY", &address)]);
    let request =
        Request { headers: vec![header("x-key", SECRET)], ..get(url(&server, "/s3cret")) };
    assert_eq!(client.send(request).await.unwrap().status, 200);
    let head = head.recv().await.unwrap();
    let connect = format!("CONNECT localhost:{} HTTP/1.1\r\n", server.address.port());
    assert!(head.starts_with(&connect), "{head}");
    assert!(head.to_lowercase().contains("proxy-authorization: basic "), "{head}");
    assert!(!head.contains(SECRET), "{head}");
}

#[tokio::test]
async fn a_socks_proxy_resolves_names_itself() {
    let proxy = TestServer::raw(|mut stream| async move {
        let mut greeting = [0; 3];
        stream.read_exact(&mut greeting).await.unwrap();
        stream.write_all(&[5, 0]).await.unwrap();
        let mut request = [0; 5 + "nowhere.invalid".len() + 2];
        stream.read_exact(&mut request).await.unwrap();
        assert_eq!(request, *b"\x05\x01\x00\x03\x0fnowhere.invalid\x00\x50");
        stream.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await.unwrap();
        read_head(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nsocks").await.unwrap();
    })
    .await;
    let address = format!("socks5h://{}", proxy.address);
    let client = client_with(&[("ALL_PROXY", &address)]);
    let response = client.send(get("http://nowhere.invalid/")).await.unwrap();
    assert_eq!(text(response).await, "socks");
}

#[tokio::test]
async fn a_proxy_that_refuses_a_tunnel_is_a_distinct_error() {
    for refusal in ["403 Forbidden", "407 Proxy Authentication Required"] {
        let proxy = TestServer::raw(move |mut stream| async move {
            let head = read_head(&mut stream).await;
            assert!(head.starts_with("CONNECT nowhere.invalid:443 "), "{head}");
            let reply = format!("HTTP/1.1 {refusal}\r\ncontent-length: 0\r\n\r\n");
            stream.write_all(reply.as_bytes()).await.unwrap();
        })
        .await;
        let address = format!("http://user:s3cret@{}", proxy.address);
        let client = client_with(&[("HTTPS_PROXY", &address)]);
        let error = failure(&client, get("https://nowhere.invalid/s3cret")).await;
        assert!(matches!(error, HttpError::Proxy), "{error:?}");
    }
}

#[tokio::test]
async fn an_invalid_proxy_is_not_bypassed() {
    let server = TestServer::start(|_| async { answer(200, &[], "direct") }).await;
    let client = client_with(&[("ALL_PROXY", "gopher://user:s3cret@proxy")]);
    let error = failure(&client, get(server.url("/s3cret"))).await;
    assert!(matches!(error, HttpError::ProxySetting { variable: "ALL_PROXY" }), "{error:?}");
}
