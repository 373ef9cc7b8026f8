use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::super::client::Answer;
use super::super::test_support::{FakeClient, connected, listener, local_rules, rules, state};
use super::*;
use crate::network::policy::{Mode, Rules, Unnamed};

struct Program {
    stream: TcpStream,
    _gate: JoinSet<()>,
}

impl Program {
    async fn new(state: &Arc<GateState>) -> Self {
        let (stream, inside) = connected().await;
        let mut gate = JoinSet::new();
        gate.spawn(serve_proxy(Arc::clone(state), inside));
        Self { stream, _gate: gate }
    }

    async fn send(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).await.unwrap();
    }

    async fn read_to_end(&mut self) -> String {
        let mut text = String::new();
        self.stream.read_to_string(&mut text).await.unwrap();
        text
    }
}

async fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

/// Returns the response to a request. The client denies every question.
async fn respond(rules: Rules, request: &str) -> String {
    let state = state(rules, &FakeClient::answering(Answer::Deny { reason: "no".into() }));
    let mut program = Program::new(&state).await;
    program.send(request).await;
    let head = read_head(&mut program.stream).await;
    let mut lines = head.lines();
    let length = lines.find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    program.stream.read_exact(&mut body).await.unwrap();
    head + str::from_utf8(&body).unwrap()
}

async fn accept(server: &TcpListener) -> TcpStream {
    server.accept().await.unwrap().0
}

#[tokio::test]
async fn connect_opens_a_tunnel() {
    let (server, address) = listener().await;
    let state = state(local_rules(&["a.test"]), &FakeClient::silent());
    let mut program = Program::new(&state).await;
    let port = address.port();
    // The first bytes of the tunnel may directly follow the request.
    program
        .send(&format!("CONNECT a.test:{port} HTTP/1.1\r\nHost: a.test:{port}\r\n\r\nearly"))
        .await;
    let mut accepted = accept(&server).await;
    assert!(read_head(&mut program.stream).await.starts_with("HTTP/1.1 200"));
    let mut early = [0; 5];
    accepted.read_exact(&mut early).await.unwrap();
    assert_eq!(&early, b"early");
    accepted.write_all(b"answer").await.unwrap();
    drop(accepted);
    assert_eq!(program.read_to_end().await, "answer");
    assert_eq!((state.traffic.bytes_up(), state.traffic.bytes_down()), (5, 6));
}

#[tokio::test]
async fn a_refusal_names_its_reason_and_a_remedy() {
    let connect = "CONNECT other.org:443 HTTP/1.1\r\nHost: other.org:443\r\n\r\n";
    let deny = Rules { deny: vec!["other.org".parse().unwrap()], ..rules(&["a.test"]) };
    let limited = Rules { mode: Mode::Limited, ..rules(&["other.org"]) };
    let ask = Rules { unnamed: Unnamed::Ask, ..rules(&["a.test"]) };
    for (rules, code) in [
        (rules(&["a.test"]), "allowlist"),
        (deny, "denylist"),
        (limited, "method-policy"),
        (ask, "policy"),
    ] {
        let response = respond(rules, connect).await;
        assert!(response.starts_with("HTTP/1.1 403"), "{response}");
        let header = format!("\r\nx-proxy-error: blocked-by-{code}\r\n");
        assert!(response.contains(&header), "{response}");
        let (_, body) = response.split_once("\r\n\r\n").unwrap();
        assert!(body.contains("other.org:443") && body.contains("--allow-host"), "{body}");
        assert_eq!(body.lines().count(), 1);
    }
    let private = respond(rules(&["a.test"]), "CONNECT a.test:443 HTTP/1.1\r\n\r\n").await;
    assert!(private.contains("x-proxy-error: blocked-by-policy"), "{private}");
}

