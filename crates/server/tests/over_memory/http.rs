//! HTTP requests of a connection: streamed bodies, ids and cancellation.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use exec_server_server::ServerConfig;
use exec_server_test_support::{RpcClient, TestServer, decoded};
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// An HTTP server that sends an endless body, and reports when its client hangs up.
struct Endless {
    url: String,
    sent: Arc<AtomicUsize>,
    hung_up: mpsc::Receiver<()>,
}

impl Endless {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let sent = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&sent);
        let (ended, hung_up) = mpsc::channel(8);
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                let (counter, ended) = (Arc::clone(&counter), ended.clone());
                std::thread::spawn(move || {
                    send_for_ever(socket.unwrap(), &counter);
                    ended.blocking_send(()).unwrap();
                });
            }
        });
        Self { url, sent, hung_up }
    }
}

fn send_for_ever(mut socket: TcpStream, sent: &AtomicUsize) {
    let request = BufReader::new(socket.try_clone().unwrap());
    request.lines().find(|line| line.as_ref().unwrap().is_empty()).unwrap().unwrap();
    let piece = vec![b'x'; 64 << 10];
    let mut wrote = socket.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
    while wrote.is_ok() {
        wrote = socket.write_all(&piece);
        sent.fetch_add(piece.len(), Ordering::Relaxed);
    }
}

fn request(url: &str, id: &str, extra: &Value) -> Value {
    let mut params = json!({"method": "GET", "url": url, "requestId": id, "streamResponse": true});
    params.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    params
}

async fn open_client() -> (TestServer, RpcClient) {
    let server = TestServer::new(ServerConfig::default());
    let (client, _) = RpcClient::open(&server, json!({"clientName": "http"})).await;
    (server, client)
}

#[tokio::test]
async fn a_client_that_confirms_bounds_the_data_in_flight() {
    let (_server, mut client) = open_client().await;
    let endless = Endless::start();
    let asked = request(&endless.url, "r", &json!({"acks": true}));
    let head = client.call("http/request", asked).await.unwrap();
    assert_eq!((&head["status"], &head["bodyBase64"]), (&json!(200), &json!("")));

    let (mut seq, mut received, mut confirmed) = (0, 0, 0);
    while received < 32 << 20 {
        // The window is about 2 MiB, so at least 1 MiB arrives before any confirmation.
        while received - confirmed < 1 << 20 {
            let delta = client.notification().await;
            seq += 1;
            assert_eq!(delta["params"]["seq"], seq);
            received += decoded(&delta["params"]["deltaBase64"]).len();
        }
        let status = client.call("environment/status", json!({})).await.unwrap();
        assert_eq!(status, json!({"status": "ready"}));
        client.notify("http/request/ack", json!({"requestId": "r", "seq": seq})).await;
        confirmed = received;
    }
    let under_way = endless.sent.load(Ordering::Relaxed) - received;
    assert!(under_way < 32 << 20, "{under_way} bytes were read ahead");
}

#[tokio::test]
async fn an_id_has_only_one_stream_at_a_time() {
    let (_server, mut client) = open_client().await;
    let mut endless = Endless::start();
    let asked = request(&endless.url, "r", &json!({"acks": true}));
    client.call("http/request", asked.clone()).await.unwrap();
    assert_eq!(client.call("http/request", asked.clone()).await.unwrap_err()["code"], -32602);
    client.call("http/cancel", json!({"requestId": "r"})).await.unwrap();
    endless.hung_up.recv().await.unwrap();
    client.call("http/request", asked).await.unwrap();
}

#[tokio::test]
async fn cancelling_an_id_cancels_every_whole_request_with_it() {
    let (_server, mut client) = open_client().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let whole = request(&url, "r", &json!({"streamResponse": false}));
    // Two requests with one id, as some deployed clients send them.
    let asked = [
        client.request("http/request", whole.clone()).await,
        client.request("http/request", whole).await,
    ];
    let mut sockets = [listener.accept().await.unwrap().0, listener.accept().await.unwrap().0];
    client.call("http/cancel", json!({"requestId": "r"})).await.unwrap();
    for id in asked {
        let error = client.response(id).await.unwrap_err();
        assert_eq!((&error["code"], &error["data"]["kind"]), (&json!(-32600), &json!("cancelled")));
    }
    for socket in &mut sockets {
        tokio::io::AsyncReadExt::read_to_end(socket, &mut Vec::new()).await.unwrap();
    }
}

#[tokio::test]
async fn the_id_of_a_stream_cannot_be_used_for_a_whole_response() {
    let (_server, mut client) = open_client().await;
    let mut endless = Endless::start();
    let asked = request(&endless.url, "r", &json!({"acks": true}));
    client.call("http/request", asked).await.unwrap();
    let whole = request(&endless.url, "r", &json!({"streamResponse": false}));
    let refused = client.call("http/request", whole).await.unwrap_err();
    assert_eq!(
        (&refused["code"], &refused["data"]["kind"]),
        (&json!(-32602), &json!("duplicateId"))
    );
    client.call("http/cancel", json!({"requestId": "r"})).await.unwrap();
    endless.hung_up.recv().await.unwrap();
}

#[tokio::test]
async fn no_notification_follows_a_cancelled_request() {
    let (_server, mut client) = open_client().await;
    let endless = Endless::start();
    for _ in 0..20 {
        let asked = request(&endless.url, "r", &json!({}));
        client.call("http/request", asked).await.unwrap();
        let cancel = client.request("http/cancel", json!({"requestId": "r"})).await;
        client.response(cancel).await.unwrap();
        client.forget_notifications();
        client.call("environment/status", json!({})).await.unwrap();
        assert!(client.has_no_notification(), "a cancelled body continues");
    }
}

#[tokio::test]
async fn a_stream_ends_with_its_connection() {
    let (_server, mut client) = open_client().await;
    let mut endless = Endless::start();
    let asked = request(&endless.url, "r", &json!({"acks": true}));
    client.call("http/request", asked).await.unwrap();
    client.cut().await;
    endless.hung_up.recv().await.unwrap();
}

#[tokio::test]
async fn a_client_that_does_not_read_stalls_its_download() {
    let (server, mut client) = open_client().await;
    let endless = Endless::start();
    client.call("http/request", request(&endless.url, "r", &json!({}))).await.unwrap();
    // While another client gets thousands of responses, the download fills only the buffers on its
    // way.
    let (mut other, _) = RpcClient::open(&server, json!({"clientName": "other"})).await;
    for _ in 0..5000 {
        other.call("environment/status", json!({})).await.unwrap();
    }
    let sent = endless.sent.load(Ordering::Relaxed);
    assert!(sent < 64 << 20, "{sent} bytes were read for a client that reads nothing");
    let first = client.notification().await;
    assert_eq!(first["params"]["seq"], 1);
}

#[tokio::test]
async fn errors_do_not_reveal_the_url() {
    let (_server, mut client) = open_client().await;
    for (url, code) in [("ftp://secret/", -32602), ("http://127.0.0.1:1/secret", -32603)] {
        let params = json!({"method": "GET", "url": url, "requestId": "r"});
        let error = client.call("http/request", params).await.unwrap_err();
        assert_eq!(error["code"], code, "{error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}
