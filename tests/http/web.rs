//! A web server that responds by path, records requests, and counts abandoned responses.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};

pub(super) struct Web {
    pub(super) port: u16,
    pushes: mpsc::Sender<Push>,
    seen: Arc<Seen>,
    /// Dropping it stops the server.
    _running: oneshot::Sender<()>,
}

/// State inspected by tests and shared by requests.
struct Seen {
    asked: Mutex<Vec<Asked>>,
    abandoned: AtomicUsize,
    sent: AtomicU64,
    pushes: Mutex<mpsc::Receiver<Push>>,
}

#[derive(Debug, Clone)]
pub(super) struct Asked {
    pub(super) method: String,
    pub(super) uri: String,
    path: String,
    query: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Asked {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }
}

/// One step of the body of `/stream`.
enum Push {
    Bytes(&'static str),
    End,
    /// Breaks the connection within the body.
    BreakOff,
}

impl Web {
    pub(super) fn start() -> Self {
        let (pushes, pushed) = mpsc::channel(1);
        let seen = Arc::new(Seen {
            asked: Mutex::default(),
            abandoned: AtomicUsize::new(0),
            sent: AtomicU64::new(0),
            pushes: Mutex::new(pushed),
        });
        let (running, ended) = oneshot::channel();
        let (tell_port, port) = std::sync::mpsc::sync_channel(1);
        let shared = Arc::clone(&seen);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                tell_port.send(listener.local_addr().unwrap().port()).unwrap();
                tokio::select! {
                    () = accept(listener, shared) => {}
                    _ = ended => {}
                }
            });
        });
        Self { port: port.recv().unwrap(), pushes, seen, _running: running }
    }

    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub(super) fn at(&self, path: &str) -> String {
        format!("{}{path}", self.url())
    }

    /// Supplies the next chunk of `/stream`. Waits until the previous one was taken.
    pub(super) fn push(&self, text: &'static str) {
        self.pushes.blocking_send(Push::Bytes(text)).ok().unwrap();
    }

    pub(super) fn end_stream(&self) {
        self.pushes.blocking_send(Push::End).ok().unwrap();
    }

    pub(super) fn break_off(&self) {
        self.pushes.blocking_send(Push::BreakOff).ok().unwrap();
    }

    pub(super) fn asked(&self) -> Vec<Asked> {
        self.seen.asked.lock().unwrap().clone()
    }

    /// Returns the number of requests whose response was not completed.
    pub(super) fn abandoned(&self) -> usize {
        self.seen.abandoned.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes of `/pattern` handed to a connection.
    pub(super) fn sent(&self) -> u64 {
        self.seen.sent.load(Ordering::Relaxed)
    }
}

async fn accept(listener: TcpListener, seen: Arc<Seen>) {
    loop {
        let (socket, _) = listener.accept().await.unwrap();
        let seen = Arc::clone(&seen);
        let service = service_fn(move |request| serve(request, Arc::clone(&seen)));
        let connection = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(socket), service);
        tokio::spawn(connection);
    }
}

async fn serve(
    request: Request<Incoming>,
    seen: Arc<Seen>,
) -> Result<Response<Answer>, Infallible> {
    let mut unanswered = Unfinished(Some(Arc::clone(&seen)));
    let asked = note(request).await;
    let (path, query) = (asked.path.clone(), asked.query.clone());
    let described = describe(&asked);
    seen.asked.lock().unwrap().push(asked);
    let redirect = |status: u16, to: String| {
        (Response::builder().status(status).header("location", to), Content::Whole("moved".into()))
    };
    let ok = Response::builder;
    let (response, content) = match path.as_str() {
        "/echo" => (ok().status(201).header("x-kind", "echo"), Content::Whole(described.into())),
        "/see-other" => redirect(303, "/echo".into()),
        "/temporary" => redirect(307, "/echo".into()),
        "/loop" => redirect(302, "/loop".into()),
        "/to" => redirect(302, query),
        "/pieces" => {
            let pieces = ["one,", "two,", "three"].map(Bytes::from);
            (ok(), Content::Pieces(VecDeque::from(pieces)))
        }
        "/short" => {
            let pieces = VecDeque::from([Bytes::from_static(b"part"), Bytes::new()]);
            (ok().header("content-length", "100"), Content::Pieces(pieces))
        }
        "/stream" => (ok().header("content-type", "text/event-stream"), Content::Pushed),
        "/stall" => (ok(), Content::Stalled),
        "/pattern" => (ok(), Content::Pattern { at: 0, len: query.parse().unwrap() }),
        "/never" => std::future::pending().await,
        _ => (ok().status(404), Content::Whole("no such page".into())),
    };
    unanswered.0 = None;
    Ok(response.body(Answer { content, unfinished: Unfinished(Some(seen)) }).unwrap())
}