#[tokio::test]
async fn a_request_is_rewritten_and_the_connection_kept_alive() {
    let (server, address) = listener().await;
    let port = address.port();
    let state = state(local_rules(&["a.test"]), &FakeClient::silent());
    let mut program = Program::new(&state).await;
    for _ in 0..2 {
        program
            .send(&format!(
                "POST http://A.test:{port}/p?q HTTP/1.1\r\nHost: a.test:{port}\r\nX-Keep: 1\r\n\
                 Proxy-Authorization: Basic x\r\nConnection: keep-alive, X-Drop\r\nX-Drop: 1\r\n\
                 Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
            ))
            .await;
        let mut accepted = accept(&server).await;
        let head = read_head(&mut accepted).await;
        let lines: Vec<_> = head.trim_end().lines().collect();
        assert_eq!(lines[0], "POST /p?q HTTP/1.1");
        let mut headers: Vec<_> = lines[1..].iter().map(|line| line.to_lowercase()).collect();
        headers.sort();
        let host = format!("host: a.test:{port}");
        let expected = ["connection: close", &*host, "transfer-encoding: chunked", "x-keep: 1"];
        assert_eq!(headers, expected);
        let mut body = [0; 13];
        accepted.read_exact(&mut body).await.unwrap();
        assert_eq!(&body, b"3\r\nabc\r\n0\r\n\r\n");
        let response = "HTTP/1.1 201 Made\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok";
        accepted.write_all(response.as_bytes()).await.unwrap();
        let head = read_head(&mut program.stream).await.to_lowercase();
        assert!(head.starts_with("http/1.1 201"), "{head}");
        assert!(!head.contains("connection: close"), "{head}");
        let mut body = [0; 2];
        program.stream.read_exact(&mut body).await.unwrap();
        assert_eq!(&body, b"ok");
    }
}

#[tokio::test]
async fn content_length_with_chunked_encoding_closes_the_connection() {
    let (server, address) = listener().await;
    let port = address.port();
    for framing in [
        "Content-Length: 4\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 4",
    ] {
        let state = state(local_rules(&["a.test"]), &FakeClient::silent());
        let mut program = Program::new(&state).await;
        let smuggled = format!("GET http://a.test:{port}/smuggled HTTP/1.1\r\n\r\n");
        program
            .send(&format!(
                "POST http://a.test:{port}/ HTTP/1.1\r\n{framing}\r\n\r\n0\r\n\r\n{smuggled}"
            ))
            .await;
        let mut accepted = accept(&server).await;
        let head = read_head(&mut accepted).await.to_lowercase();
        assert!(head.contains("transfer-encoding: chunked"), "{head}");
        assert!(!head.contains("content-length"), "{head}");
        accepted.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.unwrap();
        let text = program.read_to_end().await;
        assert_eq!(text.matches("HTTP/1.1 ").count(), 1, "{text}");
    }
}

