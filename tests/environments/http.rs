//! HTTP requests that leave from the environment.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use exec_server::protocol::{
    ErrorKind, HttpRequestHeader, HttpRequestParams, HttpResponse, RedirectPolicy,
};
use exec_server::{ExecServerError, HttpClient as _, SandboxCeiling, SandboxLevel};
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;

use super::*;

in_every_environment! {
    whole:
    a_request_gets_its_response,
    redirects_are_followed_or_shown,
    a_body_arrives_as_it_is_sent,
    a_large_body_arrives_whole,
    a_slow_reader_throttles_the_download,
    dropping_a_body_cancels_the_request,
    dropping_a_call_cancels_the_request,
    a_truncated_download_is_an_error_after_its_data,
    an_impossible_request_is_an_error,
}

/// The operator's ceiling denies HTTP requests, but the environment itself works.
#[tokio::test(flavor = "multi_thread")]
async fn an_environment_without_network_opens_and_refuses_requests() {
    let sandbox =
        SandboxCeiling { require: Some(SandboxLevel::ReadOnly), ..SandboxCeiling::default() };
    let site = Site::local_with(ServerConfig { sandbox, ..ServerConfig::default() });
    let environment = &site.environment;
    environment.info().await.unwrap();
    let web = WebServer::start().await;
    for error in [
        environment.request(web.get("/")).await.unwrap_err(),
        environment.request_streamed(web.get("/")).await.unwrap_err(),
    ] {
        let ExecServerError::Server(error) = &error else { panic!("{error}") };
        assert_eq!(error.kind(), Some(&ErrorKind::SandboxDenied), "{error}");
    }
    environment.info().await.unwrap();
}

/// A web server on a loopback port. The test pushes the body of `/stream`.
pub(super) struct WebServer {
    pub(super) url: String,
    pub(super) pushed: mpsc::Sender<Push>,
    /// Notified when a body of `/stream` has ended or was cancelled.
    pub(super) body_ended: Arc<Notify>,
    accepting: AbortHandle,
}

/// One step of a body.
pub(super) enum Push {
    Bytes(Bytes),
    End,
    /// Ends the connection in the middle of the body.
    BreakOff,
}

/// Shared by the requests for `/stream`, of which only one runs at a time.
#[derive(Clone)]
struct Stream {
    pushes: Arc<Mutex<mpsc::Receiver<Push>>>,
    ended: Arc<Notify>,
}

/// A body whose pieces and end the test pushes.
struct Pushed(Stream);

type AnyBody = Pin<Box<dyn Body<Data = Bytes, Error = std::io::Error> + Send>>;

impl WebServer {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (pushed, pushes) = mpsc::channel(1);
        let body_ended = Arc::new(Notify::new());
        let pushes = Arc::new(Mutex::new(pushes));
        let stream = Stream { pushes, ended: Arc::clone(&body_ended) };
        let accepting = tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let stream = stream.clone();
                let serving = service_fn(move |request| serve(request, stream.clone()));
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(socket), serving);
                tokio::spawn(connection);
            }
        });
        Self { url, pushed, body_ended, accepting: accepting.abort_handle() }
    }

    pub(super) fn get(&self, path: &str) -> HttpRequestParams {
        HttpRequestParams::new("GET", format!("{}{path}", self.url))
    }

    pub(super) async fn push(&self, text: &'static str) {
        self.pushed.send(Push::Bytes(Bytes::from_static(text.as_bytes()))).await.ok().unwrap();
    }
}

impl Drop for WebServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn serve(
    request: Request<Incoming>,
    stream: Stream,
) -> Result<Response<AnyBody>, Infallible> {
    let whole = |bytes: Bytes| -> AnyBody {
        Box::pin(http_body_util::Full::new(bytes).map_err(|never| match never {}))
    };
    let builder = Response::builder();
    let response = match request.uri().path() {
        "/echo" => {
            let method = request.method().to_string();
            let greeting = request.headers().get("x-greeting").cloned();
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let mut text = method.into_bytes();
            text.extend_from_slice(&body);
            let builder = builder.status(201).header("x-greeting", greeting.unwrap());
            builder.body(whole(text.into()))
        }
        "/moved" => builder.status(302).header("location", "/here").body(whole(Bytes::new())),
        "/here" => builder.body(whole("arrived".into())),
        "/large" => builder.body(whole(pattern(30 << 20).into())),
        "/stream" => builder.body(Box::pin(Pushed(stream)) as AnyBody),
        _ => builder.status(404).body(whole(Bytes::new())),
    };
    Ok(response.unwrap())
}

impl Body for Pushed {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let mut pushes = self.0.pushes.lock().unwrap();
        pushes.poll_recv(context).map(|push| match push {
            Some(Push::Bytes(bytes)) => Some(Ok(Frame::data(bytes))),
            Some(Push::BreakOff) => Some(Err(std::io::ErrorKind::ConnectionReset.into())),
            Some(Push::End) | None => None,
        })
    }
}

impl Drop for Pushed {
    fn drop(&mut self) {
        self.0.ended.notify_one();
    }
}

fn header<'a>(response: &'a HttpResponse, name: &str) -> Option<&'a str> {
    let found = response.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
    found.map(|header| header.value.as_str())
}

