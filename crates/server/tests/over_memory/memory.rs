//! The memory of the server stays bounded, by its own count: `buffered_bytes` of connections and
//! `logged_bytes` of processes.

use exec_server_server::{Server, ServerConfig};
use exec_server_test_support::{RpcClient, Scratch, Served, TestServer, decoded, uri};
use exec_server_transport::lines;
use serde_json::{Value, json};
use tokio::io::{duplex, split};

const MIB: usize = 1 << 20;

/// Opens a client whose connection buffers little, so that unread data stays in the server.
pub(crate) async fn open_over_pipe(server: &Server, params: Value) -> RpcClient {
    let (near, far) = duplex(16 << 10);
    let ((read, write), (served_read, served_write)) = (split(near), split(far));
    let server = server.clone();
    let serving = tokio::spawn(async move { server.serve(lines(served_read, served_write)).await });
    let mut client = RpcClient::over(Served { connection: lines(read, write), serving });
    client.initialize(params).await;
    client
}

pub(crate) fn io_count(pid: &str, name: &str) -> u64 {
    let counters = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap();
    counters.lines().find_map(|line| line.strip_prefix(name)).unwrap().parse().unwrap()
}

#[tokio::test]
async fn one_byte_writes_arrive_and_memory_stays_bounded() {
    one_byte_writes(100_000).await;
}

#[tokio::test]
#[ignore = "soak: a million one-byte writes, run by `just soak-counts`"]
async fn soak_one_byte_writes_arrive_and_memory_stays_bounded() {
    one_byte_writes(1_000_000).await;
}

async fn one_byte_writes(count: usize) {
    const RETAINED: usize = 16 << 10;
    // The retained bytes do not include the newest chunk, which is at most as large as the pipe.
    const PIPE: usize = 64 << 10;
    let config =
        ServerConfig { retained_output_bytes_per_process: RETAINED, ..ServerConfig::default() };
    let server = TestServer::new(config);
    let mut client = open_over_pipe(&server, json!({})).await;
    // Unbuffered: each byte is a separate write.
    let script = format!(
        "dd if=/dev/zero bs=1 count={count} 2>/dev/null | tr '\\0' x | dd bs=1 2>/dev/null"
    );
    client.start("bytes", &script, json!({})).await;
    let mut received = 0;
    loop {
        let event = client.notification().await;
        match event["method"].as_str().unwrap() {
            "process/output" => {
                let chunk = decoded(&event["params"]["chunk"]);
                assert!(chunk.iter().all(|byte| *byte == b'x'));
                received += chunk.len();
            }
            "process/closed" => break,
            _ => {}
        }
        let held = server.logged_bytes() + server.buffered_bytes();
        assert!(held <= RETAINED + PIPE, "{held} bytes");
    }
    assert_eq!(received, count);
}

#[tokio::test]
async fn a_stalled_client_costs_little_memory_and_gets_everything_afterwards() {
    const SPILL: u64 = 32 << 20;
    // The newest chunk is not included in the retained bytes.
    const CHUNK: usize = 256 << 10;
    let config = ServerConfig { spill_output_bytes_per_process: SPILL, ..ServerConfig::default() };
    let retained = config.retained_output_bytes_per_process;
    let server = TestServer::new(config);
    let directory = Scratch::new();
    let pid = directory.path("pid");
    let mut stalled = open_over_pipe(&server, json!({"acks": true})).await;
    let script = format!("echo $$ > {}; exec yes", pid.display());
    stalled.start("yes", &script, json!({})).await;
    let (mut other, _) = RpcClient::open(&server, json!({})).await;
    let mut written = 0;
    while written <= SPILL {
        other.call("environment/status", json!({})).await.unwrap();
        let pid = std::fs::read_to_string(&pid).unwrap_or_default();
        written = if pid.is_empty() { 0 } else { io_count(pid.trim(), "wchar: ") };
        let held = server.logged_bytes() + server.buffered_bytes();
        assert!(held <= retained + CHUNK, "{held} bytes");
    }
    other.start("other", "echo fine", json!({})).await;
    let event = other.notification().await;
    assert_eq!(decoded(&event["params"]["chunk"]), b"fine\n");

    let mut received = 0;
    for seq in 1.. {
        let event = stalled.notification().await;
        assert_eq!(event["params"]["seq"], seq);
        let chunk = decoded(&event["params"]["chunk"]);
        let expected = b"y\n".iter().cycle().skip((received % 2) as usize);
        assert!(chunk.iter().zip(expected).all(|(byte, expected)| byte == expected));
        received += chunk.len() as u64;
        stalled.notify("process/ack", json!({"processId": "yes", "seq": seq})).await;
        if received > SPILL + (8 << 20) {
            break;
        }
    }
    let ended = stalled.call("process/terminate", json!({"processId": "yes"})).await.unwrap();
    assert_eq!(ended, json!({"running": true}));
}