async fn note(request: Request<Incoming>) -> Asked {
    let (head, body) = request.into_parts();
    let body = http_body_util::BodyExt::collect(body).await.unwrap().to_bytes().to_vec();
    let text =
        |value: &hyper::header::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let headers = head.headers.iter().map(|(name, value)| (name.to_string(), text(value)));
    Asked {
        method: head.method.to_string(),
        uri: head.uri.to_string(),
        path: head.uri.path().to_owned(),
        query: head.uri.query().unwrap_or_default().to_owned(),
        headers: headers.collect(),
        body,
    }
}

fn describe(asked: &Asked) -> String {
    format!("{} {}", asked.method, String::from_utf8_lossy(&asked.body))
}

/// Counts responses that are dropped before they are complete.
struct Unfinished(Option<Arc<Seen>>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(seen) = self.0.take() {
            seen.abandoned.fetch_add(1, Ordering::Relaxed);
        }
    }
}

struct Answer {
    content: Content,
    unfinished: Unfinished,
}

enum Content {
    Whole(Bytes),
    /// Of unknown length.
    Pieces(VecDeque<Bytes>),
    /// Pushed by the test.
    Pushed,
    Stalled,
    /// Bytes that reveal their position.
    Pattern {
        at: u64,
        len: u64,
    },
}

/// The chunk size of `/pattern`: each byte contains the number of its chunk.
pub(super) const PIECE: u64 = 64 << 10;

pub(super) fn pattern_byte(at: u64) -> u8 {
    (at / PIECE).to_le_bytes()[0]
}

impl Body for Answer {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let seen = self.unfinished.0.clone();
        let next = match (&mut self.content, seen) {
            (Content::Stalled, _) => return Poll::Pending,
            (Content::Whole(whole), Some(_)) if !whole.is_empty() => Some(std::mem::take(whole)),
            (Content::Pieces(pieces), Some(_)) => {
                let piece = pieces.pop_front();
                if piece.as_ref().is_some_and(Bytes::is_empty) {
                    // Flushes the data so far before the rest is produced.
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                piece
            }
            (Content::Pushed, Some(seen)) => {
                match std::task::ready!(seen.pushes.lock().unwrap().poll_recv(context)) {
                    Some(Push::Bytes(text)) => Some(Bytes::from_static(text.as_bytes())),
                    Some(Push::BreakOff) => {
                        let broken = std::io::ErrorKind::ConnectionReset.into();
                        return Poll::Ready(Some(Err(broken)));
                    }
                    Some(Push::End) | None => None,
                }
            }
            (Content::Pattern { at, len }, Some(seen)) if *at < *len => {
                let piece = vec![pattern_byte(*at); (*len - *at).min(PIECE) as usize];
                *at += piece.len() as u64;
                seen.sent.fetch_add(piece.len() as u64, Ordering::Relaxed);
                Some(piece.into())
            }
            _ => None,
        };
        if next.is_none() {
            self.unfinished.0 = None;
        }
        Poll::Ready(next.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Whole(whole) => SizeHint::with_exact(whole.len() as u64),
            Content::Pattern { at, len } => SizeHint::with_exact(len - at),
            _ => SizeHint::default(),
        }
    }

    /// With true, a connection would drop the body before its end is counted.
    fn is_end_stream(&self) -> bool {
        false
    }
}