async fn a_request_gets_its_response(environment: Environment) {
    let web = WebServer::start().await;
    let mut params = web.get("/echo");
    params.method = "POST".into();
    params.body_base64 = Some(" body".into());
    params.headers.push(HttpRequestHeader {
        name: "X-Greeting".into(),
        value: "hello".into(),
        value_env_var: None,
    });
    let response = environment.request(params).await.unwrap();
    assert_eq!(response.status, 201);
    assert_eq!(header(&response, "x-greeting"), Some("hello"));
    assert_eq!(&response.body_base64[..], b"POST body");
    assert_eq!(environment.request(web.get("/missing")).await.unwrap().status, 404);
}

async fn redirects_are_followed_or_shown(environment: Environment) {
    let web = WebServer::start().await;
    let response = environment.request(web.get("/moved")).await.unwrap();
    assert_eq!((response.status, &response.body_base64[..]), (200, &b"arrived"[..]));
    let mut params = web.get("/moved");
    params.redirect_policy = RedirectPolicy::Stop;
    let response = environment.request(params).await.unwrap();
    assert_eq!((response.status, header(&response, "location")), (302, Some("/here")));
}

/// As with server-sent events: each piece arrives before the next is sent.
async fn a_body_arrives_as_it_is_sent(environment: Environment) {
    let web = WebServer::start().await;
    let (head, mut body) = environment.request_streamed(web.get("/stream")).await.unwrap();
    assert_eq!((head.status, head.body_base64.len()), (200, 0));
    for event in ["data: one\n\n", "data: two\n\n", "data: three\n\n"] {
        web.push(event).await;
        assert_eq!(body.next().await.unwrap().unwrap(), event);
    }
    web.pushed.send(Push::End).await.ok().unwrap();
    assert!(body.next().await.is_none());
    assert!(body.next().await.is_none());
}

async fn a_large_body_arrives_whole(environment: Environment) {
    let web = WebServer::start().await;
    let whole = environment.request(web.get("/large")).await.unwrap();
    assert!(whole.body_base64[..] == pattern(30 << 20));
    let (_, mut body) = environment.request_streamed(web.get("/large")).await.unwrap();
    let mut read = Vec::new();
    while let Some(piece) = body.next().await {
        read.extend_from_slice(&piece.unwrap());
    }
    assert!(read == pattern(30 << 20));
}

async fn a_slow_reader_throttles_the_download(environment: Environment) {
    const PIECE: usize = 64 << 10;
    const PIECES: usize = 1024;
    /// More than the delivery window and all buffers of kernel, client, server and web server.
    const UNDER_WAY: usize = 24 << 20;
    let web = WebServer::start().await;
    let (_, mut body) = environment.request_streamed(web.get("/stream")).await.unwrap();
    let sent = Arc::new(AtomicUsize::new(0));
    let pushing = tokio::spawn({
        let (pushed, sent) = (web.pushed.clone(), Arc::clone(&sent));
        async move {
            for _ in 0..PIECES {
                pushed.send(Push::Bytes(vec![7; PIECE].into())).await.ok().unwrap();
                sent.fetch_add(PIECE, Ordering::Relaxed);
            }
            pushed.send(Push::End).await.ok().unwrap();
        }
    });
    let mut read = 0;
    while let Some(piece) = body.next().await {
        read += piece.unwrap().len();
        // Gives other tasks time to run ahead.
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        let ahead = sent.load(Ordering::Relaxed).saturating_sub(read);
        assert!(ahead < UNDER_WAY, "{ahead} bytes are in flight");
    }
    assert_eq!(read, PIECE * PIECES);
    pushing.await.unwrap();
}

async fn dropping_a_body_cancels_the_request(environment: Environment) {
    let web = WebServer::start().await;
    let (_, mut body) = environment.request_streamed(web.get("/stream")).await.unwrap();
    web.push("begun").await;
    body.next().await.unwrap().unwrap();
    drop(body);
    web.body_ended.notified().await;
}

async fn dropping_a_call_cancels_the_request(environment: Environment) {
    let web = WebServer::start().await;
    let begun = async {
        // More than is buffered for a body before it is read.
        for _ in 0..100 {
            web.push("begun").await;
        }
    };
    tokio::select! {
        response = environment.request(web.get("/stream")) => panic!("{response:?}"),
        () = begun => {}
    }
    web.body_ended.notified().await;
}

async fn a_truncated_download_is_an_error_after_its_data(environment: Environment) {
    let web = WebServer::start().await;
    let (_, mut body) = environment.request_streamed(web.get("/stream")).await.unwrap();
    web.push("some").await;
    assert_eq!(body.next().await.unwrap().unwrap(), "some");
    web.pushed.send(Push::BreakOff).await.ok().unwrap();
    let error = body.next().await.unwrap().unwrap_err();
    assert!(matches!(error, ExecServerError::Server(_)), "{error}");
    assert!(!error.to_string().contains("127.0.0.1"), "{error}");
    assert!(body.next().await.is_none());
}

async fn an_impossible_request_is_an_error(environment: Environment) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/secret", listener.local_addr().unwrap());
    drop(listener);
    for (params, code) in [
        (HttpRequestParams::new("GET", url), -32603),
        (HttpRequestParams::new("GET", "file:///etc/passwd"), -32602),
        (HttpRequestParams::new("BAD METHOD", "http://localhost/"), -32602),
    ] {
        for error in [
            environment.request(params.clone()).await.unwrap_err(),
            environment.request_streamed(params).await.unwrap_err(),
        ] {
            let ExecServerError::Server(error) = &error else { panic!("{error}") };
            assert_eq!(error.code, code, "{error}");
            assert!(!error.message.contains("secret"), "{error}");
        }
    }
}
