//! Response bodies: chunks, streams that stay open, and slow readers.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use exec_server_host::http::{HttpError, MAX_CHUNK_BYTES, Request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, Notify, mpsc};

use crate::server::{TestServer, answer, read_head};
use crate::{client, get, revealing_nothing, text};

const CHUNKED: &[u8] = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
const EVENTS: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";

/// Starts a server that responds with `head` and then sends each chunk from the test as it arrives.
/// It closes the connection when the returned sender is dropped. The returned `Notify` is notified
/// when the client closes its end.
async fn dictated(head: &'static [u8]) -> (TestServer, mpsc::Sender<&'static str>, Arc<Notify>) {
    let (dictate, dictation) = mpsc::channel(1);
    let dictation = Arc::new(Mutex::new(dictation));
    let left = Arc::new(Notify::new());
    let leaving = Arc::clone(&left);
    let server = TestServer::raw(move |mut stream| {
        let (dictation, leaving) = (Arc::clone(&dictation), Arc::clone(&leaving));
        async move {
            read_head(&mut stream).await;
            stream.write_all(head).await.unwrap();
            let mut dictation = dictation.lock().await;
            loop {
                tokio::select! {
                    text = dictation.recv() => match text {
                        Some(text) => stream.write_all(str::as_bytes(text)).await.unwrap(),
                        None => return,
                    },
                    _ = stream.read_u8() => return leaving.notify_one(),
                }
            }
        }
    })
    .await;
    (server, dictate, left)
}

#[tokio::test]
async fn chunks_are_joined_without_their_framing() {
    let (server, dictate, _) = dictated(CHUNKED).await;
    dictate.send("3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n").await.unwrap();
    assert_eq!(text(client().send(get(server.url("/"))).await.unwrap()).await, "abcde");
}

#[tokio::test]
async fn events_arrive_as_they_are_sent_and_reads_are_cancel_safe() {
    let (server, dictate, left) = dictated(EVENTS).await;
    let mut response = client().send(get(server.url("/"))).await.unwrap();
    for event in ["data: 1\n\n", "data: 2\n\n", "data: 3\n\n"] {
        {
            let mut abandoned = pin!(response.chunk());
            let polled = abandoned.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(polled.is_pending());
        }
        dictate.send(event).await.unwrap();
        assert_eq!(response.chunk().await.unwrap().unwrap(), event);
    }
    drop(response);
    left.notified().await;
}

#[tokio::test]
async fn reads_after_the_end_of_a_body_return_none() {
    let (server, dictate, _) = dictated(EVENTS).await;
    let mut response = client().send(get(server.url("/"))).await.unwrap();
    drop(dictate);
    assert!(response.chunk().await.unwrap().is_none());
    assert!(response.chunk().await.unwrap().is_none());
}

#[tokio::test]
async fn a_timeout_bounds_the_headers_of_a_stream_and_all_of_a_buffered_body() {
    let (server, dictate, _) = dictated(EVENTS).await;
    let timeout = Some(Duration::from_secs(1));
    let within = |server: &TestServer| Request { timeout, ..get(server.url("/")) };
    let client = client();
    let mut stream = client.send(within(&server)).await.unwrap();

    // This request starts later: when it times out, the timeout of the stream has passed too.
    let (other, _dictate_other, left) = dictated(EVENTS).await;
    let buffered = client.send(within(&other)).await.unwrap();
    let error = revealing_nothing(buffered.bytes(usize::MAX).await.unwrap_err());
    assert!(matches!(error, HttpError::TimedOut { .. }), "{error}");
    left.notified().await;

    dictate.send("late").await.unwrap();
    assert_eq!(stream.chunk().await.unwrap().unwrap(), "late");
}

#[tokio::test]
async fn dropping_a_request_closes_its_connection() {
    let (asked, left) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let server = {
        let (asked, left) = (Arc::clone(&asked), Arc::clone(&left));
        TestServer::raw(move |mut stream| {
            let (asked, left) = (Arc::clone(&asked), Arc::clone(&left));
            async move {
                read_head(&mut stream).await;
                asked.notify_one();
                assert!(stream.read_u8().await.is_err());
                left.notify_one();
            }
        })
        .await
    };
    let client = client();
    tokio::select! {
        _ = client.send(get(server.url("/"))) => panic!("the request ended before it was dropped"),
        () = asked.notified() => {}
    }
    left.notified().await;
}