/// Waits until the server has stopped working for a silent client. Returns the peak of
/// `buffered_bytes`.
async fn most_buffered(server: &Server, silent: &mut RpcClient, call: (&str, Value)) -> usize {
    let (mut other, _) = RpcClient::open(server, json!({})).await;
    let (mut before, mut most) = (0, 0);
    while before == 0 || before != server.buffered_bytes() {
        before = server.buffered_bytes();
        for _ in 0..3 {
            other.call(call.0, call.1.clone()).await.unwrap();
            most = most.max(server.buffered_bytes());
        }
        assert!(
            !silent.wire().serving.is_finished(),
            "the connection was closed, with {before} bytes"
        );
    }
    most
}

#[tokio::test]
async fn a_client_that_requests_names_and_reads_nothing_costs_bounded_memory() {
    // Each response takes four megabytes; together they exceed what may be collected at once.
    const REQUESTS: usize = 20;
    // 64 MiB of names that are being collected, one response that is being sent, and one queued.
    const BOUND: usize = (64 + 2 * 5) * MIB;
    let top = Scratch::in_memory();
    let deep = top.directory(["x".repeat(240).as_str(); 15].join("/"));
    for number in 0..1200 {
        top.file(deep.join(number.to_string()), "");
    }
    let config = ServerConfig { max_buffered_bytes: 1 << 30, ..ServerConfig::default() };
    let server = TestServer::new(config);
    for (method, params) in [
        ("fs/readDirectory", json!({"path": uri(&deep)})),
        ("fs/walk", json!({"path": uri(top.root())})),
    ] {
        let mut stalled = open_over_pipe(&server, json!({})).await;
        let mut asked = Vec::new();
        for _ in 0..REQUESTS {
            asked.push(stalled.request(method, params.clone()).await);
        }
        let most = most_buffered(&server, &mut stalled, (method, params)).await;
        assert!(most <= BOUND, "{method}: {most} bytes");
        for id in asked {
            stalled.response(id).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_client_that_requests_a_lot_and_reads_nothing_costs_little_memory() {
    const BLOCK: usize = MIB;
    const BLOCKS: usize = 64;
    // 8 MiB of responses that are being built; one that is being sent; 1 MiB of queued ones, above
    // which requests wait; and one more that was queued just below that limit. All in base64.
    const BOUND: usize = (8 + 1 + 1 + 1) * MIB * 4 / 3 + MIB;
    let directory = Scratch::new();
    let content: Vec<u8> = (0..BLOCK * BLOCKS).map(|at| (at / BLOCK).to_le_bytes()[0]).collect();
    directory.file("file", &content);
    directory.file("small", &content[..BLOCK]);
    let server = TestServer::new(ServerConfig::default());
    let mut client = open_over_pipe(&server, json!({})).await;
    let open = json!({"path": directory.uri("file"), "handleId": "h"});
    client.call("fs/open", open).await.unwrap();
    let (mut blocks, mut files) = (Vec::new(), Vec::new());
    for number in 0..BLOCKS {
        let block = json!({"handleId": "h", "offset": number * BLOCK, "len": BLOCK});
        blocks.push(client.request("fs/readBlock", block).await);
        files.push(client.request("fs/readFile", json!({"path": directory.uri("small")})).await);
    }
    let most = most_buffered(&server, &mut client, ("environment/status", json!({}))).await;
    assert!(most <= BOUND, "{most} bytes");
    for (number, id) in blocks.into_iter().enumerate() {
        let block = client.response(id).await.unwrap();
        assert!(decoded(&block["chunk"]) == content[number * BLOCK..][..BLOCK], "{number}");
    }
    for id in files {
        let file = client.response(id).await.unwrap();
        assert!(decoded(&file["dataBase64"]) == content[..BLOCK]);
    }
}