#[tokio::test]
async fn invalid_requests_are_answered_without_a_dial() {
    let huge = format!("GET http://a.test/ HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(70 << 10));
    let many = format!("GET http://a.test/ HTTP/1.1\r\n{}\r\n", "X: 1\r\n".repeat(101));
    for (request, status) in [
        ("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
        ("GET http://a.test/ HTTP/1.1\r\nHost: b.test\r\n\r\n", 400),
        ("GET https://a.test/ HTTP/1.1\r\n\r\n", 400),
        ("CONNECT a.test HTTP/1.1\r\n\r\n", 400),
        ("POST http://a.test/ HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 400),
        ("POST http://a.test/ HTTP/1.1\r\nContent-Length: 1, 2\r\n\r\n", 400),
        ("\x16\x03\x01\x02\r\n\r\n", 400),
        (&many, 431),
    ] {
        let response = respond(local_rules(&["a.test"]), request).await;
        assert!(response.starts_with(&format!("HTTP/1.1 {status}")), "{request}: {response}");
    }
    // The rest of an overlong head is not read, so a reset may overtake the response.
    let client = FakeClient::silent();
    let state = state(local_rules(&["a.test"]), &client);
    let Program { mut stream, mut _gate } = Program::new(&state).await;
    stream.write_all(huge.as_bytes()).await.ok();
    _gate.join_next().await.unwrap().unwrap();
    assert!(client.records().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_slow_head_times_out() {
    let state = state(local_rules(&["a.test"]), &FakeClient::silent());
    let Program { mut stream, mut _gate } = Program::new(&state).await;
    stream.write_all(b"GET http://a.test/ HTTP/1.1\r\n").await.unwrap();
    _gate.join_next().await.unwrap().unwrap();
}

#[tokio::test]
async fn unreachable_hosts_are_bad_gateways() {
    let (server, address) = listener().await;
    drop(server);
    let port = address.port();
    let rules = || local_rules(&["a.test", "gone.test"]);
    let connect = format!("CONNECT a.test:{port} HTTP/1.1\r\n\r\n");
    for request in [&connect, "GET http://gone.test/ HTTP/1.1\r\n\r\n"] {
        let response = respond(rules(), request).await;
        assert!(response.starts_with("HTTP/1.1 502"), "{response}");
    }
}

#[tokio::test]
async fn an_upgrade_becomes_a_tunnel() {
    let (server, address) = listener().await;
    let state = state(local_rules(&["a.test"]), &FakeClient::silent());
    let mut program = Program::new(&state).await;
    let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    let port = address.port();
    program.send(&format!("GET http://a.test:{port}/ HTTP/1.1\r\n{upgrade}")).await;
    let mut accepted = accept(&server).await;
    let head = read_head(&mut accepted).await.to_lowercase();
    assert!(head.contains("upgrade: websocket") && head.contains("connection: upgrade"), "{head}");
    let switching = format!("HTTP/1.1 101 Switching Protocols\r\n{upgrade}early");
    accepted.write_all(switching.as_bytes()).await.unwrap();
    assert!(read_head(&mut program.stream).await.starts_with("HTTP/1.1 101"));
    program.send("ping").await;
    let mut ping = [0; 4];
    accepted.read_exact(&mut ping).await.unwrap();
    drop(accepted);
    assert_eq!(program.read_to_end().await, "early");
}

#[tokio::test]
async fn limited_mode_forwards_no_upgrade() {
    let (server, address) = listener().await;
    let limited = Rules { mode: Mode::Limited, ..local_rules(&["a.test"]) };
    let state = state(limited, &FakeClient::silent());
    let mut program = Program::new(&state).await;
    let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    program.send(&format!("GET http://a.test:{}/ HTTP/1.1\r\n{upgrade}", address.port())).await;
    let mut accepted = accept(&server).await;
    let head = read_head(&mut accepted).await.to_lowercase();
    assert!(!head.contains("upgrade"), "{head}");
}

#[tokio::test]
async fn bodies_are_streamed_in_both_directions() {
    let (server, address) = listener().await;
    let port = address.port();
    let state = state(local_rules(&["a.test"]), &FakeClient::silent());
    let mut program = Program::new(&state).await;
    let length = 4 << 20;
    let head = "Connection: close\r\nContent-Length:";
    program.send(&format!("PUT http://a.test:{port}/ HTTP/1.1\r\n{head} {length}\r\n\r\n")).await;
    let mut accepted = accept(&server).await;
    let request_head = read_head(&mut accepted).await;
    assert!(request_head.contains(&format!("{length}")), "{request_head}");
    let (mut from_program, mut to_program) = program.stream.split();
    let (mut from_gate, mut to_gate) = accepted.split();
    let (upload, mut received) = (vec![b'u'; length], vec![0; length]);
    let (sent, read) =
        tokio::join!(to_program.write_all(&upload), from_gate.read_exact(&mut received));
    sent.unwrap();
    read.unwrap();
    assert!(received == upload);
    let response = format!("HTTP/1.1 200 OK\r\n{head} {length}\r\n\r\n{}", "d".repeat(length));
    let mut text = String::new();
    let (sent, read) = tokio::join!(
        to_gate.write_all(response.as_bytes()),
        from_program.read_to_string(&mut text),
    );
    sent.unwrap();
    read.unwrap();
    assert!(text.ends_with(&"d".repeat(length)));
    assert!(state.traffic.bytes_up() > length as u64);
    assert!(state.traffic.bytes_down() > length as u64);
}