#[tokio::test]
async fn data_before_an_abrupt_end_is_delivered() {
    for head in [CHUNKED, b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n"] {
        let (server, dictate, _) = dictated(head).await;
        let mut response = client().send(get(server.url("/s3cret"))).await.unwrap();
        let (sent, came) =
            if head == CHUNKED { ("3\r\nabc\r\n5\r\n", "abc") } else { ("abc", "abc") };
        dictate.send(sent).await.unwrap();
        drop(dictate);
        assert_eq!(response.chunk().await.unwrap().unwrap(), came);
        let error = revealing_nothing(response.chunk().await.unwrap_err());
        assert!(matches!(error, HttpError::BodyCutOff), "{error:?}");
        assert!(response.chunk().await.unwrap().is_none());
    }
}

#[tokio::test]
async fn a_reset_within_a_body_ends_it() {
    let server = TestServer::raw(|mut stream: TcpStream| async move {
        read_head(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n").await.unwrap();
        stream.set_zero_linger().unwrap();
    })
    .await;
    let response = client().send(get(server.url("/s3cret"))).await;
    // The reset may overtake the headers.
    let error = match response {
        Ok(response) => response.bytes(100).await.unwrap_err(),
        Err(error) => error,
    };
    let error = revealing_nothing(error);
    assert!(matches!(error, HttpError::BodyCutOff | HttpError::NoResponse), "{error:?}");
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused() {
    let server = TestServer::start(|_| async { answer(200, &[], "12345") }).await;
    let response = || async { client().send(get(server.url("/s3cret"))).await.unwrap() };
    assert_eq!(response().await.bytes(5).await.unwrap(), "12345");
    let error = revealing_nothing(response().await.bytes(4).await.unwrap_err());
    assert!(matches!(error, HttpError::BodyTooLarge { max: 4 }));

    // Refused because of its declared length: no byte of the body is ever sent.
    let (server, _dictate, left) = dictated(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n").await;
    let declared = client().send(get(server.url("/"))).await.unwrap();
    assert!(matches!(declared.bytes(98).await, Err(HttpError::BodyTooLarge { .. })));
    left.notified().await;

    let (server, dictate, _) = dictated(CHUNKED).await;
    dictate.send("5\r\n12345\r\n").await.unwrap();
    let undeclared = client().send(get(server.url("/"))).await.unwrap();
    assert!(matches!(undeclared.bytes(4).await, Err(HttpError::BodyTooLarge { .. })));
}

#[tokio::test]
async fn a_response_to_head_has_no_body_whatever_its_declared_length() {
    let (server, _dictate, _) = dictated(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n").await;
    let head = Request { method: "HEAD".into(), ..get(server.url("/")) };
    assert_eq!(client().send(head).await.unwrap().bytes(0).await.unwrap(), "");
}

/// Writes a body as fast as the client takes it, and counts the bytes that the kernel accepted.
async fn flood(mut stream: TcpStream, length: usize, sent: Arc<AtomicUsize>, full: Arc<Notify>) {
    read_head(&mut stream).await;
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let block = vec![b'x'; 256 << 10];
    let mut left = length;
    while left > 0 {
        match stream.try_write(&block[..block.len().min(left)]) {
            Ok(taken) => {
                left -= taken;
                sent.fetch_add(taken, Ordering::Relaxed);
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                full.notify_one();
                stream.writable().await.unwrap();
            }
            Err(_) => return,
        }
    }
}

/// The bytes in flight, in buffers of the kernel and the client, must not grow with the body.
async fn check_that_a_slow_reader_slows_the_server(length: usize) {
    const UNDER_WAY: usize = 16 << 20;
    let (sent, full) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let server = {
        let (sent, full) = (Arc::clone(&sent), Arc::clone(&full));
        TestServer::raw(move |stream| flood(stream, length, Arc::clone(&sent), Arc::clone(&full)))
            .await
    };
    let mut response = client().send(get(server.url("/"))).await.unwrap();
    full.notified().await;
    let mut read = 0;
    while let Some(piece) = response.chunk().await.unwrap() {
        assert!(!piece.is_empty() && piece.len() <= MAX_CHUNK_BYTES);
        // Inspecting every byte makes this reader the slower side.
        assert!(piece.iter().all(|byte| *byte == b'x'));
        read += piece.len();
        let under_way = sent.load(Ordering::Relaxed).saturating_sub(read);
        assert!(under_way < UNDER_WAY, "{under_way} bytes in flight after {read}");
    }
    assert_eq!(read, length);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_of_256_mib_slows_the_server() {
    check_that_a_slow_reader_slows_the_server(256 << 20).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "soak: reads 1 GiB, run by `just soak-counts`"]
async fn soak_a_slow_reader_of_1_gib_slows_the_server() {
    check_that_a_slow_reader_slows_the_server(1 << 30).await;
}
