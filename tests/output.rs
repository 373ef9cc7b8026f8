//! All output of a process arrives, in order, once.

use std::io::Read as _;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::{Client, Server, decoded, program, random_file, shell};

#[test]
fn pseudo_random_bytes_arrive_unchanged() {
    random_bytes(64 << 20);
}

#[test]
#[ignore = "soak: 1 GiB"]
fn soak_pseudo_random_bytes_arrive_unchanged() {
    random_bytes(1 << 30);
}

fn random_bytes(len: usize) {
    let directory = tempfile::tempdir().unwrap();
    let file = random_file(directory.path(), len);
    let server = Server::start();
    let mut client = server.client();
    client.start(&program("cat", &["cat", file.to_str().unwrap()]));
    assert_output_is_file(&mut client, "cat", &file);
}

/// Compares chunk by chunk, to keep memory bounded.
fn assert_output_is_file(client: &mut Client, process: &str, file: &Path) {
    let mut expected =
        std::io::BufReader::with_capacity(1 << 20, std::fs::File::open(file).unwrap());
    let mut buffer = Vec::new();
    for seq in 1.. {
        let event = client.event_of(process);
        assert_eq!(event["params"]["seq"], seq, "the numbers have no gap");
        if event["method"] != "process/output" {
            assert_eq!(event["method"], "process/exited");
            break;
        }
        let chunk = decoded(&event["params"]["chunk"]);
        assert!(!chunk.is_empty() && chunk.len() <= 256 << 10, "{} bytes", chunk.len());
        buffer.resize(chunk.len(), 0);
        expected.read_exact(&mut buffer).unwrap();
        assert!(chunk == buffer, "the bytes differ in event {seq}");
    }
    assert_eq!(expected.read(&mut [0]).unwrap(), 0, "the output ended early");
    assert_eq!(client.event_of(process)["method"], "process/closed");
}

#[test]
fn stderr_continues_after_the_end_of_stdout() {
    let server = Server::start();
    let mut client = server.client();
    let end = client.run(&shell("both", "echo out; exec >&-; echo err >&2; echo more >&2; exit 2"));
    assert_eq!((end.stdout, end.stderr), (b"out\n".to_vec(), b"err\nmore\n".to_vec()));
    assert_eq!(end.exit_code, Some(2));
    let end = client.run(&shell("none", "exec >&- 2>&-; exit 3"));
    assert_eq!(end.exit_code, Some(3));
}

#[test]
fn every_byte_value_arrives_unchanged() {
    let server = Server::start();
    let mut client = server.client();
    let all: Vec<u8> = (0..=255).collect();
    let octal: String = all.iter().map(|byte| format!("\\{byte:03o}")).collect();
    assert_eq!(client.run(&program("bytes", &["printf", &octal])).stdout, all);
}

#[test]
fn reads_accept_extreme_numbers() {
    const EXTREMES: [u64; 3] = [0, 1, u64::MAX];
    let server = Server::start();
    let mut client = server.client();
    client.run(&shell("done", "printf hello"));
    for after in EXTREMES {
        for max in EXTREMES {
            for wait in EXTREMES {
                let params = json!({"processId": "done", "afterSeq": after, "maxBytes": max, "waitMs": wait});
                let read = client.call("process/read", params.clone());
                let seqs: Vec<u64> = seqs(&read);
                assert!(seqs.iter().all(|seq| *seq > after), "{params}: {read}");
                assert_eq!(seqs.len(), usize::from(after == 0), "{params}: {read}");
                assert_eq!(read["closed"], true);
            }
        }
    }
    client.start(&shell("quiet", "read line").with_stdin());
    let beyond =
        json!({"processId": "quiet", "afterSeq": u64::MAX, "waitMs": u64::MAX, "maxBytes": 0});
    let poll = client.request("process/read", beyond);
    client.call("environment/status", json!({}));
    assert!(!client.has_answer(poll), "the poll waits for an event");
    client.terminate("quiet");
    client.answer(poll).unwrap();
}

#[test]
fn max_bytes_bounds_a_read_and_next_seq_continues_it() {
    let server = Server::start();
    let mut client = server.client();
    let script = "for i in 1 2 3 4 5 6 7 8 9; do echo $i; read x; done";
    client.start(&shell("nine", script).with_stdin());
    for n in 1..=9 {
        let mut seen = 0;
        while seen < n {
            let read = client.call(
                "process/read",
                json!({"processId": "nine", "afterSeq": n - 1, "waitMs": 1000}),
            );
            seen = read["nextSeq"].as_u64().unwrap() - 1;
        }
        client.write("nine", "\n");
    }
    client.call("process/wait", json!({"processId": "nine"}));
    let (mut after, mut text) = (0, Vec::new());
    while after < 9 {
        let read = client
            .call("process/read", json!({"processId": "nine", "afterSeq": after, "maxBytes": 5}));
        let chunks = read["chunks"].as_array().unwrap();
        assert!((1..=2).contains(&chunks.len()), "{read}");
        chunks.iter().for_each(|chunk| text.extend(decoded(&chunk["chunk"])));
        after = read["nextSeq"].as_u64().unwrap() - 1;
    }
    assert_eq!(text, b"1\n2\n3\n4\n5\n6\n7\n8\n9\n");
    let single = client.call("process/read", json!({"processId": "nine", "maxBytes": 1}));
    assert_eq!(seqs(&single), [1], "at least one chunk is returned");
    assert_eq!(single["nextSeq"], 2);
}

fn seqs(read: &Value) -> Vec<u64> {
    let chunks = read["chunks"].as_array().unwrap();
    chunks.iter().map(|chunk| chunk["seq"].as_u64().unwrap()).collect()
}

#[test]
fn a_snapshot_keeps_head_and_tail() {
    let server = Server::start();
    let mut client = server.client();
    client.run(&shell("small", "echo out; echo err >&2"));
    let small = client.call("process/snapshot", json!({"processId": "small"}));
    assert_eq!(
        (decoded(&small["stdout"]), decoded(&small["stderr"])),
        (b"out\n".to_vec(), b"err\n".to_vec())
    );
    assert_eq!(
        (&small["truncated"], &small["running"], &small["exitCode"]),
        (&json!(false), &json!(false), &json!(0))
    );
    client.run(&shell("large", "echo head; yes | head -c 8000000; echo tail"));
    let large = client.call("process/snapshot", json!({"processId": "large"}));
    let stdout = decoded(&large["stdout"]);
    assert_eq!(large["truncated"], true);
    assert!(stdout.starts_with(b"head\n") && stdout.ends_with(b"tail\n"));
    assert!(stdout.len() < 4 << 20, "{} bytes", stdout.len());
    let terminal = shell("terminal", "printf screen").tty();
    client.run(&terminal);
    let terminal = client.call("process/snapshot", json!({"processId": "terminal"}));
    assert_eq!(decoded(&terminal["terminal"]), b"screen");
}
